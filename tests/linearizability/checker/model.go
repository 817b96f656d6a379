package main

import (
	"hash/fnv"
	"slices"

	"github.com/anishathalye/porcupine"
)

// A partition log. An append of records that the log has already is the repetition of an idempotent producer: it
// returns their offset. A fetch returns the high watermark, which is the end of the log, and records from its
// offset on. If a recently elected leader does not know the end yet and the fetch says so, the high watermark may be
// lower (KIP-207).
type appendCall struct{ records []string }
type appended struct {
	// Offset is nil for a repetition so late that the log no longer knows where the first one is.
	Offset *int `json:"offset"`
}
type fetchCall struct{ offset int }
type fetched struct {
	Records       []string `json:"records"`
	HighWatermark int      `json:"high_watermark"`
	EndKnown      bool     `json:"end_known"`
}

// The offset that a consumer group committed for a partition.
type commitCall struct{ offset int }
type committedCall struct{}
type committed struct {
	// Offset is -1 before the first commit.
	Offset int `json:"offset"`
}

// model returns the sequential specification of the object that these calls are about.
func model(history []porcupine.Operation) porcupine.Model {
	switch history[0].Input.(type) {
	case commitCall, committedCall:
		return groupModel
	}
	return logModel
}

var logModel = porcupine.Model{
	Init:  func() any { return []string{} },
	Step:  stepLog,
	Equal: func(a, b any) bool { return slices.Equal(a.([]string), b.([]string)) },
	Hash: func(state any) uint64 {
		hash := fnv.New64a()
		for _, record := range state.([]string) {
			hash.Write([]byte(record))
			hash.Write([]byte{0})
		}
		return hash.Sum64()
	},
}

func stepLog(state, input, output any) (bool, any) {
	log := state.([]string)
	switch asked := input.(type) {
	case appendCall:
		answer, returned := output.(*appended)
		at := slices.Index(log, asked.records[0])
		next := log
		if at < 0 {
			at = len(log)
			next = slices.Concat(log, asked.records)
		}
		return !returned || answer.Offset == nil || *answer.Offset == at, next
	case fetchCall:
		answer, returned := output.(*fetched)
		if !returned {
			return true, log
		}
		end := asked.offset + len(answer.Records)
		right := answer.HighWatermark <= len(log) && end <= answer.HighWatermark &&
			(answer.HighWatermark == len(log) || !answer.EndKnown) &&
			(len(answer.Records) > 0 || asked.offset == answer.HighWatermark) &&
			slices.Equal(log[asked.offset:end], answer.Records)
		return right, log
	}
	return false, log
}

var groupModel = porcupine.Model{
	Init: func() any { return -1 },
	Step: func(state, input, output any) (bool, any) {
		switch asked := input.(type) {
		case commitCall:
			return true, asked.offset
		case committedCall:
			answer, returned := output.(*committed)
			return !returned || answer.Offset == state.(int), state
		}
		return false, state
	},
	Hash: func(state any) uint64 { return uint64(state.(int)) },
}

// Judges histories of a partition log and of consumer groups with porcupine, a linearizability checker.
//
//	linearizable [-timeout 60s] histories.jsonl
//
// Each line of the file is one call: its history, the object it was made on, its arguments, when it was made and
// when it returned, and its answer. A call without a return may take effect at any time after it was made, or never.
// The program prints each history that is refused or undecided. Exit status: 0 when every history is linearizable,
// 1 when one is not, 2 when a history cannot be read or decided.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type call struct {
	History string          `json:"history"`
	Client  int             `json:"client"`
	Object  string          `json:"object"`
	Kind    string          `json:"kind"`
	Records []string        `json:"records"`
	Offset  int             `json:"offset"`
	Call    int64           `json:"call"`
	Return  *int64          `json:"return"`
	Answer  json.RawMessage `json:"answer"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "the longest time for one history")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	histories, order, err := read(flag.Arg(0))
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		os.Exit(2)
	}
	calls, refused, undecided := 0, 0, 0
	for _, name := range order {
		objects := histories[name]
		for _, object := range names(objects) {
			calls += len(objects[object])
			switch porcupine.CheckOperationsTimeout(model(objects[object]), objects[object], *timeout) {
			case porcupine.Illegal:
				refused++
				fmt.Printf("history %s: %s is not linearizable\n", name, object)
			case porcupine.Unknown:
				undecided++
				fmt.Printf("history %s: %s is undecided after %s\n", name, object, *timeout)
			}
		}
	}
	fmt.Printf("%d histories, %d calls: %d refused, %d undecided\n", len(order), calls, refused, undecided)
	if undecided > 0 {
		os.Exit(2)
	}
	if refused > 0 {
		os.Exit(1)
	}
}

// read returns the operations by history and object, and the histories in the order of the file.
func read(path string) (map[string]map[string][]porcupine.Operation, []string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	histories, order := map[string]map[string][]porcupine.Operation{}, []string{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for number := 1; lines.Scan(); number++ {
		var one call
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
		operation, err := one.operation()
		if err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
		if histories[one.History] == nil {
			histories[one.History] = map[string][]porcupine.Operation{}
			order = append(order, one.History)
		}
		histories[one.History][one.Object] = append(histories[one.History][one.Object], operation)
	}
	return histories, order, lines.Err()
}

func (one call) operation() (porcupine.Operation, error) {
	made := porcupine.Operation{ClientId: one.Client, Call: one.Call, Return: math.MaxInt64}
	var output any
	switch one.Kind {
	case "append":
		made.Input = appendCall{one.Records}
		output = &appended{}
	case "fetch":
		made.Input = fetchCall{one.Offset}
		output = &fetched{}
	case "commit":
		made.Input = commitCall{one.Offset}
		output = &struct{}{}
	case "committed":
		made.Input = committedCall{}
		output = &committed{}
	default:
		return made, fmt.Errorf("%q is no kind of call", one.Kind)
	}
	if one.Return != nil {
		if err := json.Unmarshal(one.Answer, output); err != nil {
			return made, err
		}
		made.Return, made.Output = *one.Return, output
	}
	return made, nil
}

func names(objects map[string][]porcupine.Operation) []string {
	found := make([]string, 0, len(objects))
	for name := range objects {
		found = append(found, name)
	}
	sort.Strings(found)
	return found
}

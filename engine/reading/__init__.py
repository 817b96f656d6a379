"""Reading: which replica and which files hold a range of a log, what a read may begin and end with, and some
records without Spark.

    positions              pure: places in a log and times, as callers write them at any door
    bounds, read_plan      pure: what a batch read is asked for, and what it comes to
    plan                   a replica's log and the remote log -> the exact files and their parts
    stream_*, admission    a stream's options, its offsets, and how much of the log a batch of it takes
    subscription           pure: which topics a stream reads, and which partitions of them
    damaged                pure: what is said of records that cannot be read, and going on to another copy
    replica_selector       which replica a reader reads from: the plugin of KIP-392, and the two that ship
    client                 who reads, and from which rack
    out_of_range           pure: what a fetch at an offset comes to, by what replica and leader hold
    offsets_for_epoch      pure: where a leader epoch ends, and whether a log is what a consumer has read
    records                the records of files: row groups by one ranged request each, remembered within a bound
    fetching               many fetches at once, local ones apart from remote ones
    cache                  what was used last, up to a bound

KIP-392, sentence by sentence. The page has two versions of the interface, the consumer's and the broker's; what
counts is the second, which is what Kafka ships (as ``client.rack`` and ``replica.selector.class``). Tests that
name a section are in test_operations_nearest, test_operations_fetch_nearest, test_reading_replica_selector and
test_reading_out_of_range; that planned reads and streams stay in their rack, too, in test_operations_plan_read and
test_operations_stream_source.

High watermark propagation
    "The leader will respond to a fetch immediately if the follower has a stale high watermark": a sync tells it
    also when there is nothing to copy (test). Fetch sessions, whose first request must not block, have no
    counterpart: a sync waits for nothing.
Out of range handling
    What is committed may be served by any replica at any time, what is not known to be, by none (tests). All cases
    are one function, ``out_of_range.fetch_answer``, and one table test: 1 uncommitted, 2 not there yet, 3 below
    the log start, 4 beyond the log end, a log start that moved, a leader elected of late. In Kafka the follower
    answers OFFSET_NOT_AVAILABLE or OFFSET_OUT_OF_RANGE, and the consumer asks the leader, or lists its offsets,
    to find out which is true; here the leader has been listed first, and what the follower cannot serve is the
    leader's at once. Only of the leader's own answer a reader hears: OFFSET_NOT_AVAILABLE is an error that may
    pass (test).
Finding the preferred follower
    The logic is "pluggable"; by default readers read from the leader (tests). "Invoked on every metadata update":
    here for every read, with listings made for it, so ``metadata.max.age.ms`` bounds nothing (test).
Consumer API
    ``client.rack``, none by default (test). ``replica.selection.policy`` has no counterpart: to set
    ``replica.selector.class`` is to opt in for all readers, to be in no rack is to opt out.
Broker API
    ``replica.selector.class``, ``configure``, ``select``, ``close`` (tests). "Only a recommendation": a replica
    that cannot serve is left alone, and none selected is the leader (tests); but a class that is not there, or
    raises, is an error, or all would read across racks without knowing. The rack-aware selector "choose[s] a
    replica randomly" in the text and the most caught-up one in Kafka, the leader first; so it does here (tests).
Protocol changes
    Fields of requests have no counterpart, for there are none: the rack, the preferred replica and the replica id
    -2 are arguments of a function call. "The current log start offset and high watermark are returned if the fetch
    offset is out of range": the error names them (test in test_operations_fetch). OffsetsForLeaderEpoch for
    consumers is limited to the high watermark, OFFSET_NOT_AVAILABLE while a new leader does not know it, and only
    the leader answers (tests); followers compare lineages instead (``engine.replication.sync``).
Compatibility
    "The consumer will revert to the old behavior of fetching from the leader": where a follower fails in the
    middle of a fetch (test).

A consumer that follows the end of a log is a loop over fetches (``engine.operations.reading.tail``).
"""

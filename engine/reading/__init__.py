"""Reading: the bounds of a read, the replica and files that hold the records, and reads without Spark.

    positions              pure: positions in a log and times, as callers write them
    bounds, read_plan      pure: the query of a batch read, and its plan
    plan                   a replica's log and the remote log -> the exact files and ranges
    client                 the reader's identity and rack
    look                   leaders and remote logs: the current content of a partition in both tiers
    list_offsets           ListOffsets and OffsetsForLeaderEpoch: offsets by name, time and leader epoch
    last                   the start of the last n records
    plan_read              a batch read as a pinned plan of file ranges
    fetch, tail            small reads without a JVM: records from an offset on, and records as they are appended
    tail_start             where a tail begins, and its options
    stream_options         pure: the topics and options of a stream, and the options of a batch read
    stream_offsets         pure: the offsets of a stream
    stream_tasks, admission   pure: the size of a stream's batch, and its tasks
    stream_source          plans triggers and batches on the driver; commits a stream's progress to its group
    range_plan             a stream's batch as ranges of offsets, for a scan
    stream_read            one task of a batch, on an executor

This package is above ``records``, because a read may begin at a group's committed offset.
``stratalog.engine.replicas.nearest`` selects the replica.

``docs/kips.md`` lists KIP-392 sentence by sentence, with the test for each.

A consumer that follows the end of a log is a loop over fetches (``stratalog.engine.reading.tail``).
"""

"""Reading: the bounds of a read, the replica and the files that hold it, and the records themselves without Spark.

    positions              pure: places in a log and times, as callers write them at any door
    bounds, read_plan      pure: the question of a batch read, and its plan
    plan                   a replica's log and the remote log -> the exact files and their parts
    client                 the reader, and its rack
    look                   leaders seen, remote logs loaded: what a partition holds now, in both tiers
    list_offsets           ListOffsets: named positions, and positions by time; the offset of a place
    last                   where the last n records begin
    offsets_for_epoch      OffsetsForLeaderEpoch, as consumers ask it
    plan_read              a batch: a pinned plan of file ranges
    fetch, tail            small reads without a JVM: records from an offset on, and the end as it moves
    subscription           pure: which topics a stream reads, and which partitions of them
    stream_options         pure: the options of a stream, and of a batch read
    stream_offsets         pure: its offsets
    stream_tasks, admission   pure: how much of the log a batch of it takes, and in which tasks
    stream_source          triggers and batches of a stream, and a batch read as one, planned on the driver
    range_plan             a batch as ranges of offsets, read by a scan instead of tasks of its own
    stream_read            a task of a batch, on an executor
    stream_progress        a consumer group is told how far the stream has come

Above ``records``: a read may begin where a group has committed. Which replica is read from stands below both
(``stratalog.engine.replicas.nearest``).

KIP-392, sentence by sentence, with the tests that hold each: ``docs/kips.md``.

A consumer that follows the end of a log is a loop over fetches (``stratalog.engine.reading.tail``).
"""

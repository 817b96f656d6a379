"""``make bench``: compares this log with the plainest tool that moves the same bytes.

Each benchmark takes a ``Bench``, does the same work alternately with this log and with its peer (A B A B, because
the speed of a machine varies), and returns lines of the table with the median and range of the turns. The times
include neither preparation nor the start of the session.

    options         what to measure, from the environment
    table           lines, limits, and the table of them
    measuring       turns and clocks
    bench           the environment of a benchmark: records, clusters in folders, files
    copying         replicate and tier to a folder, compared with cp + fsync
    uploading       tier to an S3 server, compared with a multipart upload
    appending       append, compared with repartition + write.parquet; the peak memory of a Python worker
    replicated      append with acks=all to three replicas, compared with writing the same Parquet three times
    hot             one partition of gigabytes in memory: copies with one core, and with all
    idle            one run of maintain over ten thousand idle partitions, and over some that have changed
    calls           storage calls of the protocol's operations, compared with the least possible
    counting        a store that reports every call
    remote_log      opening and planning over a hundred thousand remote segments
    scanning        scan, compared with spark.read.parquet; one column of twenty, compared with all
    mirroring       a Kafka topic mirrored here, compared with Kafka's MirrorMaker; the state of both copies after
                    kill -9
    mirror_maker    Kafka's MirrorMaker, as a process
    kafka_topics    fills and reads the topics of a Kafka broker
    bootstrapping   bootstrap from the last tiered offset on, compared with a full copy
    restoring       a cluster that lost all its brokers: until appends succeed, then until all are in the ISR
    quorum          commits of metadata, compared with plain files; many drivers at once
    large_cluster   KIP-630's million partitions: one small record, its replay, and later reads and commits
    checkpointing   generating and loading a snapshot of a million partitions, compared with the codec alone
    opening         opening a cluster that a driver remembers, compared with one without topics
    replaying       replaying small commits, compared with one snapshot
    state           a snapshot by Spark, compared with its own aggregation; commits of offsets, and lag
    growth          how the cost of each operation grows, without Spark
    growth_table    fits the growth of costs, and describes it in lines
    compaction      compactions by their dirty part, and of many keys: python -m bench.compaction
    hour            a producer for an hour, with only maintain running: python -m bench.hour
    shared_tail     a prototype, for docs/shared-tail.md: python -m bench.shared_tail
    serving         clients of Kafka, compared with a fetch: python -m bench.serving
    memory          the peak memory of worker processes, and of this process
    s3_server       a real S3 server on this machine, for tests too
"""

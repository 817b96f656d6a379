"""``make bench`` compares this log with the simplest tool that moves the same bytes.

Each benchmark takes a ``Bench``, does the same work alternately with this log and with its peer (A B A B, because
the speed of a machine varies), and returns lines of the table with the median and range of the turns. The times
include neither preparation nor the start of the session.

The frame:

    options         selects the benchmarks and their sizes, from the environment
    bench           the environment of a benchmark: records, clusters in folders, files
    measuring       turns and clocks
    memory          the peak memory of worker processes, and of this process
    counting        a store that reports every call
    table           lines, limits, and the table that they make
    page            the figures on the pages of docs
    s3_server       a real S3 server on this machine, for tests too
    cloud_servers   emulators of Azure's and Google's storage, for tests; cloud_gates adds what they lack
    kafka_server    a real Kafka broker on this machine
    kafka_topics    fills and reads the topics of a Kafka broker
    mirror_maker    Kafka's MirrorMaker, as a process

Benchmarks of ``make bench``:

    calls           storage calls of the protocol's operations, compared with the least possible
    latency         the round trips of an append, a fetch and a commit, and their time on slow storage
    rates           ingest and tiering per core; bytes written per appended byte
    appending       append, compared with repartition + write.parquet; the peak memory of a Python worker
    replicated      append with acks=all to three replicas, compared with writing the same Parquet three times
    typed           typed rows, compared with a Delta table
    copying         replicate and tier to a folder, compared with cp + fsync
    uploading       tier to an S3 server, compared with a multipart upload
    hot             one partition of gigabytes in memory: copies with one core, and with all
    idle            one run of maintain over ten thousand idle partitions, and over some that have changed
    remote_log      opening and planning over a hundred thousand remote segments
    expiring        ten thousand expired segments in a bucket, compared with plain bulk deletions
    scanning        scan, compared with spark.read.parquet; one column of twenty, compared with all
    planning        a plan of a read of a hundred thousand files
    ranges          a small range of offsets, compared with all; one hot partition on all cores
    kafka           append and scan, compared with Spark's Kafka connector
    mirroring       a Kafka topic mirrored here, compared with Kafka's MirrorMaker; the state of both copies after
                    kill -9
    streaming       triggers of a stream, empty and full
    remote_reads    reads of records that only the remote tier has
    bootstrapping   bootstrap from the last tiered offset on, compared with a full copy
    bootstrap_many  bootstrap of a thousand small partitions at the same time
    restoring       a cluster that lost all its brokers: until appends succeed, then until all are in the ISR
    quorum          commits of metadata, compared with plain files; many drivers at once
    large_cluster   KIP-630's million partitions: one small record, its replay, and later reads and commits
    checkpointing   generating and loading a snapshot of a million partitions, compared with the codec alone
    opening         opening a cluster that a driver remembers, compared with one without topics
    replaying       replaying small commits, compared with loading one snapshot
    state           a snapshot by Spark, compared with its own aggregation; commits of offsets, and lag
    growth          how the cost of each operation grows, without Spark; growth_table fits the growth
    costs           requests to a bucket; cost_table multiplies them by prices.toml

Programs of their own:

    compaction      compactions by their dirty part, and of many keys
    hour            a producer for an hour, with only maintain running
    in_a_row        appends to one partition, one directly after the other
    serving         a Kafka client, compared with a fetch
    kafka_tier      topics of a Kafka with tiered storage, mirrored through the broker and from their tier
    tier_decoding   decoding of Kafka's batches, compared with aiokafka
    s3_clients      three clients of S3, compared
    shared_tail     a prototype, for docs/shared-tail.md
"""

"""The cluster: metadata, controller, replication, reading, Spark.

Purpose
    Brokers are storage roots. The only processes are drivers, and the tasks that drivers start. This package has
    the code of drivers. A driver reads and commits the cluster's metadata, and plans work from listings. It runs
    this work as tasks keyed by partition, commits the results of the tasks, and reports. ``stratalog.Cluster`` is
    its entry point.

    The folders are layers: a module imports only from its own folder and from lower layers. From the lowest layer:

    config       the cluster file, and the configs of topics and of the cluster
    state        the engine's other state machines: offsets of groups, transactions, latest by key
    metadata     the cluster's state, and the commands that change it
    quorum       the log of the metadata, on the voters
    replication  the protocol's data plane, one partition at a time
    driver       one process's connection to a cluster, and the parts that every operation uses
    brokers      storage roots as brokers: probed, formatted, registered, fenced
    replicas     the replicas of a partition: in sync, damaged, or selected for reads
    records      appends, consumer groups, transactions
    reading      plans of scans, fetches, tails, the source of a stream
    upkeep       the jobs: replicate, tier, retain, snapshot, verify, heal, restore ...
    admin        changes by an operator, and tables that describe the cluster
    health       the problems that need an operator
    spark        the only part that imports pyspark
    cluster      ``Cluster``, the API for notebooks, jobs and tests

Where this differs from the design page
    * Operations are in separate layers between ``cluster`` (the API) and ``replication`` (the protocol). Each
      operation is *plan, tasks, commit, report*, and is the same for a job and a notebook.
    * A key without an explicit partition is hashed by Spark's ``hash``, unless the topic's ``partitioner`` is a
      hash of Kafka's clients. Spark's hash runs inside the shuffle, without a Python process, and supports all
      types.
"""

if __name__ != "stratalog.engine":
    raise ImportError('import "stratalog.engine", not "engine": under two names each module would be loaded twice')

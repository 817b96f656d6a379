"""The cluster: metadata, controller, replication, reading, Spark.

Purpose
    Brokers are storage roots; whatever runs is a driver, or a task that a driver has started. This package
    holds the drivers' code: it reads and commits the cluster's metadata, plans work from listings, runs it
    as tasks keyed by partition, commits what the tasks did, and reports. ``stratalog.Cluster`` is its door.

    The folders are floors, and a module imports only from its own and those below it; from below:

    config       what is configured, and where
    state        the engine's other state machines: offsets of groups, transactions, latest by key
    metadata     the cluster's state, and how it may change
    quorum       ... and its log, on the voters
    replication  the protocol's data plane, one partition at a time
    driver       one process's hold on a cluster: what every operation works with
    brokers      storage roots as brokers: probed, formatted, registered, fenced
    replicas     who is in sync, who is damaged, who is read from
    records      appends, consumer groups, transactions
    reading      plans of scans, fetches, tails, the source of a stream
    upkeep       the jobs: replicate, tier, retain, snapshot, verify, heal, restore ...
    admin        questions and changes of an operator, and tables of answers
    health       what needs a person: one look, and a list
    spark        the only part that imports pyspark
    cluster      the door: what a notebook, a job, and a test hold

May not know
    Command lines, sessions, terminals: those are ``jobs``.

Where this differs from the design page
    * Operations stand on floors of their own between ``cluster`` (the door) and ``replication`` (the protocol):
      each is *plan, tasks, commit, report*, and the same for a job and a notebook.
    * A key without an explicit partition is hashed by Spark's ``hash``, not by Kafka's murmur2 of its bytes:
      it runs inside the shuffle, and typed keys have no canonical bytes.
"""

if __name__ != "stratalog.engine":
    raise ImportError('write "stratalog.engine", not "engine": under two names each module would be there twice')

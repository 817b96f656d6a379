"""The jobs as functions: plan, run tasks keyed by partition, commit in batches, report.

    appending      a DataFrame -> acknowledged offsets
    transactions   several appends, and offsets of a group, all or nothing
    reading        a range of a topic as a DataFrame, as Arrow; ListOffsets
    streaming      a topic as the source of a stream
    groups         what consumer groups have committed, and their lag
    replicas       replicate, merge, elect, reassign, bootstrap
    brokers        the probe of every root at the start of a run; in and out of service
    tiering        sealed segments -> the remote table
    retention      what leaves the log, and what is swept up behind it
    snapshots      short logs of topics that are state, and of the metadata
    verification   replicas and the remote against each other; healing: mended
    restoring      a cluster from its remote tier alone
    topics, quorum, describe, describe_cluster: administration, and tables about all of it
    state_log      the engine's own topics; known_image: the metadata as last seen
    while_it_changes  a look is taken again, while others change what is looked at

Each takes a ``Context``. Tasks create files, those of ``retention`` also delete what no log can need again; all
are harmless when run twice. Whatever commits, to the metadata or to the remote table, runs on the driver.
"""

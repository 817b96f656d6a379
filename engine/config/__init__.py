"""Configuration: the cluster file, and the configs of topics and of the cluster. Pure, but for the two files that
are read.

    cluster_file          ``cluster.toml``: the brokers, their roots, the voters, the remote tier
    file_place            where it lies: on this machine, or in a bucket
    storage_tables        how each root is reached
    roots                 the roots beside each other
    key_source            where a process has the cluster's key from
    definition            what a config key is: its type, its default, its bounds
    topic_config          the keys of a topic, each stated once
    cluster_config        the keys of the cluster
    mirrored              topics that nobody but the mirror appends to
    kafka_keys            what becomes of those of Kafka
    bridges               parts beside the log, found by name
    settings              what applies to a topic, to the cluster

The lowest floor of ``engine``: it imports no other one.
"""

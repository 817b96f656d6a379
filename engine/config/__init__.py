"""Configuration: the cluster file, and the configs of topics and of the cluster. Pure, except for reading two
files.

    cluster_file      ``cluster.toml``: the brokers, their roots, the voters, the remote tier; no two roots overlap
    file_place        the location of the cluster file
    storage_tables    storage options of each root
    key_source        the source of the cluster key in a process
    definition        the definition of a config key: type, default, bounds
    topic_config      the configs of a topic
    cluster_config    the configs of the cluster
    mirrored          checks for topics to which only a mirror appends
    bridges           finds installed bridges by name
    settings          resolves the configs that apply; explains Kafka's keys that have no effect here

This is the lowest layer of ``engine``: it imports no other package of ``engine``.
"""

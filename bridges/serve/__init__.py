"""Topics of this cluster for clients of Kafka, which read them by Kafka's protocol: ``cluster.serve``.

    protocol   pure: requests and answers by name, of ``aiokafka.protocol``; which ones there are
    messages   pure: those that aiokafka does not have
    batches    pure: rows of a fetch as Kafka's record batches, by ``aiokafka.record``
    codes      errors as Kafka's numbers
    metadata   Metadata, FindCoordinator, ListOffsets
    refusing   Produce, InitProducerId and ConsumerGroupHeartbeat, which are refused
    fetching   Fetch, and its waits
    groups     OffsetFetch, OffsetCommit and DeleteGroups
    members    JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    describing DescribeConfigs, ListGroups, DescribeGroups
    endpoint   the server: connections, limits, TLS

Purpose
    A topic can be read where there is no Spark and no Python, out of cold storage too. It is a door for reading:
    the only thing that a client can change is what a consumer group has committed.

May not know
    Segments, tiers, replicas: records come from ``reading.fetch``, which knows them, and has the caches and the
    quota.

Members of groups
    They are known to one endpoint, in its memory. Python has no library with a group coordinator, so this one is
    our own, of the classic protocol; consumers bring the assignors (``docs/serve.md``).

A stranger's bytes
    They are decoded by code that checks every length against what has come, in a frame of bounded size. A name is
    looked up, and compared with no others. A request that cannot be decoded ends the connection that it came from.
"""

"""Serves topics of this cluster to Kafka clients by Kafka's protocol: ``cluster.serve``.

    protocol   pure: requests and answers as named fields, by ``aiokafka.protocol``; the supported versions
    messages   pure: messages that aiokafka lacks
    batches    pure: rows of a fetch as Kafka's record batches, by ``aiokafka.record``
    codes      Kafka's error numbers
    metadata   Metadata, FindCoordinator, ListOffsets
    refusing   the refusals of Produce, InitProducerId and ConsumerGroupHeartbeat
    fetching   Fetch, and its waits
    groups     OffsetFetch, OffsetCommit and DeleteGroups
    members    JoinGroup, SyncGroup, Heartbeat, LeaveGroup
    describing DescribeConfigs, ListGroups, DescribeGroups
    endpoint   the server: connections, limits, TLS

Purpose
    Clients without Spark and Python can read a topic, including its records in the remote tier. Clients cannot
    change anything except the committed offsets of consumer groups.

Records
    Records come from ``reading.fetch``, with its caches and its quota.

Members of groups
    Members of groups exist only in the memory of one endpoint. No Python library has a group coordinator, so this
    package implements a coordinator for the classic protocol. Consumers have the assignors (``docs/serve.md``).

Untrusted bytes
    The decoder checks every length against the received bytes, in a frame of bounded size. Names are looked up
    directly, not by comparing them with all other names. A request that cannot be decoded ends its connection.
"""

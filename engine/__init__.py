"""The cluster: metadata, controller, replication, reading, Spark. The public door of the product.

Purpose
    Brokers are storage roots; whatever runs is a driver, or a task that a driver has started. This package
    holds the drivers' code: it reads and commits the cluster's metadata, plans work from listings, runs it
    as tasks keyed by partition, commits what the tasks did, and reports.

        from engine import Cluster
        cluster = Cluster.open("conf/cluster.toml", spark)
        cluster.append(df, "flights", key="tailnum", timestamp="time_hour", producer="loader", sequence=7)
        cluster.read("flights", start=1000).where("value.carrier = 'UA'")

    cluster_file, settings     what is configured, and where
    metadata, quorum           the cluster's state and its log
    replication                the protocol's data plane, one partition at a time
    state                      the engine's other state machines: offsets of groups, transactions, latest by key
    reading                    plans of scans
    operations                 what can be done with a cluster, a package for each kind
    spark                      the only part that imports pyspark

May not know
    Command lines, sessions, terminals: those are ``jobs``.

Where this differs from the design page
    * Operations are a folder of their own between ``cluster`` (the door) and ``replication`` (the protocol):
      each is *plan, tasks, commit, report*, and the same for a job and a notebook.
    * A key without an explicit partition is hashed by Spark's ``hash``, not by Kafka's murmur2 of its bytes:
      it runs inside the shuffle, and typed keys have no canonical bytes.
"""

from engine.cluster import Cluster
from engine.cluster_file import ClusterFile, load_cluster_file
from engine.cluster_stream import register_format
from engine.reading.bounds import Committed
from engine.reading.positions import FirstAt
from engine.report import Failure, OperationFailedError, Report
from engine.state.group_commits import OffsetAndMetadata
from partitions.errors import StratalogError
from partitions.offsets import FoundOffset, OffsetSpec, UnknownOffset

__all__ = [
    "Cluster",
    "ClusterFile",
    "Committed",
    "Failure",
    "FirstAt",
    "FoundOffset",
    "OffsetAndMetadata",
    "OffsetSpec",
    "OperationFailedError",
    "Report",
    "StratalogError",
    "UnknownOffset",
    "load_cluster_file",
    "register_format",
]

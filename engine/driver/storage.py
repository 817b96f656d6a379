"""The storage of a cluster for operations: the brokers' roots, the remote tier, and the cluster file that names
both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import RemotePart
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import NewId, TopicIdPartition
from stratalog.partitions.probing import Prober, ThreadProber
from stratalog.partitions.runner import Runner, ThreadRunner
from stratalog.partitions.store import Store, StoreCounts, StoreOptions
from stratalog.partitions.store.address import scheme_of
from stratalog.tiering.remote_log import RemoteLog

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable
    from stratalog.tiering.iceberg_table import IcebergTable
    from stratalog.tiering.snapshot_table import SnapshotTable
    from stratalog.tiering.topic_table import TopicTable

COPY_THREADS = 4
"""Concurrent copies within one task."""

_Table = TypeVar("_Table", bound="TopicTable")


def _read_remote_log(
    remote: Store, topic: str, topic_id: str, cluster_id: str, options: StoreOptions, clock: Clock
) -> RemoteLog:
    from stratalog.tiering.delta_table import DeltaTopicTable  # here: it loads delta-rs

    table = DeltaTopicTable(
        remote, topic=topic, topic_id=topic_id, cluster_id=cluster_id, options=options, clock=clock
    )
    return table.load()


@dataclass(slots=True)
class Storage:
    """One driver's access to the roots and to the remote tier."""

    file: ClusterFile
    stores: Mapping[int, Store]
    """Keyed by broker."""
    remote: Store | None
    table_clock: Clock
    """The clock of the remote tables."""
    new_id: NewId
    rng: random.Random
    threads: Runner
    """Runs small storage calls of the driver."""
    copies: Runner = field(default_factory=lambda: ThreadRunner(COPY_THREADS))
    """Runs the copies within one task; pickled with the task."""
    prober: Prober = field(default_factory=ThreadProber)
    """Asks roots whether they exist, without waiting for hanging roots."""
    key: ClusterKey | None = None
    """The key that signs metadata and descriptions; None: they are not signed, or this process only reads."""
    elsewhere: Callable[[], StoreCounts] = StoreCounts
    """Returns the storage calls of tasks on executors so far."""
    foreign: dict[tuple[TopicIdPartition, int], frozenset[str]] = field(default_factory=dict)
    """Keyed by partition and generation: see ``PartitionReplicas.foreign``."""

    def replicas(self, view: PartitionView) -> PartitionReplicas:
        """A partition with the stores of its brokers."""
        stores = {broker: self.stores[broker] for broker in view.replicas if broker in self.stores}
        remote = None
        if view.tiered and self.remote is not None:
            folder, read = paths.topic_folder(view.topic, view.topic_id), self.read_remote_log(view)
            remote = RemotePart(self.remote, folder, view.partition, read)
        return PartitionReplicas(view, stores, remote, self.foreign.get((view.key, view.generation), frozenset()))

    def replicas_of(self, image: ClusterImage, topics: Iterable[TopicImage]) -> list[PartitionReplicas]:
        return [self.replicas(view) for topic in topics for view in image.views(topic.name)]

    def read_remote_log(self, view: PartitionView) -> Callable[[], RemoteLog]:
        """A function that reads the remote log of a partition's topic, here or on an executor."""
        assert self.remote is not None
        file = self.file
        return partial(
            _read_remote_log,
            *(self.remote, view.topic, view.topic_id, file.cluster_id, file.remote_storage, self.table_clock),
        )

    def remote_store(self, why: str) -> Store:
        """The store of the remote tier.

        Raises: InvalidCallError when the cluster file names none.
        """
        if self.remote is None:
            raise InvalidCallError(f"{why}, but the cluster file has no [cluster] remote")
        return self.remote

    def remote_table(self, topic: TopicImage) -> DeltaTopicTable:
        # Imported here, because it loads delta-rs, which clusters without a remote tier do not need.
        from stratalog.tiering.delta_table import DeltaTopicTable

        return self._topic_table(DeltaTopicTable, topic, "is tiered (remote.storage.enable)")

    def snapshot_table(self, topic: TopicImage) -> SnapshotTable:
        """The table of the latest record of each key of a topic."""
        from stratalog.tiering.snapshot_table import SnapshotTable  # here: it loads delta-rs

        return self._topic_table(SnapshotTable, topic, "has a table of snapshots (remote.snapshot.table.enable)")

    def _topic_table(self, kind: type[_Table], topic: TopicImage, why: str) -> _Table:
        return kind(
            self.remote_store(f"topic {topic.name!r} {why}"),
            topic=topic.name,
            topic_id=topic.topic_id,
            cluster_id=self.file.cluster_id,
            options=self.file.remote_storage,
            clock=self.table_clock,
            rng=self.rng,
        )

    def iceberg_table(self, topic: TopicImage, name: str) -> IcebergTable:
        """The Iceberg table ``name`` of a topic's segments. Raises: InvalidCallError without pyiceberg."""
        from stratalog.tiering.iceberg_table import IcebergTable  # here: pyiceberg is an extra

        return IcebergTable(
            name,
            topic=topic.name,
            topic_id=topic.topic_id,
            uri=self.file.remote or "",
            options=self.file.remote_storage,
        )

    @property
    def all_stores(self) -> list[Store]:
        """Every store of the cluster."""
        return [*self.stores.values(), *([] if self.remote is None else [self.remote])]

    def counts(self) -> StoreCounts:
        """The calls to all stores so far, here and on executors."""
        return _total(self.elsewhere(), self.all_stores)

    def billed_counts(self) -> StoreCounts:
        """The calls of all object stores so far. Requests from executors are included only if all brokers are in
        object stores, because executors read from brokers.
        """
        elsewhere = self.elsewhere() if all(map(is_billed, self.stores.values())) else StoreCounts()
        return _total(elsewhere, filter(is_billed, self.all_stores))


def is_billed(store: Store) -> bool:
    """Whether requests to the store cost money: it is an object store, not a folder."""
    return scheme_of(store.uri) not in (None, "file")


def _total(counts: StoreCounts, stores: Iterable[Store]) -> StoreCounts:
    for store in stores:
        counts = counts + store.counts.snapshot()
    return counts

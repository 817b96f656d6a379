"""The context of every operation: the cluster's stores, its metadata, and the components passed in."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.config.cluster_file import ClusterFile
from stratalog.engine.config.settings import cluster_config, topic_config
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.fetching import Fetching
from stratalog.engine.driver.log_ends import LogEnds, RemoteEnds
from stratalog.engine.driver.metrics import SnapshotMetrics
from stratalog.engine.driver.origin import OperationsLog
from stratalog.engine.driver.producers import BegunSequences, TransactionalProducers, UnnamedProducers
from stratalog.engine.driver.run import Measure, OperationRun
from stratalog.engine.driver.state_cache import OwnProducer, StateCache
from stratalog.engine.driver.tasks import Progress, Silent, TaskRunner
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import RemotePart
from stratalog.engine.replication.replica_selector import CurrentSelector
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import NewId, TopicIdPartition
from stratalog.partitions.probing import Prober, ThreadProber
from stratalog.partitions.runner import Runner, ThreadRunner
from stratalog.partitions.store import Store, StoreCounts, StoreOptions
from stratalog.tiering.remote_log import RemoteLog

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable
    from stratalog.tiering.iceberg_table import IcebergTable
    from stratalog.tiering.snapshot_table import SnapshotTable
    from stratalog.tiering.topic_table import TopicTable


COPY_THREADS = 4
"""Copies at once within one task."""


class BehindAppends(Protocol):
    """The work that a driver does behind its appends."""

    def appended(self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]) -> None:
        """Appends to partitions of one topic were acknowledged just now, under these views. Returns at once."""
        ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Until nothing is left to do, or the time is over."""
        ...


class Nothing:
    """No work behind appends."""

    def appended(self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]) -> None: ...

    def wait(self, timeout_s: float | None = None) -> None: ...


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
class Context:
    """One driver's hold on a cluster."""

    file: ClusterFile
    stores: Mapping[int, Store]
    remote: Store | None
    metadata: MetadataClient
    clock: Clock
    new_id: NewId
    rng: random.Random
    tasks: TaskRunner
    """Runs work keyed by partition: on executors, where there are some."""
    threads: Runner
    """Runs small storage calls of the driver."""
    driver_only: bool = False
    """Executors may not reach the storage: tasks, and the rows of appends, come to this process."""
    copies: Runner = field(default_factory=lambda: ThreadRunner(COPY_THREADS))
    """Runs the copies within one task; travels with it."""
    progress: Progress = field(default_factory=Silent)
    prober: Prober = field(default_factory=ThreadProber)
    """Asks the roots whether they are there, without waiting for those that hang."""
    states: StateCache = field(default_factory=StateCache)
    """The engine's own topics, as far as this driver has read them."""
    own_producer: OwnProducer = field(default_factory=OwnProducer)
    """This driver, as the producer of the engine's own topics."""
    unnamed_producers: UnnamedProducers = field(default_factory=UnnamedProducers)
    """This driver, as the producer of appends that name none."""
    transactional_producers: TransactionalProducers = field(default_factory=TransactionalProducers)
    """This driver, as the producer of transactional ids."""
    log_ends: LogEnds = field(default_factory=LogEnds)
    """The ends of logs that this driver has appended to."""
    remote_ends: RemoteEnds = field(default_factory=RemoteEnds)
    """The logs that this driver has compared with their remote ends."""
    behind_appends: BehindAppends = field(default_factory=Nothing)
    """Keeps the logs short that this driver appends to."""
    begun_sequences: BegunSequences = field(default_factory=BegunSequences)
    """This driver, as the producers that were named."""
    wide_topics: set[str] = field(default_factory=set)
    """Topics, by id, to which this driver was given a record that is not narrow (``engine.spark.narrow``)."""
    fetching: Fetching = field(default_factory=Fetching)
    """This driver's fetches: their thread pools and caches."""
    selector: CurrentSelector = field(default_factory=CurrentSelector)
    """Which replicas are read from."""
    snapshot_metrics: SnapshotMetrics = field(default_factory=SnapshotMetrics)
    operations_log: OperationsLog | None = None
    """How the operations of the door leave events; None: they leave none."""
    key: ClusterKey | None = None
    """By which what drivers believe about the cluster is signed; None: it is not, or this process only reads."""

    def topics(self, image: ClusterImage, names: Iterable[str] | None) -> list[TopicImage]:
        """The named topics, all of them when None, by name.

        Raises: UnknownTopicOrPartitionError.
        """
        chosen = sorted(image.topic_ids) if names is None else list(dict.fromkeys(names))
        return [image.topic(name) for name in chosen]

    def partitions(
        self, image: ClusterImage, names: Iterable[str] | None, only: Collection[TopicIdPartition] | None
    ) -> list[tuple[TopicImage, list[PartitionView]]]:
        """The partitions of the named topics (all when None), of them those in ``only``, where it is given; topics
        of which none is are left out. Partitions that are not there any more are passed over.

        Raises: UnknownTopicOrPartitionError for a name.
        """
        topics = self.topics(image, names)
        if only is None:
            return [(topic, image.views(topic.name)) for topic in topics]
        wanted: dict[str, list[int]] = {}
        for topic_id, partition in sorted(only):
            wanted.setdefault(topic_id, []).append(partition)
        return [
            (topic, [image.view(topic.topic_id, p) for p in wanted[topic.topic_id] if p < len(topic.partitions)])
            for topic in topics
            if topic.topic_id in wanted
        ]

    def replicas(self, view: PartitionView) -> PartitionReplicas:
        """A partition with the stores of its brokers."""
        stores = {broker: self.stores[broker] for broker in view.replicas if broker in self.stores}
        remote = None
        if view.tiered and self.remote is not None:
            folder, read = paths.topic_folder(view.topic, view.topic_id), self.read_remote_log(view)
            remote = RemotePart(self.remote, folder, view.partition, read)
        return PartitionReplicas(view, stores, remote)

    def read_remote_log(self, view: PartitionView) -> Callable[[], RemoteLog]:
        """Reads the remote log of a partition's topic when it is called, here or on an executor."""
        assert self.remote is not None
        file = self.file
        return partial(
            _read_remote_log,
            *(self.remote, view.topic, view.topic_id, file.cluster_id, file.remote_storage, self.clock),
        )

    def replicas_of(self, image: ClusterImage, topics: Iterable[TopicImage]) -> list[PartitionReplicas]:
        """All partitions of the topics."""
        return [self.replicas(view) for topic in topics for view in image.views(topic.name)]

    def topic_config(self, image: ClusterImage, topic: TopicImage) -> TopicConfig:
        """The configs that apply to a topic now."""
        return topic_config(topic.configs, image.configs, f"topic {topic.name!r}")

    def cluster_config(self, image: ClusterImage) -> ClusterConfig:
        """The configs that apply to the cluster now."""
        return cluster_config(image.configs)

    def remote_store(self, why: str) -> Store:
        """The remote tier.

        Raises: InvalidCallError when the cluster file names none.
        """
        if self.remote is None:
            raise InvalidCallError(f"{why}, but the cluster file has no [cluster] remote")
        return self.remote

    def remote_table(self, topic: TopicImage) -> DeltaTopicTable:
        """The remote table of a topic."""
        # Here, for it loads delta-rs, which clusters without a remote tier have no use for.
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
            clock=self.clock,
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

    def remote_folder(self, topic: TopicImage) -> str:
        """The folder of a topic in the remote tier."""
        return paths.topic_folder(topic.name, topic.topic_id)

    @property
    def all_stores(self) -> list[Store]:
        """Every store of the cluster."""
        return [*self.stores.values(), *([] if self.remote is None else [self.remote])]

    @contextmanager
    def measured(self) -> Iterator[Measure]:
        """Time and storage requests of what happens inside, here and on executors."""
        measure = Measure()
        began = self.clock.monotonic_s()
        before = self.counts()
        yield measure
        measure.seconds = self.clock.monotonic_s() - began
        measure.counts = self.counts() - before

    @contextmanager
    def run(self, operation: str, *, dry_run: bool = False) -> Iterator[OperationRun]:
        """A run of an operation, measured."""
        with self.measured() as measure:
            yield OperationRun(operation, dry_run, tasks=self.tasks, progress=self.progress, measure=measure)

    def counts(self) -> StoreCounts:
        """The calls of all stores so far, here and on executors."""
        total = self.tasks.counts
        for store in self.all_stores:
            total = total + store.counts.snapshot()
        return total

"""The memory of a driver: its producers, caches and the ends of logs, kept from one operation to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stratalog.engine.driver.fetching import Fetching
from stratalog.engine.driver.log_ends import LogEnds, RemoteEnds
from stratalog.engine.driver.metrics import SnapshotMetrics
from stratalog.engine.driver.producers import BegunSequences, TransactionalProducers, UnnamedProducers
from stratalog.engine.driver.state_cache import OwnProducer, StateCache
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.replica_selector import CurrentSelector


class BehindAppends(Protocol):
    """Maintenance that a driver does in the background of its appends."""

    def appended(self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]) -> None:
        """Called after appends to partitions of one topic were acknowledged under these views. Returns at once."""
        ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until no work is left, or the time is over."""
        ...


class Nothing:
    """No work in the background."""

    def appended(self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]) -> None: ...

    def wait(self, timeout_s: float | None = None) -> None: ...


@dataclass(slots=True)
class Memory:
    """The memory of one driver. Losing it costs requests, or the ids of producers, but never a record."""

    states: StateCache = field(default_factory=StateCache)
    """The content of the engine's own topics that this driver has read."""
    own_producer: OwnProducer = field(default_factory=OwnProducer)
    """The producer of this driver's appends to the engine's own topics."""
    unnamed_producers: UnnamedProducers = field(default_factory=UnnamedProducers)
    """Producers for appends that name none."""
    transactional_producers: TransactionalProducers = field(default_factory=TransactionalProducers)
    """Producers of transactional ids."""
    log_ends: LogEnds = field(default_factory=LogEnds)
    """The ends of logs after this driver's appends."""
    remote_ends: RemoteEnds = field(default_factory=RemoteEnds)
    """The remote ends that this driver has checked."""
    behind_appends: BehindAppends = field(default_factory=Nothing)
    """Shortens the logs that this driver appends to."""
    begun_sequences: BegunSequences = field(default_factory=BegunSequences)
    """The sequences that this driver has begun for named producers."""
    wide_topics: set[str] = field(default_factory=set)
    """The ids of topics to which this driver has appended a record that is not narrow
    (``engine.spark.narrow``)."""
    fetching: Fetching = field(default_factory=Fetching)
    """The thread pools and caches of this driver's fetches."""
    selector: CurrentSelector = field(default_factory=CurrentSelector)
    """Selects the replicas to read from."""
    snapshot_metrics: SnapshotMetrics = field(default_factory=SnapshotMetrics)

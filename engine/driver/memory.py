"""The memory of a driver: its producers, caches and the ends of logs, kept from one operation to the next.

Every append needs a producer, whose state stays in the footer of later files until it expires. A new producer for
each append would make every footer larger, so ``UnnamedProducers`` reuses a few ids, each with its next sequence.
An id whose append has an unknown outcome belongs to the caller that received the error.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from stratalog.engine.driver.fetching import Fetching
from stratalog.engine.driver.metrics import SnapshotMetrics
from stratalog.engine.driver.state_cache import OwnProducer, StateCache
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.replica_selector import CurrentSelector
from stratalog.engine.state.transaction_state import Transaction
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.identity import NewId, TopicIdPartition
from stratalog.partitions.producers import ProducerAppend, unnamed

_MOST = 10_000
"""The number of producers to remember. The next append of a forgotten producer costs two more requests per
partition.
"""


class BegunSequences:
    """The greatest sequence that this driver has begun for each named producer, by topic.

    An append with a greater sequence is not a retry, so it does not search for earlier attempts. Thread-safe,
    because only one thread at a time uses a producer.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[str, str], tuple[int, int]] = {}

    def begin(self, topic_id: str, who: ProducerAppend) -> None:
        """Record that the append of ``who`` begins. A repeated append of an earlier sequence changes nothing."""
        if len(self._begun) >= _MOST:
            self._begun.clear()
        key, begun = (topic_id, who.producer_id), (who.epoch, who.sequence)
        self._begun[key] = max(self._begun.get(key, begun), begun)

    def is_next(self, topic_id: str, who: ProducerAppend) -> bool:
        """Whether this driver has begun an earlier sequence of the producer in this epoch, but not yet this
        sequence.
        """
        epoch, sequence = self._begun.get((topic_id, who.producer_id), (-1, 0))
        return epoch == who.epoch and who.sequence > sequence


class UnnamedProducers:
    """The ids of this driver that no append is using. Thread-safe, because a deque is thread-safe."""

    def __init__(self) -> None:
        self._free: deque[tuple[int, ProducerAppend]] = deque()

    def take(self, new_id: NewId) -> ProducerAppend:
        """Take a producer and its next sequence, for one append. The producer that was given back last is taken
        first, so that the other producers can expire.
        """
        with suppress(IndexError):
            while True:
                process, last = self._free.pop()
                if (
                    process == os.getpid()
                ):  # after a fork both processes would have the producer, with the same sequences
                    return msgspec.structs.replace(last, sequence=last.sequence + 1)
        return ProducerAppend(unnamed(new_id), 0, 0)

    def give_back(self, used: ProducerAppend) -> None:
        """Return a producer whose append has a known outcome in every partition, and will not be retried."""
        self._free.append((os.getpid(), used))


_MOST_IDS = 1000


class TransactionalProducers:
    """The producers of transactional ids whose last transaction ended in this driver.

    The end of a transaction raises the epoch of its producer; the next transaction of the id continues with that
    producer. Each producer is given out once, so two open transactions never share one. Thread-safe.
    """

    def __init__(self) -> None:
        self._left: BoundedCache[str, tuple[int, Transaction]] = BoundedCache(_MOST_IDS)

    def take(self, transactional_id: str) -> Transaction | None:
        """Take the state of the id at the end of its last transaction in this driver. None if this driver has no
        such state, or if another transaction in this driver uses the id.
        """
        process, left = self._left.take(transactional_id) or (None, None)
        return left if process == os.getpid() else None  # after a fork both processes would have the producer

    def give_back(self, transactional_id: str, left: Transaction) -> None:
        """Remember the state of an id whose transaction has ended."""
        self._left.put(transactional_id, (os.getpid(), left))


_BYTES = 64 * 1024 * 1024
_END_BYTES = 4096
_PRODUCER_BYTES = 512


class LogEnds:
    """The end of each log after this driver's last append, and the view under which every member of the maximal
    ISR held the log up to that end. Thread-safe.
    """

    def __init__(self) -> None:
        self._ends: BoundedCache[TopicIdPartition, tuple[PartitionView, LogEnd]] = BoundedCache(_BYTES)

    def of(self, views: Iterable[PartitionView]) -> dict[int, LogEnd]:
        """Take the known ends by partition, for views that have not changed since. Each end is given out once, so
        no end is known after a failed append.
        """
        found: dict[int, LogEnd] = {}
        for view in views:
            kept = self._ends.take(view.key)
            if kept is not None and kept[0] == view:
                found[view.partition] = kept[1]
        return found

    def remember(self, view: PartitionView, end: LogEnd) -> None:
        """Record the end after an append that was acknowledged under ``view``: every member of the maximal ISR
        holds the log up to this end.
        """
        weight = _END_BYTES + _PRODUCER_BYTES * len(end.state.producers)
        self._ends.put(view.key, (view, replace(end, acknowledged_to=end.log_end)), weight)


_MOST_PARTITIONS = 100_000
"""The number of partitions and of topics to remember. The next append to a forgotten one checks again."""
ASK_AGAIN_MS = 60_000
"""The time that a driver waits before it sends another request to a remote tier that did not answer."""


@dataclass(slots=True)
class RemoteEnds:
    """Partitions whose leader holds all records of their remote log, by the leader epoch in which this driver
    checked.

    A driver makes this check before its first append under a leader epoch. One read of a topic's table is enough
    for all its partitions. The result stays valid for that epoch, because a leader tiers only records that it
    holds. Not pickled.
    """

    _found: BoundedCache[TopicIdPartition, int] = field(default_factory=lambda: BoundedCache(_MOST_PARTITIONS))
    """The leader epoch of the check."""
    _silent_until_ms: BoundedCache[str, int] = field(default_factory=lambda: BoundedCache(_MOST_PARTITIONS))
    """Keyed by topic id."""

    def unknown(self, views: Iterable[PartitionView]) -> list[PartitionView]:
        """The views of tiered partitions that were not checked under their current leader epoch."""
        return [view for view in views if view.tiered and self._found.get(view.key) != view.leader_epoch]

    def remember(self, view: PartitionView) -> None:
        """Record that an append under the view has checked the remote end."""
        self._found.put(view.key, view.leader_epoch)

    def is_silent(self, topic_id: str, now_ms: int) -> bool:
        """Whether the remote tier failed to answer for this topic less than ``ASK_AGAIN_MS`` ago."""
        return now_ms < (self._silent_until_ms.get(topic_id) or 0)

    def was_silent(self, topic_id: str, now_ms: int) -> None:
        """Record that the remote tier did not answer at ``now_ms``."""
        self._silent_until_ms.put(topic_id, now_ms + ASK_AGAIN_MS)


class BehindAppends(Protocol):
    """Maintenance that a driver does in the background of its appends."""

    def appended(self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]) -> None:
        """Called after appends to partitions of one topic were acknowledged under these views. Returns at once."""
        ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until no work is left, or the time is up."""
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
    wide_topics: BoundedCache[str, bool] = field(default_factory=lambda: BoundedCache(_MOST_PARTITIONS))
    """The ids of topics to which this driver has appended a record that is not narrow
    (``engine.spark.narrow``)."""
    fetching: Fetching = field(default_factory=Fetching)
    """The thread pools and caches of this driver's fetches."""
    selector: CurrentSelector = field(default_factory=CurrentSelector)
    """Selects the replicas to read from."""
    snapshot_metrics: SnapshotMetrics = field(default_factory=SnapshotMetrics)

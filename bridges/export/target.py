"""The interface of an export to its target cluster, in Kafka's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from stratalog.bridges.mirror.source import SourceBounds, SourceRecord, SourceTopic
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicPartition

Records = Mapping[int, Sequence[SourceRecord]]
"""Records by partition."""
Offsets = Mapping[int, Sequence[int]]
"""The target's offset of each record, by partition."""


class OffsetsNotKeptError(InvalidCallError, code="OFFSETS_NOT_KEPT"):
    """The target cannot store the records at the same offsets."""


class ExportTarget(Protocol):
    """The target cluster of one export. All calls raise RetriableError kinds and StorageAuthorizationError kinds;
    writing calls raise ProducerFencedError once another run of the export has begun.
    """

    settle_s: float
    """The time after which each record of a run is either in the log or lost."""

    def begin(self, journal: str, replication_factor: int) -> list[bytes]:
        """Fence all other runs, end their transactions, and read all entries of the journal. Creates a missing
        journal; a replication factor of -1 is the target's default.
        """
        ...

    def topic(self, name: str) -> SourceTopic | None:
        """Return the topic; None if it does not exist."""
        ...

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int
    ) -> None:
        """Create a topic, unless it exists; a replication factor of -1 is the target's default."""
        ...

    def create_partitions(self, name: str, partitions: int) -> None:
        """Increase the topic's partitions to this number, unless it already has as many."""
        ...

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, SourceBounds]:
        """Return the current start and end of each log."""
        ...

    def transact(self, topic: str, records: Records, entries: Callable[[Offsets], Sequence[bytes]]) -> Offsets:
        """Write records, and the journal entries that are made from the records' offsets, in one atomic
        transaction.
        """
        ...

    def append(self, topic: str, partition: int, records: Sequence[SourceRecord]) -> Sequence[int]:
        """Append without a transaction, each record once and in order. Returns the offsets."""
        ...

    def take(self, topic: str, partition: int, offset: int, count: int) -> None:
        """Use up the next ``count`` offsets from ``offset``, the end of the log, with aborted transactions and
        their markers, and without committed records.
        """
        ...

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the start of logs."""
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """A group's committed offsets for a topic of the target, by partition."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group without members. Raises: NonEmptyGroupError."""
        ...

    def close(self) -> None:
        """Release connections and clients."""
        ...

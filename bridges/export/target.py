"""The questions and orders of an export to the cluster that it writes to, in terms of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from stratalog.bridges.mirror.source import SourceBounds, SourceRecord, SourceTopic
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicPartition

Records = Mapping[int, Sequence[SourceRecord]]
"""By partition."""
Offsets = Mapping[int, Sequence[int]]
"""By partition: where each record is there."""


class OffsetsNotKeptError(InvalidCallError):
    """Records cannot be at the offsets there that they have here."""

    code = "OFFSETS_NOT_KEPT"


class ExportTarget(Protocol):
    """A cluster as the target of one export. Errors of all calls: RetriableError kinds; StorageAuthorizationError
    kinds; ProducerFencedError of all that writes, once another run of the export has begun."""

    settle_s: float
    """After so long, what a run has written is there, or never will be."""

    def begin(self, journal: str, replication_factor: int) -> list[bytes]:
        """Fence all other runs, end what they have left, and read the journal, which is made where it is not
        there, with -1 as the cluster's default replication factor: all its entries."""
        ...

    def topic(self, name: str) -> SourceTopic | None:
        """The topic, if it is there."""
        ...

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int
    ) -> None:
        """Make a topic; -1 is the cluster's default replication factor. One that is there is fine."""
        ...

    def create_partitions(self, name: str, partitions: int) -> None:
        """From now on the topic has this number of them. A topic that has is fine."""
        ...

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, SourceBounds]:
        """Where logs start and end now."""
        ...

    def transact(self, topic: str, records: Records, entries: Callable[[Offsets], Sequence[bytes]]) -> Offsets:
        """One transaction: records, and entries of the journal made of where these are; all or nothing."""
        ...

    def append(self, topic: str, partition: int, records: Sequence[SourceRecord]) -> Sequence[int]:
        """Append without a transaction, each record once and in order; where they are."""
        ...

    def take(self, topic: str, partition: int, offset: int, count: int) -> None:
        """Take the next ``count`` offsets, from ``offset`` on, where the log ends, without a record that anybody
        reads: by aborted transactions and their markers."""
        ...

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Logs start there."""
        ...

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The offsets that a group has committed for a topic there, by partition."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets for a group that has no members there now. Raises: NonEmptyGroupError."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...

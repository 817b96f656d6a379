"""The interface of a mirror to the source cluster, in Kafka's terms."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import InvalidCallError, LeaderNotAvailableError, StratalogError
from stratalog.partitions.identity import TopicPartition


class InconsistentTopicIdError(InvalidCallError, code="INCONSISTENT_TOPIC_ID"):
    """A topic's id has changed: it was deleted and created again under the same name."""


class SourceTruncatedError(InvalidCallError, code="LOG_TRUNCATION"):
    """The source has lost mirrored records, and has, or will have, different records at the same offsets."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: the source has lost its last mirrored records (an unclean election, or a lost disk), and "
            "now has different records at these offsets. Either keep the mirrored records and end the mirror "
            "(stratalog mirror "
            "--end), or delete the topic here and mirror it again"
        )


def without_leader(key: TopicPartition) -> LeaderNotAvailableError:
    """The error of a partition whose bounds are currently unknown."""
    return LeaderNotAvailableError(
        f"{key[0]}-{key[1]} of the source has no leader, or the leader does not answer; a later run continues here"
    )


@dataclass(frozen=True, slots=True)
class SourceTopic:
    name: str
    """The name in the source; with ``renamed``, the name here."""
    source: str
    """Cluster id and topic id, in the form of ``mirror.source``."""
    partitions: int
    configs: Mapping[str, str]
    """All its effective configs, by Kafka's names."""
    renamed: str | None = None
    """Its name in the source, if its name here differs."""

    @property
    def name_there(self) -> str:
        """Cluster id and name in the source, in the form of ``mirror.source.topic``."""
        return f"{self.cluster_id}/{self.renamed or self.name}"

    @property
    def cluster_id(self) -> str:
        return self.source.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """The bounds of a partition in the source, ``log_start <= stable_end <= log_end``."""

    log_start: int
    stable_end: int
    """The last stable offset, the end of committed records."""
    log_end: int
    """The high watermark."""
    leader_epoch: int | None = None
    """The leader epoch at ``log_end``, if known."""


class SourceRecord(NamedTuple):
    """A single committed record. A source returns records as columns (``rows.source_batch``)."""

    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leader_epoch: int | None
    """The leader epoch of its append; None if the format of its batch has none."""

    @property
    def size_bytes(self) -> int:
        """The record's approximate size."""
        size = len(self.key or b"") + len(self.value or b"")
        if not self.headers:
            return size
        return size + sum(len(name) + len(value or b"") for name, value in self.headers)


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A range ``[start, end)`` of committed records of a partition to read."""

    start: int
    end: int
    leader_epoch: int | None = None
    """The leader epoch of the last record before ``start``, if known; the source checks that it has the history of
    that epoch.
    """


@dataclass(frozen=True, slots=True)
class SourceRead:
    """The next records of a partition: all committed records from the end of the last read up to ``position``."""

    key: TopicPartition
    records: pa.RecordBatch
    """Columns of ``rows.SOURCE_SCHEMA``."""
    position: int
    error: StratalogError | None = None
    """OffsetOutOfRangeError if retention has deleted the records, or if the source lacks the history of the
    range's leader epoch up to its start; RetriableError if no records arrive. The partition's reads end after an
    error.
    """
    from_tier: bool = False
    """Whether the records were read from the source's tier, and not through its brokers."""
    unknown: str | None = None
    """The reason why the records up to ``position`` are unknown, if the source is gone; None if they are known."""
    notes: tuple[str, ...] = ()
    """For the report: the ranges that were not read from the tier, with the reason."""


@dataclass(frozen=True)
class SourceGroups:
    """The committed offsets of consumer groups, and the groups that could not be read."""

    offsets: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]
    """Offsets by group, without groups that have none."""
    failures: Sequence[tuple[str, StratalogError]] = ()
    """The groups that could not be read, under their names in reports, with the error."""


class SourcePart(Protocol):
    """A part ``[start, end)`` of a partition that a task can read separately. It can be pickled."""

    @property
    def start(self) -> int:
        """The first offset."""
        ...

    @property
    def end(self) -> int:
        """The offset after the last one."""
        ...

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the last offset before ``start``; None if unknown."""
        ...

    def read(self) -> Iterator[SourceRead]:
        """All committed records, as ``MirrorSource.read``, up to ``end`` exactly. Raises: StratalogError kinds."""
        ...


class MirrorSource(Protocol):
    """The source cluster. All calls raise RetriableError kinds; StorageAuthorizationError kinds; CorruptionError
    for impossible answers.
    """

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        """The topics of these names. Raises: UnknownTopicOrPartitionError."""
        ...

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        """The current bounds of logs, without partitions that have no leader or whose leader does not answer.
        Raises: UnknownTopicOrPartitionError.
        """
        ...

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        """All committed records of the ranges, in the order of offsets within each partition; partitions are
        interleaved. A read may go beyond the end of its range. Callers may stop iterating at any time.
        """
        ...

    def parts(self, key: TopicPartition, wanted: SourceRange) -> Sequence[SourcePart]:
        """The parts at the beginning of a range that tasks can read side by side, without a gap; none if the
        source can only be read in order.
        """
        ...

    def notes(self) -> Sequence[str]:
        """For the report: what is unknown about the source, and why."""
        ...

    def group_offsets(self, topics: Sequence[str]) -> SourceGroups:
        """The committed offsets of consumer groups for the topics. A group that cannot be read is a failure in the
        result; the others are returned.
        """
        ...

    def close(self) -> None:
        """Release connections and clients."""
        ...

"""The questions of a mirror to the cluster that it mirrors, in terms of Kafka; and its findings there."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import InvalidCallError, LeaderNotAvailableError, StratalogError
from stratalog.partitions.identity import TopicPartition


class InconsistentTopicIdError(InvalidCallError):
    """A topic's id has changed: it was deleted and created again under the same name."""

    code = "INCONSISTENT_TOPIC_ID"


class SourceTruncatedError(InvalidCallError):
    """The source has lost records that are here, and others take their place, or will."""

    code = "LOG_TRUNCATION"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: the source has lost its last records that are here (an unclean election, or a lost disk), "
            "and others take their place. Keep what is here, and mirror no more: stratalog mirror --end; or "
            "delete the topic here, and mirror it anew"
        )


def without_leader(key: TopicPartition) -> LeaderNotAvailableError:
    """The error of a partition that has no bounds now."""
    return LeaderNotAvailableError(
        f"{key[0]}-{key[1]} of the source has no leader, or it does not answer; a later run goes on here"
    )


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic there."""

    name: str
    """Its name there; with ``renamed`` the one here."""
    source: str
    """Cluster id and topic id, as ``mirror.source`` has them."""
    partitions: int
    configs: Mapping[str, str]
    """All that apply to it, by Kafka's names."""
    renamed: str | None = None
    """Its name there, where it has another one here."""

    @property
    def name_there(self) -> str:
        """Cluster id and name there, as ``mirror.source.topic`` has them."""
        return f"{self.cluster_id}/{self.renamed or self.name}"

    @property
    def cluster_id(self) -> str:
        """The cluster that it is in."""
        return self.source.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """A partition's log there, ``log_start <= stable_end <= log_end``."""

    log_start: int
    stable_end: int
    """The last stable offset: committed records end there."""
    log_end: int
    """The high watermark."""
    leader_epoch: int | None = None
    """At ``log_end``, where it is known."""


class SourceRecord(NamedTuple):
    """A committed record, by itself. A source gives them as columns (``rows.source_batch``)."""

    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leader_epoch: int | None
    """Under which it was appended; None where the format of its batch does not say."""

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        size = len(self.key or b"") + len(self.value or b"")
        if not self.headers:
            return size
        return size + sum(len(name) + len(value or b"") for name, value in self.headers)


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Committed records that are to be read, ``[start, end)`` of a partition."""

    start: int
    end: int
    leader_epoch: int | None = None
    """Of the last record before ``start``, where it is known: the source finds out whether it has that history."""


@dataclass(frozen=True, slots=True)
class SourceRead:
    """The next records of a partition: all committed ones from where its last read ended up to ``position``."""

    key: TopicPartition
    records: pa.RecordBatch
    """Columns of ``rows.SOURCE_SCHEMA``."""
    position: int
    error: StratalogError | None = None
    """OffsetOutOfRangeError where retention is faster, and where the source has not the history of the range's
    leader epoch up to its start; RetriableError where nothing comes. Nothing more comes of the partition then."""


@dataclass(frozen=True)
class SourceGroups:
    """Offsets that consumer groups have committed, and the groups that could not be read."""

    offsets: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]]
    """By group; groups without any are left out."""
    failures: Sequence[tuple[str, StratalogError]] = ()
    """The groups that could not be read, as a report names them, and why."""


class MirrorSource(Protocol):
    """A cluster of topics. Errors of all calls: RetriableError kinds; StorageAuthorizationError kinds;
    CorruptionError for answers that cannot be."""

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        """The topics of these names. Raises: UnknownTopicOrPartitionError."""
        ...

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        """Where logs start and end now. A partition that has no leader at present is left out, and so is one whose
        leader does not answer. Raises: UnknownTopicOrPartitionError."""
        ...

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        """All committed records of the ranges, of each partition in the order of offsets, those of several mixed.
        A read may go beyond the end of its range. A reader that has enough stops to iterate.
        """
        ...

    def group_offsets(self, topics: Sequence[str]) -> SourceGroups:
        """The offsets that consumer groups have committed for the topics. A group that cannot be read is a failure
        in the answer, and does not hide the others."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...

"""A source of a mirror in memory: a test sets the offsets, gaps and leader epochs of its topics."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from stratalog.bridges.mirror.rows import NO_RECORDS, source_batch
from stratalog.bridges.mirror.source import (
    SourceBounds,
    SourceGroups,
    SourcePart,
    SourceRange,
    SourceRead,
    SourceRecord,
    SourceTopic,
)
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import OffsetOutOfRangeError, StratalogError, UnknownTopicOrPartitionError
from stratalog.partitions.identity import TopicPartition

TOPIC_ID, OTHER_ID = "oX3uHkRbTS6eNWJkT0n5kw", "pY3uHkRbTS6eNWJkT0n5kw"


def batch_of(records: Sequence[SourceRecord]) -> pa.RecordBatch:
    """Records as a source returns them."""
    return source_batch(*([getattr(one, name) for one in records] for name in SourceRecord._fields))


@dataclass
class MemoryLog:
    """A partition: its committed records by offset; all other offsets up to the end are gaps."""

    records: dict[int, SourceRecord] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    epoch: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    """The first offset of each leader epoch."""
    has_leader: bool = True

    def append(self, *values: str | None, gaps: int = 0) -> None:
        """Append records with keys and headers, followed by offsets without records."""
        self.epochs.setdefault(self.epoch, self.end)
        for value in values:
            data = None if value is None else value.encode()
            headers = [("h", data), ("h", None)] if self.end % 3 == 0 else []
            stamp = None if self.end % 7 == 6 else 1_700_000_000_000 + self.end
            self.records[self.end] = SourceRecord(
                self.end, stamp, b"k%d" % (self.end % 5), data, headers, self.epoch
            )
            self.end += 1
        self.end += gaps

    def elect_unclean(self, end: int) -> None:
        """Elect a leader that lacks the records from ``end`` on."""
        self.records = {offset: record for offset, record in self.records.items() if offset < end}
        self.epochs = {epoch: start for epoch, start in self.epochs.items() if start < end}
        self.end, self.epoch = end, self.epoch + 1

    def has(self, epoch: int, offset: int) -> bool:
        """Whether that epoch reaches up to ``offset`` here, as OffsetsForLeaderEpoch would answer."""
        ends = [*sorted(self.epochs.values()), self.end]
        known = [(one, end) for one, end in zip(sorted(self.epochs), ends[1:], strict=True) if end > self.start]
        ended = [end for one, end in known if one <= epoch]
        return bool(ended) and ended[-1] >= offset


class MemorySource:
    """See ``stratalog.bridges.mirror.source.MirrorSource``. ``between`` is called before each read."""

    def __init__(self, partitions: int = 1, name: str = "t", **configs: str) -> None:
        self.name, self.topic_id, self.configs = name, TOPIC_ID, configs
        self.logs = [MemoryLog() for _ in range(partitions)]
        self.groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        self.groups_failed: StratalogError | list[tuple[str, StratalogError]] = []
        """The error from listing the groups, or the errors of some groups."""
        self.records_a_read = 3
        self.asked: list[list[int]] = []
        """The partitions of each read."""
        self.between: Callable[[], None] = lambda: None

    def topics(self, names: Sequence[str]) -> dict[str, SourceTopic]:
        if unknown := [name for name in names if name != self.name]:
            raise UnknownTopicOrPartitionError(f"topic {unknown[0]!r} of the source is not there")
        source = f"kafka-1/{self.topic_id}"
        return {name: SourceTopic(name, source, len(self.logs), self.configs) for name in names}

    def bounds(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, SourceBounds]:
        logs = {key: self.logs[key[1]] for key in keys}
        return {
            key: SourceBounds(log.start, log.end, log.end, log.epoch)
            for key, log in logs.items()
            if log.has_leader
        }

    def read(self, ranges: Mapping[TopicPartition, SourceRange]) -> Generator[SourceRead, None, None]:
        self.asked.append(sorted(partition for _, partition in ranges))
        positions = {key: wanted.start for key, wanted in ranges.items()}
        for key, wanted in ranges.items():
            if wanted.leader_epoch is not None and not self.logs[key[1]].has(wanted.leader_epoch, wanted.start):
                yield SourceRead(
                    key, NO_RECORDS, wanted.start, OffsetOutOfRangeError(f"epoch {wanted.leader_epoch}")
                )
                del positions[key]
        while positions:
            for key, position in list(positions.items()):
                self.between()
                log = self.logs[key[1]]
                if position < log.start:
                    yield SourceRead(key, NO_RECORDS, position, OffsetOutOfRangeError(f"{position} is gone"))
                    del positions[key]
                    continue
                later = sorted(offset for offset in log.records if offset >= position)[: self.records_a_read]
                positions[key] = later[-1] + 1 if later else log.end
                yield SourceRead(key, batch_of([log.records[offset] for offset in later]), positions[key])
                if positions[key] >= log.end:
                    del positions[key]

    def parts(self, key: TopicPartition, wanted: SourceRange) -> Sequence[SourcePart]:
        return ()

    def notes(self) -> Sequence[str]:
        return ()

    def group_offsets(self, topics: Sequence[str]) -> SourceGroups:
        if isinstance(self.groups_failed, StratalogError):
            raise self.groups_failed
        return SourceGroups(self.groups, self.groups_failed)

    def close(self) -> None: ...

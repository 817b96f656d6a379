"""A target of an export in memory: logs with transactions, markers and fences, like a Kafka cluster. An injected
fault ends a run at one of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stratalog.bridges.export.target import Offsets, Records
from stratalog.bridges.mirror.source import SourceBounds, SourceRecord, SourceTopic
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.errors import NonEmptyGroupError, ProducerFencedError
from stratalog.partitions.identity import TopicPartition


class Killed(BaseException):
    """The run ends here, as after ``kill -9``."""


@dataclass
class TargetLog:
    """A partition: each entry is a record, or None for an offset that readers of committed records do not get."""

    slots: list[SourceRecord | None] = field(default_factory=list)
    start: int = 0

    def committed(self) -> list[tuple[int, bytes | None]]:
        """Offset and value of each record that a reader gets."""
        return [(n, one.value) for n, one in enumerate(self.slots) if one is not None and n >= self.start]


@dataclass
class MemoryCluster:
    """The content of the cluster, shared by all writers."""

    topics: dict[str, list[TargetLog]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    configs: dict[str, Mapping[str, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    left: dict[str, list[TargetLog]] = field(default_factory=dict)
    """The logs of a transaction that its producer has left open, keyed by transactional id."""
    groups: dict[str, dict[TopicPartition, OffsetAndMetadata]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Groups with members."""
    made: int = 0

    def make(self, name: str, partitions: int = 1) -> None:
        self.topics[name] = [TargetLog() for _ in range(partitions)]
        self.made += 1
        self.ids[name] = f"kafka-2/{self.made}"

    def foreign(self, name: str, *values: bytes) -> None:
        """Append a record of another producer."""
        self.topics[name][0].slots += [SourceRecord(0, 1, None, value, (), None) for value in values]


class MemoryTarget:
    """See ``stratalog.bridges.export.target.ExportTarget``: one run of an export. ``at`` is called with the name
    of each step before the step, and may raise."""

    settle_s = 15.0

    def __init__(self, cluster: MemoryCluster, at: Callable[[str], None] = lambda step: None) -> None:
        self.cluster, self.at = cluster, at
        self._journal, self._epoch = "", 0

    def begin(self, journal: str, replication_factor: int) -> list[bytes]:
        self.create_topic(journal, 1, {}, replication_factor)
        self._journal = journal
        self._epoch = self.cluster.epochs[journal] = self.cluster.epochs.get(journal, 0) + 1
        for log in self.cluster.left.pop(journal, []):
            log.slots.append(None)
        return [one.value or b"" for one in self.cluster.topics[journal][0].slots if one is not None]

    def topic(self, name: str) -> SourceTopic | None:
        if name not in self.cluster.topics:
            return None
        logs = self.cluster.topics[name]
        return SourceTopic(name, self.cluster.ids[name], len(logs), self.cluster.configs.get(name, {}))

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int
    ) -> None:
        if name not in self.cluster.topics:
            self.cluster.make(name, partitions)
            self.cluster.configs[name] = configs

    def create_partitions(self, name: str, partitions: int) -> None:
        logs = self.cluster.topics[name]
        logs += [TargetLog() for _ in range(partitions - len(logs))]

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, SourceBounds]:
        logs = self.cluster.topics[topic]
        return {p: SourceBounds(logs[p].start, len(logs[p].slots), len(logs[p].slots)) for p in partitions}

    def transact(self, topic: str, records: Records, entries: Callable[[Offsets], Sequence[bytes]]) -> Offsets:
        self._fenced()
        log_of = {p: self.cluster.topics[topic][p] for p in records}
        there: dict[int, list[int]] = {}
        open_logs = self.cluster.left.setdefault(self._journal, [])
        written: list[tuple[TargetLog, int, SourceRecord]] = []
        for partition, some in records.items():
            log = log_of[partition]
            open_logs.append(log)
            for record in some:
                self.at("produce")
                self._fenced()
                written.append((log, len(log.slots), record))
                there.setdefault(partition, []).append(len(log.slots))
                log.slots.append(None)
        journal = self.cluster.topics[self._journal][0]
        open_logs.append(journal)
        for entry in entries(there):
            written.append((journal, len(journal.slots), SourceRecord(0, 1, None, entry, (), None)))
            journal.slots.append(None)
        self.at("commit")
        self._fenced()
        for log, offset, record in written:
            log.slots[offset] = record
        for log in self.cluster.left.pop(self._journal):
            log.slots.append(None)
        self.at("committed")
        return there

    def append(self, topic: str, partition: int, records: Sequence[SourceRecord]) -> Sequence[int]:
        log, there = self.cluster.topics[topic][partition], list[int]()
        for record in records:
            self.at("append")
            there.append(len(log.slots))
            log.slots.append(record)
        return there

    def take(self, topic: str, partition: int, offset: int, count: int) -> None:
        log = self.cluster.topics[topic][partition]
        assert len(log.slots) == offset
        self._fenced()
        self.cluster.left[self._journal] = [log]
        for _ in range(count - 1):
            self.at("take")
            log.slots.append(None)
        del self.cluster.left[self._journal]
        log.slots.append(None)

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        for partition, offset in offsets.items():
            self.cluster.topics[topic][partition].start = offset

    def committed(self, group: str, topic: str) -> dict[int, int]:
        return {key[1]: one.offset for key, one in self.cluster.groups.get(group, {}).items() if key[0] == topic}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if group in self.cluster.busy:
            raise NonEmptyGroupError(f"group {group!r} has members there: their own commits count")
        self.cluster.groups.setdefault(group, {}).update(offsets)

    def close(self) -> None: ...

    def _fenced(self) -> None:
        if self.cluster.epochs[self._journal] != self._epoch:
            raise ProducerFencedError("another run of this export has begun, and goes on; this one ends")

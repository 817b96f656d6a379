"""A partition with its tier, generated from a seed: transactions, elections, uploads, deletions, and damage."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

from stratalog.bridges.kafka_tier.checksum import crc32c
from stratalog.bridges.kafka_tier.layout import IndexKind, LayoutOptions, open_layout
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from stratalog.bridges.kafka_tier.segment_states import SegmentStates
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.store.memory import MemoryStore
from tests.bridges.memory_source import MemorySource

TOPIC, TOPIC_ID = "t", "oX3uHkRbTS6eNWJkT0n5kw"
KEY = (TOPIC, 0)
ABORT, COMMIT = 0, 1
_TIME_MS = 1_700_000_000_000
_TRANSACTIONAL, _CONTROL = 0x10, 0x20


@dataclass(frozen=True)
class Batch:
    """A batch of a log. ``marker``: the kind of a control batch."""

    base: int
    values: tuple[bytes, ...]
    epoch: int
    producer: int = -1
    transactional: bool = False
    marker: int | None = None

    @property
    def end(self) -> int:
        return self.base + (len(self.values) or 1)

    def data(self) -> bytes:
        """The batch in Kafka's format 2."""
        if self.marker is None:
            pairs = [(b"k%d" % (self.base + n), value) for n, value in enumerate(self.values)]
        else:
            pairs = [(struct.pack(">hh", 0, self.marker), struct.pack(">hi", 0, 0))]
        records = b"".join(_record(number, key, value) for number, (key, value) in enumerate(pairs))
        bits = (_TRANSACTIONAL if self.transactional else 0) | (_CONTROL if self.marker is not None else 0)
        times = _TIME_MS + self.base, _TIME_MS + self.base + len(pairs) - 1
        head = struct.pack(">hiqqqhii", bits, len(pairs) - 1, *times, self.producer, 0, -1, len(pairs))
        body = head + records
        return struct.pack(">qiibI", self.base, len(body) + 9, self.epoch, 2, crc32c(body)) + body


def _varint(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _record(number: int, key: bytes, value: bytes) -> bytes:
    body = b"\0" + _varint(number) + _varint(number)
    body += _varint(len(key)) + key + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


@dataclass
class Made:
    """The log of the last leader, and its tier."""

    seed: int
    log: list[Batch] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    """The offsets at which segments begin."""
    segments: dict[str, RemoteLogSegment] = field(default_factory=dict)
    store: MemoryStore = field(default_factory=lambda: MemoryStore("memory://made", ManualClock()))
    damaged: bool = False
    epoch: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(f"tier {self.seed}")
        self.layout = open_layout("local", LayoutOptions())
        for _ in range(self.draw.randrange(10, 120)):
            self._step()
        if self.draw.random() < 0.3:
            self._damage()

    @property
    def end(self) -> int:
        return self.log[-1].end if self.log else 0

    def _step(self) -> None:
        draw = self.draw
        kind = draw.choices(
            ["plain", "transact", "end", "roll", "upload", "elect", "unclean"], [6, 9, 5, 4, 5, 1, 0.6]
        )[0]
        match kind:
            case "plain":
                self._append(Batch(self.end, self._values(), self.epoch))
            case "transact":
                self._append(Batch(self.end, self._values(), self.epoch, draw.randrange(1, 4), True))
            case "end":
                producer = draw.randrange(1, 4)
                # Sometimes the transaction that ends has no records.
                if producer in open_at(self.log) or draw.random() < 0.2:
                    marker = draw.choice([ABORT, COMMIT])
                    self._append(Batch(self.end, (), self.epoch, producer, True, marker))
            case "roll":
                if self.end > self.starts[-1]:
                    self.starts.append(self.end)
            case "upload":
                if len(self.starts) > 1:
                    at = draw.randrange(len(self.starts) - 1)
                    for number in range(at, min(at + draw.randrange(1, 4), len(self.starts) - 1)):
                        self._upload(self.starts[number], self.starts[number + 1])
            case "elect":
                self.epoch += draw.randrange(1, 3)
            case "unclean":
                self.epoch += 1
                keep = draw.randrange(len(self.log) // 2, len(self.log) + 1)
                self.log = self.log[:keep]
                self.starts = [start for start in self.starts if start <= self.end] or [0]

    def _values(self) -> tuple[bytes, ...]:
        return tuple(
            b"%d-%d-%d" % (self.end + n, self.epoch, self.draw.randrange(1000)) * self.draw.choice([1, 1, 9])
            for n in range(self.draw.randrange(1, 6))
        )

    def _append(self, batch: Batch) -> None:
        self.log.append(batch)

    def _upload(self, start: int, end: int) -> None:
        draw = self.draw
        before = [batch for batch in self.log if batch.end <= end]
        mine = [batch for batch in before if batch.base >= start]
        epochs: list[tuple[int, int]] = []
        for batch in mine:
            if not epochs or epochs[-1][0] != batch.epoch:
                epochs.append((batch.epoch, batch.base))
        if not mine:
            return
        aborted = [one for one in aborted_of(before) if one[2] >= start]
        data = b"".join(batch.data() for batch in mine)
        state = draw.choices([*SegmentState], [1, 12, 1, 1])[0]
        one = RemoteLogSegment(
            TOPIC_ID,
            TOPIC,
            0,
            f"{len(self.segments):022d}",
            start,
            end - 1,
            _TIME_MS + end - 1,
            len(data),
            tuple(epochs),
            event_timestamp_ms=len(self.segments),
            state=state,
            txn_index_empty=not aborted and draw.random() < 0.7,
        )
        self.segments[one.segment_id] = one
        objects = {
            "log": data,
            IndexKind.OFFSET: self._offset_index(mine, start),
            IndexKind.TIMESTAMP: b"",
            IndexKind.PRODUCER_SNAPSHOT: _snapshot(open_at(before)),
            IndexKind.LEADER_EPOCH: _checkpoint(starts_of(before)),
        }
        if aborted:
            objects[IndexKind.TRANSACTION] = b"".join(struct.pack(">hqqqq", 0, *entry, end) for entry in aborted)
        names = self.layout.objects(one)
        for kind, content in objects.items():
            if state in (SegmentState.COPY_SEGMENT_FINISHED,) or draw.random() < 0.5:
                self.store.create(names[kind], content)

    def _offset_index(self, batches: list[Batch], start: int) -> bytes:
        found, position = b"", 0
        for batch in batches:
            if position and self.draw.random() < 0.5:
                found += struct.pack(">ii", batch.end - 1 - start, position)
            position += len(batch.data())
        return found

    def _damage(self) -> None:
        """Delete an object, truncate it, or change one of its bytes."""
        names = sorted(self.store.names(""))
        for name in self.draw.choices(names, k=self.draw.randrange(1, 3)) if names else ():
            if name not in set(self.store.names("")):
                continue
            data = bytearray(self.store.read(name))
            self.store.delete([name])
            self.damaged = True
            how = self.draw.choice(["lost", "cut", "byte", "entry"])
            if how == "lost" or not data:
                continue
            if how == "cut":
                data = data[: self.draw.randrange(len(data))]
            elif how == "byte":
                data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
            elif name.endswith("txnindex"):
                data = data[34:]
            self.store.create(name, bytes(data))

    # ------------------------------------------------------------------------------ the truth

    def tier(self) -> KafkaTier:
        """The tier as a reader beside the brokers opens it: the current history is known."""
        return KafkaTier(
            self.store,
            self.layout,
            SegmentStates(dict(self.segments)),
            epochs={KEY: self.history()},
            log_starts={KEY: 0},
        )

    def history(self) -> tuple[tuple[int, int], ...]:
        """The leader epochs with their first offsets; a leader has one before its first record."""
        starts = starts_of(self.log)
        return starts if starts and starts[-1][0] == self.epoch else (*starts, (self.epoch, self.end))

    def records(self) -> dict[int, SourceRecord]:
        """All records, by offset."""
        return {
            batch.base + number: SourceRecord(
                batch.base + number,
                _TIME_MS + batch.base + number,
                b"k%d" % (batch.base + number),
                value,
                (),
                batch.epoch,
            )
            for batch in self.log
            for number, value in enumerate(batch.values)
        }

    def stable_end(self) -> int:
        """The last stable offset."""
        return min([*open_at(self.log).values(), self.end])

    def committed(self) -> dict[int, SourceRecord]:
        """The records that a consumer of committed records gets."""
        dropped = {
            offset
            for producer, first, last in aborted_of(self.log)
            for batch in self.log
            if batch.producer == producer and first <= batch.base < last
            for offset in range(batch.base, batch.end)
        }
        end = self.stable_end()
        return {at: one for at, one in self.records().items() if at < end and at not in dropped}

    def brokers(self) -> MemorySource:
        """The cluster."""
        source = MemorySource(1, TOPIC)
        log = source.logs[0]
        log.records, log.end, log.epoch = self.committed(), self.stable_end(), self.epoch
        log.epochs = dict(self.history())
        source.records_a_read = 7
        return source


def starts_of(log: list[Batch]) -> tuple[tuple[int, int], ...]:
    """The leader epochs with their first offsets."""
    found: list[tuple[int, int]] = []
    for batch in log:
        if not found or found[-1][0] != batch.epoch:
            found.append((batch.epoch, batch.base))
    return tuple(found)


def open_at(log: list[Batch]) -> dict[int, int]:
    """The first offsets of transactions that are open at the end, keyed by producer."""
    found: dict[int, int] = {}
    for batch in log:
        if batch.transactional and batch.marker is None:
            found.setdefault(batch.producer, batch.base)
        elif batch.transactional:
            found.pop(batch.producer, None)
    return found


def aborted_of(log: list[Batch]) -> list[tuple[int, int, int]]:
    """Aborted transactions: producer, first offset, offset of the marker."""
    found = []
    for number, batch in enumerate(log):
        if batch.marker == ABORT and (first := open_at(log[:number]).get(batch.producer)) is not None:
            found.append((batch.producer, first, batch.base))
    return found


def _snapshot(now: dict[int, int]) -> bytes:
    entries = b"".join(struct.pack(">qhiqiqiq", pid, 0, 0, 0, 0, 0, 0, first) for pid, first in now.items())
    body = struct.pack(">i", len(now)) + entries
    return struct.pack(">hI", 1, crc32c(body)) + body


def _checkpoint(starts: tuple[tuple[int, int], ...]) -> bytes:
    lines = [b"0", b"%d" % len(starts), *(b"%d %d" % one for one in starts)]
    return b"\n".join(lines) + b"\n"

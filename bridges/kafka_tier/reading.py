"""Reads a range of one segment in a task. Batches are checked one after the other, with a few megabytes in memory.

Offsets must follow one another without a gap, because Kafka does not tier compacted topics. Each batch must have
the leader epoch of the history at its offset.

A reader of committed records compares the transaction index with the markers before it returns a record. The
reader first reads all batches of the task, without decoding them, and then looks ahead for the marker of each
transaction that is still open. So a lost or wrong index causes an error, and never an extra or a missing record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import pyarrow as pa

from stratalog.bridges.kafka_tier.batches import HEADER_BYTES, KafkaBatch, batch_bytes, batches_of, decompressed
from stratalog.bridges.kafka_tier.columns import decode
from stratalog.bridges.kafka_tier.indexes import AbortedTransaction, OffsetIndex, parse_offset_index
from stratalog.bridges.kafka_tier.layout import IndexKind, OpenSegment
from stratalog.bridges.kafka_tier.lineage import LeaderEpochs
from stratalog.bridges.kafka_tier.plan import SegmentRange
from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lookup import TimeRange

READ_BYTES = 8 * 1024 * 1024
_LEAST_READ_BYTES = 64 * 1024
GROUP_BYTES = 8 * 1024 * 1024
GROUP_RECORDS = 1 << 17
_ABORT, _COMMIT = 0, 1


@dataclass(frozen=True, slots=True)
class Ahead:
    """A piece in which transactions of the task's own piece may end: the own piece, or a later one of the run."""

    opened: OpenSegment
    piece: SegmentRange
    open_at_end: Mapping[int, int] | None
    """The transactions open at the end of the piece: first offsets by producer id. None if unknown."""


@dataclass(frozen=True, slots=True)
class KnownTransactions:
    """The transactions around a piece, for readers of committed records."""

    aborted: tuple[AbortedTransaction, ...]
    """The aborted transactions of the run of segments that includes the piece."""
    open_before: Mapping[int, int] | None
    """The transactions open at the segment's start: first offsets by producer id. None if unknown."""
    ahead: tuple[Ahead, ...] = ()
    """The piece's own segment, and the segments after it up to the end of the piece's transactions."""


@dataclass(frozen=True, slots=True)
class TierTask:
    """The part of a piece that one task reads."""

    opened: OpenSegment
    piece: SegmentRange
    epochs: LeaderEpochs
    transactions: KnownTransactions | None = None
    """The transactions; None: read records of all transactions."""
    times: TimeRange | None = None

    @property
    def topic(self) -> str:
        return self.piece.segment.topic

    @property
    def partition(self) -> int:
        return self.piece.segment.partition


def read_task(task: TierTask, *, first: bool = False) -> Iterator[pa.RecordBatch]:
    """The records of a task, as columns of ``RECORDS``. ``first``: the caller needs only the first records, so the
    task reads and decodes little at a time.

    Raises: CorruptionError and LogGapError for a segment that contradicts itself or its metadata;
        InvalidCallError for an unsupported format; SourceChangedError for a deleted segment; StorageError kinds.
        Each names topic, partition and segment.
    """
    what = str(task.piece.segment)
    known = task.transactions
    group: list[KafkaBatch] = []
    size = records = 0
    least_bytes = 0 if first else GROUP_BYTES
    found = _batches(task, what, first=first) if known is None else _committed(task, known, what)
    for batch in chain.from_iterable(found):
        if batch.control:
            continue
        if group and batch.data is not group[-1].data and batch.codec is None:
            yield from _rows(task, group, what)  # batches that were read together are decoded without a copy
            group, size, records = [], 0, 0
        group.append(decompressed(batch, what))
        size, records = size + group[-1].end - group[-1].begin, records + batch.records
        if size >= least_bytes or records >= GROUP_RECORDS:
            yield from _rows(task, group, what)
            group, size, records = [], 0, 0
    if group:
        yield from _rows(task, group, what)


def _committed(task: TierTask, known: KnownTransactions, what: str) -> Iterator[list[KafkaBatch]]:
    """The batches of a task without those of aborted transactions, once all markers are known."""
    markers = _Markers(task, known)
    read = []
    for batches in _batches(task, what):
        markers.see(batches)
        read.append(batches)
    markers.finish()
    markers.look_ahead()
    for batches in read:
        yield [batch for batch in batches if not batch.transactional or not markers.aborted(batch)]


def _rows(task: TierTask, group: list[KafkaBatch], what: str) -> Iterator[pa.RecordBatch]:
    rows = decode(group, task.piece.start, task.piece.end, what)
    if task.times is not None:
        rows = rows.filter(task.times.contains(rows.column("timestamp")))
    if rows.num_rows:
        yield rows


def _batches(task: TierTask, what: str, *, first: bool = False) -> Iterator[list[KafkaBatch]]:
    """Yield the checked batches of a task; each list has the batches that were read together."""
    segment, end = task.piece.segment, task.piece.end
    position, expected, landed = _begin(task)
    size = _LEAST_READ_BYTES if first else _first_read(task.piece)
    while expected < end:
        data = task.opened.read(position, position + size)
        if found := batches_of(data, position, what, end):
            if landed is not None:
                # Old brokers write one index entry per append: the position of its first batch, and the last
                # offset of its last batch.
                if found[0].base_offset > landed:
                    raise CorruptionError(
                        f"{what}: its offset index has byte {position} for offset {landed}, but the batch there "
                        f"has offsets {found[0].base_offset} to {found[0].last_offset}"
                    )
                expected, landed = found[0].base_offset, None
            yield _checked(task, found, expected, what)
            expected = found[-1].last_offset + 1
            # The incomplete batch is read again: joining it to the next bytes would copy them all.
            position, size = position + found[-1].end, min(2 * size, READ_BYTES)
            needed = _of_next(data, found[-1].end, position - found[-1].end, what) if expected < end else 0
            size = needed if 2 * needed > READ_BYTES else max(size, needed)
        elif len(data) < size:
            raise CorruptionError(f"{what}: its log ends at byte {position + len(data)}, before offset {end}")
        else:
            size = max(2 * size, _of_next(data, 0, position, what))
    if end == segment.next_offset and expected != end:
        raise CorruptionError(f"{what}: its batches end before offset {expected}, but its metadata says {end}")


def _of_next(data: bytes, at: int, position: int, what: str) -> int:
    """Return the number of bytes from ``data[at:]`` for a complete batch and the header of the batch after it; 0
    if unknown. So each read determines the size of the next read. Raises: see ``batches_of``.
    """
    size = batch_bytes(data, at, position, what)
    return 0 if size is None else size + HEADER_BYTES


def _checked(task: TierTask, batches: list[KafkaBatch], expected: int, what: str) -> list[KafkaBatch]:
    """The batches from the start of the task on. Raises: LogGapError unless the batches have all offsets from
    ``expected`` on; CorruptionError for a batch of another history.
    """
    kept = []
    epoch, until = None, -1
    for batch in batches:
        if batch.base_offset != expected:
            raise LogGapError(
                f"{what}: the batch at byte {batch.position} begins at offset {batch.base_offset}, not at "
                f"{expected}: batches are missing, or the topic was once compacted; read this range through the "
                "brokers"
            )
        expected = batch.last_offset + 1
        if expected <= task.piece.start:
            continue
        if batch.base_offset >= until:
            epoch, until = task.epochs.run_at(batch.base_offset)
        if epoch != batch.leader_epoch:
            raise CorruptionError(
                f"{what}: the batch at offset {batch.base_offset} has leader epoch {batch.leader_epoch}, but the "
                f"history has epoch {epoch} there"
            )
        kept.append(batch)
    return kept


def _first_read(piece: SegmentRange) -> int:
    """The size of the first read: about the size of the piece, if its records are of average size."""
    segment = piece.segment
    share = (piece.end - piece.start) / (segment.next_offset - segment.start_offset)
    return int(min(max(1.1 * share * segment.size_bytes, _LEAST_READ_BYTES), READ_BYTES))


def _begin(task: TierTask) -> tuple[int, int, int | None]:
    """The start of the read: the byte, and either the expected offset at that byte, or an offset that the batch at
    that byte must contain.
    """
    segment = task.piece.segment
    if task.piece.start > segment.start_offset:
        entry = offset_index(task.opened, task.piece).before(task.piece.start)
        if entry is not None:
            return entry[1], segment.start_offset, entry[0]
    return 0, segment.start_offset, None


def offset_index(opened: OpenSegment, piece: SegmentRange) -> OffsetIndex:
    """The offset index of the piece's segment. Raises: see ``OpenSegment.index``, ``parse_offset_index``."""
    return parse_offset_index(opened.index(IndexKind.OFFSET), piece.segment)


@dataclass(slots=True)
class _Markers:
    """The aborted transactions of a task's offsets, compared with the markers."""

    task: TierTask
    known: KnownTransactions
    by_producer: dict[int, list[AbortedTransaction]] = field(init=False)
    by_marker: dict[tuple[int, int], AbortedTransaction] = field(init=False)
    open_now: dict[int, int] = field(init=False)
    """The first offsets of open transactions, by producer id."""
    all_known: bool = field(init=False)
    """Whether ``open_now`` includes transactions from before the task."""
    mine: dict[int, int] = field(default_factory=dict)
    """The last offsets of the task's records in open transactions, by producer id."""
    seen_from: int | None = None
    seen_to: int = 0
    aborts: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.by_producer = {}
        for one in sorted(self.known.aborted, key=lambda one: one.last_offset):
            self.by_producer.setdefault(one.producer_id, []).append(one)
        self.by_marker = {(one.producer_id, one.last_offset): one for one in self.known.aborted}
        at_start = self.task.piece.start == self.task.piece.segment.start_offset
        before = self.known.open_before
        self.all_known = at_start and before is not None
        self.open_now = dict(before) if at_start and before is not None else {}

    def aborted(self, batch: KafkaBatch) -> bool:
        """Whether the records of a batch were aborted."""
        if not batch.transactional:
            return False
        its = self.by_producer.get(batch.producer_id, [])
        at = bisect_right(its, batch.base_offset, key=lambda one: one.last_offset)
        return at < len(its) and its[at].first_offset <= batch.base_offset

    def see(self, batches: list[KafkaBatch]) -> None:
        """Record batches. Raises: CorruptionError if a marker and the index contradict each other."""
        if not batches:
            return
        if self.seen_from is None:
            self.seen_from = batches[0].base_offset
        self.seen_to = batches[-1].last_offset + 1
        for batch in batches:
            if batch.transactional and not batch.control:
                self.open_now.setdefault(batch.producer_id, batch.base_offset)
                self.mine[batch.producer_id] = batch.last_offset
            elif batch.transactional:
                self._ended(batch)

    def look_ahead(self) -> None:
        """Find the markers of the transactions that are open at the end of the task.

        Raises: CorruptionError if the run has no such marker, or the index contradicts it; see ``read_task``.
        """
        position = self.task.piece.end
        for ahead in self.known.ahead:
            still = ahead.open_at_end or {}
            left = {
                producer for producer, last in self.mine.items() if producer not in still or still[producer] > last
            }
            part = replace(ahead.piece, start=max(position, ahead.piece.start))
            if left and part.start < part.end:
                read = _batches(TierTask(ahead.opened, part, self.task.epochs), str(part.segment))
                for batch in chain.from_iterable(read):
                    if batch.control and batch.transactional and batch.producer_id in left:
                        self._ended(batch)
                        left.discard(batch.producer_id)
                    if not left:
                        break
            if left and ahead.open_at_end is not None:
                break
        if self.mine:
            raise CorruptionError(
                f"{self.task.piece.segment}: the transactions of producers {sorted(self.mine)[:3]} have no "
                "marker, but the snapshots of producers say that these transactions have ended"
            )

    def _ended(self, batch: KafkaBatch) -> None:
        what = str(self.task.piece.segment)
        first = self.open_now.pop(batch.producer_id, None)
        self.mine.pop(batch.producer_id, None)
        kind = _marker(batch, what)
        entry = self.by_marker.get((batch.producer_id, batch.base_offset))
        if entry is not None:
            self.aborts.add((batch.producer_id, batch.base_offset))
        start = None if entry is None else entry.first_offset
        if kind == _COMMIT and (entry is not None or self.aborted(batch)):
            raise self._contradicts(
                f"lists the transaction that was committed at offset {batch.base_offset} as aborted"
            )
        if kind == _ABORT and (start != first if self.all_known else self._hides(start, first)):
            has = "no transaction" if start is None else f"a transaction that starts at {start}"
            raise self._contradicts(
                f"lists {has} for the abort at offset {batch.base_offset}, but the aborted transaction "
                + (f"has its first record at {first}" if first is not None else "has no record")
            )

    def _hides(self, start: int | None, first: int | None) -> bool:
        """Whether the task has read a record of a transaction below the offset at which the transaction starts
        according to the index.
        """
        return first is not None and (start is None or start > first)

    def finish(self) -> None:
        """Check that the marker of each transaction is at the offset in the index. Raises: CorruptionError."""
        if self.seen_from is None:
            return
        for one in self.known.aborted:
            inside = self.seen_from <= one.last_offset < self.seen_to
            if inside and (one.producer_id, one.last_offset) not in self.aborts:
                raise self._contradicts(
                    f"names a marker at offset {one.last_offset}, but that offset has no marker"
                )

    def _contradicts(self, why: str) -> CorruptionError:
        return CorruptionError(f"{self.task.piece.segment}: its transaction index {why}")


def _marker(batch: KafkaBatch, what: str) -> int:
    """Whether a control batch is a commit, not an abort."""
    rows = decode([decompressed(batch, what)], batch.base_offset, batch.last_offset + 1, what)
    key = rows.column("key")[0].as_py() if rows.num_rows else None
    if key is None or len(key) < 4 or (kind := int.from_bytes(key[2:4], "big")) not in (_ABORT, _COMMIT):
        raise CorruptionError(f"{what}: the marker at offset {batch.base_offset} is neither a commit nor an abort")
    return kind

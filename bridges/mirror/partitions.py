"""One run's state of each partition: where it is, how far it is to go, and what waits to be appended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from stratalog.bridges.mirror.rows import MOST_ROWS, offsets_of, sizes_of
from stratalog.bridges.mirror.source import (
    SourceBounds,
    SourceRange,
    SourceRead,
    SourceTruncatedError,
)
from stratalog.partitions.columns import integers_of, valid_of
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.producers import ProducerAppend

MIRROR = "mirror"
"""The producer of what is mirrored. Its epoch is the source's leader epoch, its sequence the offset."""
MOST_BYTES = 256 * 1024 * 1024
"""Of memory, for the records of all partitions that wait to be appended, about."""
_PIECE_BYTES = 64 * 1024 * 1024
_RECORD_BYTES = 40
"""That the columns take for a record besides its bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Of one append: the offsets ``[start, end)``, and all records there; of one leader epoch."""

    key: TopicPartition
    start: int
    end: int
    batches: tuple[pa.RecordBatch, ...]
    """Columns of ``rows.SOURCE_SCHEMA``; none of them is empty."""
    size_bytes: int
    leader_epoch: int

    @property
    def records(self) -> int:
        """How many."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def producer(self) -> ProducerAppend:
        """It is appended at its place or nowhere."""
        return ProducerAppend(MIRROR, self.leader_epoch, self.start, base_offset=self.start)


@dataclass(slots=True)
class MirroredPartition:
    """A partition that is being mirrored."""

    key: TopicPartition
    log_end: int
    """Here. All of the source below it is here."""
    leader_epoch: int | None
    """Of the source, when the last record below ``log_end`` was appended there; None: nobody knows."""
    bounds: SourceBounds
    """When the run began."""
    most_bytes: int = _PIECE_BYTES
    """Of memory, for records that wait."""
    position: int = 0
    """Up to here the source was read."""
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    """The records of ``[log_end, position)``."""
    rows: int = 0
    size_bytes: int = 0
    """Of these."""
    waiting_epoch: int | None = None
    """The leader epoch of the last of these that has one."""
    mirrored: int = 0
    undecoded: int = 0
    """Of those that were mirrored: their values are kept as bytes."""
    gaps: int = 0
    mirrored_bytes: int = 0
    error: StratalogError | None = None
    doubted: bool = False
    """Whether the source is asked a second time if it has the history of this log."""

    def __post_init__(self) -> None:
        """Raises: SourceTruncatedError where the source ends before this log does."""
        if self.log_end > self.bounds.log_end:
            raise self.truncated(self.bounds)
        self.position = max(self.log_end, self.bounds.log_start)

    def __str__(self) -> str:
        return f"{self.key[0]}-{self.key[1]}"

    @property
    def done(self) -> bool:
        """Whether nothing is left to do in this run."""
        return self.error is not None or self.log_end >= self.bounds.stable_end

    @property
    def lost(self) -> int:
        """How many offsets had left the source before they were mirrored. They become gaps."""
        return max(0, self.bounds.log_start - self.log_end)

    def share(self, partitions: int) -> None:
        """This is one of the ``partitions`` that are mirrored at once."""
        self.most_bytes = min(_PIECE_BYTES, MOST_BYTES // partitions)

    def apart(self) -> MirroredPartition:
        """The partition where it is, for a task: nothing is mirrored yet, and nothing waits."""
        return MirroredPartition(self.key, self.log_end, self.leader_epoch, self.bounds)

    def came_on(self, apart: MirroredPartition) -> None:
        """A task has mirrored on, and all of it is acknowledged."""
        self.mirrored += apart.mirrored
        self.undecoded += apart.undecoded
        self.gaps += apart.gaps
        self.mirrored_bytes += apart.mirrored_bytes
        self.begin_at(apart.log_end, apart.leader_epoch)

    def range(self) -> SourceRange:
        """To be read next. A source whose log starts there knows no epoch of the record before."""
        known = self.leader_epoch if self.position > self.bounds.log_start else None
        return SourceRange(self.position, self.bounds.stable_end, known)

    def begin_at(self, log_end: int, leader_epoch: int | None) -> None:
        """The log ends here now; records that wait are forgotten."""
        self.log_end, self.leader_epoch = log_end, leader_epoch
        self.waiting, self.rows, self.size_bytes, self.waiting_epoch = [], 0, 0, None
        self.position = max(log_end, self.bounds.log_start)

    def doubt(self, last_record: int | None) -> None:
        """The source does not have the history up to ``position``; it is asked once more up to the last record
        here, at this offset. Gaps behind that may be of a later epoch than is known here.
        """
        self.begin_at(self.log_end, self.leader_epoch)
        self.doubted = True
        self.position = max(self.bounds.log_start, 0 if last_record is None else last_record + 1)

    def truncated(self, now: SourceBounds) -> SourceTruncatedError:
        """The error of a source that ends, as it is now, before this log, or has another history."""
        if self.log_end > now.log_end:
            return SourceTruncatedError(f"{self}: it ends at offset {now.log_end} there, at {self.log_end} here")
        what = f"{self}: leader epoch {self.leader_epoch} ends there before offset {self.position}, and not here"
        return SourceTruncatedError(what)

    def pieces(self, read: SourceRead) -> Iterator[Piece]:
        """The appends that are due now that this was read, in order; each is here (``appended``) before the next
        one is asked for. Records beyond the end of the run wait for the next run.
        """
        end = self.bounds.stable_end
        offsets = offsets_of(read.records)
        records = read.records.slice(0, int(np.searchsorted(offsets, end)))
        if records.num_rows and offsets[0] < self.log_end:  # where a gap is here
            self.error = self.truncated(self.bounds)
            return
        for run, epoch in _runs(records, self._epoch):
            if self.waiting and epoch != self._epoch:
                yield from self._cut(self.position)
            yield from self._wait(run, epoch)
        self.position = max(self.position, min(read.position, end))
        if self.position >= end or self.position - self.log_end >= MOST_ROWS:
            yield from self._cut(self.position)

    def _wait(self, run: pa.RecordBatch, epoch: int) -> Iterator[Piece]:
        """The records of a run wait; the pieces that are due before there is room for all of them."""
        offsets, sizes = offsets_of(run), sizes_of(run)
        ends = np.cumsum(sizes + _RECORD_BYTES)
        first = 0
        while first < run.num_rows:
            if self._waiting_bytes >= self.most_bytes or offsets[first] - self.log_end >= MOST_ROWS:
                yield from self._cut(self.position)
            room = self.most_bytes - self._waiting_bytes + (int(ends[first - 1]) if first else 0)
            fit = int(np.searchsorted(ends, room)) + 1
            near = int(np.searchsorted(offsets, self.log_end + MOST_ROWS))
            until = min(max(min(fit, near), first + 1), run.num_rows)
            taken = run.slice(first, until - first)
            self.waiting.append(taken)
            self.rows += taken.num_rows
            self.size_bytes += int(sizes[first:until].sum())
            self.position, self.waiting_epoch = int(offsets[until - 1]) + 1, epoch
            first = until

    def rest(self) -> Iterator[Piece]:
        """As ``pieces``: all that was read and waits."""
        return self._cut(self.position) if self.waiting else iter(())

    @property
    def _waiting_bytes(self) -> int:
        return self.size_bytes + _RECORD_BYTES * self.rows

    def _cut(self, end: int) -> Iterator[Piece]:
        while self.log_end < end:
            until = min(end, self.log_end + MOST_ROWS)
            records, size, epoch = tuple(self.waiting), self.size_bytes, self._epoch
            rest: list[pa.RecordBatch] = []
            if until < end:  # a long gap: some wait behind it, of the same epoch
                places = [int(np.searchsorted(offsets_of(batch), until)) for batch in records]
                rest = [b.slice(at) for b, at in zip(records, places, strict=True) if at < b.num_rows]
                records = tuple(b.slice(0, at) for b, at in zip(records, places, strict=True) if at)
                size = sum(int(sizes_of(batch).sum()) for batch in records)
                epoch = epoch if records else self.leader_epoch or 0
            piece = Piece(self.key, self.log_end, until, records, size, epoch)
            self.waiting, self.rows, self.size_bytes = rest, self.rows - piece.records, self.size_bytes - size
            if not self.waiting:
                self.waiting_epoch = None
            yield piece

    @property
    def _epoch(self) -> int:
        """Of the last record that waits, or else of the last one that is here."""
        return self.waiting_epoch if self.waiting_epoch is not None else self.leader_epoch or 0

    def appended(self, piece: Piece, undecoded: int = 0) -> None:
        """The piece is in the log; ``undecoded`` of its values could not be decoded."""
        self.undecoded += undecoded
        self.log_end, self.leader_epoch = piece.end, piece.leader_epoch
        self.mirrored += piece.records
        self.gaps += piece.end - piece.start - piece.records
        self.mirrored_bytes += piece.size_bytes


def _runs(records: pa.RecordBatch, epoch: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Records of one leader epoch each, and that; ``epoch`` is that of the records before. A record whose epoch
    nobody knows is of the epoch before it.
    """
    epochs = records.column("leader_epoch")
    known = np.flatnonzero(valid_of(epochs))
    told = integers_of(epochs)[known].astype(np.int64)
    changed = np.flatnonzero(np.diff(told, prepend=epoch))
    starts = [0, *known[changed].tolist(), records.num_rows]
    for (start, end), one in zip(pairwise(starts), [epoch, *told[changed].tolist()], strict=True):
        if start < end:
            yield records.slice(start, end - start), one


def new_offsets(parts: Iterable[MirroredPartition]) -> int:
    """How many the run has left."""
    return sum(part.bounds.stable_end - part.position for part in parts)


def deal(parts: Sequence[MirroredPartition], most_shares: int) -> list[list[MirroredPartition]]:
    """About as many new offsets for each of the shares, of which none is empty."""
    shares: list[list[MirroredPartition]] = [[] for _ in range(min(most_shares, len(parts)))]
    for part in sorted(parts, key=lambda part: part.position - part.bounds.stable_end):
        min(shares, key=new_offsets).append(part)
    return shares

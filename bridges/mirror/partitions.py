"""The state of each partition in a run: its position, its end, and records that wait to be appended. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    without_leader,
)
from stratalog.partitions.columns import integers_of, valid_of
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.producers import ProducerAppend

MIRROR = "mirror"
"""The producer of mirrored records. Its epoch is the source's leader epoch, and its sequence is the offset."""
MOST_BYTES = 256 * 1024 * 1024
"""The approximate memory for waiting records of all partitions, in bytes."""
_PIECE_BYTES = 64 * 1024 * 1024
_RECORD_BYTES = 40
"""The memory of a record's columns in addition to its bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The content of one append: the offsets ``[start, end)``, all of one leader epoch, with all their records."""

    key: TopicPartition
    start: int
    end: int
    batches: tuple[pa.RecordBatch, ...]
    """Non-empty batches with the columns of ``rows.SOURCE_SCHEMA``."""
    size_bytes: int
    leader_epoch: int

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def producer(self) -> ProducerAppend:
        """The arguments of the append, which succeeds only at this offset."""
        return ProducerAppend(MIRROR, self.leader_epoch, self.start, base_offset=self.start)


@dataclass(slots=True)
class MirroredPartition:
    key: TopicPartition
    log_end: int
    """The log end here; the log here has all earlier records of the source."""
    leader_epoch: int | None
    """The source's leader epoch of the last record below ``log_end``; None if unknown."""
    bounds: SourceBounds
    """The source's bounds when the run began."""
    acknowledged: bool = True
    """Whether the log here is acknowledged up to ``log_end``."""
    most_bytes: int = _PIECE_BYTES
    """The memory for waiting records, in bytes."""
    position: int = 0
    """The offset up to which the source was read."""
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    """The waiting records of ``[log_end, position)``."""
    rows: int = 0
    size_bytes: int = 0
    """The size of the waiting records."""
    waiting_epoch: int | None = None
    """The leader epoch of the last waiting record that has one."""
    mirrored: int = 0
    undecoded: int = 0
    """The number of mirrored records whose values are kept as bytes."""
    gaps: int = 0
    mirrored_bytes: int = 0
    from_tier: int = 0
    """The number of records that were read from the source's tier."""
    notes: list[str] = field(default_factory=list)
    """The notes of reads."""
    error: StratalogError | None = None
    task_error: str | None = None
    """The error of the last task that could not finish this partition, if that task had an error."""
    doubted: bool = False
    """Whether this is the second check of the source's history."""

    def __post_init__(self) -> None:
        """Raises: SourceTruncatedError if the source ends before the log here."""
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
        """The number of offsets that the source deleted before they were mirrored. They become gaps."""
        return max(0, self.bounds.log_start - self.log_end)

    def share(self, partitions: int) -> None:
        """Limit the memory of this partition, so that ``partitions`` can be mirrored at the same time."""
        self.most_bytes = min(_PIECE_BYTES, MOST_BYTES // partitions)

    def apart(self) -> MirroredPartition:
        """A copy of the partition for a task, without counts and waiting records."""
        return MirroredPartition(self.key, self.log_end, self.leader_epoch, self.bounds)

    def came_on(self, apart: MirroredPartition) -> None:
        """Add the result of a task, whose appends are all acknowledged."""
        self.mirrored += apart.mirrored
        self.undecoded += apart.undecoded
        self.gaps += apart.gaps
        self.mirrored_bytes += apart.mirrored_bytes
        self.from_tier += apart.from_tier
        self.notes += apart.notes
        self.acknowledged = self.acknowledged or apart.log_end > self.log_end
        self.begin_at(apart.log_end, apart.leader_epoch)

    def range(self) -> SourceRange:
        """The next range to read. If the source's log starts there, the source does not know the previous record's
        epoch.
        """
        known = self.leader_epoch if self.position > self.bounds.log_start else None
        return SourceRange(self.position, self.bounds.stable_end, known)

    def begin_at(self, log_end: int, leader_epoch: int | None) -> None:
        """Set a new log end; drops waiting records."""
        self.log_end, self.leader_epoch = log_end, leader_epoch
        self.waiting, self.rows, self.size_bytes, self.waiting_epoch = [], 0, 0, None
        self.position = max(log_end, self.bounds.log_start)

    def found_at(self, log_end: int, leader_epoch: int | None, acknowledged: bool) -> None:
        """Continue at a log end that was read again. Offsets that this run may not have appended are left out of
        its counts and named in a note.
        """
        if log_end > self.log_end:
            why = "" if self.task_error is None else f" ({self.task_error})"
            self.notes.append(
                f"{self}: offsets [{self.log_end}, {log_end}) are in the log, but not in the counts of this run: "
                f"they were appended by another mirror, or by a task of this run whose result was lost{why}"
            )
        self.acknowledged = acknowledged
        self.begin_at(log_end, leader_epoch)

    def denied(self, now: SourceBounds | None, last_record: Callable[[], int | None]) -> None:
        """Continue after the source denied the history up to ``position``; ``now`` are its current bounds. If its
        log now starts later, continue there: a deletion says nothing about the history. Otherwise check once more,
        only up to the ``last_record`` here: gaps after it may belong to a later epoch, which is unknown here.

        Raises: LeaderNotAvailableError; SourceTruncatedError; errors of ``last_record``.
        """
        if now is None:
            raise without_leader(self.key)
        if now.log_start > self.position:
            self.bounds = SourceBounds(now.log_start, max(self.bounds.stable_end, now.log_start), now.log_end)
            self.begin_at(self.log_end, self.leader_epoch)
        elif self.log_end > now.log_end or self.doubted:
            raise self.truncated(now)
        else:
            last = last_record()
            self.begin_at(self.log_end, self.leader_epoch)
            self.doubted = True
            self.position = max(self.bounds.log_start, 0 if last is None else last + 1)

    def truncated(self, now: SourceBounds) -> SourceTruncatedError:
        """The error of a source that now ends before the log here, or has a different history."""
        if self.log_end > now.log_end:
            return SourceTruncatedError(
                f"{self}: the log ends at offset {now.log_end} in the source, but at {self.log_end} here"
            )
        what = (
            f"{self}: leader epoch {self.leader_epoch} ends in the source before offset {self.position}, but not "
            "here"
        )
        return SourceTruncatedError(what)

    def pieces(self, read: SourceRead) -> Iterator[Piece]:
        """Add records, and yield the due appends in order; call ``appended`` before requesting the next one.
        Records beyond the end of the run are left to the next run.
        """
        end = self.bounds.stable_end
        self.notes += read.notes
        offsets = offsets_of(read.records)
        records = read.records.slice(0, int(np.searchsorted(offsets, end)))
        if records.num_rows and offsets[0] < self.log_end:  # rows that are gaps
            self.error = self.truncated(self.bounds)
            return
        self.from_tier += records.num_rows if read.from_tier else 0
        for run, epoch in _runs(records, self._epoch):
            if self.waiting and epoch != self._epoch:
                yield from self._cut(self.position)
            yield from self._wait(run, epoch)
        self.position = max(self.position, min(read.position, end))
        if self.position >= end or self.position - self.log_end >= MOST_ROWS:
            yield from self._cut(self.position)

    def _wait(self, run: pa.RecordBatch, epoch: int) -> Iterator[Piece]:
        """Queue records of one epoch; yields the pieces that are due before they all fit."""
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
        """Like ``pieces``, for all waiting records."""
        return self._cut(self.position) if self.waiting else iter(())

    @property
    def _waiting_bytes(self) -> int:
        return self.size_bytes + _RECORD_BYTES * self.rows

    def _cut(self, end: int) -> Iterator[Piece]:
        while self.log_end < end:
            until = min(end, self.log_end + MOST_ROWS)
            records, size, epoch = tuple(self.waiting), self.size_bytes, self._epoch
            rest: list[pa.RecordBatch] = []
            if until < end:  # after a long gap some records of the same epoch wait
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
        """The epoch of the last waiting record, otherwise of the last record here."""
        return self.waiting_epoch if self.waiting_epoch is not None else self.leader_epoch or 0

    def appended(self, piece: Piece, undecoded: int = 0) -> None:
        """Record that the piece is in the log; ``undecoded`` of its values could not be decoded."""
        self.undecoded += undecoded
        self.log_end, self.leader_epoch, self.acknowledged = piece.end, piece.leader_epoch, True
        self.mirrored += piece.records
        self.gaps += piece.end - piece.start - piece.records
        self.mirrored_bytes += piece.size_bytes


def _runs(records: pa.RecordBatch, epoch: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Split records by leader epoch, and yield each part with its epoch; ``epoch`` is that of the previous
    records. A record without a known epoch gets the epoch of the previous record.
    """
    epochs = records.column("leader_epoch")
    known = np.flatnonzero(valid_of(epochs))
    known_epochs = integers_of(epochs)[known].astype(np.int64)
    changed = np.flatnonzero(np.diff(known_epochs, prepend=epoch))
    starts = [0, *known[changed].tolist(), records.num_rows]
    for (start, end), one in zip(pairwise(starts), [epoch, *known_epochs[changed].tolist()], strict=True):
        if start < end:
            yield records.slice(start, end - start), one


def new_offsets(parts: Iterable[MirroredPartition]) -> int:
    """The number of offsets left in the run."""
    return sum(part.bounds.stable_end - part.position for part in parts)


def deal(parts: Sequence[MirroredPartition], most_shares: int) -> list[list[MirroredPartition]]:
    """Non-empty shares with about the same number of new offsets."""
    shares: list[list[MirroredPartition]] = [[] for _ in range(min(most_shares, len(parts)))]
    for part in sorted(parts, key=lambda part: part.position - part.bounds.stable_end):
        min(shares, key=new_offsets).append(part)
    return shares

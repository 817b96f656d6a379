"""Lookups by time, from footers, row-group statistics and one column. Data that cannot match is not read. This
module also selects the files that may hold records of a time range.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.listing import DataFile, Link
from stratalog.partitions.offsets import Answer, FoundOffset, UnknownOffset
from stratalog.partitions.segments.parquet_footer import RowGroup
from stratalog.partitions.segments.reader import Segment, read_row_groups, read_segment
from stratalog.partitions.store.protocol import Store


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Timestamps ``[start_us, end_us)`` in microseconds since 1970; None means no bound on that side. No range
    contains a record without a timestamp.
    """

    start_us: int | None = None
    end_us: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the range contains no timestamp."""
        return self.start_us is not None and self.end_us is not None and self.start_us >= self.end_us

    def meets(self, least_us: int, largest_us: int) -> bool:
        """Whether the range contains a timestamp of ``[least_us, largest_us]``, both inclusive."""
        starts = self.start_us is None or largest_us >= self.start_us
        return starts and (self.end_us is None or least_us < self.end_us) and not self.is_empty

    def contains(self, timestamps: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """For each timestamp of a column, whether the range contains it; false for null."""
        micros = timestamps.cast(pa.int64())
        chosen = pc.is_valid(micros)
        if self.start_us is not None:
            chosen = pc.and_kleene(chosen, pc.greater_equal(micros, self.start_us))
        if self.end_us is not None:
            chosen = pc.and_kleene(chosen, pc.less(micros, self.end_us))
        return pc.fill_null(chosen, False)


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The part ``[start, end)`` of a log in one file, in either tier."""

    store: Store
    file: DataFile
    start: int
    end: int
    max_timestamp_us: int | None = field(default=None, compare=False)
    """An upper bound of the file's timestamps; None if only the file itself has it."""
    min_timestamp_us: int | None = field(default=None, compare=False)
    """A lower bound of the file's timestamps; known if ``max_timestamp_us`` is."""

    def may_hold(self, times: TimeRange) -> bool:
        """Whether the file may hold records of these times. Reads its footers if the bounds are unknown."""
        if self.min_timestamp_us is not None and self.max_timestamp_us is not None:
            return times.meets(self.min_timestamp_us, self.max_timestamp_us)
        footer = self.segment.footer
        dated = footer.max_timestamp_offset is not None
        return dated and times.meets(footer.min_timestamp_us, footer.max_timestamp_us)

    @property
    def segment(self) -> Segment:
        """The file's footers."""
        return read_segment(self.store, self.file)


@dataclass(frozen=True, slots=True)
class LogSlices:
    """The slices of the files of a log that hold offsets of ``[start, end)``, in order. Each iteration creates
    them lazily, beginning with the first."""

    store: Store
    chain: Sequence[Link]
    start: int
    end: int

    def __iter__(self) -> Iterator[FileSlice]:
        for index in range(bisect_right(self.chain, self.start, key=attrgetter("end")), len(self.chain)):
            link = self.chain[index]
            if link.start >= self.end:
                return
            yield FileSlice(self.store, link.file, link.start, min(link.end, self.end))


def first_at_or_after(pieces: Iterable[FileSlice], timestamp_us: int) -> Answer:
    """The first record, by offset, whose timestamp is at or above ``timestamp_us`` (offsetsForTimes).

    ``pieces`` is the log in order, remote then local. Pieces that are known to be too early are not opened.
    """
    for piece in pieces:
        if piece.max_timestamp_us is not None and piece.max_timestamp_us < timestamp_us:
            continue
        footer = piece.segment.footer
        if footer.max_timestamp_offset is None or footer.max_timestamp_us < timestamp_us:
            continue
        found = _first_in(piece, timestamp_us)
        if found is not None:
            return found
    return UnknownOffset("all records are older")


def largest_timestamp(pieces: Iterable[FileSlice]) -> Answer:
    """The first record, by offset, that has the largest timestamp (KIP-734's MAX_TIMESTAMP).

    Pieces that are known to be too early are not opened.
    """
    best: FoundOffset | None = None
    largest_us = None
    for piece in sorted(pieces, key=_upper_bound, reverse=True):
        if largest_us is not None and _upper_bound(piece) < largest_us:
            break
        found = _largest_in(piece)
        if found is not None and (best is None or _rank(found) > _rank(best)):
            best, largest_us = found, found.timestamp_us
    return UnknownOffset("the log is empty") if best is None else best


def _upper_bound(piece: FileSlice) -> float:
    return math.inf if piece.max_timestamp_us is None else piece.max_timestamp_us


def _rank(found: FoundOffset) -> tuple[int, int]:
    """A rank that puts later timestamps first, and the lower offset first among equal timestamps."""
    assert found.timestamp_us is not None
    return found.timestamp_us, -found.offset


def _largest_in(piece: FileSlice) -> FoundOffset | None:
    footer = piece.segment.footer
    if footer.max_timestamp_offset is None:
        return None
    if piece.start <= footer.max_timestamp_offset < piece.end:
        return FoundOffset(footer.max_timestamp_offset, footer.max_timestamp_us)
    best: FoundOffset | None = None  # the piece does not hold the footer's record, so look at its own records
    for first, timestamps in _timestamps(piece, minimum_us=None):
        largest = pc.max(timestamps).as_py()
        if largest is not None:
            found = FoundOffset(first + pc.index(timestamps, largest).as_py(), largest)
            best = found if best is None else max(best, found, key=_rank)
    return best


def _first_in(piece: FileSlice, timestamp_us: int) -> FoundOffset | None:
    for first, timestamps in _timestamps(piece, minimum_us=timestamp_us):
        late_enough = pc.greater_equal(timestamps, timestamp_us)
        index = pc.index(late_enough, True).as_py()
        if index >= 0:
            return FoundOffset(first + index, timestamps[index].as_py())
    return None


def _timestamps(piece: FileSlice, minimum_us: int | None) -> Iterable[tuple[int, pa.Array]]:
    """Yields ``(first offset, timestamps in microseconds)`` for each row group that may hold a match."""

    def may_match(group: RowGroup) -> bool:
        largest = _largest_by_statistics(group)
        return largest is None or minimum_us is None or largest >= minimum_us

    groups = read_row_groups(piece.store, piece.file, piece.start, piece.end, ["timestamp"], may_match)
    for first, table in groups:
        yield first, table.column(0).combine_chunks().cast(pa.int64())


def _largest_by_statistics(group: RowGroup) -> int | None:
    """The largest timestamp of a row group in microseconds; None if the file has no statistics."""
    for chunk in group.chunks:
        if chunk.path == ("timestamp",):
            return None if chunk.bounds is None else int(chunk.bounds[1])
    return None

"""Checks every byte of a data file against its checksums.

    copied      ``check_copy``: the bytes in transit, before the copy gets a name. No request, no second read
    copied      ``read_small``: the same for a small file, which is read by one request for all its copies
    stored      ``verify_bytes``: one sequential read, nothing decoded. It finds *whether* a file is damaged
    stored      ``check_segment``: one sequential read, every page decoded. It finds *which records* of a damaged
                file are lost, and whether the good records have the right offsets

Parquet's footer has its own checksum, all positions, and the checksum of all other bytes, and is checked first.
``check_segment`` keeps the compressed bytes of one row group in memory, and decompresses them in pieces, because
rows may be wide, and a Python worker may have little memory. It reports the offsets of the lost records, in the
smallest range that a file can show: a row group, or the whole file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import BinaryIO

from isal import isal_zlib

from stratalog.partitions.columns import numbers
from stratalog.partitions.errors import CorruptSegmentError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.segments.parquet_footer import MAGIC
from stratalog.partitions.segments.reader import Segment, decode_row_group, naming, read_segment, segment_of
from stratalog.partitions.store.protocol import Readable, StagedCopy
from stratalog.partitions.store.reader import HeldObject, read_range

SMALL_BYTES = 4 * 1024 * 1024
"""A file up to this size is read by one request."""
READ_BYTES = 8 * 1024 * 1024
"""A larger file is read by requests of this size."""


@dataclass(frozen=True, slots=True)
class BadRange:
    """Records ``[start, end)`` of a file that cannot be read as written."""

    start: int
    end: int
    error: CorruptSegmentError


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """A file that was read completely. The bytes of a good file have the checksum ``segment.crc32``."""

    segment: Segment
    bad: tuple[BadRange, ...]
    """The damaged offset ranges, in order and not adjacent; empty for a good file."""


def check_copy(source: Readable, segment: Segment, copied: StagedCopy) -> None:
    """Check that a copy of ``segment``, read from ``source``, has all the bytes that were written originally.

    Raises: CorruptSegmentError, which names the source, because it returned other bytes (or this process corrupted
        them). The caller must not give the copy a name, and adds the broker of the source to the error.
    """
    _compare(source, segment, copied.crc32)


def read_small(store: Readable, file: DataFile) -> bytes:
    """Read all bytes of a data file of at most ``SMALL_BYTES`` by one request, and compare them with the checksum
    that was written with them. The file's footers are cached.

    Raises: CorruptSegmentError; SourceChangedError if the file was deleted or replaced.
    """
    held = HeldObject(store, file.object)
    _compare(store, segment_of(store, file, held), isal_zlib.crc32(held.data))
    return held.data


def verify_bytes(store: Readable, file: DataFile) -> Segment:
    """Check that storage returns every byte of a data file as it was written. The file is read once, not decoded.

    Raises: CorruptSegmentError; SourceChangedError if the file was deleted or replaced.
    """
    if file.object.size_bytes <= SMALL_BYTES:
        store = HeldObject(store, file.object)
    segment = read_segment(store, file, remembered=False)
    what, size, crc32 = store.uri_of(file.object.name), file.object.size_bytes, 0
    with store.open(file.object) as source:
        for start in range(0, size, READ_BYTES):
            crc32 = isal_zlib.crc32(read_range(source, start, min(start + READ_BYTES, size), what), crc32)
    _compare(store, segment, crc32)
    return segment


def _compare(store: Readable, segment: Segment, crc32: int) -> None:
    if crc32 != segment.crc32:
        what = store.uri_of(segment.file.object.name)
        with naming(segment.file.object):
            raise CorruptSegmentError(
                f"{what} is damaged: its bytes have CRC-32 {crc32:08x}, but were written with {segment.crc32:08x}"
            )


def check_segment(store: Readable, file: DataFile) -> CheckedSegment:
    """Read a whole data file and compare every checksum: footers, page index, pages, offsets.

    Raises: CorruptSegmentError if its footer is invalid, so that nothing in the file can be trusted;
        SourceChangedError if the file was deleted or replaced.
    """
    what = store.uri_of(file.object.name)
    if file.object.size_bytes <= SMALL_BYTES:
        store = HeldObject(store, file.object)
    segment = read_segment(store, file, remembered=False)
    bad: list[BadRange] = []
    crc32 = 0
    with store.open(file.object) as source:
        regions = _Regions(source, file.object.size_bytes, segment, what)
        if regions.head != MAGIC:
            bad.append(_whole(segment, f"{what} does not begin like a Parquet file"))
        crc32 = isal_zlib.crc32(regions.head)
        for found in regions.row_groups():
            crc32 = isal_zlib.crc32(found.data, crc32)
            error = _check_row_group(segment, found, what)
            if error is not None:
                bad.append(BadRange(found.first, found.end, error))
        for data in regions.tail():
            crc32 = isal_zlib.crc32(data, crc32)
    if crc32 != segment.crc32 and not bad:  # the damage is in the page index, or in a page's header
        bad.append(_whole(segment, f"{what} is damaged outside of its records: the checksum of all bytes differs"))
    return CheckedSegment(segment, _joined(bad))


def verify_segment(store: Readable, file: DataFile) -> Segment:
    """Check that all checksums of a data file are right.

    Raises: CorruptSegmentError, which names the first problem; SourceChangedError.
    """
    checked = check_segment(store, file)
    if checked.bad:
        raise checked.bad[0].error
    return checked.segment


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """The bytes of a row group, with the records ``[first, end)``."""

    index: int
    first: int
    end: int
    data: bytes


class _Regions:
    """The regions of a file in order: magic, row groups, page index and footer."""

    def __init__(self, source: BinaryIO, size_bytes: int, segment: Segment, what: str) -> None:
        self._source = source
        self._what = what
        self._segment = segment
        self._size_bytes = size_bytes
        self.head = self._read(0, len(MAGIC))

    def row_groups(self) -> Iterator[_RowGroup]:
        """The row groups in order; they are contiguous."""
        offsets = pairwise(self._segment.row_group_offsets)
        for index, (group, (first, end)) in enumerate(zip(self._segment.row_groups, offsets, strict=True)):
            yield _RowGroup(index, first, end, self._read(group.start, group.stop))

    def tail(self) -> Iterator[bytes]:
        """The page index and everything after it, in pieces."""
        for start in range(self._segment.index_start, self._size_bytes, READ_BYTES):
            yield self._read(start, min(start + READ_BYTES, self._size_bytes))

    def _read(self, start: int, end: int) -> bytes:
        return read_range(self._source, start, end, self._what)


def _check_row_group(segment: Segment, found: _RowGroup, what: str) -> CorruptSegmentError | None:
    """The damage of a row group: a wrong page checksum, or wrong offsets of records; None for a good row group."""
    try:
        table = decode_row_group(segment, found.index, found.data, kept=["offset"])
    except CorruptSegmentError as error:
        return error
    offsets = table.column("offset")
    expected = numbers(found.first, found.end)
    if offsets.null_count or not offsets.combine_chunks().equals(expected):
        return CorruptSegmentError(f"{what}: its records from offset {found.first} on have wrong offsets")
    return None


def _whole(segment: Segment, message: str) -> BadRange:
    return BadRange(segment.footer.base_offset, segment.footer.next_offset, CorruptSegmentError(message))


def _joined(bad: list[BadRange]) -> tuple[BadRange, ...]:
    """The ranges, in order. Ranges that touch or overlap are joined, and keep the first error."""
    joined: list[BadRange] = []
    for found in sorted(bad, key=lambda found: (found.start, -found.end)):
        if joined and found.start <= joined[-1].end:
            joined[-1] = replace(joined[-1], end=max(joined[-1].end, found.end))
        else:
            joined.append(found)
    return tuple(joined)

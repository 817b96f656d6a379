"""Reads a data file: its footers, and its records one row group at a time.

A file is Parquet with the log's own footer (``footer``), written once (``writer``). Its bytes may
be of any origin, even with correct checksums: forms that no segment's writer produces are refused, and Arrow only
sees checked input (``parquet_decoding``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import CorruptSegmentError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import segment_owner
from stratalog.partitions.segments.footer import FOOTER_KEY, SegmentFooter, checksums_of, decode_footer, file_crc32
from stratalog.partitions.segments.parquet_decoding import TAIL_BYTES, ColumnChunks, decoded, translated
from stratalog.partitions.segments.parquet_footer import (
    MAGIC,
    SUFFIX_BYTES,
    Layout,
    RowGroup,
    footer_start,
    parse_layout,
)
from stratalog.partitions.segments.parquet_pages import check_row_group
from stratalog.partitions.store.protocol import Readable, StoredObject
from stratalog.partitions.store.reader import read_range

REMEMBERED_BYTES = 32 * 1024 * 1024
"""Memory for cached footers: about 2,500 small appends, or 50 segments of 1 GiB with 30 columns."""


@dataclass(frozen=True)
class Segment:
    """A data file whose footers were read: the log's and Parquet's."""

    file: DataFile
    footer: SegmentFooter
    stored: bytes
    """The Parquet footer as stored."""
    index_start: int
    """The end of the column chunks, where the page index begins."""
    crc32: int
    """The CRC-32 of the file's bytes as written; a copy must have the same CRC-32."""
    what: str
    """The file's address, for messages."""

    @property
    def memory_bytes(self) -> int:
        """The approximate size in memory, including the layout."""
        return 4 * 1024 + 5 * len(self.stored)

    @property
    def parquet(self) -> pq.FileMetaData:
        """The Parquet footer for Arrow to decode with; ``layout`` has all positions. Parsed at each call, because
        Arrow's objects are ten times as large as the bytes.
        """
        return pq.read_metadata(pa.BufferReader(self.stored + len(self.stored).to_bytes(4, "little") + MAGIC))

    @cached_property
    def layout(self) -> Layout:
        """The positions of all parts. Raises: CorruptSegmentError for forms that no segment's writer produces."""
        with naming(self.file.object), translated(self.what):
            return parse_layout(self.stored, self.index_start)

    @property
    def row_groups(self) -> tuple[RowGroup, ...]:
        """The row groups, at least one. Raises: see ``layout``."""
        return self.layout.row_groups

    @property
    def row_group_offsets(self) -> list[int]:
        """The first offset of each row group, and the offset after the last row group. Raises: see ``layout``."""
        return list(accumulate((group.num_rows for group in self.row_groups), initial=self.footer.base_offset))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns. Raises: see ``layout``."""
        assert self.layout
        with naming(self.file.object), translated(self.what):
            return cast(pa.Schema, self.parquet.schema.to_arrow_schema()).remove_metadata()


_Key = tuple[Readable, str, int, int, str]
_remembered: BoundedCache[_Key, Segment] = BoundedCache(REMEMBERED_BYTES)
_ENDS = 8192
"""The ends of appends. They take at most 8 MB, and stay cached longer than the footers."""
_ends: BoundedCache[tuple[Readable, StoredObject], int] = BoundedCache(_ENDS)


def forget() -> None:
    """Clear all caches."""
    _remembered.clear()
    _ends.clear()


def forget_files(store: Readable, files: Iterable[DataFile]) -> None:
    """Clear the cached footers of files that this process is unlikely to read again, because a process that
    appends for hours would fill the cache with them. The ends of the files remain cached.
    """
    for file in files:
        _remembered.take(_key(store, file.object))


def _key(store: Readable, stored: StoredObject) -> _Key:
    """The cache key of a write-once object."""
    return store, stored.name, stored.size_bytes, stored.modified_ms, stored.version


def read_segment(store: Readable, file: DataFile, *, remembered: bool | None = None) -> Segment:
    """The footers of a data file, usually by one ranged read of its end. They are cached if the object has a
    version, or the caller knows that the name is never reused (``remembered`` True); ``remembered`` False reads
    the current content.

    Raises: CorruptSegmentError for a truncated or foreign file, a missing footer, or a footer that does not match
        the file's name; SourceChangedError when the file is gone.
    """
    stored = file.object
    if remembered is False or (remembered is None and not stored.version):
        return _read_segment(store, file)
    key = _key(store, stored)
    found = _remembered.get(key)
    if found is None:
        found = _read_segment(store, file)
        _remembered.put(key, found, found.memory_bytes)
    return found


def segment_of(store: Readable, file: DataFile, held: Readable) -> Segment:
    """The footers of a data file of ``store`` whose bytes ``held`` has in memory; they are cached as for
    ``store``.

    Raises: CorruptSegmentError; see ``read_segment``.
    """
    found = _read_segment(held, file)
    if file.object.version:
        _remembered.put(_key(store, file.object), found, found.memory_bytes)
    return found


def end_of_file(
    store: Readable, file: DataFile, footer_of: Callable[[DataFile], SegmentFooter] | None = None
) -> int:
    """The offset after the last record of a data file. It is in the name of a segment, and in the footer of an
    append (``footer_of``, if another source provides the footer). Cached while the object is the same.

    Raises: see ``read_segment``.
    """
    if file.name.next_offset is not None:
        return file.name.next_offset
    end = _ends.get((store, file.object)) if file.object.version else None
    if end is None:
        footer = read_segment(store, file).footer if footer_of is None else footer_of(file)
        end = footer.next_offset
        if file.object.version:
            _ends.put((store, file.object), end)
    return end


def _read_segment(store: Readable, file: DataFile) -> Segment:
    with naming(file.object):
        return _open(store, file)


def _open(store: Readable, file: DataFile) -> Segment:
    what = store.uri_of(file.object.name)
    parquet, stored, index_start, crc32 = _read_parquet_footer(store, file.object, what)
    try:
        footer = decode_footer(parquet.metadata[FOOTER_KEY])
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: the footer log.segment cannot be read: {error}") from error
    if footer.records < 1:
        raise CorruptSegmentError(
            f"{what}: its footer has a count of {footer.records} records, but segments are never empty"
        )
    name = file.name
    if footer.base_offset != name.base_offset or name.next_offset not in (None, footer.next_offset):
        raise CorruptSegmentError(
            f"{what}: its footer has the offsets [{footer.base_offset}, {footer.next_offset}), "
            "which its name contradicts"
        )
    if name.generation != (0 if footer.rule is None else footer.rule.generation):
        raise CorruptSegmentError(
            f"{what}: its footer has {footer.rule or 'no removal rule'}, which its name contradicts"
        )
    place = segment_owner(file.object.name)
    if place is not None and place != (footer.topic_id, footer.partition):
        raise CorruptSegmentError(
            f"the footer of {what} names partition {footer.partition} of topic {footer.topic_id}: "
            "the file was copied here from another place"
        )
    if footer.records != parquet.num_rows or footer.records != footer.next_offset - footer.base_offset:
        raise CorruptSegmentError(
            f"{what}: {parquet.num_rows} rows, but its footer has a count of {footer.records} records for offsets "
            f"[{footer.base_offset}, {footer.next_offset})"
        )
    return Segment(file, footer, stored, index_start, crc32, what)


def _read_parquet_footer(
    store: Readable, stored: StoredObject, what: str
) -> tuple[pq.FileMetaData, bytes, int, int]:
    """The Parquet footer, which contains the log's footer, parsed for Arrow and as stored; the start of the page
    index; and the CRC-32 of all bytes of an undamaged file.
    """
    if stored.size_bytes < len(MAGIC) + SUFFIX_BYTES:
        raise CorruptSegmentError(f"{what} has {stored.size_bytes} bytes: it is truncated, or not a Parquet file")
    with translated(what), store.open(stored) as source:
        size = stored.size_bytes
        tail = read_range(source, max(0, size - TAIL_BYTES), size, what)
        whole = len(tail) == size
        if tail[-4:] != MAGIC or (whole and tail[:4] != MAGIC):
            raise CorruptSegmentError(
                f"{what} does not begin and end like a Parquet file: it is truncated, or foreign"
            )
        needed = size - footer_start(tail, size)
        if needed > len(tail):
            tail = read_range(source, size - needed, size, what)
            index_start = checksums_of(tail[:-SUFFIX_BYTES], what).index_start
            parse_layout(tail[:-SUFFIX_BYTES], index_start)
        parquet = pq.read_metadata(pa.BufferReader(tail))
    if FOOTER_KEY not in (parquet.metadata or {}):
        raise CorruptSegmentError(
            f"{what} is a Parquet file, but not a segment of a log: its footer lacks log.segment"
        )
    footer = tail[-needed:-SUFFIX_BYTES]
    stated = checksums_of(footer, what)
    crc32 = file_crc32(memoryview(tail)[-needed:], stated.body_crc32)
    return parquet, footer, stated.index_start, crc32


@contextmanager
def naming(stored: StoredObject) -> Iterator[None]:
    """A context that names this file in damage errors."""
    try:
        yield
    except CorruptSegmentError as error:
        error.file = stored.name
        raise


def check_held(data: bytes, column: str, most_bytes: int, what: str) -> None:
    """Check that Arrow may decode a column of a data file in memory: the file has the layout of a segment, and the
    column takes at most ``most_bytes``. (Checksums are not compared.)

    Raises: CorruptSegmentError; ``what`` names the file.
    """
    with translated(what):
        footer = data[footer_start(data, len(data)) : -SUFFIX_BYTES]
        layout = parse_layout(footer, checksums_of(footer, what).index_start)
        numbers = [number for number, leaf in enumerate(layout.leaves) if leaf.path[0] == column]
        for group in layout.row_groups:
            most_bytes -= check_row_group(layout, group, numbers, lambda start, end: data[start:end], most_bytes)


def read_row_groups(
    store: Readable,
    file: DataFile,
    start: int,
    end: int,
    columns: list[str] | None = None,
    wanted: Callable[[RowGroup], bool] = lambda _: True,
) -> Iterator[tuple[int, pa.Table]]:
    """Yields ``(first offset, records)`` for each row group: the records with offsets ``[start, end)``, checksums
    verified. Row groups without such offsets, or not in ``wanted``, are not read. Each column takes one ranged
    read.

    Raises: CorruptSegmentError, SourceChangedError; StorageError if this process lacks memory.
    """
    yield from _row_groups(store, read_segment(store, file), start, end, columns, wanted)


def _row_groups(
    store: Readable,
    segment: Segment,
    start: int,
    end: int,
    columns: list[str] | None,
    wanted: Callable[[RowGroup], bool] = lambda _: True,
) -> Iterator[tuple[int, pa.Table]]:
    file = segment.file
    with naming(file.object), translated(segment.what), store.open(file.object) as source:
        parquet = segment.parquet
        for index, first in enumerate(segment.row_group_offsets[:-1]):
            group = segment.row_groups[index]
            low, high = max(start, first), min(end, first + group.num_rows)
            if low < high and wanted(group):
                held = ColumnChunks(group, partial(read_range, source, what=segment.what))
                table = decoded(parquet, segment.layout, index, columns, held)
                table = table.slice(low - first, high - low)
                yield low, table
                del table
                # The allocator keeps memory that a thread has freed; over time this would be the memory of several
                # row groups.
                pa.default_memory_pool().release_unused()


def read_batches(
    store: Readable, file: DataFile, start: int, end: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records with offsets ``[start, end)`` of a data file, one row group at a time.

    Raises: see ``read_row_groups``.
    """
    yield from batches_of(store, read_segment(store, file), start, end, columns)


def batches_of(
    store: Readable, segment: Segment, start: int, end: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Like ``read_batches``, for a file whose footers were read before; ``store`` may contain only that file.

    Raises: see ``read_row_groups``.
    """
    for _, table in _row_groups(store, segment, start, end, columns):
        yield from table.to_batches()


def read_row_group(store: Readable, segment: Segment, index: int) -> pa.Table:
    """All records of one row group, by one ranged read, checksums verified. ``segment`` comes from
    ``read_segment``.

    Raises: see ``read_row_groups``.
    """
    group = segment.row_groups[index]
    with naming(segment.file.object), translated(segment.what), store.open(segment.file.object) as source:
        data = read_range(source, group.start, group.stop, segment.what)
    return decode_row_group(segment, index, data)


def decode_row_group(segment: Segment, index: int, data: bytes, kept: list[str] | None = None) -> pa.Table:
    """All records of one row group, checksums verified; ``data`` is its bytes, ``kept``: see ``decoded``.

    Raises: CorruptSegmentError; StorageError if this process lacks memory.
    """
    begin = segment.row_groups[index].start

    def part(start: int, until: int) -> bytes:
        if not begin <= start <= until <= begin + len(data):
            raise ValueError(f"row group {index} is at bytes [{start}, {until}), outside the expected range")
        return data[start - begin : until - begin]

    with naming(segment.file.object), translated(segment.what):
        return decoded(segment.parquet, segment.layout, index, None, part, kept)

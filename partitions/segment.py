"""Reading a data file: its footers, its records row group by row group.

A file is Parquet with the log's own footer (``segment_footer``), written once (``segment_writer``). It is decoded
by the thread that asks for it: a thread of Arrow's that lets go of bytes of Python's when the process ends, just
after the read came back, aborts it (it cannot have the interpreter any more, and is ended inside of C++).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from partitions.cache import BoundedCache
from partitions.errors import CorruptSegmentError, SourceChangedError
from partitions.listing import DataFile
from partitions.segment_footer import (
    FOOTER_KEY,
    SUFFIX_BYTES,
    SegmentFooter,
    checksums_of,
    decode_footer,
    file_crc32,
)
from partitions.store.protocol import Readable, StoredObject
from partitions.store.reader import RangeReader

_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"

REMEMBERED_BYTES = 256 * 1024 * 1024
"""Bound of the footers that are remembered, by what they take in memory: those of some 10,000 small appends, or of
some 100 segments of 1 GiB with 30 columns."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A data file that was looked into: its footer and Parquet's own."""

    file: DataFile
    footer: SegmentFooter
    parquet: pq.FileMetaData
    crc32: int
    """Of all bytes of the file, as they were written: a copy of it has to come to the same."""

    @property
    def memory_bytes(self) -> int:
        """What this takes in memory, roughly: Arrow keeps a footer as objects, ten times as large as its bytes."""
        return 8 * 1024 + 10 * int(self.parquet.serialized_size)


_remembered: BoundedCache[tuple[Readable, str, int, int, str], Segment] = BoundedCache(REMEMBERED_BYTES)


def read_segment(store: Readable, file: DataFile, *, remembered: bool = True) -> Segment:
    """The footers of a data file, by one ranged read of its end in the common case. They are remembered for
    the next call, unless it asks for what storage holds now (``remembered`` False).

    Raises: CorruptSegmentError for a truncated or foreign file, a missing footer, or one that does
        not fit the file's name; SourceChangedError when the file is gone.
    """
    stored = file.object
    # Where nothing tells the object from another of its name: look every time.
    if not remembered or not stored.version:
        return _read_segment(store, file)
    key = store, stored.name, stored.size_bytes, stored.modified_ms, stored.version  # of what is written once
    found = _remembered.get(key)
    if found is None:
        found = _read_segment(store, file)
        _remembered.put(key, found, found.memory_bytes)
    return found


def _read_segment(store: Readable, file: DataFile) -> Segment:
    with naming(file.object):
        return _looked_into(store, file)


def _looked_into(store: Readable, file: DataFile) -> Segment:
    what = store.uri_of(file.object.name)
    parquet, crc32 = _read_parquet_footer(store, file.object, what)
    try:
        footer = decode_footer(parquet.metadata[FOOTER_KEY])
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: the footer log.segment cannot be read: {error}") from error
    if footer.records < 1:
        raise CorruptSegmentError(f"{what}: its footer says {footer.records} records; no segment is empty")
    name = file.name
    if footer.base_offset != name.base_offset or name.next_offset not in (None, footer.next_offset):
        raise CorruptSegmentError(
            f"{what}: its footer says offsets [{footer.base_offset}, {footer.next_offset}), its name does not"
        )
    if footer.records != parquet.num_rows or footer.records != footer.next_offset - footer.base_offset:
        raise CorruptSegmentError(
            f"{what}: {parquet.num_rows} rows, but its footer says {footer.records} records for offsets "
            f"[{footer.base_offset}, {footer.next_offset})"
        )
    return Segment(file, footer, parquet, crc32)


def _read_parquet_footer(store: Readable, stored: StoredObject, what: str) -> tuple[pq.FileMetaData, int]:
    """Parquet's footer, which holds our own; and the CRC-32 that all bytes of an undamaged file come to."""
    if stored.size_bytes < len(_MAGIC) + SUFFIX_BYTES:
        raise CorruptSegmentError(f"{what} has {stored.size_bytes} bytes: truncated, no Parquet file")
    with _translated(what), store.open(stored) as source:

        def tail_of(size_bytes: int) -> bytes:
            source.seek(stored.size_bytes - size_bytes)
            return source.read(size_bytes)

        tail = tail_of(min(_TAIL_BYTES, stored.size_bytes))
        whole = len(tail) == stored.size_bytes
        if tail[-4:] != _MAGIC or (whole and tail[:4] != _MAGIC):
            raise CorruptSegmentError(f"{what} does not begin and end as a Parquet file: truncated, or foreign")
        needed = int.from_bytes(tail[-SUFFIX_BYTES:-4], "little") + SUFFIX_BYTES
        if needed > stored.size_bytes:
            raise CorruptSegmentError(f"{what}: its Parquet footer is longer than the file")
        if needed > len(tail):
            tail = tail_of(needed)
        parquet = pq.read_metadata(pa.BufferReader(tail))
    if FOOTER_KEY not in (parquet.metadata or {}):
        raise CorruptSegmentError(f"{what} is Parquet, but no segment of a log: its footer lacks log.segment")
    stated = checksums_of(tail[-needed:-SUFFIX_BYTES], what)
    return parquet, file_crc32(memoryview(tail)[-needed:], stated.body_crc32)


@contextmanager
def naming(stored: StoredObject) -> Iterator[None]:
    """What is found damaged inside is this file."""
    try:
        yield
    except CorruptSegmentError as error:
        error.file = stored.name
        raise


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Arrow's complaints about the content of a file, in our words; the store's own errors pass, and so does what
    ``is_of_this_process``.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_of_this_process(error):
            raise
        raise CorruptSegmentError(f"{what} cannot be read: {error}") from error


def is_of_this_process(error: Exception) -> bool:
    """Whether what Arrow raised says nothing of the bytes that it was reading: there was no memory or no thread to
    be had, or the system refused something. A file is not to be replaced, nor a replica to be given up, for that.
    """
    return (
        isinstance(error, MemoryError)  # ArrowMemoryError is one, and an ArrowException
        or type(error) is pa.ArrowException  # "Unknown error: Failed to launch worker thread"
        or (isinstance(error, OSError) and error.errno is not None)  # what is said of content has no number
        or "bad_alloc" in str(error)  # no memory for a page header: an OSError as for a damaged one
    )


def read_row_groups(
    store: Readable,
    file: DataFile,
    start: int,
    end: int,
    columns: list[str] | None = None,
    wanted: Callable[[pq.RowGroupMetaData], bool] = lambda _: True,
) -> Iterator[tuple[int, pa.Table]]:
    """``(first offset, records)`` of the part of each row group with offsets ``[start, end)``, checksums
    verified; row groups that hold none of them, or are not ``wanted``, are not read.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    metadata = read_segment(store, file).parquet
    what = store.uri_of(file.object.name)
    with naming(file.object), _translated(what), store.open(file.object) as source:
        parquet = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True, pre_buffer=False)
        first = file.name.base_offset
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            low, high = max(start, first), min(end, first + group.num_rows)
            if low < high and wanted(group):
                table = parquet.read_row_group(index, columns=columns, use_threads=False)
                _check_rows(table, metadata, index, what)
                table = table.slice(low - first, high - low)
                yield low, table
                del table
                # What a thread has freed its allocator keeps: one row group after another, several of them.
                pa.default_memory_pool().release_unused()
            first += group.num_rows


def read_batches(
    store: Readable, file: DataFile, start: int, end: int, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records with offsets ``[start, end)`` of a data file, row group by row group.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    for _, table in read_row_groups(store, file, start, end, columns):
        yield from table.to_batches()


def read_row_group(store: Readable, segment: Segment, index: int) -> pa.Table:
    """All records of one row group, by one ranged read, checksums verified. ``segment`` is the file as
    ``read_segment`` gave it.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    what = store.uri_of(segment.file.object.name)
    group = segment.parquet.row_group(index)
    chunks = [group.column(number) for number in range(group.num_columns)]
    begin = row_group_start(group)
    end = max(_chunk_start(chunk) + chunk.total_compressed_size for chunk in chunks)
    with _translated(what), store.open(segment.file.object) as source:
        source.seek(begin)
        data = source.read(end - begin)
    if len(data) != end - begin:
        raise SourceChangedError(f"{what} has lost bytes since it was listed")
    return decode_row_group(segment, index, begin, data, what)


def row_group_start(group: pq.RowGroupMetaData) -> int:
    """Where in the file the bytes of a row group begin."""
    return min(_chunk_start(group.column(number)) for number in range(group.num_columns))


def _chunk_start(chunk: pq.ColumnChunkMetaData) -> int:
    at = int(chunk.data_page_offset)
    return min(at, int(chunk.dictionary_page_offset)) if chunk.has_dictionary_page else at


def decode_row_group(segment: Segment, index: int, begin: int, data: bytes, what: str) -> pa.Table:
    """All records of one row group, checksums verified; ``data`` is what the file holds from byte ``begin`` on, to
    the end of the row group at least. ``what`` names the file in errors.

    Raises: CorruptSegmentError.
    """

    def window(start: int, until: int) -> bytes:
        if start < begin or until > begin + len(data):
            raise CorruptSegmentError(
                f"{what}: its footer says that row group {index} is elsewhere, at bytes [{start}, {until})"
            )
        return data[start - begin : until - begin]

    reader = RangeReader(begin + len(data), window).as_file()
    with naming(segment.file.object), _translated(what):
        parquet = pq.ParquetFile(
            reader, metadata=segment.parquet, page_checksum_verification=True, pre_buffer=False
        )
        # Files are read side by side; the columns of one need not be decoded so.
        table = parquet.read_row_group(index, use_threads=False)
    _check_rows(table, segment.parquet, index, what)
    return table


def _check_rows(table: pa.Table, parquet: pq.FileMetaData, index: int, what: str) -> None:
    rows = parquet.row_group(index).num_rows
    if table.num_rows != rows:
        raise CorruptSegmentError(f"{what}: row group {index} has {table.num_rows} records, not {rows}")

"""Reading a data file: its footers, its records row group by row group.

A file is Parquet with the log's own footer (``segment_footer``), written once (``segment_writer``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from partitions.errors import CorruptSegmentError, SourceChangedError
from partitions.listing import DataFile
from partitions.segment_footer import (
    CHECKSUM_KEY,
    FOOTER_KEY,
    NO_CHECKSUM,
    SUFFIX_BYTES,
    SegmentFooter,
    checksum_at,
)
from partitions.store.protocol import Readable, StoredObject
from partitions.store.reader import RangeReader

_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Segment:
    """A data file that was looked into: its footer and Parquet's own."""

    file: DataFile
    footer: SegmentFooter
    parquet: pq.FileMetaData


def read_segment(store: Readable, file: DataFile, *, remembered: bool = True) -> Segment:
    """The footers of a data file, by one ranged read of its end in the common case. They are remembered for
    the next call, unless it asks for what storage holds now (``remembered`` False).

    Raises: CorruptSegmentError for a truncated or foreign file, a missing footer, or one that does
        not fit the file's name; SourceChangedError when the file is gone.
    """
    # Where nothing tells the object from another of its name: look every time.
    if not remembered or not file.object.version:
        return _read_segment.__wrapped__(store, file)
    return _read_segment(store, file)


@lru_cache(maxsize=8192)  # files are written once, and the key holds the object's version
def _read_segment(store: Readable, file: DataFile) -> Segment:
    what = store.uri_of(file.object.name)
    parquet = _read_parquet_footer(store, file.object, what)
    raw = (parquet.metadata or {}).get(FOOTER_KEY)
    if raw is None:
        raise CorruptSegmentError(f"{what} is Parquet, but no segment of a log: its footer lacks log.segment")
    try:
        footer = msgspec.json.decode(raw, type=SegmentFooter)
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
    return Segment(file, footer, parquet)


def _read_parquet_footer(store: Readable, stored: StoredObject, what: str) -> pq.FileMetaData:
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
    _check_footer(parquet, tail[-needed:-SUFFIX_BYTES], what)
    return parquet


def _check_footer(parquet: pq.FileMetaData, raw: bytes, what: str) -> None:
    """Raises: CorruptSegmentError when Parquet's footer, as stored, has not the checksum it says."""
    if FOOTER_KEY not in (parquet.metadata or {}):
        raise CorruptSegmentError(f"{what} is Parquet, but no segment of a log: its footer lacks log.segment")
    stated = parquet.metadata.get(CHECKSUM_KEY, b"")[:8]
    footer = bytearray(raw)
    try:
        at = checksum_at(footer)
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: {error}") from error
    footer[at : at + len(NO_CHECKSUM)] = NO_CHECKSUM
    if stated != b"%08x" % zlib.crc32(footer):
        raise CorruptSegmentError(f"{what}: its Parquet footer is damaged, the checksum differs")


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Arrow's complaints about the content of a file, in our words; the store's own errors pass."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptSegmentError(f"{what} cannot be read: {error}") from error


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
    with _translated(what), store.open(file.object) as source:
        parquet = pq.ParquetFile(source, metadata=metadata, page_checksum_verification=True, pre_buffer=False)
        first = file.name.base_offset
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            low, high = max(start, first), min(end, first + group.num_rows)
            if low < high and wanted(group):
                table = parquet.read_row_group(index, columns=columns)
                if table.num_rows != group.num_rows:
                    raise CorruptSegmentError(
                        f"{what}: row group {index} has {table.num_rows} records, not {group.num_rows}"
                    )
                yield low, table.slice(low - first, high - low)
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
    file, group = segment.file, segment.parquet.row_group(index)
    what = store.uri_of(file.object.name)
    chunks = [group.column(number) for number in range(group.num_columns)]
    starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    begin = min(starts)
    end = max(start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True))
    with _translated(what):
        with store.open(file.object) as source:
            source.seek(begin)
            data = source.read(end - begin)
        if len(data) != end - begin:
            raise SourceChangedError(f"{what} has lost bytes since it was listed")

        def window(start: int, until: int) -> bytes:
            if start < begin or until > end:
                raise CorruptSegmentError(f"{what}: its footer says that row group {index} is elsewhere")
            return data[start - begin : until - begin]

        reader = RangeReader(file.object.size_bytes, window)
        parquet = pq.ParquetFile(
            reader, metadata=segment.parquet, page_checksum_verification=True, pre_buffer=False
        )
        table = parquet.read_row_group(index, use_threads=False)
    if table.num_rows != group.num_rows:
        raise CorruptSegmentError(f"{what}: row group {index} has {table.num_rows} records, not {group.num_rows}")
    return table

"""Decodes row groups of a Parquet file of any origin to records, by Arrow, within bounds.

Arrow only sees input that was checked first: a footer of bounded size and counts (``parquet_footer``), and row
groups whose records take a known amount of memory (``parquet_pages``). Arrow's description of a column chunk
(``RowGroupMetaData.column``) is never requested, because a contradictory description crashes the process. A lack
of memory or threads in Arrow is not treated as damage: only the read of this one file fails.

The calling thread decodes a file itself. A thread of Arrow might release Python bytes while the process exits,
just after the read has returned. That would abort the process, because the thread cannot take the interpreter
lock, and is terminated inside C++.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.partitions.cache import Room
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StorageError
from stratalog.partitions.segments.parquet_footer import MOST_FOOTER_BYTES, Layout, RowGroup, footer_start
from stratalog.partitions.segments.parquet_pages import Read, check_row_group
from stratalog.partitions.store.reader import RangeReader, read_range

TAIL_BYTES = 64 * 1024
"""The size of the first read, from a file's end. A footer of this size cannot harm Arrow, whatever its content."""

_MOST_BYTES = 256 * 1024 * 1024
_DECODING = Room(_MOST_BYTES)
"""The memory for all row groups that this process decodes at the same time: compressed bytes, and records. For a
moment Arrow takes twice as much.
"""
_PIECE_BYTES = 16 * 1024 * 1024

if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
    # Spark limits the address space of Python workers (``spark.executor.pyspark.memory``). Arrow's own allocator
    # keeps freed address space; the system's allocator returns it.
    pa.set_memory_pool(pa.system_memory_pool())


def read_end(source: BinaryIO, size_bytes: int, what: str, most_bytes: int = MOST_FOOTER_BYTES) -> bytes:
    """The Parquet footer as stored, and the bytes after it, by one or two reads of the file's end.

    Raises: see ``footer_start``, ``read_range``.
    """
    tail = read_range(source, max(0, size_bytes - TAIL_BYTES), size_bytes, what)
    needed = size_bytes - footer_start(tail, size_bytes, most_bytes)
    return tail[-needed:] if needed <= len(tail) else read_range(source, size_bytes - needed, size_bytes, what)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """A context that translates Arrow's errors about the content of a file. The store's own errors are not
    changed.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} has been deleted since it was listed") from error
    except (pa.ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
        if not is_of_this_process(error):
            raise CorruptSegmentError(f"{what} cannot be read: {error}") from error
        raise StorageError(
            f"{what} could not be read by this process ({error}); the file itself may be intact"
        ) from error


def is_of_this_process(error: Exception) -> bool:
    """Whether an Arrow error is unrelated to the bytes: Arrow lacked memory or a thread, or the system refused a
    call. In such a case, no file is replaced and no replica is blamed. (The memory that the file needs was checked
    before, so the file is not the cause.)
    """
    return (
        _lacked_memory(error)
        or type(error) is pa.ArrowException  # "Unknown error: Failed to launch worker thread"
        or (isinstance(error, OSError) and error.errno is not None)  # an error about content has no errno
    )


def _lacked_memory(error: Exception) -> bool:
    # ArrowMemoryError is also a MemoryError. Arrow reports lack of memory for a page header as an OSError, like a
    # damaged header.
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


class ColumnChunks:
    """A part of a row group; each column chunk is read once, as a whole."""

    def __init__(self, group: RowGroup, read: Read) -> None:
        self._group = group
        self._read = read
        self._held: dict[int, bytes] = {}

    def __call__(self, start: int, until: int) -> bytes:
        for chunk in self._group.chunks:
            if chunk.start <= start <= until <= chunk.end:
                if chunk.start not in self._held:
                    self._held[chunk.start] = self._read(chunk.start, chunk.end)
                return self._held[chunk.start][start - chunk.start : until - chunk.start]
        raise ValueError(f"a column is outside its row group, at bytes [{start}, {until})")


def decoded(
    parquet: pq.FileMetaData,
    layout: Layout,
    index: int,
    columns: list[str] | None,
    part: Read,
    kept: list[str] | None = None,
) -> pa.Table:
    """The records of a row group, in these columns; ``part`` gives the bytes of their chunks. With ``kept``, all
    columns are decoded in pieces of about ``_PIECE_BYTES``, to check them, but only the ``kept`` columns are
    returned.

    Raises: ValueError, and any Arrow error, if the columns cannot be decoded, or take too much memory.
    """
    group = layout.row_groups[index]
    numbers = [number for number, leaf in enumerate(layout.leaves) if columns is None or leaf.path[0] in columns]
    packed_bytes = sum(group.chunks[number].end - group.chunks[number].start for number in numbers)
    with _DECODING.of(packed_bytes):
        size_bytes = check_row_group(layout, group, numbers, part)

    def decode() -> pa.Table:
        file = pq.ParquetFile(
            RangeReader(max(chunk.end for chunk in group.chunks), part).as_file(),
            metadata=parquet,
            page_checksum_verification=True,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
        )
        # Files are read in parallel, so the columns of one file are not.
        if kept is None or size_bytes <= _PIECE_BYTES:
            table = file.read_row_group(index, columns=columns, use_threads=False)
            return table if kept is None else table.select(kept)
        rows = max(1, group.num_rows * _PIECE_BYTES // size_bytes)
        pieces = file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False)
        return pa.Table.from_batches([piece.select(kept) for piece in pieces])

    try:
        with _DECODING.of(packed_bytes + (size_bytes if kept is None else min(size_bytes, _PIECE_BYTES))):
            table = decode()
    except Exception as error:
        if not _lacked_memory(error):
            raise
        with _DECODING.of(_MOST_BYTES):  # try again while no other row group is in memory
            table = decode()
    if table.num_rows != group.num_rows:
        raise ValueError(f"row group {index} has {table.num_rows} records, not {group.num_rows}")
    return table

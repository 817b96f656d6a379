"""Row groups of a Parquet file of any origin, decoded to records by Arrow within bounds.

Arrow gets to see nothing that was not looked at before: a footer of bounded size and counts (``parquet_footer``),
and row groups of which it is known how much memory their records take (``parquet_pages``). Nobody asks Arrow for
the description of a column chunk (``RowGroupMetaData.column``): where it contradicts itself, that ends the
process. What Arrow cannot decode for lack of memory or threads is not taken for damage, and is no more than one
file's failure.

A file is decoded by the thread that asks for it: a thread of Arrow's that lets go of bytes of Python's when the
process ends, just after the read came back, aborts it (it cannot have the interpreter any more, and is ended
inside of C++).
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
from stratalog.partitions.parquet_footer import MOST_FOOTER_BYTES, Layout, RowGroup, footer_start
from stratalog.partitions.parquet_pages import Read, check_row_group
from stratalog.partitions.store.reader import RangeReader, read_range

TAIL_BYTES = 64 * 1024
"""Read at first, of a file's end. A footer that is no longer than this does no harm to Arrow, whatever it says."""

_MOST_BYTES = 256 * 1024 * 1024
_DECODING = Room(_MOST_BYTES)
"""For all row groups that this process decodes at once: packed bytes, and records. For a moment Arrow takes twice
that."""
_PIECE_BYTES = 16 * 1024 * 1024

if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
    # Spark limits Python workers so (``spark.executor.pyspark.memory``). Arrow's own allocator keeps the address
    # space of what it had, the system's gives it back.
    pa.set_memory_pool(pa.system_memory_pool())


def read_end(source: BinaryIO, size_bytes: int, what: str, most_bytes: int = MOST_FOOTER_BYTES) -> bytes:
    """Parquet's footer as it stands in a file, and what is behind it, by one read of the file's end, or two.

    Raises: as ``footer_start``, ``read_range``.
    """
    tail = read_range(source, max(0, size_bytes - TAIL_BYTES), size_bytes, what)
    needed = size_bytes - footer_start(tail, size_bytes, most_bytes)
    return tail[-needed:] if needed <= len(tail) else read_range(source, size_bytes - needed, size_bytes, what)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Arrow's complaints about the content of a file, in our words; the store's own errors pass."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    except (pa.ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
        if not is_of_this_process(error):
            raise CorruptSegmentError(f"{what} cannot be read: {error}") from error
        raise StorageError(
            f"{what} could not be read by this process ({error}); the file itself may be intact"
        ) from error


def is_of_this_process(error: Exception) -> bool:
    """Whether an error of Arrow says nothing of the bytes that it was reading: it lacked memory or a thread, or
    the system refused something. A file is not to be replaced, nor a replica to be given up, for that. (The memory
    that a file takes was checked before: it has not asked for too much.)
    """
    return (
        _lacked_memory(error)
        or type(error) is pa.ArrowException  # "Unknown error: Failed to launch worker thread"
        or (isinstance(error, OSError) and error.errno is not None)  # errors of content have no number
    )


def _lacked_memory(error: Exception) -> bool:
    # ArrowMemoryError is one, and an ArrowException. No memory for a page header: an OSError as for a damaged one.
    return isinstance(error, MemoryError) or "bad_alloc" in str(error)


class ColumnChunks:
    """Parts of a row group, of which each column chunk is read once, whole."""

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
    """The records of a row group, these columns of it; ``part`` gives the bytes of their chunks. With ``kept`` the
    columns are decoded in pieces of some ``_PIECE_BYTES``, to see that they can be, and these alone are returned.

    Raises: ValueError and whatever Arrow raises, where they cannot be had, or take too much memory.
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
        # Files are read side by side; the columns of one need not be decoded so.
        if kept is None:
            return file.read_row_group(index, columns=columns, use_threads=False)
        rows = max(1, group.num_rows * _PIECE_BYTES // max(size_bytes, _PIECE_BYTES))
        pieces = file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False)
        return pa.Table.from_batches([piece.select(kept) for piece in pieces])

    try:
        with _DECODING.of(packed_bytes + (size_bytes if kept is None else min(size_bytes, _PIECE_BYTES))):
            table = decode()
    except Exception as error:
        if not _lacked_memory(error):
            raise
        with _DECODING.of(_MOST_BYTES):  # once more, with no other beside
            table = decode()
    if table.num_rows != group.num_rows:
        raise ValueError(f"row group {index} has {table.num_rows} records, not {group.num_rows}")
    return table

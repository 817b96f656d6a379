"""The tail of a data file, by which a reader understands it: Parquet's footer and the page index.

A reader that is not ours (Spark's) checks pages, and takes the rest for true: by a wrong statistic it would pass
over row groups, by a wrong name a column would be null. So the tail is checked for it.
"""

from __future__ import annotations

from isal import isal_zlib

from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.parquet_footer import MAGIC, SUFFIX_BYTES, footer_start
from stratalog.partitions.segment_footer import checksums_of
from stratalog.partitions.store.protocol import Readable, StoredObject
from stratalog.partitions.store.reader import read_range

_TAIL_BYTES = 64 * 1024
"""Read at first: all of the tail of most files."""
_PIECE_BYTES = 8 * 1024 * 1024


def check_tail(store: Readable, stored: StoredObject) -> None:
    """Compare the page index and Parquet's footer with their checksums, by one ranged read of the file's end, or
    two or three where they are large.

    Raises: CorruptSegmentError; SourceChangedError when the file is gone, or was replaced; StorageError kinds.
    """
    what, size = store.uri_of(stored.name), stored.size_bytes
    try:
        with store.open(stored) as source:
            begin = max(0, size - _TAIL_BYTES)
            tail = read_range(source, begin, size, what)
            footer_at = footer_start(tail, size)
            if footer_at < begin:
                begin, tail = footer_at, read_range(source, footer_at, size, what)
            stated = checksums_of(tail[footer_at - begin : -SUFFIX_BYTES], what)
            index_at = stated.index_start
            if not len(MAGIC) <= index_at <= footer_at:
                raise CorruptSegmentError(f"{what}: its footer places the page index outside the file")
            crc32 = 0
            for start in range(index_at, begin, _PIECE_BYTES):
                piece = read_range(source, start, min(start + _PIECE_BYTES, begin), what)
                crc32 = isal_zlib.crc32(piece, crc32)
            crc32 = isal_zlib.crc32(tail[max(0, index_at - begin) : footer_at - begin], crc32)
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    except ValueError as error:
        raise CorruptSegmentError(f"{what}: {error}") from error
    if stated.index_crc32 != crc32:
        raise CorruptSegmentError(f"{what}: its page index is damaged: the checksum differs")

"""What decides how a reader understands a data file, without its records: Parquet's footer and the page index.

A reader that is not ours (Spark's) checks pages, and takes the rest for true: by a wrong statistic it would pass
over row groups, by a wrong name a column would be null. So the tail is checked for it.
"""

from __future__ import annotations

from isal import isal_zlib

from partitions.errors import CorruptSegmentError, SourceChangedError
from partitions.segment_footer import SUFFIX_BYTES, checksums_of
from partitions.store.protocol import Readable, StoredObject

_MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
"""Read at first: all of the tail of most files."""


def check_tail(store: Readable, stored: StoredObject) -> None:
    """Compare the page index and Parquet's footer with their checksums, by one ranged read of the file's end, or
    two or three where they are large.

    Raises: CorruptSegmentError; SourceChangedError when the file is gone, or is another one by now; StorageError
        kinds.
    """
    what, size = store.uri_of(stored.name), stored.size_bytes
    try:
        with store.open(stored) as source:

            def read(start: int, end: int) -> bytes:
                source.seek(start)
                data = source.read(end - start)
                if len(data) != end - start:
                    raise SourceChangedError(f"{what} has lost bytes since it was listed")
                return data

            begin = max(0, size - _TAIL_BYTES)
            tail = read(begin, size)
            if len(tail) < SUFFIX_BYTES or tail[-4:] != _MAGIC:
                raise CorruptSegmentError(f"{what} does not end as a Parquet file: truncated, or foreign")
            footer_at = size - SUFFIX_BYTES - int.from_bytes(tail[-SUFFIX_BYTES:-4], "little")
            if footer_at < len(_MAGIC):
                raise CorruptSegmentError(f"{what}: its Parquet footer is longer than the file")
            if footer_at < begin:
                begin, tail = footer_at, read(footer_at, size)
            stated = checksums_of(tail[footer_at - begin : -SUFFIX_BYTES], what)
            index_at = stated.index_start
            if not len(_MAGIC) <= index_at <= footer_at:
                raise CorruptSegmentError(f"{what}: its footer says that the page index lies outside the file")
            known = tail[: footer_at - begin]
            index = known[index_at - begin :] if index_at >= begin else read(index_at, begin) + known
    except FileNotFoundError as error:
        raise SourceChangedError(f"{what} was deleted since it was listed") from error
    if stated.index_crc32 != isal_zlib.crc32(index):
        raise CorruptSegmentError(f"{what}: its page index is damaged, the checksum differs")

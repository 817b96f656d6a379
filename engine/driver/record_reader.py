"""Reads records in this process, without Spark: complete row groups, with one ranged request for each.

A bounded number of bytes of row groups is cached, because a fetch often takes only a part of a row group. (Footers
are cached in ``stratalog.partitions.segments.reader``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pyarrow as pa

from stratalog.engine.replication.unreadable import unreadable
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.columns import numbers
from stratalog.partitions.errors import CorruptSegmentError, LogGapError, ThrottlingQuotaExceededError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.segments.reader import Segment, read_row_group, read_segment
from stratalog.partitions.store import Store

READ_COLUMNS = ["partition", "offset", "timestamp", "key", "value", "headers"]
"""The columns of a record that readers see."""
_COLUMNS = [*READ_COLUMNS, "control"]

_KEPT_BYTES = 1024 * 1024
"""The most memory, beyond its own records, that a slice may keep alive."""
ROW_GROUP_BYTES = 256 * 1024 * 1024
"""The limit of the cache, in bytes of memory. (Kafka caches up to 1 GiB of indexes of remote segments,
remote.log.index.file.cache.total.size.bytes.)
"""

_File = tuple[str, str, int, str]
"""Store, name, size, version: files in the remote tier have no version, because their names are never reused."""

Pay = Callable[[int], None]
"""Called with the number of bytes before they are read from a store; may wait, or raise."""


def free(size_bytes: int) -> None:
    """A ``Pay`` without a quota."""


class RecordReader:
    """Reads records of files, and caches them. Thread-safe."""

    def __init__(self) -> None:
        self._groups: BoundedCache[tuple[_File, int], pa.Table] = BoundedCache(ROW_GROUP_BYTES)

    def read(
        self, what: str, pieces: Iterable[FileSlice], offset: int, max_bytes: int, pay: Pay = free
    ) -> pa.Table | None:
        """Returns the records starting at ``offset``. The pieces are in order and without gaps, and the first one
        holds the offset. Returns at least one record, and more up to ``max_bytes`` in memory; None without pieces.
        The records include ``control`` and markers (``stratalog.partitions.transactions.visible``). ``pay`` is
        called for row groups that are not cached.

        Raises: CorruptSegmentError naming the damaged offsets, LogGapError when a file ends too early, and errors
            from ``pay``, unless records before the error can be returned; SourceChangedError, StorageError kinds.
        """
        found: list[pa.Table] = []
        left = max_bytes
        for piece in pieces:
            try:
                groups = self._row_groups(what, piece)
            except (CorruptSegmentError, LogGapError) as error:
                if found:
                    return _joined(found)
                if isinstance(error, LogGapError):
                    raise
                raise unreadable(what, piece.start, piece.end, error) from error
            for index, first, end in groups:
                low, high = max(offset, piece.start, first), min(piece.end, end)
                if low >= high:
                    continue
                try:
                    records = self._row_group(piece, index, pay).slice(low - first, high - low)
                except (ThrottlingQuotaExceededError, CorruptSegmentError) as error:
                    if found:
                        return _joined(found)
                    if isinstance(error, CorruptSegmentError):
                        raise unreadable(what, first, end, error) from error
                    raise
                fitting = _fitting(records, left)
                if fitting == 0 and found:
                    return _joined(found)
                found.append(_alone(records, max(fitting, 1)))
                left -= found[-1].nbytes
                if fitting < records.num_rows or left <= 0:
                    return _joined(found)
        return _joined(found) if found else None

    def _row_groups(self, what: str, piece: FileSlice) -> list[tuple[int, int, int]]:
        """Index and offsets ``[first, end)`` of each row group."""
        segment = _segment(piece)
        if segment.footer.next_offset < piece.end:
            raise LogGapError(
                f"{what}: {piece.store.uri_of(piece.file.object.name)} ends at offset "
                f"{segment.footer.next_offset}, and no file has the offsets from there to {piece.end}"
            )
        return [(index, *offsets) for index, offsets in enumerate(pairwise(segment.row_group_offsets))]

    def _row_group(self, piece: FileSlice, index: int, pay: Pay) -> pa.Table:
        key = _key(piece.store, piece.file), index
        found = self._groups.get(key)
        if found is None:
            segment = _segment(piece)
            group = segment.row_groups[index]
            pay(group.stop - group.start)
            whole = read_row_group(piece.store, segment, index)
            found = whole.select(_COLUMNS)
            self._groups.put(key, found, found.nbytes)
        return found


def _segment(piece: FileSlice) -> Segment:
    # Files of the remote tier can also be remembered by name: see ``_File``.
    return read_segment(piece.store, piece.file, remembered=True)


def _key(store: Store, file: DataFile) -> _File:
    return store.uri, file.object.name, file.object.size_bytes, file.object.version


def _fitting(records: pa.Table, max_bytes: int) -> int:
    """The number of leading records that fit in ``max_bytes`` bytes of memory."""
    low, high = 0, int(records.num_rows)
    if records.nbytes <= max_bytes:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if records.slice(0, middle).nbytes <= max_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def _alone(records: pa.Table, count: int) -> pa.Table:
    """The first records, copied if they are a small part of the table, so that they do not keep the entire table
    in memory.
    """
    some = records.slice(0, count)
    kept = some.get_total_buffer_size()
    return some if kept <= max(_KEPT_BYTES, 4 * some.nbytes) else some.take(numbers(0, count))


def _joined(found: list[pa.Table]) -> pa.Table:
    """The records as one table. A file older than a field of the topic's schema has nulls in that field."""
    return pa.concat_tables(found, promote_options="permissive")

"""Reads records from files that other writers have put into a table in place of the log's segments.

Their origin is unknown, and their records may be in any order. So the files are read within bounds, as segments
are: first the footers, then one row group at a time. Row groups are read in the order of their first offsets, as
stated in the footers. Records are kept in memory while earlier records may follow, up to a limit on the bytes to
sort. A complete read has proven that every offset is there once, independently of the files' own statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.partitions.columns import numbers
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.segments.parquet_decoding import ColumnChunks, decoded, read_end, translated
from stratalog.partitions.segments.parquet_footer import (
    INT32,
    INT64,
    SUFFIX_BYTES,
    Layout,
    RowGroup,
    parse_foreign_layout,
)
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.partitions.store.reader import read_range

MOST_WAITING_BYTES = 128 * 1024 * 1024
"""The bytes of kept records above which they are sorted. After that, at most half of these bytes may be kept."""


@dataclass(frozen=True, slots=True)
class Range:
    """Records ``[start, end)`` of one partition; ``what`` names the records and the table."""

    partition: int
    start: int
    end: int
    what: str


@dataclass(frozen=True, slots=True)
class _ForeignFile:
    """A file whose footer was read."""

    stored: StoredObject
    parquet: pq.FileMetaData
    layout: Layout


def records_in(
    remote: Store, files: Sequence[StoredObject], wanted: Range, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of a range from files of a table, in order, with the columns of ``schema``.

    Raises: CorruptionError if the files do not have each record exactly once, or if sorting takes too much memory;
        SourceChangedError, StorageError.
    """
    groups = sorted(_groups(remote, files, wanted))
    position, waiting = wanted.start, schema.empty_table()
    file: _ForeignFile | None = None
    for number, (_, at, index) in enumerate(groups, 1):
        if file is None or file.stored != files[at]:
            file = _open(remote, files[at])
        waiting = pa.concat_tables([waiting, _records(remote, file, index, wanted, schema)])
        if number < len(groups) and waiting.nbytes <= MOST_WAITING_BYTES:
            continue
        waiting = waiting.sort_by("offset")
        until = groups[number][0] if number < len(groups) else wanted.end
        count = pc.sum(pc.less(waiting["offset"], until)).as_py() or 0
        ready, waiting = waiting.slice(0, count), waiting.take(numbers(count, waiting.num_rows))
        if waiting.nbytes > MOST_WAITING_BYTES // 2:
            raise CorruptionError(
                f"{wanted.what}: the rows are too far out of order: sorting them would exceed the memory limit"
            )
        if not ready["offset"].combine_chunks().equals(numbers(position, position + count)):
            raise _not_each_once(wanted)
        position += count
        yield from ready.to_batches()
    if position != wanted.end:
        raise _not_each_once(wanted)


def _not_each_once(wanted: Range) -> CorruptionError:
    return CorruptionError(
        f"{wanted.what}: the files of the table do not contain each of these records exactly once"
    )


def _groups(remote: Store, files: Sequence[StoredObject], wanted: Range) -> Iterator[tuple[int, int, int]]:
    """The row groups that may contain any of the records: for each, the lowest offset of a wanted record, the
    index of the file, and the index of the row group in the file.
    """
    for at, stored in enumerate(files):
        layout = _open(remote, stored).layout
        for index, group in enumerate(layout.row_groups):
            partition = _bounds(group, "partition", (wanted.partition, wanted.partition))
            least, largest = _bounds(group, "offset", (wanted.start, wanted.end - 1))
            if partition[0] <= wanted.partition <= partition[1] and least < wanted.end and largest >= wanted.start:
                yield max(least, wanted.start), at, index


def _bounds(group: RowGroup, name: str, unknown: tuple[int, int]) -> tuple[int, int]:
    """The bounds of an integer column, from the file's statistics."""
    found = next((chunk for chunk in group.chunks if chunk.path == (name,)), None)
    bounds = None if found is None or found.physical not in (INT32, INT64) else found.bounds
    return unknown if bounds is None else bounds


def _open(remote: Store, stored: StoredObject) -> _ForeignFile:
    what = remote.uri_of(stored.name)
    with translated(what), remote.open(stored) as source:
        end = read_end(source, stored.size_bytes, what)
        layout = parse_foreign_layout(end[:-SUFFIX_BYTES], stored.size_bytes - len(end))
        return _ForeignFile(stored, pq.read_metadata(pa.BufferReader(end)), layout)


def _records(remote: Store, file: _ForeignFile, index: int, wanted: Range, schema: pa.Schema) -> pa.Table:
    """The requested records of a row group; columns that it lacks are null."""
    what = remote.uri_of(file.stored.name)
    with translated(what), remote.open(file.stored) as source:
        held = ColumnChunks(file.layout.row_groups[index], partial(read_range, source, what=what))
        there = {leaf.path[0] for leaf in file.layout.leaves}
        names = [name for name in schema.names if name in there]
        found = decoded(file.parquet, file.layout, index, names, held)
        partition, offset = pc.field("partition"), pc.field("offset")
        found = found.filter((partition == wanted.partition) & (offset >= wanted.start) & (offset < wanted.end))
        columns = [
            found[field.name].cast(field.type) if field.name in there else pa.nulls(found.num_rows, field.type)
            for field in schema
        ]
        return pa.table(columns, schema=schema)

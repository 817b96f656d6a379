"""The files that one version of a table lists: the log's segments, and files of other writers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from stratalog.partitions.bulk import collector_paused
from stratalog.tiering.foreign_commits import ListedFile
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.statistics import listed_statistics


def listed_segments(table: DeltaTable, what: str) -> list[RemoteSegment]:
    """The segments that a table lists, in any order; ``what`` names the table.

    Raises: CorruptionError for a file that is not a segment.
    """
    with collector_paused():
        return list(_segments(pa.table(table.get_add_actions()), what))


def listed_files(table: DeltaTable, what: str) -> list[Uploaded]:
    """The listed segments with their statistics, as for a new add action."""
    actions = pa.table(table.get_add_actions())
    found = zip(
        _segments(actions, what),
        actions["modification_time"].to_pylist(),
        actions["num_records"].to_pylist(),
        *(_column(actions, name) for name in ("min", "max", "null_count")),
        strict=True,
    )
    return [Uploaded(segment, modified_ms, listed_statistics(*stats), 0) for segment, modified_ms, *stats in found]


def whatever_is_listed(table: DeltaTable) -> list[ListedFile]:
    """All files that a table lists, of any writer."""
    return list(_listed(pa.table(table.get_add_actions())))


def files_with(table: DeltaTable, partition: int, start: int, end: int) -> list[ListedFile]:
    """The files of any writer that may hold records ``[start, end)`` of a partition, by the table's statistics."""
    actions = pa.table(table.get_add_actions(flatten=True))
    for column, first, last in (("partition", partition, partition), ("offset", start, end - 1)):
        least, largest = f"min.{column}", f"max.{column}"
        if {least, largest} <= {*actions.column_names}:
            apart = (pc.field(least) > last) | (pc.field(largest) < first)
            actions = actions.filter(~pc.coalesce(apart, pa.scalar(False)))
    return list(_listed(actions))


def _listed(actions: pa.Table) -> Iterator[ListedFile]:
    columns = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
    return (ListedFile(*row) for row in zip(*columns, strict=True))


def _segments(actions: pa.Table, what: str) -> Iterator[RemoteSegment]:
    listed = zip(
        actions["path"].to_pylist(),
        actions["size_bytes"].to_pylist(),
        actions["num_records"].to_pylist(),
        _timestamps(actions, "min"),
        _timestamps(actions, "max"),
        actions["modification_time"].to_pylist(),
        strict=True,
    )
    return (RemoteSegment.listed(what, *row) for row in listed)


def _column(actions: pa.Table, name: str) -> list[dict[str, Any] | None]:
    return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows


def _timestamps(actions: pa.Table, bound: str) -> list[int | None]:
    """The bound of the records' timestamps in each action, in milliseconds."""
    index = actions.schema.get_field_index(bound)
    if index < 0 or actions.schema.field(index).type.get_field_index("timestamp") < 0:
        return [None] * actions.num_rows
    micros = pc.struct_field(actions.column(index), "timestamp").cast(pa.int64()).to_pylist()
    return [None if us is None else cast(int, us) // 1000 for us in micros]

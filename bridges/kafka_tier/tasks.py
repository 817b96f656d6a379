"""The plan of a read: tasks, which are parts of segments of a bounded size; and their rows, with values as bytes
or decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.kafka_tier.columns import RECORDS
from stratalog.bridges.kafka_tier.plan import Unclear
from stratalog.bridges.kafka_tier.reading import TierTask, offset_index, read_task
from stratalog.partitions.declared import ddl

TASK_BYTES = 32 * 1024 * 1024
"""The number of bytes of a segment that one task reads. A segment has up to 1 GiB by default. A reader of
committed records keeps the task's bytes in memory.
"""
_DDL = (
    "topic string, partition int, offset long, timestamp timestamp, timestampType int, key binary, value {value}, "
    "headers array<struct<key: string, value: binary>>, leaderEpoch int"
)


@dataclass(frozen=True, slots=True)
class TierPlan:
    """The plan of a read: its tasks, and the unclear offsets."""

    tasks: tuple[TierTask, ...]
    unclear: tuple[Unclear, ...]
    """The unclear offsets within the requested range."""
    notes: tuple[str, ...]
    """The unclear offsets before the first or after the last clear offset."""

    def __add__(self, other: TierPlan) -> TierPlan:
        return TierPlan(self.tasks + other.tasks, self.unclear + other.unclear, self.notes + other.notes)


def split(task: TierTask) -> Iterator[TierTask]:
    """Tasks of about ``TASK_BYTES``, divided where the offset index has entries."""
    piece = task.piece
    if piece.segment.size_bytes <= TASK_BYTES * 3 // 2:
        yield task
        return
    index = offset_index(task.opened, piece)
    start, from_byte = piece.start, (index.before(piece.start) or (0, 0))[1]
    for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True):
        if position - from_byte >= TASK_BYTES and start < offset < piece.end:
            yield replace(task, piece=replace(piece, start=start, end=offset))
            start, from_byte = offset, position
    yield replace(task, piece=replace(piece, start=start))


def packed(tasks: Sequence[TierTask]) -> list[list[TierTask]]:
    """Groups small tasks; each list is one Spark task."""
    found: list[list[TierTask]] = []
    room = 0
    for task in tasks:
        size = min(task.piece.segment.size_bytes, TASK_BYTES)
        if not found or size > room:
            found.append([])
            room = TASK_BYTES // 2
        found[-1].append(task)
        room -= size
    return found


def arrow_schema(values: TypedValues | None) -> pa.Schema:
    """``topic`` and ``partition`` before the columns of ``RECORDS``, with the type of ``values``."""
    schema = pa.schema([pa.field("topic", pa.string()), pa.field("partition", pa.int32()), *RECORDS])
    at = schema.get_field_index("value")
    return schema if values is None else schema.set(at, pa.field("value", values.type))


def frame_schema(values: TypedValues | None) -> str:
    """The schema of ``arrow_schema`` for Spark, as DDL."""
    return _DDL.format(value="BINARY" if values is None else f"STRUCT<{ddl(values.schema)}>")


def rows_of(task: TierTask, values: TypedValues | None) -> Iterator[pa.RecordBatch]:
    """The rows of a task, as columns of ``arrow_schema``. Raises: see ``read_task``."""
    schema = arrow_schema(values)
    for rows in read_task(task):
        columns = dict(zip(RECORDS.names, rows.columns, strict=True))
        if values is not None:
            columns["value"] = values.column(columns["value"].to_pylist())
        topic = pa.repeat(pa.scalar(task.topic), rows.num_rows)
        partition = pa.repeat(pa.scalar(task.partition, pa.int32()), rows.num_rows)
        yield pa.RecordBatch.from_arrays([topic, partition, *columns.values()], schema=schema)


def rows_of_works(
    works: Sequence[Sequence[TierTask]], values: TypedValues | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows of the tasks with these numbers. Runs in a task of Spark."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for task in works[number]:
                yield from rows_of(task, values)

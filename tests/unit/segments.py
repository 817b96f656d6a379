"""Data files in stores, for tests of their readers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName, segment_owner
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.segments.writer import ROW_GROUP_BYTES, SegmentWriter
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store

BINARY = physical_schema()
BASE = DataName(100, None, 1)
EVERYTHING = (0, 2**62)


def records(
    values: Sequence[Any],
    *,
    timestamps_us: Sequence[int | None] | None = None,
    keys: Sequence[Any] | None = None,
    headers: Sequence[Any] | None = None,
    schema: pa.Schema = BINARY,
) -> pa.RecordBatch:
    """A batch of the record columns; timestamps count up from zero unless given."""
    rows = len(values)
    times = list(range(rows)) if timestamps_us is None else timestamps_us
    return pa.RecordBatch.from_arrays(
        [
            pa.array(times, pa.int64()).cast(schema.field("timestamp").type),
            pa.nulls(rows, schema.field("key").type) if keys is None else pa.array(keys, schema.field("key").type),
            pa.array(values, schema.field("value").type),
            pa.nulls(rows, schema.field("headers").type)
            if headers is None
            else pa.array(headers, schema.field("headers").type),
        ],
        schema=pa.schema([schema.field(name) for name in ("timestamp", "key", "value", "headers")]),
    )


def write_segment(
    store: Store,
    name: DataName,
    batches: Iterable[pa.RecordBatch],
    *,
    folder: str = "",
    schema: pa.Schema = BINARY,
    lineage: Iterable[tuple[int, int]] = ((1, 0),),
    producers: dict[str, ProducerEntry] | None = None,
    compression: str = "zstd",
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> DataFile:
    """Create a data file with these batches, and list it: for the partition of the folder, or another one."""
    path = f"{folder}/{name}" if folder else str(name)
    topic_id, partition = segment_owner(path) or ("f" * 32, 3)
    staged = store.stage_writer(path)
    writer = SegmentWriter(
        staged.file,
        schema,
        topic_id=topic_id,
        partition=partition,
        base_offset=name.base_offset,
        compression=compression,
        row_group_bytes=row_group_bytes,
    )
    for batch in batches:
        writer.write(batch)
    writer.close(lineage=Lineage(lineage), producers=lambda _: producers or {}, created_ms=1_000)
    assert staged.commit()
    return listed(store, name, folder)


def listed(store: Store, name: DataName, folder: str = "") -> DataFile:
    """The data file as a listing sees it."""
    path = f"{folder}/{name}" if folder else str(name)
    return next(DataFile(name, stored) for stored in store.list(folder) if stored.name == path)


def read(store: Store, file: DataFile, start: int = 0, end: int = 2**62) -> pa.Table:
    """The records of ``[start, end)`` in one table."""
    return pa.Table.from_batches(read_batches(store, file, start, end))


def in_memory(data: bytes) -> tuple[MemoryStore, DataFile]:
    """A store with these bytes as its only data file, and the file."""
    store = MemoryStore()
    store.create(str(BASE), data)
    return store, listed(store, BASE)

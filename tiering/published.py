"""A file of the table of the latest record of each key (``snapshot_table``): its name, content and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.paths import CheckpointName
from stratalog.partitions.records import RECORD_COLUMNS, leaf_types
from stratalog.partitions.store.protocol import Store, StoredObject

_ROWS = 8192
"""The rows that are decoded at a time."""
_PLACE = ("partition", "end_offset", "epoch")


@dataclass(frozen=True, slots=True)
class Published:
    """The file that the table lists for a partition."""

    snapshot: CheckpointName
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Publication:
    """A file in the folder that may replace the listed file of its partition."""

    partition: int
    leader_epoch: int
    """The epoch of the leader whose snapshot the file holds."""
    snapshot: CheckpointName
    path: str
    size_bytes: int
    modified_ms: int
    records: int
    instead_of: str | None
    """The path of the listed file that this file was planned to replace. This file may replace it even without a
    greater end offset."""


def published_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of the table; ``schema`` is the topic's physical one."""
    place = [pa.field("partition", pa.int32()), pa.field("end_offset", pa.int64()), pa.field("epoch", pa.int32())]
    return pa.schema([*place, *(schema.field(name) for name in RECORD_COLUMNS)])


def write_published(
    sink: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    partition: int,
    snapshot: CheckpointName,
    compression: str,
) -> int:
    """Write the records that have a value; returns their number. ``schema`` is the table's schema; the batches
    have its record columns.
    """
    records = 0
    place = dict(zip(_PLACE, (partition, snapshot.end_offset, snapshot.epoch), strict=True))
    codec = "none" if compression == "uncompressed" else compression
    with pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        # As in segments: Parquet's bounds omit NaN, but Spark orders it above all numbers.
        write_statistics=[path for path, leaf in leaf_types(schema).items() if not pa.types.is_floating(leaf)],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for batch in batches:
            kept = batch.filter(pc.is_valid(batch.column("value")))
            constant = [pa.repeat(pa.scalar(place[name], schema.field(name).type), len(kept)) for name in _PLACE]
            arrays = [*constant, *(kept.column(name) for name in RECORD_COLUMNS)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            records += len(kept)
    return records


def published_batches(
    store: Store, stored: StoredObject, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file; all columns if ``columns`` is None. The checksum of every page that is read is verified.

    Raises: CorruptionError for a file that cannot be decoded; errors from the store.
    """
    with store.open(stored) as source:
        try:
            file = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False)
            yield from file.iter_batches(_ROWS, columns=columns, use_threads=False)
        except (pa.ArrowException, ValueError, LookupError, OSError) as error:
            raise CorruptionError(f"{store.uri_of(stored.name)} is damaged: {error}") from error


def statistics_of(one: Publication) -> str:
    """Delta's statistics of a file, as JSON."""
    found: dict[str, object] = {"numRecords": one.records}
    if one.records:
        same = dict(zip(_PLACE, (one.partition, one.snapshot.end_offset, one.snapshot.epoch), strict=True))
        found |= {"minValues": same, "maxValues": same, "nullCount": dict.fromkeys(same, 0)}
    return msgspec.json.encode(found).decode()

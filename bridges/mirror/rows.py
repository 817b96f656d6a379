"""Records of the source as columns, and as rows of a log: one row per offset, including gaps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from stratalog.bridges.formats.typed import TypedValues, undecoded
from stratalog.partitions.columns import binaries, constant, integers_of, validity
from stratalog.partitions.records import GAP, HEADERS, RECORD_COLUMNS, TIMESTAMP

SOURCE_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("leader_epoch", pa.int32()),
    ]
)
"""The columns of the source's committed records. The leader epoch is null if the format of the batch has none."""
MOST_ROWS = 1_000_000
"""The maximum number of rows of a batch; long gaps are built in pieces."""
MOST_TIMESTAMP_MS = (2**63 - 1) // 1000
"""The log holds microseconds in 64 bits: a Kafka timestamp above this, or below its negative, does not fit."""
NO_TIMESTAMP_MS = -1
"""Kafka's value for a missing timestamp (``RecordBatch.NO_TIMESTAMP``)."""
_CONTROL = pa.field("control", pa.int32())


def source_batch(
    offsets: Sequence[int],
    timestamps_ms: Sequence[int | None],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Sequence[tuple[str, bytes | None]] | None],
    leader_epochs: Sequence[int | None],
) -> pa.RecordBatch:
    """Records as columns, from one sequence per field of ``SourceRecord``."""
    columns = [
        _integers(offsets, pa.int64(), np.int64),
        _integers(timestamps_ms, TIMESTAMP, np.int64, 1000),
        binaries(keys),
        binaries(values),
        _headers(headers),
        _integers(leader_epochs, pa.int32(), np.int32),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA)


def first_beyond(timestamps_ms: Sequence[int | None]) -> int | None:
    """The index of the first timestamp that the log cannot hold; None if it can hold all."""
    given = [min(filter(None, timestamps_ms), default=0), max(filter(None, timestamps_ms), default=0)]
    if given[0] >= -MOST_TIMESTAMP_MS and given[1] <= MOST_TIMESTAMP_MS:
        return None
    return next(at for at, ms in enumerate(timestamps_ms) if ms is not None and abs(ms) > MOST_TIMESTAMP_MS)


def _integers(
    values: Sequence[int | None], data_type: pa.DataType, numbers: type[np.integer], factor: int = 1
) -> pa.Array:
    valid = validity(values)
    if valid is not None:
        values = [value or 0 for value in values]
    data = np.array(values, numbers) * numbers(factor)
    return pa.Array.from_buffers(data_type, len(values), [valid, pa.py_buffer(data)])


def _headers(headers: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.Array:
    """Null for a record without a timestamp."""
    if not any(headers):
        return pa.nulls(len(headers), HEADERS)
    pairs = [pair for one in headers for pair in one or ()]
    names = binaries([name.encode() for name, _ in pairs]).cast(pa.string())
    of_all = pa.StructArray.from_arrays([names, binaries([value for _, value in pairs])], ["key", "value"])
    counts = np.array([len(one or ()) for one in headers], np.int32)
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    buffers = [_bits(counts > 0), pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS, len(headers), buffers, children=[of_all])


def _bits(there: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(there, bitorder="little"))


NO_RECORDS = source_batch((), (), (), (), (), ())


def offsets_of(records: pa.RecordBatch) -> np.ndarray:
    """The offset of each record."""
    return integers_of(records.column("offset"))


def sizes_of(records: pa.RecordBatch) -> np.ndarray:
    """The size of each record's key, value and headers, in bytes."""
    sizes: np.ndarray = _lengths(records.column("key")) + _lengths(records.column("value"))
    headers = records.column("headers")
    if headers.null_count < len(headers):
        names, values = headers.values.flatten()  # of the whole array, even outside of a slice
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(_lengths(names) + _lengths(values))])
        sizes += np.diff(ends[integers_of(headers.offsets)])
    return sizes


def _lengths(values: pa.Array) -> np.ndarray:
    """A null has no bytes, because its range in the column is empty."""
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    lengths: np.ndarray = np.diff(ends.astype(np.int64))
    return lengths


def batches_of(
    records: Sequence[pa.RecordBatch], start: int, end: int, values: TypedValues | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of the offsets ``[start, end)``, at most ``MOST_ROWS`` per batch; ``records`` are all records at
    these offsets, in order. The columns are those of records, and ``control``. ``values`` decodes their values.
    """
    ends = [int(offsets_of(batch)[-1]) + 1 for batch in records[:-1]] + [end]
    for batch, until in zip(records or [NO_RECORDS], ends, strict=True):
        offsets, held = offsets_of(batch), _held(batch, values)
        for first in range(start, until, MOST_ROWS):
            last = min(first + MOST_ROWS, until)
            low, high = np.searchsorted(offsets, [first, last])
            yield _spread(held.slice(low, high - low), offsets[low:high] - first, last - first)
        start = until


def undecoded_of(batches: Iterable[pa.RecordBatch]) -> int:
    """The number of values in the rows that could not be decoded."""
    return sum(undecoded(batch.column("value")) for batch in batches)


def _held(records: pa.RecordBatch, values: TypedValues | None) -> pa.RecordBatch:
    columns = {name: records.column(name) for name in RECORD_COLUMNS}
    if values is not None:
        columns["value"] = values.column(columns["value"].to_pylist())
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _spread(held: pa.RecordBatch, places: np.ndarray, rows: int) -> pa.RecordBatch:
    """The records at these rows, with gaps at all others."""
    if held.num_rows == rows:
        return held.append_column(_CONTROL, pa.nulls(rows, pa.int32()))
    there = np.zeros(rows, np.bool_)
    there[places] = True
    index = np.zeros(rows, np.int64)
    index[places] = np.arange(held.num_rows)
    taken = held.take(pa.Array.from_buffers(pa.int64(), rows, [_bits(there), pa.py_buffer(index)]))
    gap = constant(GAP, pa.int32(), rows).buffers()[1]
    return taken.append_column(_CONTROL, pa.Array.from_buffers(pa.int32(), rows, [_bits(~there), gap]))

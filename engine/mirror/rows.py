"""Records of the source as rows of a log: one row an offset, gaps among them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from stratalog.engine.formats.typed import TypedValues, undecoded
from stratalog.engine.mirror.source import SourceRecord
from stratalog.partitions.columns import binaries, constant
from stratalog.partitions.records import GAP, HEADERS, RECORD_COLUMNS, TIMESTAMP

MOST_ROWS = 1_000_000
"""Of a batch: a gap of any length is made in pieces."""
_CONTROL = pa.field("control", pa.int32())


def batches_of(
    records: Sequence[SourceRecord], start: int, end: int, values: TypedValues | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of the offsets ``[start, end)``, at most ``MOST_ROWS`` a batch; ``records`` are all records there,
    in the order of offsets. The columns are those of records, and ``control``. ``values`` decodes their values.
    """
    offsets = np.fromiter((record.offset for record in records), np.int64, len(records))
    held = _held(records, values)
    for first in range(start, end, MOST_ROWS):
        until = min(first + MOST_ROWS, end)
        low, high = np.searchsorted(offsets, [first, until])
        yield _spread(held.slice(low, high - low), offsets[low:high] - first, until - first)


def undecoded_of(batches: Sequence[pa.RecordBatch]) -> int:
    """How many values of the rows could not be decoded."""
    return sum(undecoded(batch.column("value")) for batch in batches)


def _spread(held: pa.RecordBatch, places: np.ndarray, rows: int) -> pa.RecordBatch:
    """The records at these rows, gaps at all others."""
    if held.num_rows == rows:
        return held.append_column(_CONTROL, pa.nulls(rows, pa.int32()))
    there = np.zeros(rows, np.bool_)
    there[places] = True
    index = np.zeros(rows, np.int64)
    index[places] = np.arange(held.num_rows)
    valid = pa.py_buffer(np.packbits(there, bitorder="little"))
    taken = held.take(pa.Array.from_buffers(pa.int64(), rows, [valid, pa.py_buffer(index)]))
    gap = constant(GAP, pa.int32(), rows).buffers()[1]
    without = pa.py_buffer(np.packbits(~there, bitorder="little"))
    return taken.append_column(_CONTROL, pa.Array.from_buffers(pa.int32(), rows, [without, gap]))


def _held(records: Sequence[SourceRecord], values: TypedValues | None) -> pa.RecordBatch:
    stamps = [record.timestamp_ms for record in records]
    there = np.fromiter((stamp is not None for stamp in stamps), np.bool_, len(records))
    micros = np.fromiter(((stamp or 0) * 1000 for stamp in stamps), np.int64, len(records))
    timestamps = pa.Array.from_buffers(
        TIMESTAMP, len(records), [pa.py_buffer(np.packbits(there, bitorder="little")), pa.py_buffer(micros)]
    )
    columns = [
        timestamps,
        binaries([record.key for record in records]),
        (binaries if values is None else values.column)([record.value for record in records]),
        _headers(records),
    ]
    return pa.RecordBatch.from_arrays(columns, list(RECORD_COLUMNS))


def _headers(records: Sequence[SourceRecord]) -> pa.Array:
    """Null where a record has none."""
    pairs = [pair for record in records for pair in record.headers]
    names = binaries([name.encode() for name, _ in pairs]).cast(pa.string())
    of_all = pa.StructArray.from_arrays([names, binaries([value for _, value in pairs])], ["key", "value"])
    counts = np.fromiter((len(record.headers) for record in records), np.int32, len(records))
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    valid = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends)]
    return pa.Array.from_buffers(HEADERS, len(records), buffers, children=[of_all])

"""Rows of the log as Kafka's record batches (format 2), by ``aiokafka.record``, which is compiled. Pure.

Keys and values of a topic of bytes are its bytes. For other types, text becomes UTF-8, and any other value becomes
JSON, as ``stratalog tail`` shows it. Times are Kafka's milliseconds, rounded down; -1 for a record without a time.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from stratalog.engine.driver.plain_values import raw_column

_NO_TIMESTAMP = -1
_NO_PRODUCER = {"is_transactional": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
_MOST_BYTES = (1 << 31) - 1


def record_batches(records: pa.Table, next_offset: int, leader_epoch: int | None) -> bytes:
    """The rows of a fetch (``Fetched.records``) up to ``next_offset``. Offsets without a record are gaps between
    batches, as in a compacted topic. An empty batch covers the gaps at the end. Without this batch, a client would
    request them again and again. Empty if there are no offsets.
    """
    epoch = -1 if leader_epoch is None else leader_epoch
    offsets = records.column("offset").to_pylist()
    times = _milliseconds(records.column("timestamp"))
    rows = list(
        zip(
            offsets,
            times,
            raw_column(records.column("key")).to_pylist(),
            raw_column(records.column("value")).to_pylist(),
            _headers(records.column("headers")),
            strict=False,
        )
    )
    # The library uses the first time other than -1 as the time of the batch.
    timed = next((place for place, time in enumerate(times) if time != _NO_TIMESTAMP), len(rows))
    parts = [_batch(part[0][0], part, epoch) for part in (rows[:timed], rows[timed:]) if part]
    if next_offset > (offsets[-1] + 1 if offsets else 0) and next_offset > 0:
        parts.append(_batch(next_offset - 1, [], epoch))
    return b"".join(parts)


def _batch(base: int, rows: list[Any], epoch: int) -> bytes:
    builder = DefaultRecordBatchBuilder(magic=2, compression_type=0, batch_size=_MOST_BYTES, **_NO_PRODUCER)
    append = builder.append
    for offset, time, key, value, headers in rows:
        append(offset - base, time, key, value, headers)
    built = builder.build()
    struct.pack_into(">q", built, 0, base)  # both fields are before the bytes that the checksum covers
    struct.pack_into(">i", built, 12, epoch)
    return bytes(built)


def _milliseconds(times: pa.ChunkedArray) -> list[int]:
    micros = times.cast(pa.int64())
    if micros.null_count == 0 and (pc.min(micros).as_py() or 0) >= 0:
        return pc.divide(micros, 1000).to_pylist()  # type: ignore[no-any-return]
    return [_NO_TIMESTAMP if one is None else one // 1000 for one in micros.to_pylist()]


def _headers(column: pa.ChunkedArray) -> Any:
    """Header pairs by row; an endless iterator if no row has any."""
    if not any(len(chunk.flatten()) for chunk in column.chunks):
        return repeat([])
    return [[(one["key"], one["value"]) for one in row or ()] for row in column.to_pylist()]

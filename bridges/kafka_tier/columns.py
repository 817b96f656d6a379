"""Decodes the records of many batches at a time to Arrow columns: numpy reads the lengths, Arrow copies the bytes.

The position of a record depends on the length of the previous one. So step ``k`` reads the ``k``-th record of
*every* batch of a group, as one operation on arrays. Once only a few batches have records left, plain Python is
faster, and reads their remaining lengths.

Keys and values are slices of the bytes that were read, or decompressed. A single Arrow array over these bytes,
made without a copy, contains all slices and the gaps between them, and ``take`` selects the columns from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.bridges.kafka_tier.batches import KafkaBatch
from stratalog.bridges.mirror.rows import MOST_TIMESTAMP_MS, NO_TIMESTAMP_MS
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.records import HEADERS, TIMESTAMP

CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Kafka's numbers of ``timestampType``, as in Spark's source for Kafka."""
RECORDS = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("leaderEpoch", pa.int32()),
    ]
)
_LEAST_SIDE_BY_SIDE = 64
"""With fewer batches, a numpy step takes longer than Python needs for their records (measured)."""
_MOST_HEADERS = 1 << 21
"""The limit of headers in a group of batches."""

Numbers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class _Slices:
    """Ascending, separate slices of the bytes: keys and values alternate."""

    key_starts: Numbers
    key_ends: Numbers
    value_starts: Numbers
    value_ends: Numbers
    null_keys: npt.NDArray[np.bool_]
    null_values: npt.NDArray[np.bool_]

    def columns(self, data: pa.Buffer, rows: Numbers) -> tuple[pa.Array, pa.Array]:
        """Keys and values of these rows."""
        bounds = np.empty(len(self.key_starts) * 4, np.int32)
        bounds[0::4], bounds[1::4] = self.key_starts, self.key_ends
        bounds[2::4], bounds[3::4] = self.value_starts, self.value_ends
        if not len(bounds):
            return pa.array([], pa.binary()), pa.array([], pa.binary())
        parts = pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), data])
        return (
            parts.take(pa.array(rows * 4, mask=self.null_keys[rows])),
            parts.take(pa.array(rows * 4 + 2, mask=self.null_values[rows])),
        )


def decode(batches: Sequence[KafkaBatch], start: int, end: int, what: str) -> pa.RecordBatch:
    """Return the records of decompressed batches at the offsets ``[start, end)``, as columns of ``RECORDS``.

    Raises: CorruptionError for records that do not fill their batch or contradict its header; InvalidCallError for
    a timestamp that does not fit into microseconds, or for more headers than fit into a task.
    """
    joined, begins, ends = _joined(batches)
    counts = np.array([batch.records for batch in batches], np.int64)
    data = np.frombuffer(joined, np.uint8)
    try:
        starts = _record_starts(data, begins, ends, counts)
        fields = _Fields(data, starts, np.repeat(np.arange(len(batches)), counts), batches)
    except _DamagedError as error:
        between = f"the batches at bytes {batches[0].position} to {batches[-1].position}"
        raise CorruptionError(f"{what}: among {between}, {error}") from None
    rows = np.flatnonzero((fields.offsets >= start) & (fields.offsets < end))
    _check_times(fields.timestamps_ms[rows], fields.offsets[rows], what)
    return fields.columns(pa.py_buffer(joined), rows)


def _joined(batches: Sequence[KafkaBatch]) -> tuple[bytes, Numbers, Numbers]:
    """Return bytes with the records of all batches, and where the records of each batch begin and end. Records
    that were read together are not copied.
    """
    first = batches[0].data
    if all(batch.data is first for batch in batches):
        bounds = np.array([(batch.begin, batch.end) for batch in batches], np.int64)
        return first, bounds[:, 0], bounds[:, 1].copy()
    sizes = np.array([batch.end - batch.begin for batch in batches], np.int64)
    ends = np.cumsum(sizes)
    return b"".join([batch.payload for batch in batches]), ends - sizes, ends


class _DamagedError(Exception):
    """An error in the records of a group of batches."""


def _check_times(timestamps_ms: Numbers, offsets: Numbers, what: str) -> None:
    beyond = np.flatnonzero((timestamps_ms > MOST_TIMESTAMP_MS) | (timestamps_ms < -MOST_TIMESTAMP_MS))
    if len(beyond):
        raise InvalidCallError(
            f"{what}: the record at offset {offsets[beyond[0]]} has the timestamp {timestamps_ms[beyond[0]]} ms, "
            f"but a column of microseconds holds at most {MOST_TIMESTAMP_MS}"
        )


def _varints(data: Bytes, at: Numbers, most_bytes: int = 5) -> tuple[Numbers, Numbers]:
    """The zigzag numbers at these positions, and their ends."""
    byte = data.take(at, mode="clip")
    after = at + 1
    if not len(byte) or int(byte.max()) < 0x80:  # most numbers are small
        small = byte.astype(np.int64)
        return (small >> 1) ^ -(small & 1), after
    value = (byte & 0x7F).astype(np.uint64)
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while len(more):
        if shift >= 7 * most_bytes:
            raise _DamagedError(f"a number has more than {most_bytes} bytes")
        place = after[more]
        byte = data.take(place, mode="clip")
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] = place + 1
        more = more[(byte & 0x80) != 0]
        shift += 7
    return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64), after


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """``_varints`` for a single position."""
    value = shift = 0
    while shift < 35 and at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise _DamagedError("a number has more than 5 bytes, or no end")


def _record_starts(data: Bytes, begins: Numbers, ends: Numbers, counts: Numbers) -> Numbers:
    """The start of each record's length, for batches whose records are at ``[begins, ends)``."""
    found = np.empty(int(counts.sum()), np.int64)
    if not len(found):
        if (begins != ends).any():
            raise _DamagedError("a batch has bytes but no records")
        return found
    first = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    places, slots, ascending = begins[order], first[order], np.sort(counts)
    step = 0
    while (live := len(counts) - int(np.searchsorted(ascending, step, side="right"))) >= _LEAST_SIDE_BY_SIDE:
        at = places[:live]
        found[slots[:live] + step] = at
        length, after = _varints(data, at)
        places[:live] = after + length
        step += 1
    view = data.data
    for number in range(live):
        place, slot, batch = int(places[number]), int(slots[number]), int(order[number])
        end, count = int(ends[batch]), int(counts[batch])
        many: list[int] = []
        for _ in range(step, count):
            many.append(place)
            if not 0 <= place < end:
                raise _DamagedError("a record begins outside its batch")
            byte = view[place]
            if byte < 0x80:
                place += 1 + ((byte >> 1) ^ -(byte & 1))
            else:
                size, place = _varint(view, place)
                place += size
        found[slot + step : slot + count] = many
        places[number] = place
    if (places != ends[order]).any():
        raise _DamagedError("the records do not end where their batch ends")
    return found


class _Fields:
    """The fields of all records of a group: positions of keys, values and headers, and numbers."""

    def __init__(self, data: Bytes, starts: Numbers, batch: Numbers, batches: Sequence[KafkaBatch]) -> None:
        self.batch = batch
        length, at = _varints(data, starts)
        ends = at + length
        if (length < 6).any() or (ends > len(data)).any():
            raise _DamagedError("a record has an impossible length")
        self._check_order(starts, ends)
        delta_ms, at = _varints(data, at + 1, 10)
        delta, at = _varints(data, at)
        self.records = slices = _Slices(*_two(data, at, ends))
        headers, at = _varints(data, slices.value_ends)
        if (headers < 0).any() or (headers > ends - at).any() or int(headers.sum()) > _MOST_HEADERS:
            if (headers >= 0).all() and (headers <= ends - at).all():
                raise InvalidCallError(
                    f"{len(starts)} consecutive records have more than {_MOST_HEADERS} headers, more than fits "
                    "into a task: read this range through the brokers"
                )
            raise _DamagedError("a record has an impossible number of headers")
        self.header_counts = headers
        self.headers = _headers(data, at, headers, ends)
        self._numbers(delta_ms, delta, batches)

    @staticmethod
    def _check_order(starts: Numbers, ends: Numbers) -> None:
        """Check that each slice begins at the end of the previous one, which holds if no length was negative."""
        if (starts[1:] < ends[:-1]).any():
            raise _DamagedError("records overlap")

    def _numbers(self, delta_ms: Numbers, delta: Numbers, batches: Sequence[KafkaBatch]) -> None:
        batch = self.batch
        last = np.array([one.last_offset - one.base_offset for one in batches], np.int64)
        if (delta < 0).any() or (delta > last[batch]).any():
            raise _DamagedError("a record has an offset outside its batch")
        same = batch[1:] == batch[:-1]
        if (delta[1:][same] <= delta[:-1][same]).any():
            raise _DamagedError("the offsets of records are not in ascending order")
        self.offsets = np.array([one.base_offset for one in batches], np.int64)[batch] + delta
        base_ms = np.array([one.base_timestamp_ms for one in batches], np.int64)[batch]
        max_ms = np.array([one.max_timestamp_ms for one in batches], np.int64)[batch]
        self.append_time = np.array([one.attributes & 0x08 for one in batches], np.bool_)[batch]
        self.timestamps_ms = np.where(self.append_time, max_ms, base_ms + delta_ms)
        self.epochs = np.array([one.leader_epoch for one in batches], np.int32)[batch]

    def columns(self, data: pa.Buffer, rows: Numbers) -> pa.RecordBatch:
        """The columns of ``RECORDS`` for these rows."""
        keys, values = self.records.columns(data, rows)
        times = self.timestamps_ms[rows]
        micros = pa.array(times * 1000, pa.int64(), mask=times == NO_TIMESTAMP_MS).view(TIMESTAMP)
        columns = [
            pa.array(self.offsets[rows]),
            micros,
            pa.array(self.append_time[rows].astype(np.int32)),
            keys,
            values,
            self._headers(data, rows),
            pa.array(self.epochs[rows]),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=RECORDS)

    def _headers(self, data: pa.Buffer, rows: Numbers) -> pa.Array:
        """Null for a record without a timestamp."""
        counts = self.header_counts[rows]
        if not counts.any():
            return pa.nulls(len(rows), HEADERS)
        first = (np.cumsum(self.header_counts) - self.header_counts)[rows]
        ends = np.cumsum(counts)
        inside = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
        names, values = self.headers.columns(data, np.repeat(first, counts) + inside)
        pairs = pa.StructArray.from_arrays([_text(names), values], ["key", "value"])
        bounds = pa.py_buffer(np.concatenate([[0], ends]).astype(np.int32))
        valid = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
        return pa.Array.from_buffers(HEADERS, len(rows), [valid, bounds], children=[pairs])


def _text(names: pa.Array) -> pa.Array:
    """UTF-8, decoded as by Kafka's clients: invalid bytes become U+FFFD."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _two(data: Bytes, at: Numbers, ends: Numbers) -> tuple[Any, ...]:
    """The slices of a key and a value, each after its length."""
    key, key_start = _varints(data, at)
    key_end = key_start + np.maximum(key, 0)
    if (key < -1).any() or (key_end > ends).any():
        raise _DamagedError("a key has an impossible length")
    value, value_start = _varints(data, key_end)
    value_end = value_start + np.maximum(value, 0)
    if (value < -1).any() or (value_end > ends).any():
        raise _DamagedError("a value has an impossible length")
    return key_start, key_end, value_start, value_end, key < 0, value < 0


def _headers(data: Bytes, at: Numbers, counts: Numbers, ends: Numbers) -> _Slices:
    """The names and values of all headers, by record; step ``k`` reads header ``k`` of all records."""
    total = int(counts.sum())
    numbers = [np.empty(total, np.int64) for _ in range(4)]
    nulls = [np.zeros(total, np.bool_) for _ in range(2)]
    slots = np.cumsum(counts) - counts
    live = np.flatnonzero(counts)
    places = at.copy()
    step = 0
    while len(live) >= _LEAST_SIDE_BY_SIDE:
        found = _two(data, places[live], ends[live])
        target = slots[live] + step
        for column, values in zip([*numbers, *nulls], found, strict=True):
            column[target] = values
        places[live] = found[3]
        step += 1
        live = live[counts[live] > step]
    view = data.data
    for row in live.tolist():
        place, end = int(places[row]), int(ends[row])
        for slot in range(int(slots[row]) + step, int(slots[row]) + int(counts[row])):
            for part in (0, 1):
                size, begin = _varint(view, place)
                place = begin + max(size, 0)
                if size < -1 or place > end:
                    raise _DamagedError("a header has an impossible length")
                numbers[2 * part][slot], numbers[2 * part + 1][slot], nulls[part][slot] = begin, place, size < 0
        places[row] = place
    if (places != ends).any():
        raise _DamagedError("a record has bytes after its headers")
    if nulls[0].any():
        raise _DamagedError("a header has no name")
    return _Slices(numbers[0], numbers[1], numbers[2], numbers[3], nulls[0], nulls[1])

"""``python -m bench.tier_decoding`` compares how many records per second and core the bridge ``kafka_tier`` and
aiokafka's decoder in C decode from the same bytes. Both verify checksums. The bridge returns Arrow columns.
aiokafka returns a Python object per record; it is measured with and without a conversion to columns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from stratalog.bridges.kafka_tier.batches import batches_of, decompressed
from stratalog.bridges.kafka_tier.columns import decode
from stratalog.bridges.kafka_tier.reading import GROUP_BYTES

SEGMENT_BYTES = 32 * 1024 * 1024
ROUNDS = 3
CODECS = {"none": 0, "gzip": 1}
"""The codecs that aiokafka decompresses without another package."""


def segment(batch_bytes: int, value_bytes: int, codec: int, headers: int) -> bytes:
    """Batches of records with a key of 8 bytes."""
    draw = random.Random(0)
    pairs = [("trace", b"0123456789abcdef")] * headers
    data, offset = bytearray(), 0
    text = (b"%032x" % draw.getrandbits(128)) * 64
    while len(data) < SEGMENT_BYTES // (4 if codec else 1):
        builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, batch_bytes)
        count = 0
        while True:
            at = draw.randrange(64)
            key, value = b"%08d" % (offset + count), text[at : at + value_bytes]
            if builder.append(count, 1_700_000_000_000 + offset + count, key, value, pairs) is None:
                break
            count += 1
        made = builder.build()
        made[0:8] = offset.to_bytes(8, "big")
        data += made
        offset += count
    return bytes(data)


def ours(data: bytes) -> int:
    """The number of records, decoded by the bridge."""
    records, group, size = 0, [], 0
    for batch in batches_of(data, 0, "bench"):
        group.append(decompressed(batch, "bench"))
        size += group[-1].end - group[-1].begin
        if size >= GROUP_BYTES:
            records += decode(group, 0, 1 << 62, "bench").num_rows
            group, size = [], 0
    return records + (decode(group, 0, 1 << 62, "bench").num_rows if group else 0)


def theirs(data: bytes) -> int:
    """The number of records, decoded by aiokafka."""
    records = 0
    source = MemoryRecords(data)
    while source.has_next():
        batch = source.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        for record in batch:
            _ = (record.offset, record.timestamp, record.key, record.value, record.headers)
            records += 1
    return records


def their_columns(data: bytes) -> int:
    """The number of records, decoded by aiokafka and converted to Arrow columns like ours (without headers)."""
    columns: list[list[object]] = [[], [], [], []]
    offsets, timestamps, keys, values = columns
    source = MemoryRecords(data)
    while source.has_next():
        batch = source.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        for record in batch:
            offsets.append(record.offset)
            timestamps.append(record.timestamp)
            keys.append(record.key)
            values.append(record.value)
    types = (pa.int64(), pa.int64(), pa.binary(), pa.binary())
    made = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return len(made[0])


def seconds(function: Callable[[bytes], int], data: bytes) -> tuple[float, int]:
    """The processor time of one call, and the number of records."""
    began = time.process_time()
    records = function(data)
    return time.process_time() - began, records


def main() -> None:
    """Measure in turns, and print the best of ``ROUNDS``."""
    print("records per second and core: ours, aiokafka to columns, aiokafka to objects; our ratio to each of them")
    for batch_bytes, value_bytes, headers, codec in (
        (16_384, 100, 0, "none"),
        (16_384, 100, 2, "none"),
        (16_384, 1000, 0, "none"),
        (1_000_000, 100, 0, "none"),
        (16_384, 100, 0, "gzip"),
        (400, 100, 0, "none"),
    ):
        data = segment(batch_bytes, value_bytes, CODECS[codec], headers)
        best = [float("inf")] * 3
        for _ in range(ROUNDS):
            for at, function in enumerate((ours, their_columns, theirs)):
                spent, records = seconds(function, data)
                best[at] = min(best[at], spent)
        rates = [records / spent for spent in best]
        figures = "".join(f"{rate:>12,.0f}" for rate in rates)
        print(
            f"{batch_bytes:>9,} {value_bytes:>6} {headers:>7} {codec:>6}{figures}"
            f"{rates[0] / rates[1]:>9.1f}{rates[0] / rates[2]:>9.1f}"
        )


if __name__ == "__main__":
    main()

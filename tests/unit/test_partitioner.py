"""The partition of a key: exactly Kafka's for ``murmur2``; a topic keeps its partitioner."""

from __future__ import annotations

import random
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stratalog.engine.config.topic_config import CRC32, MURMUR2, PARTITIONERS, SPARK_HASH
from stratalog.engine.metadata.topic_commands import AlterConfigs, CreateTopic
from stratalog.engine.records.partitioner import crc32_of, murmur2_of, partitions_of
from stratalog.engine.records.spark_hash import hashes_of
from stratalog.partitions.errors import InvalidConfigError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.metadata_harness import Metadata, an_id

VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The test vectors of ``UtilsTest.testMurmur2`` in Kafka."""


def plainly(data: bytes) -> int:
    """``Utils.murmur2``, line by line."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


@pytest.mark.parametrize("times", [1, 100])
def test_murmur2_is_that_of_kafka(times: int) -> None:
    """Few keys and many keys are hashed in two ways."""
    assert murmur2_of(pa.array(list(VECTORS) * times, pa.binary())).tolist() == list(VECTORS.values()) * times


@pytest.mark.parametrize("count", [0, 1, 20, 500])
def test_murmur2_hashes_columns_of_keys_as_it_hashes_each_key(count: int) -> None:
    rng = random.Random(count)
    keys = [rng.randbytes(rng.choice([0, 1, 2, 3, 4, 5, 7, 8, 9, 40, 999])) for _ in range(count)]
    column = pa.array([b"before", *keys, None, b"behind"], pa.binary())
    assert murmur2_of(column.slice(1, count)).tolist() == list(map(plainly, keys))
    assert murmur2_of(column)[1 : count + 1].tolist() == list(map(plainly, keys))


def test_crc32_is_that_of_zlib() -> None:
    keys = [b"before", b"", b"123456789", b"a" * 1000, None]
    found = crc32_of(pa.array(keys, pa.binary()).slice(1))
    assert found[:3].tolist() == [0, 0xCBF43926, zlib.crc32(b"a" * 1000)]
    assert partitions_of(pa.array(["123456789"]), 7, CRC32)[0] == 0xCBF43926 % 7


def test_a_negative_hash_is_made_positive_as_kafka_does() -> None:
    """The sign bit is removed, which is not the absolute value."""
    keys = pa.array(list(VECTORS), pa.binary())
    assert list(partitions_of(keys, 7, MURMUR2)) == [(one & 0x7FFFFFFF) % 7 for one in VECTORS.values()]


TYPED: list[tuple[Any, pa.DataType, bytes]] = [
    ("ä", pa.string(), "ä".encode()),
    (b"\xff", pa.binary(), b"\xff"),
    (-42, pa.int8(), b"-42"),
    (2**63 - 1, pa.int64(), b"9223372036854775807"),
    (True, pa.bool_(), b"true"),
    (1.5, pa.float64(), b"1.5"),
    (Decimal("1.50"), pa.decimal128(38, 2), b'"1.50"'),
    (date(2013, 1, 2), pa.date32(), b'"2013-01-02"'),
    (datetime(2013, 1, 2, tzinfo=UTC), pa.timestamp("us", "UTC"), b'"2013-01-02T00:00:00.000000+00:00"'),
    ({"a": 1, "b": "x"}, pa.struct([("a", pa.int32()), ("b", pa.string())]), b'{"a": 1, "b": "x"}'),
    (["x", None], pa.list_(pa.string()), b'["x", null]'),
]


@pytest.mark.parametrize(("key", "kind", "data"), TYPED, ids=[str(kind) for _, kind, _ in TYPED])
def test_a_typed_key_is_hashed_as_export_writes_it(key: Any, kind: pa.DataType, data: bytes) -> None:
    assert partitions_of(pa.array([key], kind), 997, MURMUR2)[0] == (plainly(data) & 0x7FFFFFFF) % 997


def test_partitions_of_a_slice_are_those_of_its_keys() -> None:
    keys = pa.array([b"abcdefg", None, b"", b"h" * 9, b"\xff\xfe\xfd"])
    decimals = pa.array([Decimal("1.5"), Decimal("-2")], pa.decimal128(9, 2))
    for name in PARTITIONERS:
        for column in (keys, decimals):
            whole = partitions_of(column, 1000, name)
            assert list(partitions_of(column.slice(1), 1000, name)) == list(whole[1:])


def test_all_nans_are_one_key_as_in_spark() -> None:
    """The NaN of 0.0 / 0.0 has other bits than the canonical one."""
    for kind, bits in ((np.float32, [0x7FC00000, 0xFFC00000]), (np.float64, [0x7FF8 << 48, 0xFFF8 << 48])):
        nans = np.array(bits, f"u{np.dtype(kind).itemsize}").view(kind)
        column = pa.Array.from_buffers(pa.from_numpy_dtype(kind), 2, [None, pa.py_buffer(nans)])
        assert len(set(hashes_of(column))) == 1


def dealt(live: LiveCluster, topic: str) -> dict[str, int]:
    """The partition of each value."""
    found = {}
    for partition in range(5):
        for value in live.cluster.fetch(topic, partition, 0).records.column("value").to_pylist():
            found[value.decode()] = partition
    return found


ROWS = [{"k": f"key-{n}", "value": str(n)} for n in range(30)] + [{"k": None, "value": v} for v in "abc"]
KEYS = pa.array([row["k"] for row in ROWS[:30]])


@pytest.mark.parametrize("configs", [{}, *({"partitioner": name} for name in PARTITIONERS)])
def test_produce_partitions_keys_by_the_partitioner_of_the_topic(configs: dict[str, str], tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.cluster.topics.create("u", partitions=5, replication_factor=1, configs=configs)
    live.cluster.produce("u", ROWS, key="k").raise_for_failures()
    found = dealt(live, "u")
    wanted = partitions_of(KEYS, 5, configs.get("partitioner", SPARK_HASH)).tolist()
    assert [found[row["value"]] for row in ROWS[:30]] == wanted
    assert len({found[value] for value in "abc"}) == 1, "those without a key go to one partition a call"


def test_a_topic_keeps_its_partitioner() -> None:
    metadata = Metadata()
    metadata.do(CreateTopic(name="u", topic_id=an_id(5), configs={"partitioner": MURMUR2}))
    metadata.do(CreateTopic(name="__consumer_offsets", topic_id=an_id(6), internal=True))
    refusals: list[tuple[str | None, str | None, str]] = [
        ("u", SPARK_HASH, "topic 'u': partitioner cannot change from murmur2 to spark_hash: records of a key"),
        ("u", None, "topic 'u': partitioner cannot change from murmur2 to spark_hash"),
        ("t", MURMUR2, "topic 't': partitioner cannot change from spark_hash to murmur2"),
        (None, MURMUR2, "cluster: topic 't': partitioner cannot change from spark_hash to murmur2"),
    ]
    for topic, value, message in refusals:
        with pytest.raises(InvalidConfigError, match=message):
            AlterConfigs(topic, {"partitioner": value}).decide(metadata.image)
    metadata.do(AlterConfigs("t", {"partitioner": SPARK_HASH}))  # the topic's current partitioner
    metadata.do(AlterConfigs(None, {"partitioner": MURMUR2}))  # only topics that are created from now on
    metadata.do(AlterConfigs("u", {"partitioner": None, "retention.ms": "1000"}))

"""Frames of other libraries: produce makes the records that an append of the same rows makes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import DoubleType

from stratalog import Cluster
from stratalog.engine.config.topic_config import CRC32, MURMUR2, SPARK_HASH
from stratalog.engine.records.partitioner import partitions_of
from stratalog.engine.spark import key_hash, versions
from stratalog.engine.spark.key_hash import by_key_hash
from stratalog.engine.spark.versions import spark_version
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from tests.spark.spark_cluster import files, format_cluster, ordered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

AT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
COLUMNS: dict[str, list[Any]] = {
    "id": [f"k{number}" for number in range(20)],
    "n": [*range(19), None],
    "name": [*"abcdefghijklmnopqrs", None],
    "at": [AT] * 20,
}
TABLE = pa.table(
    COLUMNS, pa.schema([("id", "string"), ("n", "int64"), ("name", "string"), ("at", pa.timestamp("us", "UTC"))])
)


class OnlyCapsule:
    """A frame of an unknown library, which only has Arrow's capsule."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return TABLE.__arrow_c_stream__(requested_schema)


FRAMES = {
    "table": lambda: TABLE,
    "batch": lambda: TABLE.to_batches()[0],
    "reader": lambda: TABLE.to_reader(max_chunksize=7),
    "pandas": lambda: TABLE.to_pandas(types_mapper=pd.ArrowDtype).set_index(pd.Index(range(5, 25), name="i")),
    "polars": lambda: pl.from_arrow(TABLE),
    "categories": lambda: TABLE.set_column(2, "name", TABLE["name"].dictionary_encode()),
    "capsule": OnlyCapsule,
}


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = format_cluster(spark, folder)
    made.topics.create("spark", partitions=3, replication_factor=2, value="n BIGINT, name STRING")
    rows = spark.createDataFrame(TABLE)
    made.append("spark", rows, key=rows.id.cast("binary"), timestamp="at").raise_for_failures()
    return made


def stored(cluster: Cluster, topic: str) -> list[Any]:
    columns = "partition", "key", "value", "timestamp"
    return sorted(ordered(cluster.read(topic), *columns), key=repr)


@pytest.mark.parametrize("kind", FRAMES)
def test_the_same_rows_in_any_kind_of_frame_are_the_same_records_in_the_same_partitions(
    cluster: Cluster, kind: str
) -> None:
    cluster.topics.create(kind, partitions=3, replication_factor=2, value="n BIGINT, name STRING")
    cluster.produce(kind, FRAMES[kind](), key="id", timestamp="at").raise_for_failures()
    assert stored(cluster, kind) == stored(cluster, "spark")


def test_an_append_takes_frames_of_spark_alone_and_says_what_takes_others(cluster: Cluster, folder: Path) -> None:
    before = files(folder)
    append: Any = cluster.append
    kinds = {
        "pyarrow.Table": TABLE,
        "pandas.DataFrame": pd.DataFrame({"n": [1]}),
        "list": [{"n": 1}],
        "NoneType": None,
    }
    for kind, frame in kinds.items():
        with pytest.raises(InvalidRecordError, match=f"a {kind} is not a Spark DataFrame: use produce"):
            append("spark", frame)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"key": "naem"}, "key: column 'naem' is not in the DataFrame, which has .*; did you mean 'name'"),
        ({"timestamp": "nowhere"}, "timestamp: column 'nowhere' is not in the DataFrame"),
        ({"partition": 7}, r"partition is 7: give the name of a column, or an expression such as F.lit\(7\)"),
    ],
)
def test_a_misnamed_column_is_refused_before_unknown_fields(
    cluster: Cluster, spark: SparkSession, folder: Path, named: Any, message: str
) -> None:
    rows = spark.createDataFrame(TABLE)
    before = files(folder)
    for write in (cluster.append, cluster.records):
        with pytest.raises(InvalidRecordError, match=message):
            write("spark", rows, **named)
    assert files(folder) == before


TEXTS = ["", *("äöü-xyz\x7fé"[:length] for length in range(1, 9)), None]
KEYS = {
    "string": pa.array(TEXTS),
    "binary": pa.array([None if text is None else text.encode("latin-1") for text in TEXTS], pa.binary()),
    "bool": pa.array([True, False] * 5),
    "byte": pa.array([-128, 127, *range(8)], pa.int8()),
    "int": pa.array([-(2**31), 2**31 - 1, *range(8)], pa.int32()),
    "long": pa.array([-(2**63), 2**63 - 1, *range(8)], pa.int64()),
    "float": pa.array([0.0, -0.0, 1.5, float("inf"), float("nan"), -float("nan"), *range(4)], pa.float32()),
    "double": pa.array([0.0, -0.0, 1.5, float("-inf"), float("nan"), -float("nan"), *range(4)], pa.float64()),
    "date": pa.array([AT.date()] * 9 + [None], pa.date32()),
    "timestamp": pa.array([AT] * 9 + [None], pa.timestamp("us", "UTC")),
    "decimal": pa.array([Decimal(f"-{n}.5") for n in range(10)], pa.decimal128(18, 3)),
    "struct": pa.array([{"s": text, "l": 2**62} for text in TEXTS]),
}
"""All types of keys, with nulls, both zeros, NaNs of either sign, texts of every length up to 9 bytes."""


def test_produce_partitions_keys_as_spark_does(spark: SparkSession) -> None:
    frame = spark.createDataFrame(pa.table(KEYS))
    wanted = frame.select(*(F.pmod(F.hash(name), F.lit(997)).alias(name) for name in KEYS)).toArrow()
    for name, keys in KEYS.items():
        assert list(partitions_of(keys, 997, SPARK_HASH)) == wanted[name].to_pylist(), name


@pytest.mark.parametrize("version", [(4, 0), (4, 1)])
@pytest.mark.parametrize("partitioner", [MURMUR2, CRC32])
def test_spark_partitions_keys_by_hashes_of_kafka_as_produce_does(
    spark: SparkSession, version: tuple[int, int], partitioner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spark_version() < version:
        pytest.skip("this Spark is older")
    monkeypatch.setattr(key_hash, "spark_version", lambda: version)
    keys = {
        **KEYS,
        "tags": pa.array([["a", "ß"], None, *([] for _ in TEXTS[2:])], pa.list_(pa.string())),
        "map": pa.array([[("a", 1)]] * len(TEXTS), pa.map_(pa.string(), pa.int32())),
    }
    simple = ["string", "binary", "bool", "byte", "int", "long"]
    names = simple if version == (4, 0) else list(keys)
    frame = spark.createDataFrame(pa.table(keys))
    types = {field.name: field.dataType for field in frame.schema}
    hashed = (by_key_hash(frame[name], types[name], 997, partitioner).alias(name) for name in names)
    found = frame.select(*hashed).toArrow()
    for name in names:
        there = keys[name].is_valid().to_numpy(zero_copy_only=False)
        wanted = partitions_of(keys[name], 997, partitioner)
        assert list(found[name].to_numpy()[there]) == list(wanted[there]), name


def test_a_key_that_spark_4_0_cannot_hash_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (key_hash, versions):
        monkeypatch.setattr(module, "spark_version", lambda: (4, 0))
    with pytest.raises(InvalidCallError, match=r"murmur2 of a key of double needs Spark 4\.1 .*: give partition="):
        by_key_hash(F.lit(1.5), DoubleType(), 3, MURMUR2)


def test_a_frame_goes_where_producers_of_kafka_send_its_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Rows without a key are distributed by their values, as always; ``records`` gives the same result."""
    cluster = format_cluster(spark, tmp_path)
    cluster.topics.create("m", partitions=5, replication_factor=2, configs={"partitioner": MURMUR2})
    rows: list[tuple[str | None, str]] = [(f"key-{n}", str(n)) for n in range(40)] + [(None, "a"), (None, "b")]
    frame = spark.createDataFrame(rows, "k STRING, value STRING")
    cluster.append("m", frame, key="k").raise_for_failures()
    found = {row.value.decode(): row.partition for row in cluster.read("m").collect()}
    wanted = partitions_of(pa.array([key for key, _ in rows[:40]]), 5, MURMUR2).tolist()
    assert [found[str(n)] for n in range(40)] == wanted
    by_value = spark.sql("SELECT pmod(hash(CAST('a' AS BINARY)), 5), pmod(hash(CAST('b' AS BINARY)), 5)").first()
    assert by_value is not None
    assert (found["a"], found["b"]) == tuple(by_value)
    records = cluster.records("m", frame, key="k")
    assert {row.value.decode(): row.partition for row in records.collect()} == found

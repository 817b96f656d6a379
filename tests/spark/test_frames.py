"""Frames that are not Spark's: produce makes the records that an append of the same rows makes."""

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

from stratalog import Cluster
from stratalog.engine.records.partitioner import partitions_of
from stratalog.partitions.errors import InvalidRecordError
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
    """A frame of somebody whom we have never heard of."""

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
    made.append(rows, "spark", key=rows.id.cast("binary"), timestamp="at").raise_for_failures()
    return made


def stored(cluster: Cluster, topic: str) -> list[Any]:
    columns = "partition", "key", "value", "timestamp"
    return sorted(ordered(cluster.read(topic), *columns), key=repr)


@pytest.mark.parametrize("kind", FRAMES)
def test_whosever_frame_it_is_the_same_rows_are_the_same_records_in_the_same_partitions(
    cluster: Cluster, kind: str
) -> None:
    cluster.topics.create(kind, partitions=3, replication_factor=2, value="n BIGINT, name STRING")
    cluster.produce(kind, FRAMES[kind](), key="id", timestamp="at").raise_for_failures()
    assert stored(cluster, kind) == stored(cluster, "spark")


def test_an_append_takes_frames_of_spark_alone_and_says_what_takes_others(cluster: Cluster, folder: Path) -> None:
    before = files(folder)
    append: Any = cluster.append
    for frame in (TABLE, pd.DataFrame({"n": [1]}), [{"n": 1}], None):
        with pytest.raises(
            InvalidRecordError, match=f"a {type(frame).__name__} is no DataFrame of Spark: produce"
        ):
            append(frame, "spark")
    assert files(folder) == before


def test_produce_deals_keys_out_as_spark_does(spark: SparkSession) -> None:
    """All types of keys, with nulls, both zeros, texts of every length up to 9 bytes."""
    texts = ["", *("äöü-xyz\x7fé"[:length] for length in range(1, 9)), None]
    keys = pa.table(
        {
            "string": texts,
            "binary": pa.array([None if text is None else text.encode("latin-1") for text in texts], pa.binary()),
            "bool": [True, False] * 5,
            "byte": pa.array([-128, 127, *range(8)], pa.int8()),
            "int": pa.array([-(2**31), 2**31 - 1, *range(8)], pa.int32()),
            "long": pa.array([-(2**63), 2**63 - 1, *range(8)], pa.int64()),
            "float": pa.array([0.0, -0.0, 1.5, float("inf"), *range(6)], pa.float32()),
            "double": pa.array([0.0, -0.0, 1.5, float("-inf"), *range(6)], pa.float64()),
            "date": pa.array([AT.date()] * 9 + [None], pa.date32()),
            "timestamp": pa.array([AT] * 9 + [None], pa.timestamp("us", "UTC")),
            "decimal": pa.array([Decimal(f"-{n}.5") for n in range(10)], pa.decimal128(18, 3)),
        }
    )
    keys = keys.append_column(
        "struct",
        pa.StructArray.from_arrays([keys["string"].combine_chunks(), keys["long"].combine_chunks()], ["s", "l"]),
    )
    frame = spark.createDataFrame(keys)
    wanted = frame.select(*(F.pmod(F.hash(name), F.lit(997)).alias(name) for name in keys.column_names)).toArrow()
    for name in keys.column_names:
        mine = partitions_of(keys[name].combine_chunks(), 997)
        assert list(mine) == wanted[name].to_pylist(), name

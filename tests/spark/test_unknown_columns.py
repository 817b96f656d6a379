"""Columns of a DataFrame that the topic's type lacks, in every way that a DataFrame is appended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from stratalog import Cluster
from stratalog.partitions.errors import InvalidRecordError
from tests.spark.streams import drain, stream_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TYPE = "n INT, a STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"
WHOLE = {
    "n": "1 AS n",
    "a": "named_struct('x', 1) AS a",
    "l": "array(named_struct('x', 1)) AS l",
    "m": "map('k', named_struct('x', 1)) AS m",
}
UNKNOWN = {
    "amuont": {"amuont": "5 AS amuont"},
    "a.y": {"a": "named_struct('y', 5, 'x', 1) AS a"},
    "l.element.y": {"l": "array(named_struct('x', 1, 'y', 5)) AS l"},
    "m.value.y": {"m": "map('k', named_struct('x', 1, 'y', 5)) AS m"},
}
"""By the path of the field that is too much: the columns that differ."""


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = stream_cluster(spark, folder)
    made.topics.alter_configs(None, {"transaction.state.log.replication.factor": "2"})
    return made


@pytest.fixture
def typed(cluster: Cluster, topic: str) -> str:
    """A typed topic named after the test."""
    cluster.topics.delete(topic)
    cluster.topics.create(topic, partitions=1, replication_factor=2, key="STRING", value=TYPE)
    return topic


def frame(spark: SparkSession, path: str) -> DataFrame:
    return spark.range(2).selectExpr("cast(id AS STRING) AS id", *{**WHOLE, **UNKNOWN[path]}.values())


def by_append(cluster: Cluster, frame: DataFrame, topic: str, **options: Any) -> None:
    cluster.append(frame, topic, key="id", **options)


def by_transaction(cluster: Cluster, frame: DataFrame, topic: str, **options: Any) -> None:
    with cluster.transactions.begin("t") as transaction:
        transaction.append(frame, topic, key="id", **options)


def by_sink(cluster: Cluster, frame: DataFrame, topic: str, **options: Any) -> None:
    records = cluster.records(frame, topic, key="id", **options)
    records.write.format("stratalog").option("cluster", str(cluster.file.path)).option("topic", topic).mode(
        "append"
    ).save()


@pytest.mark.connect
@pytest.mark.parametrize("append", [by_append, by_transaction, by_sink])
@pytest.mark.parametrize("path", UNKNOWN)
def test_it_is_refused_by_its_path_or_dropped_on_request(
    cluster: Cluster, spark: SparkSession, typed: str, append: Callable[..., None], path: str
) -> None:
    with pytest.raises(InvalidRecordError, match=f"no record has a field '{path}'"):
        append(cluster, frame(spark, path), typed)
    assert cluster.read(typed).count() == 0
    append(cluster, frame(spark, path), typed, on_unknown_field="drop")
    assert [row.value.asDict(recursive=True) for row in cluster.read(typed).collect()] == 2 * [
        {"n": 1, "a": {"x": 1}, "l": [{"x": 1}], "m": {"k": {"x": 1}}}
    ]


def test_what_was_dropped_is_counted(cluster: Cluster, spark: SparkSession, typed: str) -> None:
    report = cluster.append(frame(spark, "amuont"), typed, key="id", on_unknown_field="drop")
    assert report.totals["dropped_fields"] == 1
    assert "fields that the topic lacks were dropped: amuont (2 records)" in report.notes


@pytest.mark.parametrize(("path", "nested"), [("amuont", "amuont"), ("a.z", "a.z")])
def test_it_is_added_on_request(cluster: Cluster, spark: SparkSession, typed: str, path: str, nested: str) -> None:
    """At the end of structs, as ``topics.alter`` adds it."""
    given = spark.range(1).selectExpr("cast(id AS STRING) AS id", *{**WHOLE, "amuont": "5 AS amuont"}.values())
    if path == "a.z":
        given = given.drop("amuont").withColumn("a", F.expr("named_struct('x', 1, 'z', 5)"))
    cluster.append(given, typed, key="id", on_unknown_field="add")
    assert cluster.read(typed).selectExpr(f"value.{nested} AS found").first().found == 5
    cluster.append(given, typed, key="id")


def test_columns_that_make_another_part_of_the_record_are_used(
    cluster: Cluster, spark: SparkSession, typed: str
) -> None:
    """By name, and within an expression."""
    given = frame(spark, "a.y").withColumn("a", F.expr("named_struct('x', 1)"))
    cluster.append(given, typed, key=F.concat(F.col("id"), F.lit("-")))
    cluster.append(given, typed, key=F.concat(given["id"], F.lit("-")))
    with pytest.raises(InvalidRecordError, match="no record has a field 'id'"):
        cluster.append(given, typed, key=F.lit("k"))


def test_a_stream_ends_before_it_drops_anything(
    cluster: Cluster, spark: SparkSession, typed: str, tmp_path: Path
) -> None:
    frame(spark, "amuont").write.parquet(str(tmp_path / "in"))
    files = spark.readStream.schema(frame(spark, "amuont").schema).parquet(str(tmp_path / "in"))
    writer = cluster.stream_writer(typed, key="id", producer="copy")
    with pytest.raises(StreamingQueryException, match="no record has a field 'amuont'"):
        drain(files, tmp_path / "checkpoint", writer)
    assert cluster.read(typed).count() == 0
    dropping = cluster.stream_writer(typed, key="id", producer="copy", on_unknown_field="drop")
    drain(files, tmp_path / "checkpoint", dropping)
    assert cluster.read(typed).count() == 2

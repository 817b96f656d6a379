"""A topic's types become wider while Spark reads and appends: scans, streams, SQL, the Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from stratalog.partitions.errors import InvalidRecordError
from tests.spark.spark_cluster import TIERED
from tests.spark.streams import Seen, drain, source, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.connect]

NARROW = "n INT, f FLOAT, d DATE, i STRUCT<s: SMALLINT>"
WIDE = "n BIGINT, f DOUBLE, d TIMESTAMP_NTZ, i STRUCT<s: BIGINT, t: STRING>"
ROWS = ("n", "f", "d", "named_struct('s', s) AS i")
NEW = ("n", "f", "d", "named_struct('s', s, 't', 'x') AS i")
FILTERS = {
    "value.n = 1": [1],
    "value.n > 4000000000": [10, 11],
    "value.f = 0.5D": [0, 10],
    "value.d = TIMESTAMP_NTZ'2013-01-02 00:00:00'": [2],
    "value.d > TIMESTAMP_NTZ'2020-01-01 00:00:00'": [10, 11],
    "value.i.s < 0": [0],
    "value.i.t = 'x'": [10, 11],
    "value.i.t IS NULL": [0, 1, 2],
}
"""The offsets are those of the three older records and the two newer ones, which are called 10 and 11."""


@pytest.fixture(scope="module")
def topic(cluster: Cluster, spark: SparkSession) -> str:
    """Older records in the remote tier alone, and newer ones on the brokers."""
    cluster.topics.create("wider", partitions=1, replication_factor=1, value=NARROW, configs=TIERED)
    older = spark.sql(
        "SELECT cast(id AS INT) AS n, cast(id * 10 + 0.5 AS FLOAT) AS f, "
        "date_add(DATE'2012-12-31', cast(id AS INT)) AS d, cast(id - 1 AS SMALLINT) AS s FROM range(0, 3, 1, 1)"
    ).selectExpr(*ROWS)
    cluster.append("wider", older, order_by=["value.n"]).raise_for_failures()
    cluster.tier("wider").raise_for_failures()
    cluster.topics.alter("wider", value=WIDE)
    newer = spark.sql(
        "SELECT 5000000000 + id AS n, 0.5D + id AS f, "
        "TIMESTAMP_NTZ'2021-05-05 12:30:00' AS d, 1L + id AS s FROM range(0, 2, 1, 1)"
    ).selectExpr(*NEW)
    cluster.append("wider", newer, order_by=["value.n"]).raise_for_failures()
    cluster.retain("wider").raise_for_failures()
    return "wider"


def found(frame: DataFrame, where: str) -> list[int]:
    rows = frame.where(where).selectExpr("cast(offset AS INT) AS o").collect()
    return sorted(row.o if row.o < 3 else row.o + 7 for row in rows)


@pytest.mark.parametrize("vectorized", [True, False])
def test_a_scan_reads_old_files_with_the_new_types(
    cluster: Cluster, spark: SparkSession, topic: str, vectorized: bool
) -> None:
    settings = ("spark.sql.parquet.enableVectorizedReader", "spark.sql.parquet.enableNestedColumnVectorizedReader")
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name in settings:
            spark.conf.set(name, str(vectorized).lower())
        frame = cluster.read(topic)
        assert {where: found(frame, where) for where in FILTERS} == FILTERS
        assert frame.schema["value"].dataType.simpleString().startswith("struct<n:bigint,f:double,d:timestamp_ntz")
        rows = frame.orderBy("offset").select("value.*").collect()
        assert [row.n for row in rows] == [0, 1, 2, 5_000_000_000, 5_000_000_001]
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_the_format_and_a_view_read_them_too(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str
) -> None:
    frame = spark.read.format("stratalog").option("cluster", str(folder / "cluster.toml")).load(topic)
    assert {where: found(frame, where) for where in FILTERS} == FILTERS
    cluster.create_view("wider_view", topic)
    assert found(spark.table("wider_view"), "value.n > 4000000000") == [10, 11]


@pytest.mark.delta
def test_delta_spark_reads_them_in_the_remote_table(cluster: Cluster, spark: SparkSession, topic: str) -> None:
    cluster.tier(topic).raise_for_failures()
    table = next(row["table_uri"] for row in cluster.topics.list().rows if row["topic"] == topic)
    frame = spark.read.format("delta").load(table).where("control IS NULL")
    assert {where: found(frame, where) for where in FILTERS} == FILTERS


def test_a_stream_of_batches_goes_on_with_the_new_types(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    seen = Seen("offset", "value.n", "value.d")
    to_its_end(cluster.for_each_batch(topic, seen, startingOffsets="earliest"), tmp_path)
    assert [n for _, n, _ in seen.all] == [0, 1, 2, 5_000_000_000, 5_000_000_001]


def test_a_running_query_ends_before_it_passes_the_wider_values(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """And goes on from its checkpoint with the new type."""
    name = "while-it-runs"
    cluster.topics.create(name, partitions=1, replication_factor=1, value="n INT")
    cluster.append(name, spark.range(2).selectExpr("cast(id AS INT) AS n")).raise_for_failures()
    query, seen = source(spark, folder, name), Seen("value.n")
    drain(query, tmp_path, seen)
    cluster.topics.alter(name, value="n BIGINT")
    cluster.append(name, spark.range(1).selectExpr("5000000000 AS n")).raise_for_failures()
    with pytest.raises(Exception, match=r"has become value\.n BIGINT since the query began: restart the query"):
        drain(query, tmp_path, seen)
    drain(source(spark, folder, name), tmp_path, seen)
    assert seen.all == [0, 1, 5_000_000_000]


def test_appends_of_narrower_frames_are_taken_and_of_wider_ones_refused(
    cluster: Cluster, spark: SparkSession
) -> None:
    cluster.topics.create("wide", partitions=1, replication_factor=1, value="n BIGINT, i STRUCT<f: DOUBLE>")
    frame = spark.range(1).selectExpr("1 AS n", "named_struct('f', cast(0.5 AS FLOAT)) AS i")
    cluster.append("wide", frame).raise_for_failures()
    assert [tuple(row) for row in cluster.read("wide").select("value.n", "value.i.f").collect()] == [(1, 0.5)]
    cluster.topics.create("narrow", partitions=1, replication_factor=1, value="n INT")
    with pytest.raises(InvalidRecordError, match="is bigint, but is declared as int: cast it"):
        cluster.append("narrow", spark.range(1).selectExpr("id AS n"))

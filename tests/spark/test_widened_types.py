"""A topic's types become wider while Spark reads and appends: scans, streams, SQL, the Delta table."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Cluster
from stratalog.partitions.errors import InvalidRecordError
from tests.depth import at_depth
from tests.spark.spark_cluster import TIERED
from tests.spark.streams import Seen, drain, source, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NARROW = "n INT, f FLOAT, d DATE, p DECIMAL(9, 2), i STRUCT<s: SMALLINT, q: DECIMAL(4, 0)>"
WIDE = "n BIGINT, f DOUBLE, d TIMESTAMP_NTZ, p DECIMAL(20, 4), i STRUCT<s: BIGINT, q: DECIMAL(38, 2), t: STRING>"
ROWS = ("n", "f", "d", "p", "named_struct('s', s, 'q', cast(s AS DECIMAL(4, 0))) AS i")
NEW = ("n", "f", "d", "p", "named_struct('s', s, 'q', cast(s AS DECIMAL(38, 2)), 't', 'x') AS i")
LARGE = "50000000.0000BD"  # its number of 64 bits, cut to the 32 of DECIMAL(9, 2), is 7050327.04
FILTERS = {
    "value.n = 1": [1],
    "value.n > 4000000000": [10, 11],
    "value.f = 0.5D": [0, 10],
    "value.d = TIMESTAMP_NTZ'2013-01-02 00:00:00'": [2],
    "value.d > TIMESTAMP_NTZ'2020-01-01 00:00:00'": [10, 11],
    "value.i.s < 0": [0],
    "value.i.t = 'x'": [10, 11],
    "value.i.t IS NULL": [0, 1, 2],
    "value.p = 9999999.99BD": [2],
    f"value.p < {LARGE}": [0, 1, 2],
    f"value.p > {LARGE}": [10, 11],
    f"value.p <> {LARGE} AND value.p IN (1.25BD, 100000000.5BD)": [0, 11],
    "value.i.q < 123456789012345678901234567890.12BD AND value.i.q > -0.5BD": [1, 2, 10, 11],
}
"""The offsets are those of the three older records and the two newer ones, which are called 10 and 11."""


@pytest.fixture(scope="module")
def topic(cluster: Cluster, spark: SparkSession) -> str:
    """Older records in the remote tier alone, and newer ones on the brokers."""
    cluster.topics.create("wider", partitions=1, replication_factor=1, value=NARROW, configs=TIERED)
    older = spark.sql(
        "SELECT cast(id AS INT) AS n, cast(id * 10 + 0.5 AS FLOAT) AS f, "
        "date_add(DATE'2012-12-31', cast(id AS INT)) AS d, cast(id - 1 AS SMALLINT) AS s, "
        "cast(elt(id + 1, '1.25', '-3.50', '9999999.99') AS DECIMAL(9, 2)) AS p FROM range(0, 3, 1, 1)"
    ).selectExpr(*ROWS)
    cluster.append("wider", older, order_by=["value.n"]).raise_for_failures()
    cluster.tier("wider").raise_for_failures()
    cluster.topics.alter("wider", value=WIDE)
    newer = spark.sql(
        "SELECT 5000000000 + id AS n, 0.5D + id AS f, "
        "TIMESTAMP_NTZ'2021-05-05 12:30:00' AS d, 1L + id AS s, "
        "cast(100000000 + id * 0.5BD AS DECIMAL(20, 4)) AS p FROM range(0, 2, 1, 1)"
    ).selectExpr(*NEW)
    cluster.append("wider", newer, order_by=["value.n"]).raise_for_failures()
    cluster.retain("wider").raise_for_failures()
    return "wider"


def found(frame: DataFrame, where: str) -> list[int]:
    rows = frame.where(where).selectExpr("cast(offset AS INT) AS o").collect()
    return sorted(row.o if row.o < 3 else row.o + 7 for row in rows)


@pytest.mark.connect
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


@pytest.mark.connect
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
    filters = [*FILTERS][:: at_depth(test=3, nightly=1)]
    assert {where: found(frame, where) for where in filters} == {where: FILTERS[where] for where in filters}


@pytest.mark.parametrize("as_integers", [False, True])
def test_spark_itself_reads_no_larger_decimals_of_the_same_scale(
    spark: SparkSession, tmp_path: Path, as_integers: bool
) -> None:
    """This is the reason why a DECIMAL becomes wider only with its scale. The second column is that of a rewrite
    by Spark."""
    number = pa.array([Decimal("9000000.01")], pa.decimal128(9, 2))
    pq.write_table(pa.table({"p": number}), tmp_path / "old.parquet", store_decimal_as_integer=as_integers)

    def read(kind: str) -> list[Decimal]:
        frame = spark.read.schema(f"p {kind}").parquet(str(tmp_path)).where(f"p < {LARGE}")
        return [row.p for row in frame.collect()]

    assert read("DECIMAL(20, 3)") == [Decimal("9000000.010")]
    if as_integers:
        assert read("DECIMAL(20, 2)") == [], "if Spark finds it, DECIMAL may become wider with the same scale"
    else:
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            read("DECIMAL(20, 2)")


def test_a_stream_of_batches_continues_with_the_new_types(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    seen = Seen("offset", "value.n", "value.d")
    to_its_end(cluster.for_each_batch(topic, seen, startingOffsets="earliest"), tmp_path)
    assert [n for _, n, _ in seen.all] == [0, 1, 2, 5_000_000_000, 5_000_000_001]


@pytest.mark.nightly
def test_a_running_query_ends_before_it_passes_the_wider_values(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """It continues from its checkpoint with the new type."""
    name = "while-it-runs"
    cluster.topics.create(name, partitions=1, replication_factor=1, value="n INT")
    cluster.append(name, spark.range(2).selectExpr("cast(id AS INT) AS n")).raise_for_failures()
    query, seen = source(spark, folder, name), Seen("value.n")
    drain(query, tmp_path, seen)
    cluster.topics.alter(name, value="n BIGINT")
    cluster.append(name, spark.range(1).selectExpr("5000000000 AS n")).raise_for_failures()
    with pytest.raises(
        Exception, match=r"has widened value\.n to BIGINT since the query began: restart the query"
    ):
        drain(query, tmp_path, seen)
    drain(source(spark, folder, name), tmp_path, seen)
    assert seen.all == [0, 1, 5_000_000_000]


@pytest.mark.connect
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

"""A filter on one field of a struct of 100 fields, in every engine that docs/delta.md names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from stratalog import Cluster
from stratalog.partitions.errors import InvalidRecordError
from tests.spark.spark_cluster import TIERED
from tests.spark.streams import Seen, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FIELDS, ROWS, FIELD, WANTED = 100, 400, "f73", [73, 173, 273, 373]
"""Row n has (n + m) % 100 in field m: field 73 is 46 in the wanted rows."""
IS = (WANTED[0] + 73) % 100


@pytest.fixture(scope="module")
def table(cluster: Cluster, spark: SparkSession) -> str:
    """The path of the Delta table of topic ``wide``, half of whose records are also on the brokers."""
    value = ", ".join(f"f{number} BIGINT" for number in range(FIELDS))
    cluster.topics.create("wide", partitions=1, replication_factor=1, value=value, configs=TIERED)
    for start in (0, ROWS // 2):
        rows = spark.range(start, start + ROWS // 2, 1, 1)
        frame = rows.selectExpr(*(f"(id + {number}) % 100 AS f{number}" for number in range(FIELDS)))
        cluster.append("wide", frame).raise_for_failures()
        cluster.tier("wide").raise_for_failures()
    cluster.retain("wide").raise_for_failures()
    return str(next(row["table_uri"] for row in cluster.topics.list().rows if row["topic"] == "wide"))


def test_every_kind_of_read_of_the_log_filters_by_one_of_100_fields(
    cluster: Cluster, spark: SparkSession, folder: Path, table: str, tmp_path: Path
) -> None:
    where = f"value.{FIELD} = {IS}"
    by_format = spark.read.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    cluster.create_view("wide_view", "wide")
    cluster.create_range_function("wide_range", "wide")
    for frame in (
        cluster.read("wide"),
        by_format.load("wide"),
        by_format.option("columns", f"offset,value.{FIELD}").load("wide"),
        spark.table("wide_view"),
        spark.sql(f"SELECT * FROM wide_range('wide', 0, 0, {ROWS})"),
    ):
        assert sorted(row.offset for row in frame.where(where).select("offset").collect()) == WANTED
    seen = Seen("offset", f"value.{FIELD}")
    to_its_end(cluster.for_each_batch("wide", seen, startingOffsets="earliest"), tmp_path)
    assert [offset for offset, value in seen.all if value == IS] == WANTED


@pytest.mark.long("Spark compiles expressions of 150 terms")
@pytest.mark.nightly
def test_each_of_many_required_fields_is_checked(cluster: Cluster, spark: SparkSession) -> None:
    """Expressions of many terms are shallow enough for Spark Connect."""
    value = ", ".join(f"f{number} STRING NOT NULL" for number in range(150))
    cluster.topics.create("required", partitions=1, replication_factor=1, value=value)
    columns = [f"'{number}' AS f{number}" for number in range(150)]
    cluster.append("required", spark.range(1).selectExpr(*columns)).raise_for_failures()
    columns[149] = "cast(null AS STRING) AS f149"
    with pytest.raises(InvalidRecordError, match="f149"):
        cluster.append("required", spark.range(1).selectExpr(*columns))
    assert cluster.read("required").selectExpr("value.f149").collect() == [("149",)]


@pytest.mark.delta
def test_delta_on_spark_filters_by_one_of_100_fields(spark: SparkSession, table: str) -> None:
    frame = spark.read.format("delta").load(table).where(f"control IS NULL AND value.{FIELD} = {IS}")
    assert sorted(row.offset for row in frame.select("offset").collect()) == WANTED


def test_delta_rs_and_its_sql_filter_by_one_of_100_fields(table: str) -> None:
    opened = DeltaTable(table)
    where = pc.field("value", FIELD) == IS
    assert sorted(opened.to_pyarrow_dataset().to_table(filter=where).column("offset").to_pylist()) == WANTED
    asked = QueryBuilder().register("t", opened).execute(f"SELECT \"offset\" FROM t WHERE value['{FIELD}'] = {IS}")
    assert sorted(value.as_py() for value in asked.read_all().column(0)) == WANTED


def test_polars_filters_by_one_of_100_fields(table: str) -> None:
    where = polars.col("value").struct.field(FIELD) == IS
    assert sorted(polars.scan_delta(table).filter(where).select("offset").collect()["offset"].to_list()) == WANTED
    eager = polars.read_delta(table, use_pyarrow=True).filter(where)
    assert sorted(eager["offset"].to_list()) == WANTED

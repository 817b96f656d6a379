"""``spark.read.format("stratalog")``, ``df.write.format("stratalog")``, and tables of SQL: the same records as
``cluster.read`` and ``cluster.append``, of the same ranges."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster, register_format
from stratalog.engine.spark.versions import spark_version
from tests.spark.spark_cluster import TIERED, format_cluster, ordered, rows
from tests.spark.streams import VALUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
NUMBERS = "id AS n", "cast(id AS STRING) AS word", "id % 2 AS p", "timestamp_seconds(id) AS t"


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    """The topic numbers, 0 to 99 in two partitions by their parity, each with its number of seconds since 1970 as
    its time: 0 to 79 remote, the others local.
    """
    made = format_cluster(spark, folder)
    made.topics.create("numbers", partitions=2, replication_factor=2, key="STRING", value=VALUE, configs=TIERED)
    for start in range(0, 80, 20):
        append(made, spark, "numbers", start, 20)
    made.merge().raise_for_failures()
    made.tier().raise_for_failures()
    made.retain().raise_for_failures()
    append(made, spark, "numbers", 80, 20)
    return made


def append(cluster: Cluster, spark: SparkSession, topic: str, start: int, count: int) -> None:
    frame = spark.range(start, start + count, numPartitions=1).selectExpr(*NUMBERS)
    cluster.append(
        topic, frame, key="word", partition="p", timestamp="t", order_by=["value.n"]
    ).raise_for_failures()


def topic_for(cluster: Cluster, name: str) -> str:
    cluster.topics.create(name, partitions=2, replication_factor=2, key="STRING", value=VALUE)
    return name


@pytest.fixture(scope="module")
def read(spark: SparkSession, folder: Path, cluster: Cluster) -> Reading:
    return Reading(spark, folder)


class Reading:
    """Batch reads of the cluster."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.file = spark, str(folder / "cluster.toml")

    def __call__(self, topic: str | None = "numbers", **options: object) -> DataFrame:
        given = {name: str(value) for name, value in options.items()}
        reader = self.spark.read.format("stratalog").option("cluster", self.file).options(**given)
        return reader.load(topic) if topic is not None else reader.load()


# ------------------------------------------------------------------------------------------- read


@pytest.mark.nightly
@pytest.mark.long("reads every kind of range twice")
def test_hot_and_cold_records_are_those_of_a_read_row_for_row(cluster: Cluster, read: Reading) -> None:
    plan = cluster.plan_read("numbers")
    assert {part.remote for part in plan} == {True, False}
    expected = ordered(cluster.read("numbers"), *COLUMNS)
    assert len(expected) == 100
    assert ordered(read(), *COLUMNS) == expected
    assert read().schema.simpleString() == cluster.read("numbers").schema.simpleString()
    assert read().count() == 100


def test_a_read_takes_several_topics_a_pattern_or_chosen_partitions(
    cluster: Cluster, spark: SparkSession, read: Reading
) -> None:
    append(cluster, spark, topic_for(cluster, "numbers-too"), 0, 10)
    both = cluster.read(["numbers", "numbers-too"])
    assert rows(read(None, subscribe="numbers,numbers-too"), *COLUMNS) == rows(both, *COLUMNS)
    assert rows(read(None, subscribePattern="numbers.*"), *COLUMNS) == rows(both, *COLUMNS)
    one = cluster.read("numbers", partitions=[1])
    assert rows(read(None, assign='{"numbers": [1]}'), *COLUMNS) == rows(one, *COLUMNS)


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"startingOffsets": '{"0": 10, "1": -2}', "endingOffsets": '{"0": 12, "1": 1}'}, [1, 20, 22]),
        ({"startingOffsets": "earliest", "endingOffsets": '{"numbers": {"0": 0, "1": 2}}'}, [1, 3]),
        ({"startingTimestamp": "96000"}, [96, 97, 98, 99]),
        ({"startingTimestamp": "1970-01-01T00:01:30Z", "endingTimestamp": "92000"}, [90, 91]),
        ({"endingOffsetsByTimestamp": '{"numbers": {"0": 3000, "1": 0}}'}, [0, 2]),
        ({"startingOffsetsByTimestamp": '{"0": 97000, "1": 97000}', "endingOffsets": "latest"}, [97, 98, 99]),
    ],
)
def test_options_bound_a_read_by_offset_or_time(
    read: Reading, options: dict[str, str], numbers: list[int]
) -> None:
    assert sorted(row[0] for row in read(**options).select("value.n").collect()) == numbers


def test_a_read_returns_only_the_chosen_columns(read: Reading) -> None:
    assert read(columns="offset, value.n").schema.simpleString() == "struct<offset:bigint,value:struct<n:bigint>>"
    assert read(columns="value.n").selectExpr("sum(value.n)").collect()[0][0] == sum(range(100))
    assert "headers" not in read(includeHeaders="false").columns


@pytest.mark.skipif(spark_version() < (4, 1), reason="earlier versions plan each query")
def test_a_frame_is_pinned_by_its_first_query(cluster: Cluster, spark: SparkSession, read: Reading) -> None:
    """Even if its files have moved to the remote tier since."""
    cluster.topics.create("growing", partitions=2, replication_factor=2, key="STRING", value=VALUE, configs=TIERED)
    append(cluster, spark, "growing", 0, 4)
    pinned = read("growing")
    assert pinned.count() == 4
    append(cluster, spark, "growing", 4, 4)
    cluster.merge().raise_for_failures()
    cluster.tier().raise_for_failures()
    cluster.retain().raise_for_failures()
    assert pinned.count() == 4
    assert read("growing").count() == 8


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_query_never_reads_by_the_filters_of_the_one_before(
    spark: SparkSession, read: Reading, enabled: str
) -> None:
    """Spark caches the plan of a DataFrame, and would cache one that was made with filters."""
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, enabled)
    try:
        frame = read()
        assert frame.where("partition = 1 AND offset < 3").count() == 3
        assert frame.count() == 100
        both = frame.where("partition = 0").unionAll(frame.where("timestamp < TIMESTAMP'1970-01-01T00:00:02Z'"))
        assert both.count() == 52
    finally:
        spark.conf.unset(setting)


# ------------------------------------------------------------------------------------------ write


def test_a_save_can_be_read_and_a_repeated_save_appends_once(
    cluster: Cluster, spark: SparkSession, folder: Path, read: Reading
) -> None:
    topic = topic_for(cluster, "written")
    frame = spark.range(40).selectExpr(*NUMBERS)
    records = cluster.records(topic, frame, key="word", partition="p", timestamp="t")
    named = {"cluster": str(folder / "cluster.toml"), "producer": "loader", "sequence": "3"}
    for _ in range(2):
        records.write.format("stratalog").options(**named).mode("append").save(topic)
    expected = rows(frame.selectExpr("cast(p AS INT) AS partition", "t AS timestamp", "word AS key", "n", "word"))
    assert rows(read(topic).select("partition", "timestamp", "key", "value.n", "value.word")) == expected
    records.write.format("stratalog").options(**named | {"sequence": "4"}).mode("append").save(topic)
    assert read(topic).count() == 80
    few = spark.range(5).selectExpr(*NUMBERS)
    others = cluster.records(topic, few, key="word", partition="p", timestamp="t")
    with pytest.raises(Exception, match="appended before with"):
        others.write.format("stratalog").options(**named | {"sequence": "4"}).mode("append").save(topic)
    assert read(topic).count() == 80


def test_rows_with_their_partitions_go_through_the_driver(
    cluster: Cluster, spark: SparkSession, folder: Path, read: Reading
) -> None:
    topic = topic_for(cluster, "by-hand")
    frame = spark.range(9).selectExpr("cast(id % 2 AS INT) AS partition", "struct(id AS n, 'x' AS word) AS value")
    for _ in range(2):  # without a producer each save is its own
        frame.write.format("stratalog").option("cluster", str(folder / "cluster.toml")).mode("append").save(topic)
    assert rows(read(topic), "partition", "value.n") == rows(frame.unionAll(frame), "partition", "value.n")


@pytest.mark.parametrize(
    ("mode", "columns", "options", "message"),
    [
        ("overwrite", ["partition", "value"], {}, "a log can only be appended to"),
        ("append", ["value", "7 AS extra"], {}, r"no place for the columns \['extra'\]"),
        ("append", ["partition", "value"], {"producer": "p"}, "needs a sequence"),
        ("append", ["partition", "value"], {"sequence": "-1"}, "give a number, 0 or more"),
        ("append", ["partition", "value"], {"prodcer": "p"}, "did you mean 'producer'"),
        ("append", ["partition", "value", "7L AS offset"], {}, "a row's offset is 7: omit the column"),
        ("append", ["partition", "value", "'b' AS topic"], {}, "a row's topic is 'b'"),
    ],
)
def test_bad_writes_are_refused(
    cluster: Cluster,
    read: Reading,
    spark: SparkSession,
    folder: Path,
    mode: str,
    columns: list[str],
    options: dict[str, str],
    message: str,
) -> None:
    frame = (
        spark.range(3).selectExpr("0 AS partition", "struct(id AS n, 'x' AS word) AS value").selectExpr(*columns)
    )
    to = frame.write.format("stratalog").options(cluster=str(folder / "cluster.toml"), **options).mode(mode)
    with pytest.raises(Exception, match=message):
        to.save("numbers")
    assert read().count() == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxRowsPerTrigger": "1"}, "the option maxRowsPerTrigger applies only to streams"),
        ({"startingOffsets": "latest"}, "would make a batch read empty"),
        (
            {"startingOffsets": '{"0": 9, "1": 9}', "endingOffsets": '{"0": 9, "1": 8}'},
            "starts at 9, after its end at 8",
        ),
        ({"endingOffsets": '{"0": 51, "1": 8}'}, r"endingOffsets is 51, but the log has \[0, 50\)"),
    ],
)
def test_bad_reads_are_refused(read: Reading, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(**options).collect()


# -------------------------------------------------------------------------------------------- SQL


@pytest.fixture
def own_catalog(spark: SparkSession) -> Iterator[None]:
    """Spark's own catalog: with another one, such as Delta's, Spark cannot read tables of Python sources."""
    name = "spark.sql.catalog.spark_catalog"
    before = spark.conf.get(name)
    spark.conf.set(name, "builtin")
    register_format(spark)
    yield
    spark.conf.set(name, before)
    register_format(spark)


@pytest.fixture
def table(own_catalog: None, spark: SparkSession, folder: Path, cluster: Cluster) -> Iterator[str]:
    options = f"cluster '{folder / 'cluster.toml'}', subscribe '{topic_for(cluster, 'of-sql')}'"
    spark.sql(f"CREATE TABLE numbers_table USING stratalog OPTIONS ({options})")
    yield "numbers_table"
    spark.sql("DROP TABLE numbers_table")


@pytest.mark.delta
def test_another_catalog_in_place_of_spark_s_is_named(cluster: Cluster, spark: SparkSession, folder: Path) -> None:
    """Spark would create a table there that it cannot load."""
    options = f"cluster '{folder / 'cluster.toml'}', subscribe '{topic_for(cluster, 'of-delta')}'"
    text = "and with this catalog, Spark cannot load a table of a Python source: use cluster.create_views"
    with pytest.raises(Exception, match=f"DeltaCatalog, {text}") as caught:
        spark.sql(f"CREATE TABLE refused USING stratalog OPTIONS ({options})")
    assert len(str(caught.value).strip().splitlines()) <= 5
    assert not spark.catalog.tableExists("refused")
    spark.sql(f"CREATE TEMPORARY VIEW taken USING stratalog OPTIONS ({options})")


@pytest.mark.skipif(spark_version() < (4, 1), reason="earlier versions want a value for each column of a table")
def test_a_table_is_read_and_appended_to(cluster: Cluster, spark: SparkSession, read: Reading, table: str) -> None:
    """Spark passes no options to a table's readers; they are stored in its columns, and WITH adds to them."""
    insert = "(partition, key, value) VALUES (0, 'a', struct(1L, 'x')), (1, 'b', struct(2L, 'y'))"
    spark.sql(f"INSERT INTO {table} {insert}")
    for _ in range(2):
        spark.sql(f"INSERT INTO {table} WITH (producer 'p', sequence '0') {insert}")
    assert rows(spark.table(table), *COLUMNS) == rows(cluster.read("of-sql"), *COLUMNS)
    found = spark.sql(f"SELECT count(*), sum(value.n) FROM {table} WHERE partition = 1").collect()
    assert [tuple(row) for row in found] == [(2, 4)]
    late = spark.sql(f'SELECT offset FROM {table} WITH (startingOffsets \'{{"0": 1, "1": 2}}\')').collect()
    assert [row[0] for row in late] == [1]
    with pytest.raises(Exception, match="a log can only be appended to"):
        spark.sql(f"INSERT OVERWRITE {table} {insert}")


def test_a_temporary_view_is_read_and_appended_to(
    cluster: Cluster, spark: SparkSession, folder: Path, read: Reading
) -> None:
    topic = topic_for(cluster, "of-a-view")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW numbers_view USING stratalog "
        f"OPTIONS (cluster '{folder / 'cluster.toml'}', subscribe '{topic}', startingOffsets 'earliest')"
    )
    spark.sql("INSERT INTO numbers_view SELECT null, 0, null, null, 'k', struct(5L, 'x'), null")
    assert rows(spark.table("numbers_view"), *COLUMNS) == rows(cluster.read(topic), *COLUMNS)
    assert read(topic).count() == 1


@pytest.mark.usefixtures("own_catalog")
def test_a_table_with_columns_of_its_own_says_how_it_is_made(
    cluster: Cluster, spark: SparkSession, folder: Path
) -> None:
    spark.sql(
        "CREATE TABLE own_columns (partition INT, value STRING) USING stratalog "
        f"OPTIONS (cluster '{folder / 'cluster.toml'}', subscribe 'numbers')"
    )
    try:
        with pytest.raises(Exception, match="the table has no options: create it with OPTIONS"):
            spark.table("own_columns").collect()
    finally:
        spark.sql("DROP TABLE own_columns")

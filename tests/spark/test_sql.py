"""A cluster in SQL: system views and functions, and names in catalogs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from stratalog.engine.admin.system_tables import SYSTEM_TABLES
from stratalog.engine.spark.versions import LIMITS, spark_version
from stratalog.partitions.errors import InvalidCallError
from tests.spark.spark_cluster import TIERED, explained, format_cluster, ordered, rows
from tests.spark.streams import VALUE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
OWN_CATALOG = "spark.sql.catalog.spark_catalog"


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The topic trips: 0 to 39 tiered, and 40 to 49 local only; ``g`` has committed for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRATALOG_HISTORY", "on")
        made = format_cluster(spark, tmp_path_factory.mktemp("sql"))
    made.topics.alter_configs(None, {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "1"})
    made.topics.create("trips", partitions=2, replication_factor=2, key="STRING", value=VALUE, configs=TIERED)
    for start in range(0, 40, 10):
        append(made, spark, start, 10)
    tier(made)
    append(made, spark, 40, 10)
    made.groups.commit("g", {("trips", 0): 20})
    return made


def append(cluster: Cluster, spark: SparkSession, start: int, count: int) -> None:
    frame = spark.range(start, start + count, numPartitions=1).selectExpr(
        "id AS n", "cast(id AS STRING) AS word", "id % 2 AS p"
    )
    report = cluster.append("trips", frame, key="word", partition="p", order_by=["value.n"])
    report.raise_for_failures()


def tier(cluster: Cluster) -> None:
    for job in (cluster.merge, cluster.tier, cluster.retain):
        job().raise_for_failures()


def answer(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


# ------------------------------------------------------------------------------------ system views


@pytest.mark.connect
def test_system_views_show_what_is_there_when_they_are_queried(cluster: Cluster, spark: SparkSession) -> None:
    cluster.catalog.create_system_views()
    topics = "SELECT partitions, value FROM stratalog_topics WHERE topic = 'trips'"
    assert answer(spark, topics) == [(2, "n BIGINT, word STRING")]
    ends = (
        "SELECT partition, remote_end, log_end FROM stratalog_partitions WHERE role = 'leader' ORDER BY partition"
    )
    assert answer(spark, ends.replace("WHERE", "WHERE topic = 'trips' AND")) == [(0, 20, 25), (1, 20, 25)]
    files = "SELECT tier, sum(end_offset - start_offset) FROM stratalog_files('trips') GROUP BY tier ORDER BY tier"
    ((local, some), (remote, others)) = answer(spark, files)
    assert (local, remote, some + others) == ("local", "remote", 50)  # type: ignore[operator]
    lag = "SELECT sum(lag) FROM stratalog_groups WHERE group_id = 'g'"
    assert answer(spark, lag) == [(30,)]
    append(cluster, spark, 50, 2)
    assert answer(spark, lag) == [(32,)]
    done = "SELECT operation, totals['trips/remote_end'] FROM stratalog_operations('trips') WHERE outcome = 'done'"
    assert ("tier", 40) in answer(spark, done)
    latest = "SELECT partition, offset FROM stratalog_offsets('trips', '{}') ORDER BY partition"
    assert answer(spark, latest.format("latest")) == [(0, 26), (1, 26)]
    assert answer(spark, latest.format("last-tiered")) == [(0, 19), (1, 19)]
    assert answer(spark, latest.replace(", '{}'", "")) == [(0, 26), (1, 26)]
    for function in ("stratalog_files", "stratalog_offsets"):
        with pytest.raises(Exception, match="'tripz' does not exist") as caught:
            answer(spark, f"SELECT * FROM {function}('tripz')")
        assert spark_version() < LIMITS or "Traceback" not in str(caught.value)
    with pytest.raises(Exception, match="nothing"):
        answer(spark, "SELECT * FROM stratalog_partitions('nothing')")
    with pytest.raises(InvalidCallError, match="not a name for a view"):
        cluster.catalog.create_system_views("my log")


@pytest.mark.connect
def test_no_column_of_a_system_view_needs_quotes(cluster: Cluster, spark: SparkSession) -> None:
    cluster.catalog.create_system_views()
    spark.conf.set("spark.sql.ansi.enforceReservedKeywords", "true")
    try:
        for name, table in SYSTEM_TABLES.items():
            spark.sql(f"SELECT {', '.join(table.types)} FROM stratalog_{name}").schema  # noqa: B018 - parses it
    finally:
        spark.conf.unset("spark.sql.ansi.enforceReservedKeywords")


# ----------------------------------------------------------------------------- names in the schema stratalog


@pytest.mark.connect
@pytest.mark.delta
def test_topics_have_names_next_to_delta_s_catalog(cluster: Cluster, spark: SparkSession) -> None:
    """In the session of ``spark_session``, with Parquet's pruning; the views do not advance by themselves."""
    assert spark.conf.get(OWN_CATALOG) == "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    cluster.topics.create("bike-rides", partitions=1, replication_factor=2, value="n INT")
    cluster.append("bike-rides", spark.sql("SELECT 7 AS n"))
    assert cluster.create_views() == ("stratalog.`bike-rides`", "stratalog.trips")
    count = cluster.read("trips").count()
    assert rows(spark.table("stratalog.trips"), *COLUMNS) == rows(cluster.read("trips"), *COLUMNS)
    joined = "SELECT min(t.value.n) + max(r.value.n) FROM stratalog.trips t, stratalog.`bike-rides` r"
    assert answer(spark, joined) == [(7,)]
    plan = explained(spark.sql("SELECT key FROM stratalog.trips WHERE value.n > 45"))
    assert "value.n,45" in plan.partition("PushedFilters: [")[2]
    append(cluster, spark, 52, 2)
    assert answer(spark, "SELECT count(*) FROM stratalog.trips") == [(count,)]
    assert cluster.create_views("trips", isolation="read_committed") == ("stratalog.trips",)
    assert answer(spark, "SELECT count(*) FROM stratalog.trips") == [(count + 2,)]
    early = "SELECT count(*) FROM stratalog.trips WHERE timestamp < TIMESTAMP'1970-01-01'"
    assert answer(spark, early) == [(0,)]


@pytest.mark.connect
def test_topics_that_sql_cannot_tell_apart_are_refused(cluster: Cluster) -> None:
    cluster.topics.create("Rides", partitions=1, replication_factor=2)
    cluster.topics.create("rides", partitions=1, replication_factor=2)
    try:
        with pytest.raises(InvalidCallError, match="'Rides' and 'rides' differ only in case"):
            cluster.create_views()
    finally:
        for name in ("Rides", "rides"):
            cluster.topics.delete(name)


# --------------------------------------------------------------------------------- names in catalogs


@pytest.fixture
def logs(spark: SparkSession) -> Iterator[str]:
    """A schema of Spark's own catalog, in a session without a replacement for it."""
    before = spark.conf.get(OWN_CATALOG)
    spark.conf.set(OWN_CATALOG, "builtin")
    spark.sql("CREATE SCHEMA logs")
    yield "logs"
    spark.sql("DROP SCHEMA logs CASCADE")
    spark.conf.set(OWN_CATALOG, before)


@pytest.mark.delta
def test_the_remote_table_is_an_external_table_under_spark_s_and_delta_s_catalog(
    cluster: Cluster, spark: SparkSession, logs: str
) -> None:
    """Dropping the name keeps the table."""
    for catalog in ("builtin", "org.apache.spark.sql.delta.catalog.DeltaCatalog"):
        spark.conf.set(OWN_CATALOG, catalog)
        cluster.catalog.create_table("logs.trips", "trips")
        cluster.catalog.create_table("logs.trips", "trips", if_not_exists=True)
        with pytest.raises(InvalidCallError, match="already exists"):
            cluster.catalog.create_table("logs.trips", "trips")
        count = "SELECT count(*) FROM spark_catalog.logs.trips WHERE control IS NULL"
        assert answer(spark, count)[0][0] >= 40  # type: ignore[operator]
        spark.sql("DROP TABLE logs.trips")
    assert cluster.verify(deep=True).ok


@pytest.mark.nightly
@pytest.mark.classic("a server of Spark Connect needs Delta's plugin for it")
def test_delta_spark_reads_the_remote_table_and_its_compaction_is_reverted(
    cluster: Cluster, spark: SparkSession
) -> None:
    """With Delta's catalog, which delta-spark's commands need; a foreign writer changes no record."""
    pytest.importorskip("delta")
    table = cluster.catalog.delta_table("trips")
    offsets = sorted(tuple(row) for row in table.toDF().select("partition", "offset").collect())
    assert [offset for partition, offset in offsets if partition == 0] == list(range(20))
    versions = table.history().count()
    table.optimize().executeCompaction()
    assert table.history(1).first()["operation"] == "OPTIMIZE"  # type: ignore[index]
    tier(cluster)
    again = cluster.catalog.delta_table("trips")
    assert again.history().count() > versions
    found = sorted(tuple(row) for row in again.toDF().select("partition", "offset").collect())
    assert len(set(found)) == len(found), "no record is there twice"
    assert set(found) >= set(offsets)
    assert cluster.verify(deep=True).ok


@pytest.mark.delta
def test_a_view_of_both_tiers_stays_right_when_more_is_tiered(
    cluster: Cluster, spark: SparkSession, logs: str
) -> None:
    cluster.catalog.create_view("logs.trips", "trips")
    count = cluster.read("trips").count()
    expected = ordered(cluster.read("trips"), *COLUMNS)
    assert ordered(spark.table("logs.trips"), *COLUMNS) == expected
    below = "SELECT count(*) FROM logs.trips WHERE partition = 0 AND offset < 10"
    assert answer(spark, below) == [(10,)]

    append(cluster, spark, 1000, 10)
    tier(cluster)
    append(cluster, spark, 1010, 5)
    made = dict(answer(spark, "SHOW TBLPROPERTIES logs.trips"))
    for _ in range(2):
        assert spark.table("logs.trips").count() == count + 15
        assert rows(spark.table("logs.trips"), *COLUMNS) == rows(cluster.read("trips"), *COLUMNS)
        cluster.catalog.create_view("logs.trips", "trips")
    again = dict(answer(spark, "SHOW TBLPROPERTIES logs.trips"))
    assert made["stratalog.table"] == again["stratalog.table"]
    ends = [json.loads(str(each["stratalog.table_end"])) for each in (made, again)]
    assert sum(ends[0].values()) < sum(ends[1].values())
    (topic,) = [row for row in cluster.topics.list().rows if row["topic"] == "trips"]
    assert topic["table_end"] == " ".join(f"{partition}:{end}" for partition, end in ends[1].items())
    assert topic["table_uri"] == again["stratalog.table"]


@pytest.mark.delta
def test_a_view_of_both_tiers_says_what_a_catalog_cannot_do(
    cluster: Cluster, spark: SparkSession, logs: str
) -> None:
    """It also leaves other tables alone."""
    spark.sql("CREATE TABLE logs.mine_tail (n INT) USING parquet")
    with pytest.raises(InvalidCallError, match="not a table of the format stratalog"):
        cluster.catalog.create_view("logs.mine", "trips")
    spark.sql("CREATE TABLE logs.other (n INT) USING parquet")
    with pytest.raises(InvalidCallError, match="is not the table of topic 'trips'"):
        cluster.catalog.create_table("logs.other", "trips", if_not_exists=True)
    for name in ("logs.`trips`", "a.b.c.d", ""):
        with pytest.raises(InvalidCallError, match="is not a name in a catalog"):
            cluster.catalog.create_table(name, "trips")
    cluster.topics.create("local", partitions=1, replication_factor=2)
    with pytest.raises(InvalidCallError, match="'local' is not tiered"):
        cluster.catalog.create_table("logs.local", "local")
    cluster.topics.create("fresh", partitions=1, replication_factor=2, configs=TIERED)
    with pytest.raises(InvalidCallError, match="'fresh' has no Delta table yet: tier it"):
        cluster.catalog.create_view("logs.fresh", "fresh")
    spark.conf.set(OWN_CATALOG, "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    with pytest.raises(InvalidCallError, match="needs Spark's own catalog"):
        cluster.catalog.create_view("logs.trips", "trips")


@pytest.mark.delta
@pytest.mark.classic("the second catalog is set up in the JVM")
def test_a_second_catalog_is_reached_by_names_of_three_parts(
    cluster: Cluster, spark: SparkSession, logs: str
) -> None:
    """A catalog like Unity Catalog: Delta's, over a catalog that does not have Spark's name."""
    spark.conf.set("spark.sql.catalog.lake", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    catalogs = spark._jsparkSession.sessionState().catalogManager()  # type: ignore[attr-defined]
    catalogs.catalog("lake").setDelegateCatalog(catalogs.v2SessionCatalog())
    cluster.catalog.create_view("spark_catalog.logs.now", "trips", table="lake.logs.cold")
    assert rows(spark.table("logs.now"), *COLUMNS) == rows(cluster.read("trips"), *COLUMNS)
    assert answer(spark, "SELECT min(offset) FROM lake.logs.cold") == [(0,)]

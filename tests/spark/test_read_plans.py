"""Planned reads in Spark: several topics, SQL, filters in the Parquet scan, files that vanish."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from stratalog import Cluster
from stratalog.engine.reading.read_plan import ReadPlan
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from stratalog.partitions.segments.writer import _PAGES
from tests.spark.spark_cluster import TIERED, explained, format_cluster, ordered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS = 40_000
"""The records of topic ``big``, whose only file has several row groups and many pages."""


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """``north`` and ``south`` with two partitions; ``big`` with one, whose records are five kibibytes each, half
    of which a codec removes."""
    made = format_cluster(spark, tmp_path_factory.mktemp("plans"))
    made.topics.alter_configs(
        None, {"transaction.state.log.replication.factor": "1", "transaction.state.log.num.partitions": "1"}
    )
    for name in ("north", "south"):
        made.topics.create(name, partitions=2, replication_factor=1, value="city STRING, people BIGINT")
        rows = spark.range(20).selectExpr(
            "cast(id % 2 AS INT) AS p", f"concat('{name}-', id) AS city", "id AS people"
        )
        made.append(name, rows.coalesce(1), partition="p", order_by=["people"]).raise_for_failures()
    made.topics.create("big", partitions=1, replication_factor=1, value="n BIGINT, text STRING, more STRING")
    texts = ", ".join(f"sha2(cast(id * 31 + {i} AS STRING), 512)" for i in range(8))
    rows = spark.range(RECORDS).selectExpr(
        "id AS n", f"concat({texts}) AS text", "repeat(concat('m', id % 7), 2000) AS more"
    )
    made.append("big", rows.coalesce(1), order_by=["n"]).raise_for_failures()
    return made


def bytes_read(spark: SparkSession, frame: DataFrame) -> int:
    """The bytes that the tasks of an evaluation read, as Spark counts them when it reads ranges one after the
    other."""
    vectored = "parquet.hadoop.vectored.io.enabled"
    tracker, store = spark.sparkContext.statusTracker(), spark.sparkContext._jsc.sc().statusStore()
    spark.conf.set(vectored, "false")
    group = f"bytes-{frame._jdf.hashCode()}"
    spark.sparkContext.setJobGroup(group, group)
    try:
        frame.write.format("noop").mode("overwrite").save()
    finally:
        spark.sparkContext._jsc.sc().clearJobGroup()
        spark.conf.unset(vectored)
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = {stage for info in infos if info is not None for stage in info.stageIds}
    return sum(store.lastStageAttempt(stage).inputBytes() for stage in stages)


# ------------------------------------------------------------------- several topics, and SQL


def test_several_topics_are_one_frame(cluster: Cluster) -> None:
    """Each record has its topic; ranges are per topic."""
    frame = cluster.read(pattern="(north|south)", start={("north", 0): 8, ("south", 1): 9})
    found = frame.where("offset >= 8").select("topic", "partition", "offset", "value.city").collect()
    assert {tuple(row) for row in found} == {
        (topic, partition, offset, f"{topic}-{2 * offset + partition}")
        for topic in ("north", "south")
        for partition in (0, 1)
        for offset in (8, 9)
        if (topic, partition, offset) != ("south", 1, 8)
    }
    with pytest.raises(InvalidCallError, match="'north' and 'big' cannot be read in one frame: their values are"):
        cluster.read(["north", "big"])


def test_a_view_is_pinned_and_a_new_one_of_its_name_takes_its_place(cluster: Cluster, spark: SparkSession) -> None:
    cluster.topics.create("seen", partitions=1, replication_factor=1)
    for expected in (1, 2):
        cluster.append("seen", spark.sql("SELECT 'a' AS value")).raise_for_failures()
        if expected == 2:
            assert spark.sql("SELECT count(*) FROM seen_now").first() == (1,)
        cluster.create_view("seen_now", "seen")
        assert spark.sql("SELECT count(*) FROM seen_now").first() == (expected,)
    cluster.create_view("seen_last", cluster.plan_read("seen", last=1))
    assert spark.sql("SELECT offset FROM seen_last").collect() == [(1,)]
    for wrong in ("no view", "x; DROP", ""):
        with pytest.raises(InvalidCallError, match="is not a name for a view"):
            cluster.create_view(wrong, "seen")
        with pytest.raises(InvalidCallError, match="is not a name for a view"):
            cluster.create_range_function(wrong, "seen")


def test_a_table_function_reads_ranges_by_filters_of_the_scan(cluster: Cluster, spark: SparkSession) -> None:
    """SQL's own function, inlined: one native scan of the named topic only."""
    cluster.create_range_function("stratalog_range", ["north", "south"])
    frame = spark.sql("SELECT offset, value.city FROM stratalog_range('south', 1, 3, 5)")
    assert ordered(frame.selectExpr("1 AS partition", "*"), "offset", "city") == [(3, "south-7"), (4, "south-9")]
    plan = explained(frame)
    assert plan.count("FileScan parquet") == 1
    assert "GreaterThanOrEqual(offset,3)" in plan
    assert "EqualTo(partition,1)" in plan
    assert "ReadSchema: struct<partition:int,offset:bigint,value:struct<city:string>>" in plan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("'west', 0, 0, 1", "topic west is not in this function, which reads north, south"),
        ("'south', 9, 0, 1", "topic south has no partition 9 in this function"),
        ("'south', 0, -1, 1", "at least 0 and at most end, not -1 and 1"),
        ("'south', 0, 2, 1", "at least 0 and at most end, not 2 and 1"),
        ("'south', NULL, 0, 1", "topic, partition, start and end must all be given"),
    ],
)
def test_a_call_of_the_table_function_for_what_is_not_there_fails(
    cluster: Cluster, spark: SparkSession, call: str, message: str
) -> None:
    cluster.create_range_function("stratalog_range", ["north", "south"])
    with pytest.raises(PySparkException, match=message):
        spark.sql(f"SELECT count(*) FROM stratalog_range({call})").collect()
    assert spark.sql("SELECT * FROM stratalog_range('south', 0, 1000000, 1000001)").collect() == []


# --------------------------------------------------------------------- filters in the scan


@pytest.mark.parametrize(
    ("condition", "pushed"),
    [
        ("offset >= 100", "GreaterThanOrEqual(offset,100)"),
        ("partition = 1", "EqualTo(partition,1)"),
        ("timestamp > TIMESTAMP '2013-01-01'", "GreaterThan(timestamp,2013-01-01"),
        ("value.n = 17", "EqualTo(value.n,17)"),
        ("value.more = 'm3'", "EqualTo(value.more,m3)"),
    ],
)
def test_a_filter_reaches_the_parquet_scan(cluster: Cluster, condition: str, pushed: str) -> None:
    """Filters on fields of the record and of a declared type; only the requested columns are read."""
    plan = explained(cluster.read("big").where(condition).select("value.more"))
    assert pushed in plan.split("PushedFilters", 1)[1]
    assert "text" not in plan.split("ReadSchema", 1)[1]


@pytest.mark.skipif(not _PAGES, reason="pages have up to 1 MiB before Arrow 23")
@pytest.mark.classic("it counts the bytes that the JVM says it read")
def test_a_range_reads_its_pages_and_one_column_reads_its_bytes(cluster: Cluster, spark: SparkSession) -> None:
    """1 % of the offsets, in the middle of a row group: a few pages of each column."""
    full = bytes_read(spark, cluster.read("big"))
    part = cluster.read("big", RECORDS // 2, RECORDS // 2 + RECORDS // 100)
    assert part.count() == RECORDS // 100
    assert 0 < bytes_read(spark, part) < full // 10
    assert bytes_read(spark, cluster.read("big").select("value.more")) < full // 20


def test_one_hot_partition_is_read_by_many_tasks_both_ends_exact(cluster: Cluster, spark: SparkSession) -> None:
    """Spark splits a file at row groups: one task reads each record."""
    size = "spark.sql.files.maxPartitionBytes"
    (part,) = cluster.plan_read("big")
    spark.conf.set(size, str(part.size_bytes // 4))
    spark.conf.set("spark.sql.files.openCostInBytes", "0")
    try:
        frame = cluster.read("big", 1, RECORDS - 1).selectExpr("offset", "value.n", "spark_partition_id() AS task")
        tasks = frame.groupBy("task").agg({"offset": "count"}).where("`count(offset)` > 0").count()
        found = frame.selectExpr("min(offset)", "max(offset)", "count(*)", "sum(n - offset)").first()
    finally:
        spark.conf.unset(size)
        spark.conf.unset("spark.sql.files.openCostInBytes")
    assert tasks >= 2
    assert found == (1, RECORDS - 2, RECORDS - 2, 0)


# --------------------------------------------------------------------------- files that vanish


@contextmanager
def careless(spark: SparkSession) -> Iterator[None]:
    """A session in which Spark skips unreadable files."""
    keys = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for key in keys:
        spark.conf.set(key, "true")
    yield
    for key in keys:
        spark.conf.unset(key)


def filled(cluster: Cluster, spark: SparkSession, topic: str, **configs: str) -> ReadPlan:
    """A topic with six appends, one record each; the plan of offsets 1 to 4."""
    cluster.topics.create(topic, partitions=1, replication_factor=1, configs={**TIERED, **configs})
    for number in range(6):
        cluster.append(topic, spark.sql(f"SELECT '{number}' AS value")).raise_for_failures()
    return cluster.plan_read(topic, 1, 5)


def read_values(frame: DataFrame) -> list[tuple[int, str]]:
    return [(offset, bytes(value).decode()) for offset, value in ordered(frame, "offset", "value")]


EXPECTED = [(1, "1"), (2, "2"), (3, "3"), (4, "4")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("fate", ["merged", "tiered"])
def test_a_plan_gives_the_same_rows_from_the_successors_of_its_files(
    cluster: Cluster, spark: SparkSession, fate: str
) -> None:
    """Evaluate the same plan before and after its files were merged or left the brokers for the remote tier."""
    configs = {"segment.merge.min.files": "2", "segment.bytes": "1000000", "remote.storage.enable": "false"}
    plan = filled(cluster, spark, fate, **(configs if fate == "merged" else {}))
    assert read_values(cluster.read(plan)) == EXPECTED
    if fate == "merged":
        cluster.merge(fate).raise_for_failures()
    else:
        cluster.tier(fate).raise_for_failures()
    for _ in range(2):
        cluster.retain(fate).raise_for_failures()
    cluster.append(fate, spark.sql("SELECT 'later' AS value")).raise_for_failures()
    assert not all(Path(part.uri.removeprefix("file://")).exists() for part in plan)
    with careless(spark):
        assert read_values(cluster.read(plan)) == EXPECTED


def test_a_file_that_vanishes_under_a_frame_fails_it_whatever_the_session_says(
    cluster: Cluster, spark: SparkSession
) -> None:
    """It never returns fewer rows silently; the plan still finds them."""
    plan = filled(cluster, spark, "vanishing")
    with careless(spark):
        frame = cluster.read(plan)
        cluster.tier("vanishing").raise_for_failures()
        for _ in range(2):
            cluster.retain("vanishing").raise_for_failures()
        with pytest.raises(Exception, match=r"FAILED_READ_FILE\.FILE_NOT_EXIST"):
            frame.collect()
        assert read_values(cluster.read(plan)) == EXPECTED


def test_a_damaged_file_fails_a_frame_whatever_the_session_says(cluster: Cluster, spark: SparkSession) -> None:
    plan = filled(cluster, spark, "damaged")
    with careless(spark):
        frame = cluster.read(plan)
        file = Path(plan[1].uri.removeprefix("file://"))
        file.write_bytes(file.read_bytes()[:100])
        with pytest.raises(Exception, match=re.escape(file.name)):
            frame.collect()


def test_records_deleted_after_planning_fail_the_read_or_are_skipped_with_a_warning(
    cluster: Cluster, spark: SparkSession
) -> None:
    """failOnDataLoss."""
    strict = filled(cluster, spark, "dropped", **{"remote.storage.enable": "false"})
    lenient = cluster.plan_read("dropped", 1, 5, fail_on_data_loss=False)
    cluster.topics.delete_records("dropped", {0: 3}).raise_for_failures()
    assert read_values(cluster.read(strict)) == EXPECTED, "the files are there still"
    for _ in range(2):
        cluster.retain("dropped").raise_for_failures()
    with pytest.raises(OffsetOutOfRangeError, match="dropped-0: start 1 is below the log start"):
        cluster.read(strict)
    with pytest.warns(UserWarning, match=r"dropped-0: offsets \[1, 3\) were deleted, and are skipped"):
        frame = cluster.read(lenient)
    assert read_values(frame) == EXPECTED[2:]


def test_a_plan_takes_no_options(cluster: Cluster) -> None:
    with pytest.raises(InvalidCallError, match="a plan determines the whole read"):
        cluster.read(cluster.plan_read("north"), 1)


# -------------------------------------------------------------------------------- transactions


@pytest.mark.sample(1)
@pytest.mark.parametrize("tiered", [False, True])
def test_readers_get_the_same_of_transactions_before_and_after_they_are_merged(
    cluster: Cluster, spark: SparkSession, tiered: bool
) -> None:
    """KIP-98's isolation levels: by markers if appends are separate files, by the column ``control`` of merged and
    remote segments."""
    name = f"transactions-{tiered}"
    configs = TIERED if tiered else {"segment.merge.min.files": "2", "file.delete.delay.ms": "0"}
    cluster.topics.create(name, partitions=1, replication_factor=1, configs=configs)
    for value in "abc":
        t = cluster.transactions.begin(name)
        t.append(name, spark.sql(f"SELECT '{value}' AS value"))
        t.abort() if value == "b" else t.commit()
        cluster.append(name, spark.sql("SELECT '-' AS value")).raise_for_failures()

    def found(isolation: str) -> str:
        return "".join(value for _, value in read_values(cluster.read(name, isolation=isolation)))

    def found_in(start: int, end: int) -> str:
        return "".join(
            value for _, value in read_values(cluster.read(name, start, end, isolation="read_committed"))
        )

    assert (found("read_committed"), found("read_uncommitted"), found_in(1, 7)) == ("a--c-", "a-b-c-", "--c")
    if tiered:
        cluster.tier(name).raise_for_failures()
    else:
        cluster.merge(name).raise_for_failures()
    for _ in range(2):
        cluster.retain(name).raise_for_failures()
    assert any(part.marked for part in cluster.plan_read(name))
    assert (found("read_committed"), found("read_uncommitted"), found_in(1, 7)) == ("a--c-", "a-b-c-", "--c")

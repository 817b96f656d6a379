"""The paths of rows to the log: few rows through the driver, narrow rows in batches that are bounded by records
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from stratalog import Cluster, OperationFailedError
from stratalog.engine.records.rounds import TaskResult
from stratalog.engine.replication.append import Raced
from stratalog.engine.spark.appending import RecordColumns, to_records
from stratalog.engine.spark.frame_tasks import SMALL_ROWS, FrameTasks
from stratalog.engine.spark.narrow import NARROW_BYTES
from stratalog.engine.spark.types import BINARY
from stratalog.partitions.errors import InvalidRecordError, OutOfOrderSequenceNumberError
from stratalog.partitions.store import StoreCounts
from tests.spark.spark_cluster import ordered, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
VALUE = "city STRING, n BIGINT"


@pytest.fixture
def jobs(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Callable[[], int]]:
    """The number of Spark jobs of this test so far."""
    context = spark.sparkContext
    context.setJobGroup(request.node.name, request.node.name)
    yield lambda: len(context.statusTracker().getJobIdsForGroup(request.node.name))
    context._jsc.sc().clearJobGroup()


def source(spark: SparkSession, count: int = 100) -> DataFrame:
    return spark.range(count).selectExpr("concat('k', id % 7) AS key", "concat('city ', id) AS city", "id AS n")


def topic(cluster: Cluster, name: str, configs: Mapping[str, str] | None = None) -> str:
    cluster.topics.create(name, partitions=3, replication_factor=2, key="STRING", value=VALUE, configs=configs)
    return name


@contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    before = spark.conf.get(key)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        spark.conf.set(key, before)


def wide(cluster: Cluster, name: str) -> bool:
    return cluster._ports.memory.wide_topics.get(cluster.image.topic(name).topic_id) is not None


# ----------------------------------------------------------------------------------- few rows


@pytest.mark.sample(1)
@pytest.mark.parametrize("partitioner", ["spark_hash", "murmur2"])
@pytest.mark.classic("it counts jobs of the JVM")
def test_few_rows_take_one_job(
    partitioner: str, cluster: Cluster, spark: SparkSession, jobs: Callable[[], int]
) -> None:
    """One job fetches them; the others are the shuffle of their own plan, the append's shuffle, and the tasks
    after it."""
    configs = {"partitioner": partitioner}
    few, many = topic(cluster, f"few-{partitioner}", configs), topic(cluster, f"many-{partitioner}", configs)
    cluster.append(few, source(spark), key="key").raise_for_failures()
    assert jobs() == 1
    cluster.append(many, source(spark).repartition(2), key="key").raise_for_failures()
    assert jobs() == 1 + 3
    columns = ("partition", "key", "value.*")
    assert rows(cluster.read(few), *columns) == rows(cluster.read(many), *columns), "to the same partitions"
    assert cluster.read(few).count() == 100
    cluster.verify(few, deep=True).raise_for_failures()


@pytest.mark.classic("it counts jobs of the JVM")
def test_few_rows_of_many_files_are_few(
    cluster: Cluster, spark: SparkSession, jobs: Callable[[], int], tmp_path: Path
) -> None:
    source(spark).repartition(3).write.parquet(str(tmp_path / "files"))
    files = spark.read.parquet(str(tmp_path / "files")).where("n >= 50")
    before = jobs()
    cluster.append(topic(cluster, "files"), files, key="key").raise_for_failures()
    assert jobs() == before + 1
    assert rows(cluster.read("files"), "value.n") == rows(source(spark).where("n >= 50"), "n")


def test_more_rows_than_the_plan_promised_take_the_shuffle(cluster: Cluster, spark: SparkSession) -> None:
    count = SMALL_ROWS + 1
    cluster.append(topic(cluster, "more"), source(spark, count), key="key").raise_for_failures()
    back = cluster.read("more")
    assert back.count() == back.select("value.n").distinct().count() == count
    assert not wide(cluster, "more")


@pytest.mark.classic("it counts with an accumulator")
def test_user_code_runs_once(cluster: Cluster, spark: SparkSession) -> None:
    """The size of such a plan is not determined, because that might compute its rows twice."""
    ran = spark.sparkContext.accumulator(0)

    def many(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ran.add(batch.num_rows)
            for _ in range(SMALL_ROWS):
                yield batch

    made = spark.range(0, 2, 1, 1).mapInArrow(many, "id BIGINT").selectExpr("'k' AS key", "'c' AS city", "id AS n")
    cluster.append(topic(cluster, "made"), made, key="key").raise_for_failures()
    assert ran.value == 2
    assert cluster.read("made").count() == 2 * SMALL_ROWS


def test_few_rows_are_in_the_order_that_was_asked_for(cluster: Cluster, spark: SparkSession) -> None:
    mixed = source(spark).selectExpr("key", "city", "(n * 37) % 100 AS n")
    cluster.append(topic(cluster, "order"), mixed, key="key", order_by=["value.n"]).raise_for_failures()
    found = ordered(cluster.read("order"), "partition", "value.n")
    assert len(found) == 100
    assert found == sorted(found)
    with pytest.raises(InvalidRecordError, match="order_by"):
        cluster.append("order", source(spark), key="key", order_by=["value.x"])


def test_a_row_that_is_refused_leaves_nothing_of_the_others(cluster: Cluster, spark: SparkSession) -> None:
    placed = source(spark).selectExpr("*", "if(n = 99, 3, 0) AS p")
    with pytest.raises(InvalidRecordError, match="a row's partition is 3, but the topic has partitions 0 to 2"):
        cluster.append(topic(cluster, "refusing"), placed, key="key", partition="p")
    assert cluster.read("refusing").count() == 0


def test_a_sequence_is_appended_once_on_either_way(cluster: Cluster, spark: SparkSession) -> None:
    """First through the driver, then through the shuffle: the digests of both agree, and other rows are
    refused."""
    name = topic(cluster, "once")
    cluster.append(name, source(spark), key="key", producer="p", sequence=1).raise_for_failures()
    for again in (source(spark).repartition(2), source(spark)):
        report = cluster.append(name, again, key="key", producer="p", sequence=1).raise_for_failures()
        assert {row["outcome"] for row in report.rows} == {"duplicate"}
    with pytest.raises(OperationFailedError, match=OutOfOrderSequenceNumberError.code):
        cluster.append(name, source(spark).where("n <> 7"), key="key", producer="p", sequence=1)
    assert cluster.read(name).count() == 100


@pytest.mark.classic("it counts jobs of the JVM")
def test_a_partition_that_is_retried_gets_the_rows_that_were_fetched(
    cluster: Cluster, spark: SparkSession, jobs: Callable[[], int]
) -> None:
    """After a lost race or a new leader, the first results of ``rand()`` are appended."""
    name = topic(cluster, "again")
    image = cluster.image.topic(name)
    random = spark.range(50).selectExpr("cast(rand() AS STRING) AS value", "id % 3 AS p")
    columns = RecordColumns(partition="p")
    records = to_records(random, columns, what="it", partitions=3, key_type=BINARY, value_type=BINARY)
    tasks = FrameTasks(cluster._ports.storage, cluster._ports.execution, cluster._ports.memory, image, records, ())
    got: list[tuple[int, list[object]]] = []

    def task(partition: int, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        got.append((partition, [value for batch in batches for value in batch.column("value").to_pylist()]))
        return TaskResult(partition, Raced(tried=False), StoreCounts())

    def run(partitions: Sequence[int]) -> dict[int, list[object]]:
        got.clear()
        assert {result.partition for result in tasks.run(task, partitions)} == set(partitions)
        return dict(got)

    first = run([0, 1, 2])
    assert sum(map(len, first.values())) == 50
    assert run([1]) == {1: first[1]}
    assert jobs() == 1


# ---------------------------------------------------------------------------------- wide rows


@pytest.mark.parametrize("partitions", [None, 2], ids=["few", "many"])
@pytest.mark.classic("it counts jobs of the JVM")
def test_a_record_that_is_not_narrow_lets_batches_be_bounded_by_bytes(
    cluster: Cluster, spark: SparkSession, jobs: Callable[[], int], partitions: int | None
) -> None:
    """The batches of this append, which works, and of later ones are bounded by bytes. Settings are restored."""
    name = topic(cluster, f"wide-{partitions}")
    text = f"if(n = 7, repeat('x', {NARROW_BYTES}), city)"
    given = source(spark).selectExpr("key", f"{text} AS city", "n")
    given = given if partitions is None else given.repartition(partitions)
    with setting(spark, RECORDS_SETTING, "5000"):
        before = spark.conf.get(BYTES_SETTING)
        cluster.append(name, given, key="key").raise_for_failures()
        assert (spark.conf.get(RECORDS_SETTING), spark.conf.get(BYTES_SETTING)) == ("5000", before)
    assert wide(cluster, name)
    assert rows(cluster.read(name), "key", "value.*") == rows(given)
    tried = jobs()
    cluster.append(name, given, key="key").raise_for_failures()
    assert jobs() == tried + (2 if partitions is None else 3), "it is known now"


@pytest.mark.classic("it counts with an accumulator")
def test_batches_of_narrow_records_are_bounded_by_their_number_while_they_are_appended(
    cluster: Cluster, spark: SparkSession
) -> None:
    """Even if every byte exceeds the configured bound."""
    name = topic(cluster, "narrow")
    seen = spark.sparkContext.accumulator(0)

    def task(partition: int, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        seen.add(sum(1 for _ in batches))
        return TaskResult(partition, Raced(tried=False), StoreCounts())

    records = to_records(
        source(spark).repartition(2).selectExpr("key AS value", "0 AS p"),
        RecordColumns(partition="p"),
        what="it",
        partitions=3,
        key_type=BINARY,
        value_type=BINARY,
    )
    with setting(spark, BYTES_SETTING, "1b"):
        FrameTasks(
            cluster._ports.storage,
            cluster._ports.execution,
            cluster._ports.memory,
            cluster.image.topic(name),
            records,
            (),
        ).run(task, [0, 1, 2])
        assert spark.conf.get(BYTES_SETTING) == "1b"
    assert seen.value == 1


def test_lists_have_no_width_and_their_records_are_appended_all_the_same(
    cluster: Cluster, spark: SparkSession
) -> None:
    cluster.topics.create("lists", partitions=2, value="tags ARRAY<STRING>")
    given = spark.range(20).selectExpr("array(cast(id AS STRING), null) AS tags")
    cluster.append("lists", given).raise_for_failures()
    assert rows(cluster.read("lists"), "value.tags") == rows(given)


def test_a_frame_with_the_columns_of_a_record_is_records(cluster: Cluster, spark: SparkSession) -> None:
    """The shape of Kafka records in Spark's source and sink; the value of a typed topic is one column."""
    name = topic(cluster, "shaped")
    given = source(spark).selectExpr(
        "key", "struct(city, n) AS value", "TIMESTAMP'2026-01-02 03:04:05Z' AS timestamp"
    )
    cluster.append(name, given)
    shape = ("key", "value.city", "value.n", "timestamp")
    assert rows(cluster.read(name), *shape) == rows(given, *shape)

"""Bad records of DataFrames and streams: on executors and on the driver, in repeated batches."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from stratalog import Cluster
from stratalog.engine.records.bad_records import NO_KEY, NO_PARTITION, PREFIX, UNKNOWN_PARTITION
from stratalog.engine.spark.bad_rows import CORRUPT
from stratalog.engine.spark.versions import SINK, spark_version
from stratalog.partitions.errors import InvalidRecordError
from tests.spark.spark_cluster import rows
from tests.spark.streams import drain, stream_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOWHEN = "cast(null AS STRUCT<day: DATE, hour: TINYINT>) AS at"
VALUE = "city STRING NOT NULL, distance DOUBLE, at STRUCT<day: DATE, hour: TINYINT>"
WRONG_DOUBLE = "value.distance is not of type DOUBLE"
MISSING = "value.city is null, but declared NOT NULL"
WRONG_HOUR = "value.at.hour is not of type TINYINT"

TRIPS: list[tuple[str | None, str | None, str | None, str, float]] = [
    ("t0", "Oslo", "3.5", "2013-01-01", 1.0),
    ("t1", "Oslo", "three", "2013-01-01", 2.0),
    ("t2", None, "3.5", "2013-01-01", 3.0),
    ("t3", "Moss", None, "2013-01-01", 4.0),
    ("t4", "Moss", "1", "2013-01-01", 4.5),
    ("t5", "Moss", "1", "2013-01-01", 400.0),
]
GOOD = {"t0", "t3"}
BAD = {"t1": WRONG_DOUBLE, "t2": MISSING, "t4": WRONG_HOUR, "t5": WRONG_HOUR}


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    return stream_cluster(spark, folder)


@pytest.fixture
def bad(cluster: Cluster, topic: str) -> str:
    """A typed topic named after the test, and one for its bad records, whose name is returned."""
    cluster.topics.delete(topic).raise_for_failures()
    cluster.topics.create(topic, partitions=2, replication_factor=2, key="STRING", value=VALUE)
    name = f"{topic[:70]}-bad"
    cluster.topics.create(name, partitions=2, replication_factor=2)
    return name


def trips(spark: SparkSession) -> DataFrame:
    """Text and numbers, some of which fit the type."""
    made = spark.createDataFrame(TRIPS, "id STRING, city STRING, distance STRING, day STRING, hour DOUBLE")
    return made.selectExpr("id", "city", "distance", "struct(day, hour) AS at")


def kept(cluster: Cluster, topic: str) -> dict[str, tuple[Any, dict[str, str]]]:
    """The value and the error of each bad record, keyed by its key, each once."""
    found = cluster.read(topic).select("key", "value", "headers").collect()
    keys = [row.key.decode() for row in found]
    assert len(set(keys)) == len(keys)
    return {
        key: (
            None if row.value is None else row.value.decode(),
            {one.key.removeprefix(PREFIX): one.value.decode() for one in row.headers},
        )
        for key, row in zip(keys, found, strict=True)
    }


def reasons(cluster: Cluster, topic: str) -> dict[str, str]:
    return {key: message["message"] for key, (_, message) in kept(cluster, topic).items()}


def keys(cluster: Cluster, topic: str) -> list[str]:
    return sorted(row.key for row in cluster.read(topic).select("key").collect())


# -------------------------------------------------------------------------------------- frames


@pytest.mark.sample(1)
@pytest.mark.parametrize("partitions", [None, 3], ids=["driver", "executors"])
def test_rows_that_do_not_fit_go_to_their_topic_once_however_they_travel(
    cluster: Cluster, spark: SparkSession, topic: str, bad: str, partitions: int | None
) -> None:
    given = trips(spark) if partitions is None else trips(spark).repartition(partitions)
    for again in (False, True):
        report = cluster.append(
            *(topic, given), key="id", producer="loader", sequence=7, on_bad_record="topic", bad_record_topic=bad
        ).raise_for_failures()
        assert (report.totals["records"], report.totals["bad_records"]) == (2, 4)
        counted: Counter[Any] = Counter()
        for row in report.rows:
            if row["outcome"] == "bad":
                counted[row["reason"]] += row["records"]
        assert counted == Counter(BAD.values())
        assert all((row["outcome"] == "duplicate") == again for row in report.rows if row["outcome"] != "bad")
    assert keys(cluster, topic) == sorted(GOOD)
    assert reasons(cluster, bad) == BAD
    value, found = kept(cluster, bad)["t1"]
    assert json.loads(value) == {"city": "Oslo", "distance": "three", "at": {"day": "2013-01-01", "hour": 2.0}}
    assert (found["producer"], found["sequence"]) == ("loader", "7")
    partition = {row.key: row.partition for row in cluster.read(topic).select("key", "partition").collect()}
    assert found["destination"].removeprefix(f"{topic}-") in {"0", "1"}
    assert rows(cluster.read(topic), "key", "value.*") == rows(
        trips(spark)
        .where("id IN ('t0', 't3')")
        .selectExpr(
            "id AS key",
            "city",
            "cast(distance AS DOUBLE) AS distance",
            "struct(cast(at.day AS DATE) AS day, cast(at.hour AS TINYINT) AS hour) AS at",
        )
    )
    assert partition.keys() == GOOD
    cluster.verify(topic, deep=True).raise_for_failures()
    cluster.verify(bad, deep=True).raise_for_failures()


def test_a_bad_row_refuses_the_append_and_nothing_of_it_is_written(
    cluster: Cluster, spark: SparkSession, topic: str, bad: str
) -> None:
    """A wrong type is refused immediately; a wrong value before the first byte is written."""
    with pytest.raises(
        InvalidRecordError, match="value column 'distance' is string, but is declared as double: cast it"
    ):
        cluster.append(topic, trips(spark), key="id")
    fitting = trips(spark).selectExpr("id", "city", "try_cast(distance AS DOUBLE) AS distance", NOWHEN)
    with pytest.raises(InvalidRecordError, match=r'the record with \{"key":"t2"\}: value.city is null'):
        cluster.append(topic, fitting, key="id")
    with pytest.raises(InvalidRecordError, match=r'the record with \{"key":"t2"\}: value.city is null'):
        cluster.append(topic, fitting.repartition(2), key="id", dry_run=True)
    assert cluster.read(topic).count() == 0
    cluster.append(topic, fitting.where("city IS NOT NULL"), key="id").raise_for_failures()
    assert cluster.read(topic).count() == 5


def test_rows_without_a_partition_or_a_key_are_bad_too(
    cluster: Cluster, spark: SparkSession, topic: str, bad: str
) -> None:
    keyed = f"{topic[:70]}-keyed"
    cluster.topics.create(
        keyed, partitions=2, replication_factor=2, key="INT", configs={"cleanup.policy": "snapshot"}
    )
    columns = "k STRING, value STRING, p INT"
    given = spark.createDataFrame(
        [("1", "a", 0), ("2", "b", 7), ("3", "c", None), (None, "d", 1), ("x", "e", 1), ("4", "f", -1)], columns
    )
    with pytest.raises(InvalidRecordError, match="a row's partition is"):
        cluster.append(keyed, given.selectExpr("cast(1 AS INT) AS k", "value", "p"), key="k", partition="p")
    with pytest.raises(
        InvalidRecordError, match="the key is null, but the topic keeps the latest record of each key"
    ):
        cluster.append(keyed, given.selectExpr("try_cast(k AS INT) AS k", "value"), key="k")
    lane: dict[str, Any] = {"on_bad_record": "topic", "bad_record_topic": bad}
    planned = cluster.append(keyed, given, key="k", partition="p", dry_run=True, **lane)
    assert (planned.totals["records"], planned.totals["bad_records"]) == (1, 5)
    assert cluster.read(keyed).count() == 0
    report = cluster.append(keyed, given, key="k", partition="p", **lane).raise_for_failures()
    found = {
        row.value.decode(): {one.key.removeprefix(PREFIX): one.value.decode() for one in row.headers}
        for row in cluster.read(bad).collect()
    }
    assert {value: message["message"] for value, message in found.items()} == {
        "b": f"{UNKNOWN_PARTITION}: 7",
        "c": NO_PARTITION,
        "d": NO_KEY,
        "e": "key is not of type INT",
        "f": f"{UNKNOWN_PARTITION}: -1",
    }
    assert found["b"]["destination"] == keyed
    assert found["e"]["destination"] == f"{keyed}-1"
    astray = {row["reason"] for row in report.rows if row["outcome"] == "bad" and row["partition"] is None}
    assert astray == {UNKNOWN_PARTITION, NO_PARTITION}
    assert [tuple(row) for row in cluster.read(keyed).select("partition", "key").collect()] == [(0, 1)]


def test_a_line_that_sparks_reader_could_not_parse_goes_to_the_topic_as_it_was(
    cluster: Cluster, spark: SparkSession, topic: str, bad: str, tmp_path: Path
) -> None:
    lines = [
        '{"id": "t0", "city": "Oslo", "distance": 3.5}',
        '{"id": "t1", "city": ',
        '{"id": "t2", "distance": "x"}',
    ]
    (tmp_path / "trips.json").write_text("\n".join(lines))
    schema = "id STRING, city STRING, distance DOUBLE, at STRUCT<day: DATE, hour: TINYINT>, _corrupt_record STRING"
    given = spark.read.schema(schema).json(str(tmp_path / "trips.json"))
    with pytest.raises(InvalidRecordError, match=CORRUPT):
        cluster.append(topic, given, key="id")
    cluster.append(topic, given, key="id", on_bad_record="topic", bad_record_topic=bad).raise_for_failures()
    assert keys(cluster, topic) == ["t0"]
    found = cluster.read(bad).selectExpr("cast(value AS STRING) AS line", "headers[0].value AS message").collect()
    assert {row.line: bytes(row.message).decode() for row in found} == {lines[1]: CORRUPT, lines[2]: CORRUPT}


def test_the_place_that_a_record_came_from_is_reported(
    cluster: Cluster, spark: SparkSession, topic: str, bad: str
) -> None:
    """The records are copied from one topic to another, in a transaction with the offsets."""
    raw = f"{topic[:70]}-raw"
    cluster.topics.create(raw, partitions=1, replication_factor=2)
    lines = spark.createDataFrame([("1",), ("one",), ("2",)], "value STRING").coalesce(1)
    cluster.append(raw, lines).raise_for_failures()
    numbers = f"{topic[:70]}-numbers"
    cluster.topics.create(numbers, partitions=1, replication_factor=2, value="INT")
    given = cluster.read(raw).selectExpr("topic", "partition", "offset", "cast(value AS STRING) AS value")
    cluster.topics.alter_configs(None, {"transaction.state.log.replication.factor": "2"})
    with cluster.transactions.begin(topic[:70]) as transaction:
        transaction.append(numbers, given, on_bad_record="topic", bad_record_topic=bad)
        transaction.commit_offsets("copy", {(raw, 0): 3})
    read = cluster.read(bad, isolation="read_committed").select("value", "headers").collect()
    assert [row.value for row in read] == [b"one"]
    found = {one.key.removeprefix(PREFIX): one.value.decode() for one in read[0].headers}
    assert (
        found.items()
        >= {"topic": raw, "partition": "0", "offset": "1", "message": "value is not of type INT"}.items()
    )
    assert sorted(row.value for row in cluster.read(numbers, isolation="read_committed").collect()) == [1, 2]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("given", "declared", "good"),
    [
        ("array(1.0D, 1.5D, 1e10D, double('NaN'))", "INT", {"1.0"}),
        ("array(1L, 3000000000L)", "INT", {"1"}),
        ("array(0.5D, 0.1D, double('NaN'))", "FLOAT", {"0.5", "NaN"}),
        ("array(timestamp'2013-01-01 00:00:00', timestamp'2013-01-01 00:00:01')", "DATE", {"2013-01-01 00:00:00"}),
        ("array('1.50', '1.555', 'x')", "DECIMAL(5,2)", {"1.50", "1.555"}),
        ("array(1.50BD, 1.555BD)", "DECIMAL(5,2)", {"1.500"}),
        ("array(x'61', x'ff')", "STRING", {"a"}),
        ("array('true', 'maybe')", "BOOLEAN", {"true"}),
        ("array(1, 2)", "STRING", {"1", "2"}),
    ],
    ids=["int", "narrow", "float", "date", "text", "decimal", "utf8", "boolean", "string"],
)
def test_a_cast_that_would_lose_something_makes_a_row_bad(
    cluster: Cluster, spark: SparkSession, topic: str, given: str, declared: str, good: set[str]
) -> None:
    """Text is parsed, like Spark's try_cast, and may be longer than its value."""
    name = f"{topic[:70]}-cast"
    cluster.topics.create(name, partitions=1, replication_factor=2, key="STRING", value=declared)
    frame = spark.sql(f"SELECT explode({given}) AS value").selectExpr("cast(value AS STRING) AS k", "value")
    cluster.append(name, frame, key="k", on_bad_record="skip").raise_for_failures()
    assert set(keys(cluster, name)) == good


def test_numbers_are_no_times_and_lists_are_not_cast(cluster: Cluster, spark: SparkSession, topic: str) -> None:
    for number, (value, declared) in enumerate([("1L", "TIMESTAMP"), ("array('1')", "ARRAY<INT>")]):
        name = f"{topic[:70]}-{number}"
        cluster.topics.create(name, partitions=1, replication_factor=2, value=declared)
        with pytest.raises(InvalidRecordError, match="cast it"):
            cluster.append(name, spark.sql(f"SELECT {value} AS value"), on_bad_record="skip")


# ------------------------------------------------------------------------------------- streams


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of the trips."""
    if not folder.exists():
        trips(spark).coalesce(1).write.parquet(str(folder))
    return spark.readStream.schema(trips(spark).schema).parquet(str(folder))


@pytest.mark.classic("its batches run in another process there, which keeps reports and log")
def test_a_batch_that_is_repeated_has_each_bad_record_once(
    cluster: Cluster,
    spark: SparkSession,
    topic: str,
    bad: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    """As after the death of a driver: before the batch, between its records and its bad ones, and after both."""
    writer = cluster.stream_writer(topic, key="id", producer="copy", on_bad_record="topic", bad_record_topic=bad)
    reports: list[Any] = []
    minimum = {"min.insync.replicas": "2"}  # of two replicas, one of which is out of service

    def each(batch: DataFrame, batch_id: int) -> None:
        reports.append(writer.append(batch, batch_id, check=False))
        reports[-1].raise_for_failures()

    cluster.brokers.fence(2).raise_for_failures()
    request.addfinalizer(lambda: cluster.brokers.unfence(2))
    cluster.topics.alter_configs(topic, minimum)
    with pytest.raises(StreamingQueryException):
        drain(files(spark, tmp_path / "in"), tmp_path / "checkpoint", each)
    assert (cluster.read(topic).count(), cluster.read(bad).count()) == (0, 0)
    cluster.topics.alter_configs(topic, {"min.insync.replicas": "1"})
    cluster.topics.alter_configs(bad, minimum)
    with pytest.raises(StreamingQueryException):
        drain(files(spark, tmp_path / "in"), tmp_path / "checkpoint", each)
    assert (keys(cluster, topic), cluster.read(bad).count()) == (sorted(GOOD), 0)
    cluster.topics.alter_configs(bad, {"min.insync.replicas": "1"})
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            drain(files(spark, tmp_path / "in"), tmp_path / "checkpoint", writer)
        for file in (tmp_path / "checkpoint" / "commits").iterdir():
            file.unlink()
    assert (keys(cluster, topic), reasons(cluster, bad)) == (sorted(GOOD), BAD)
    assert reports[-1].totals["bad_records"] == 4
    assert f"append to {topic}, batch 0: 4 bad records were left out" in caplog.text
    _, found = kept(cluster, bad)["t1"]
    assert (found["producer"].partition("@")[0], found["sequence"]) == ("copy", "0")


@pytest.mark.sample(1)
@pytest.mark.skipif(spark_version() < SINK, reason="a stream's sink takes Spark 4.1")
@pytest.mark.parametrize("dealt", [True, False], ids=["tasks", "driver"])
def test_the_formats_sink_of_a_stream_leaves_bad_records_out(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, bad: str, tmp_path: Path, dealt: bool
) -> None:
    lane = {"on_bad_record": "topic", "bad_record_topic": bad}
    records = cluster.records(topic, files(spark, tmp_path / "in"), key="id", **lane)
    options = {"cluster": str(folder / "cluster.toml")}
    if not dealt:
        records = files(spark, tmp_path / "in").selectExpr(
            "CASE id WHEN 't1' THEN 9 WHEN 't2' THEN null ELSE 1 END AS partition",
            "id AS key",
            "struct(if(id = 't5', null, coalesce(city, '')) AS city, double(1.0) AS distance, "
            "cast(null AS STRUCT<day: DATE, hour: TINYINT>) AS at) AS value",
        )
        options |= {"onBadRecord": "topic", "badRecordTopic": bad}
    expected = BAD if dealt else {"t1": f"{UNKNOWN_PARTITION}: 9", "t2": NO_PARTITION, "t5": MISSING}
    for _ in range(2):
        stream = records.writeStream.format("stratalog").options(**options)
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        stream.start(topic).awaitTermination()
        for file in (tmp_path / "checkpoint" / "commits").iterdir():
            file.unlink()
    assert reasons(cluster, bad) == expected
    assert keys(cluster, topic) == sorted({trip[0] for trip in TRIPS} - expected.keys())


@pytest.mark.sample(2)
@pytest.mark.parametrize("answer", ["topic", "skip", "fail"])
def test_a_save_follows_its_options(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, bad: str, answer: str
) -> None:
    lane: dict[str, Any] = {"on_bad_record": answer, "bad_record_topic": bad if answer == "topic" else None}
    good = trips(spark).selectExpr("id", "city", "distance", NOWHEN)
    if answer == "fail":
        good = good.selectExpr("id", "city", "try_cast(distance AS DOUBLE) AS distance", "at")
    save = cluster.records(topic, good, key="id", **lane).write.format("stratalog")
    save = save.options(cluster=str(folder / "cluster.toml"), producer="p", sequence="0").mode("append")
    if answer == "fail":
        with pytest.raises(Exception, match=MISSING):
            save.save(topic)
        assert cluster.read(topic).count() == 0
        return
    for _ in range(2):
        save.save(topic)
    assert keys(cluster, topic) == ["t0", "t3", "t4", "t5"]
    assert reasons(cluster, bad) == ({"t1": WRONG_DOUBLE, "t2": MISSING} if answer == "topic" else {})

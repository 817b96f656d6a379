"""Streams from topics and into topics, on Spark: what a query reads and writes is each record, once."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from engine import Cluster
from partitions.errors import InvalidCallError
from tests.crashes.victim import Victim
from tests.spark.spark_cluster import TIERED, format_cluster, ordered
from tests.spark.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark

VALUE = "n BIGINT, word STRING"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stream")


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    made = format_cluster(spark, folder)
    made.alter_configs(None, {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "1"})
    return made


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of its own for a test."""
    name = request.node.name[:80].replace("[", "-").replace("]", "")
    cluster.create_topic(name, partitions=2, replication_factor=2, key="STRING", value=VALUE)
    return name


class Numbers:
    """Appends 0, 1, 2, ... to a topic."""

    def __init__(self, cluster: Cluster, spark: SparkSession, topic: str) -> None:
        self._cluster, self._spark, self._topic = cluster, spark, topic
        self.count = 0

    def append(self, count: int) -> None:
        source = self._spark.range(self.count, self.count + count, numPartitions=1).selectExpr(
            "id AS n", "sha2(cast(id AS STRING), 256) AS word", "cast(id % 7 AS STRING) AS k"
        )
        self._cluster.append(source, self._topic, key="k").raise_for_failures()
        self.count += count


def source(spark: SparkSession, folder: Path, topic: str, **options: object) -> DataFrame:
    given = {"cluster": str(folder / "cluster.toml"), "topic": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("stratalog").options(**{k: str(v) for k, v in given.items()}).load()


def drain(frame: DataFrame, checkpoint: Path, each: Callable[[Any, int], None]) -> StreamingQuery:
    """All that there is now, batch by batch."""
    query = (
        frame.writeStream.foreachBatch(each)
        .queryName("drain")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


class Seen:
    """What the batches of a query held."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns or ("value.n",)
        self.batches: list[list[Any]] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select(*self.columns).collect()
        self.batches.append(sorted(tuple(row) if len(row) > 1 else row[0] for row in rows))

    @property
    def all(self) -> list[Any]:
        return sorted(row for batch in self.batches for row in batch)


def test_a_stream_has_the_columns_and_the_rows_of_a_read(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    Numbers(cluster, spark, topic).append(50)
    frame = source(spark, folder, topic)
    read = cluster.read(topic)
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in read.schema]
    seen: list[Any] = []
    drain(frame, tmp_path, lambda batch, _: seen.extend(ordered(batch, *read.columns)))
    assert sorted(seen, key=lambda row: row[1:3]) == ordered(read, *read.columns)


def test_available_now_ends_and_the_next_run_goes_on(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """In batches of at most so many rows, and what is new only."""
    numbers, seen = Numbers(cluster, spark, topic), Seen()
    numbers.append(25)
    frame = source(spark, folder, topic, maxRowsPerTrigger=10)
    query = drain(frame, tmp_path, seen)
    assert [len(batch) for batch in seen.batches] == [10, 10, 5]
    assert [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]] == [
        10,
        10,
        5,
    ]
    drain(frame, tmp_path, seen)
    assert len(seen.batches) == 3
    numbers.append(4)
    drain(frame, tmp_path, seen)
    assert seen.all == list(range(29))


def test_progress_is_in_the_query_and_in_the_group(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """Lag is 0 as soon as the last batch is done, and visible outside Spark."""
    Numbers(cluster, spark, topic).append(20)
    query = drain(source(spark, folder, topic, group="dash", maxRowsPerTrigger=12), tmp_path, Seen())
    last = query.recentProgress[0]["sources"][0]
    assert sum(at["offset"] for at in json.loads(last["endOffset"])["partitions"].values()) == 12
    assert sum(at["offset"] for at in json.loads(last["latestOffset"])["partitions"].values()) == 20
    lag = cluster.lag("dash").raise_for_failures()
    assert lag.totals["lag"] == 0
    assert sum(int(str(row["committed"])) for row in lag.rows) == 20


def test_only_the_columns_that_are_asked_for_are_read(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    Numbers(cluster, spark, topic).append(10)
    frame = source(spark, folder, topic, columns="topic, offset, value.n", minPartitions=4)
    assert frame.schema.simpleString() == "struct<topic:string,offset:bigint,value:struct<n:bigint>>"
    seen = Seen("topic", "value.n")
    drain(frame, tmp_path, seen)
    assert seen.all == [(topic, n) for n in range(10)]


def test_records_that_wander_to_the_remote_tier_are_read_from_there(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    cluster.alter_configs(topic, TIERED)
    numbers, seen = Numbers(cluster, spark, topic), Seen()
    frame = source(spark, folder, topic, maxRowsPerTrigger=7)
    for _ in range(3):
        numbers.append(20)
        cluster.tier(topic).raise_for_failures()
        cluster.retain(topic).raise_for_failures()
        drain(frame, tmp_path, seen)
    assert any(part.remote for part in cluster.plan_read(topic))
    assert seen.all == list(range(60))


def failure(run: Callable[[], object]) -> str:
    with pytest.raises(StreamingQueryException) as told:
        run()
    return str(told.value)


def test_a_checkpoint_of_another_topic_or_of_one_that_was_created_again(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    numbers = Numbers(cluster, spark, topic)
    numbers.append(5)
    drain(source(spark, folder, topic), tmp_path, Seen())
    cluster.create_topic("another", partitions=1, replication_factor=2)
    said = failure(lambda: drain(source(spark, folder, "another"), tmp_path, Seen()))
    assert f"the checkpoint is of topic '{topic}', the query reads 'another'" in said
    cluster.delete_topic(topic).raise_for_failures()
    cluster.create_topic(topic, partitions=2, replication_factor=2, key="STRING", value=VALUE)
    said = failure(lambda: drain(source(spark, folder, topic), tmp_path, Seen()))
    assert f"topic '{topic}' was deleted and created again" in said


def test_lost_records_end_the_query_unless_they_may_be_lost(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    numbers, seen = Numbers(cluster, spark, topic), Seen("partition", "offset")
    numbers.append(30)
    drain(source(spark, folder, topic), tmp_path, Seen())
    numbers.append(30)
    ends = {part.partition: part.end for part in cluster.plan_read(topic)}
    cluster.delete_records(topic, {p: end - 2 for p, end in ends.items()}).raise_for_failures()
    assert "no longer in the log" in failure(lambda: drain(source(spark, folder, topic), tmp_path, seen))
    assert seen.batches == []
    drain(source(spark, folder, topic, failOnDataLoss=False), tmp_path, seen)
    assert seen.all == sorted((p, offset) for p, end in ends.items() for offset in (end - 2, end - 1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startngOffsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"columns": "value.wrd"}, "did you mean 'value.word'"),
        ({"topic": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"cluster": "no-such.toml"}, "no-such.toml"),
    ],
    ids=["option", "column", "topic", "cluster"],
)
def test_what_is_wrong_with_the_options_is_said_when_the_stream_is_loaded(
    spark: SparkSession, folder: Path, topic: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        source(spark, folder, **{"topic": topic, **options})  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- into a topic


class DiedError(Exception):
    """The driver is no more."""


class Dying:
    """Appends batches, and dies as a seed says: before, amid the partitions of a batch, or after it."""

    def __init__(self, cluster: Cluster, topic: str, rng: random.Random) -> None:
        self._append = cluster.stream_writer(topic, key="key", value="value", producer="copy")
        self._rng = rng
        self.alive_for = 0
        self.deaths: Counter[str] = Counter()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.alive_for -= 1
        if self.alive_for >= 0:
            self._append(batch, batch_id)
            return
        how = self._rng.choice(["before", "amid", "after"])
        self.deaths[how] += 1
        if how == "amid":
            self._append(batch.where("pmod(hash(key), 2) = 0"), batch_id)
        if how == "after":
            self._append(batch, batch_id)
        raise DiedError(how)


@pytest.mark.slow
def test_a_query_that_dies_twenty_times_copies_every_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """From a tiered topic into another, while records are appended to the one, merged, uploaded and dropped from
    the brokers."""
    rng = random.Random(20)
    cluster.alter_configs(topic, TIERED)
    cluster.create_topic("copied", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(40)
    copy = Dying(cluster, "copied", rng)
    jobs = [cluster.merge, cluster.tier, cluster.retain, lambda name: numbers.append(rng.randrange(1, 40))]
    for _ in range(20):
        copy.alive_for = rng.choice([0, 0, 1, 2])
        frame = source(spark, folder, topic, maxRowsPerTrigger=rng.randrange(5, 20), group="copy")
        try:
            drain(frame, tmp_path, copy)
        except StreamingQueryException as died:
            if "DiedError" not in str(died):
                raise
        for job in rng.sample(jobs, 2):
            job(topic)
        numbers.append(20)
    copy.alive_for = 1000
    drain(source(spark, folder, topic), tmp_path, copy)
    assert sum(copy.deaths.values()) >= 18
    assert len(copy.deaths) == 3
    found = Counter(row.n for row in cluster.read("copied").select("value.n").collect())
    assert found == Counter(range(numbers.count))
    keys = ordered(cluster.read("copied"), "partition", "key", "value.n")
    for key in {key for _, key, _ in keys}:
        assert [n for _, k, n in keys if k == key] == sorted(n for _, k, n in keys if k == key)


@pytest.mark.slow
def test_a_job_that_is_killed_copies_every_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """kill -9 of a spark-submit, as soon as it has come so far; the last run is let be."""
    rng = random.Random(9)
    cluster.create_topic("killed", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(100)
    argv = ["--cluster", str(folder / "cluster.toml"), "--topic", "killed", "--input", topic, "--key", "key"]
    argv += ["--format", "stratalog", "--option", "startingOffsets=earliest", "--option", "maxRowsPerTrigger=10"]
    argv += ["--value", "value", "--stream", "--checkpoint", str(tmp_path / "cp"), "--producer", "copy"]

    def begun() -> int:
        return len(list((tmp_path / "cp" / "offsets").glob("[0-9]*")))

    for run in range(2):
        further = begun() + rng.randrange(1, 4)
        victim = Victim("append", argv, tmp_path / f"{run}.log")
        wait_for("batches", lambda further=further, victim=victim: begun() >= further or victim.ended)
        assert not victim.ended, victim.output
        victim.kill()
    last = Victim("append", argv, tmp_path / "last.log")
    assert last.wait() == 0, last.output
    assert Counter(row.n for row in cluster.read("killed").select("value.n").collect()) == Counter(range(100))


def test_a_query_that_is_stopped_amid_its_batches_copies_every_record_once(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """``stop`` interrupts whatever runs; the format's own sink."""
    cluster.create_topic("stopped", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(200)

    def start(now: bool) -> StreamingQuery:
        frame = source(spark, folder, topic, maxRowsPerTrigger=20).select("value.*", "key")
        records = cluster.records(frame, "stopped", key="key")
        writer = records.writeStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
        writer = writer.option("topic", "stopped").option("checkpointLocation", str(tmp_path))
        return (writer.trigger(availableNow=True) if now else writer).start()

    for pause in (1.0, 2.2, 3.1):
        query = start(now=False)
        query.awaitTermination(pause)
        query.stop()
    start(now=True).awaitTermination()
    assert Counter(row.n for row in cluster.read("stopped").select("value.n").collect()) == Counter(range(200))


def test_a_batch_whose_end_spark_did_not_note_is_not_appended_again(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """The driver died between the append and the checkpoint: the batch comes again under its id."""
    cluster.create_topic("noted", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    Numbers(cluster, spark, topic).append(30)
    writer = cluster.stream_writer("noted", key="key", value="value", producer="copy")
    for _ in range(3):
        drain(source(spark, folder, topic), tmp_path, writer)
        for file in (tmp_path / "commits").iterdir():
            file.unlink()
    assert cluster.read("noted").count() == 30


def test_a_new_checkpoint_is_a_new_stream_whose_batches_are_not_taken_for_the_old_ones(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """Its batch ids begin at 0 again; were the producer the name alone, they would pass for duplicates."""
    cluster.create_topic("again", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(30)
    writer = cluster.stream_writer("again", key="key", value="value", producer="copy")
    drain(source(spark, folder, topic), tmp_path / "one", writer)
    numbers.append(12)
    starts = json.dumps({str(part.partition): 0 for part in cluster.plan_read(topic)})
    drain(source(spark, folder, topic, startingOffsets=starts), tmp_path / "two", writer)
    assert cluster.read("again").count() == 30 + 42


def test_a_stream_into_a_topic_that_is_not_there_is_refused_at_once(cluster: Cluster) -> None:
    with pytest.raises(InvalidCallError, match="no-such-topic"):
        cluster.stream_writer("no-such-topic", producer="x")


def test_batches_of_other_columns_are_refused_by_the_formats_sink(
    spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    frame = source(spark, folder, topic).select("offset", "value")
    writer = frame.writeStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert "cluster.records(df, topic, ...) makes them" in failure(lambda: writer.start().awaitTermination())

"""Streams from topics and into topics, on Spark: a query reads and writes each record once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from stratalog import Cluster
from stratalog.engine.spark.versions import LIMITS, SINK, spark_version
from stratalog.partitions.errors import InvalidCallError
from tests.spark.spark_cluster import TIERED, ordered
from tests.spark.streams import VALUE, Numbers, Seen, drain, source
from tests.spark_session import ON_CONNECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_stream_has_the_columns_and_the_rows_of_a_read(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    Numbers(cluster, spark, topic).append(50)
    frame = source(spark, folder, topic)
    read = cluster.read(topic)
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in read.schema]
    seen = Seen(*read.columns)
    drain(frame, tmp_path, seen)
    assert sorted(seen.all, key=lambda row: row[1:3]) == ordered(read, *read.columns)


def test_available_now_ends_and_the_next_run_continues(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """In batches of a limited number of rows, with new records only."""
    numbers, seen = Numbers(cluster, spark, topic), Seen()
    numbers.append(25)
    frame = source(spark, folder, topic, maxRowsPerTrigger=10)
    query = drain(frame, tmp_path, seen)
    assert [len(batch) for batch in seen.batches] == [10, 10, 5]
    counted = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert counted == ([] if ON_CONNECT else [10, 10, 5]), "Spark Connect counts no rows of foreachBatch"
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

    def read(name: str) -> int:
        return sum(at["offset"] for at in json.loads(last[name])["topics"][topic]["partitions"].values())

    assert (read("endOffset"), read("latestOffset")) == (12, 20)
    behind = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress]
    assert [one["avgOffsetsBehindLatest"] * 2 for one in behind] == [8, 0][: len(behind)]
    assert all(one["minOffsetsBehindLatest"] <= one["maxOffsetsBehindLatest"] for one in behind)
    lag = cluster.groups.lag("dash").raise_for_failures()
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


@pytest.mark.skipif(spark_version() < SINK, reason="a stream's sink takes Spark 4.1")
@pytest.mark.connect
def test_a_stream_of_several_topics_and_into_the_one_that_start_names(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """With Kafka's names: subscribe, includeHeaders; a path is a topic."""
    other, copy = f"{topic[:60]}-other", f"{topic[:60]}-copy"
    for name in (other, copy):
        cluster.topics.create(name, partitions=1, replication_factor=2, key="STRING", value=VALUE)
    Numbers(cluster, spark, topic).append(5)
    Numbers(cluster, spark, other).append(3)
    reader = spark.readStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "false")
    frame = reader.option("subscribe", f"{topic},{other}").load()
    assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value"]
    query = (
        cluster.records(copy, frame, key="key", value="value")
        .writeStream.format("stratalog")
        .option("cluster", str(folder / "cluster.toml"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(copy)
    )
    query.awaitTermination()
    found = sorted(row.n for row in cluster.read(copy).select("value.n").collect())
    assert found == [0, 0, 1, 1, 2, 2, 3, 4]


@pytest.mark.nightly
@pytest.mark.long("starts several queries, one after another")
def test_records_that_move_to_the_remote_tier_are_read_from_there(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    cluster.topics.alter_configs(topic, TIERED)
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
    with pytest.raises(StreamingQueryException) as caught:
        run()
    return str(caught.value)


def test_a_checkpoint_of_another_topic_or_of_an_earlier_topic_of_the_same_name_is_refused(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    numbers = Numbers(cluster, spark, topic)
    numbers.append(5)
    drain(source(spark, folder, topic), tmp_path, Seen())
    cluster.topics.create("another", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    found = failure(lambda: drain(source(spark, folder, "another"), tmp_path, Seen()))
    assert f"the checkpoint belongs to topic '{topic}', but the query reads 'another'" in found
    cluster.topics.delete(topic).raise_for_failures()
    cluster.topics.create(topic, partitions=2, replication_factor=2, key="STRING", value=VALUE)
    found = failure(lambda: drain(source(spark, folder, topic), tmp_path, Seen()))
    assert f"topic '{topic}' was deleted and created again" in found


def test_lost_records_end_the_query_unless_they_may_be_lost(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    numbers, seen = Numbers(cluster, spark, topic), Seen("partition", "offset")
    numbers.append(30)
    drain(source(spark, folder, topic), tmp_path, Seen())
    numbers.append(30)
    ends = {part.partition: part.end for part in cluster.plan_read(topic)}
    cluster.topics.delete_records(topic, {p: end - 2 for p, end in ends.items()}).raise_for_failures()
    assert "no longer in the log" in failure(lambda: drain(source(spark, folder, topic), tmp_path, seen))
    assert seen.batches == []
    drain(source(spark, folder, topic, failOnDataLoss=False), tmp_path, seen)
    assert seen.all == sorted((p, offset) for p, end in ends.items() for offset in (end - 2, end - 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startngOffsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"columns": "value.wrd"}, "did you mean 'value.word'"),
        ({"topic": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ({"cluster": "no-such.toml"}, "no-such.toml"),
    ],
    ids=["option", "column", "topic", "cluster"],
)
def test_an_error_in_the_options_is_reported_before_the_stream_starts(
    spark: SparkSession, folder: Path, topic: str, options: dict[str, str], message: str
) -> None:
    """The error comes when the stream is loaded; with Spark Connect, which asks its server late, when its columns
    are requested."""
    with pytest.raises(Exception, match=message):
        str(source(spark, folder, **{"topic": topic, **options}).schema)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- into a topic


def test_a_new_checkpoint_is_a_new_stream_whose_batches_are_not_taken_for_the_old_ones(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    """Its batch ids begin at 0 again; if the producer were only the name, the batches would count as
    duplicates."""
    cluster.topics.create("again", partitions=2, replication_factor=2, key="STRING", value=VALUE)
    numbers = Numbers(cluster, spark, topic)
    numbers.append(30)
    writer = cluster.stream_writer("again", key="key", value="value", producer="copy")
    drain(source(spark, folder, topic), tmp_path / "one", writer)
    numbers.append(12)
    starts = json.dumps({str(part.partition): 0 for part in cluster.plan_read(topic)})
    drain(source(spark, folder, topic, startingOffsets=starts), tmp_path / "two", writer)
    assert cluster.read("again").count() == 30 + 42


def test_a_stream_into_a_topic_that_is_missing_is_refused_at_once(cluster: Cluster) -> None:
    with pytest.raises(InvalidCallError, match="no-such-topic"):
        cluster.stream_writer("no-such-topic", producer="x")


@pytest.mark.skipif(spark_version() < SINK, reason="a stream's sink takes Spark 4.1")
def test_batches_of_other_columns_are_refused_by_the_formats_sink(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    Numbers(cluster, spark, topic).append(1)
    frame = source(spark, folder, topic).select("offset", "value")
    writer = frame.writeStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert "omit the column" in failure(lambda: writer.start().awaitTermination())


@pytest.mark.skipif(spark_version() >= LIMITS, reason="for versions of Spark that lack something")
def test_features_that_this_version_of_spark_lacks_are_refused_when_used(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    limited = reader.option("topic", topic).option("maxRowsPerTrigger", "5").load()
    seen = Seen("value.n")
    assert "needs Spark 4.2 or later" in failure(lambda: drain(limited, tmp_path / "limited", seen))
    if spark_version() < SINK:
        frame = cluster.records(topic, source(spark, folder, topic), key="key", value="value")
        writer = frame.writeStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
        writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "sink"))
        assert "use foreachBatch" in failure(lambda: writer.trigger(availableNow=True).start().awaitTermination())

"""The options of a stream on Spark, the lag that its listener sees, and unsupported triggers and sinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from stratalog import Cluster
from stratalog.engine.spark.versions import LIMITS, SINK, spark_version
from tests.spark.streams import VALUE, Seen, drain, stream_cluster
from tests.spark.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, folder: Path) -> Cluster:
    """Topics ``rides-a`` and ``rides-b`` of one partition, whose numbers are their seconds."""
    made = stream_cluster(spark, folder)
    for name, first in (("rides-a", 0), ("rides-b", 100)):
        made.topics.create(name, partitions=1, replication_factor=2, key="STRING", value=VALUE)
        rows = spark.range(first, first + 10, numPartitions=1)
        rows = rows.selectExpr("id AS n", "'w' AS word", "'k' AS k", "timestamp_seconds(id) AS at")
        made.append(name, rows, key="k", timestamp="at", order_by=["timestamp"]).raise_for_failures()
    return made


def stream(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.readStream.format("stratalog").options(cluster=str(folder / "cluster.toml"), **options).load()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"subscribe": "rides-a,rides-b", "startingTimestamp": "5000"}, [*range(5, 10), *range(100, 110)]),
        ({"subscribePattern": "rides-.*", "startingOffsets": "earliest"}, [*range(10), *range(100, 110)]),
        (
            {"assign": '{"rides-b": [0]}', "startingOffsetsByTimestamp": '{"rides-b": {"0": 107000}}'},
            [107, 108, 109],
        ),
        ({"subscribe": "rides-a", "startingOffsets": '{"rides-a": {"0": 8}}', "includeHeaders": "false"}, [8, 9]),
    ],
    ids=["subscribe", "subscribePattern", "assign", "offsets"],
)
def test_a_stream_reads_what_its_options_say(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path, options: dict[str, str], found: list[int]
) -> None:
    frame, seen = stream(spark, folder, **options), Seen()
    assert ("headers" in frame.columns) == ("includeHeaders" not in options)
    drain(frame, tmp_path, seen)
    assert seen.all == found


class Listening(StreamingQueryListener):
    """Stores the progress of the sources, and the ended runs."""

    def __init__(self) -> None:
        self.sources: list[Any] = []
        self.ended: list[str] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self.sources += event.progress.sources

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.ended.append(str(event.runId))


@pytest.mark.sample(1)
@pytest.mark.skipif(spark_version() < LIMITS, reason="a source says where its log ends from Spark 4.2 on")
@pytest.mark.parametrize(
    ("limit", "batches"),
    [({"maxOffsetsPerTrigger": "12"}, 2), ({"maxBytesPerTrigger": "1"}, 10)],
    ids=["offsets", "bytes"],
)
def test_a_listener_sees_the_lag_behind_the_log_whatever_the_limit_of_batches(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path, limit: dict[str, str], batches: int
) -> None:
    """The names of the metrics are those of Spark's Kafka source."""
    listener, seen = Listening(), Seen()
    spark.streams.addListener(listener)
    options = {"subscribePattern": "rides-.*", "startingOffsets": "earliest", **limit}
    query = drain(stream(spark, folder, **options), tmp_path, seen)
    wait_for("the last event", lambda: str(query.runId) in listener.ended)
    spark.streams.removeListener(listener)  # Spark Connect's does not return if an event comes meanwhile
    assert len(seen.batches) >= batches
    left, behind = 20, []
    for batch in seen.batches:
        left -= len(batch)
        behind.append(left)
    messages = [json.loads(source.latestOffset) for source in listener.sources[: len(seen.batches)]]
    assert [one["avgOffsetsBehindLatest"] * 2 for one in messages] == behind
    assert all(0 <= one["minOffsetsBehindLatest"] <= one["maxOffsetsBehindLatest"] for one in messages)
    assert messages[-1]["topics"]["rides-b"]["partitions"]["0"]["offset"] == 10


@pytest.mark.delta
@pytest.mark.skipif(spark_version() < SINK, reason="a stream's sink takes Spark 4.1")
def test_to_table_is_refused_and_says_what_names_a_topic(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Spark passes the table's folder to the sink, and none of its options."""
    records = cluster.records("rides-b", stream(spark, folder, subscribe="rides-a"), key="key", value="value")
    query = records.writeStream.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    try:
        with pytest.raises(PySparkException, match="; toTable passes the folder of a table"):
            query.toTable("rides_table").awaitTermination()
    finally:
        spark.sql("DROP TABLE IF EXISTS rides_table")


@pytest.mark.skipif(spark_version() < LIMITS, reason="earlier versions have no such trigger for these queries")
def test_a_real_time_trigger_is_refused(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Spark refuses it: its list of supported sources and sinks has none in Python."""
    frame = stream(spark, folder, subscribe="rides-a")
    query = frame.writeStream.format("console").outputMode("update").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="is not supported in Real-time Mode"):
        query.trigger(realTime="5 minutes").start().awaitTermination()

"""``Cluster.for_each_batch``: each batch of a stream as a scan of exactly its offsets, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from stratalog import Cluster
from stratalog.engine.spark.versions import LIMITS, spark_version
from stratalog.partitions.errors import InvalidCallError, UnknownTopicOrPartitionError
from tests.spark.spark_cluster import TIERED
from tests.spark.streams import Numbers, Seen, limits, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Into:
    """Appends each batch's numbers to a Delta table, once; the first try of a batch fails after the write if a
    marker file exists. It can be sent to a server of Spark Connect.
    """

    def __init__(self, table: Path, fails: Path) -> None:
        self.table, self.fails = str(table), str(fails)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.select("partition", "offset", "value.n")
        once = rows.write.format("delta").mode("append").option("txnAppId", "numbers")
        once.option("txnVersion", batch_id).save(self.table)
        if Path(self.fails).exists():
            Path(self.fails).unlink()
            raise RuntimeError("killed after the write")


@pytest.mark.connect
def test_the_batches_have_the_rows_of_a_read_and_a_restart_continues(
    cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    numbers, seen = Numbers(cluster, spark, topic), Seen("partition", "offset", "value.n")
    writer = cluster.for_each_batch(topic, seen, startingOffsets="earliest")
    numbers.append(25)
    to_its_end(writer, tmp_path)
    rows = [tuple(row) for row in cluster.read(topic).select("partition", "offset", "value.n").collect()]
    assert seen.all == sorted(rows)
    to_its_end(writer, tmp_path)
    assert len(seen.all) == 25, "nothing new, and the function is not called"
    numbers.append(4)
    to_its_end(writer, tmp_path)
    assert sorted(n for *_, n in seen.all) == list(range(29))


@limits
def test_batches_have_limits_and_tell_their_group(
    cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    Numbers(cluster, spark, topic).append(25)
    seen = Seen()
    to_its_end(
        cluster.for_each_batch(topic, seen, startingOffsets="earliest", maxRowsPerTrigger=10, group="etl"),
        tmp_path,
    )
    assert [len(batch) for batch in seen.batches] == [10, 10, 5]
    assert cluster.groups.lag("etl").totals["lag"] == 0


@pytest.mark.delta
def test_a_batch_that_failed_after_its_write_is_in_delta_once_also_from_the_remote_tier(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The function is called again with the same offsets, which are in other files by then."""
    cluster.topics.create(
        "replayed", partitions=2, replication_factor=2, key="STRING", value="n BIGINT, word STRING", configs=TIERED
    )
    numbers = Numbers(cluster, spark, "replayed")
    for _ in range(3):
        numbers.append(20)
    table, fails = tmp_path / "table", tmp_path / "fails"
    fails.touch()
    writer = cluster.for_each_batch("replayed", Into(table, fails), startingOffsets="earliest")
    with pytest.raises(StreamingQueryException, match="killed after the write"):
        to_its_end(writer, tmp_path / "checkpoint")
    for tidy in (cluster.replicate, cluster.tier, cluster.retain):
        tidy()
    assert any(file.remote for file in cluster.plan_read("replayed"))
    numbers.append(5)
    to_its_end(writer, tmp_path / "checkpoint")
    if spark_version() < LIMITS:  # the run ended after the batch that it repeated
        to_its_end(writer, tmp_path / "checkpoint")
    found = spark.read.format("delta").load(str(table)).orderBy("n").collect()
    assert [row["n"] for row in found] == list(range(65))


def test_fields_that_the_type_gets_are_in_the_next_batch(
    cluster: Cluster, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    numbers, names = Numbers(cluster, spark, topic), Seen("value.*")
    writer = cluster.for_each_batch(topic, names, startingOffsets="earliest")
    numbers.append(1)
    to_its_end(writer, tmp_path)
    cluster.topics.alter(topic, value="n BIGINT, word STRING, late INT")
    numbers.append(1)
    to_its_end(writer, tmp_path)
    assert [len(row) for row in names.all] == [2, 3]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"columns": "offset"}, "the option columns does not apply"),
        ({"minpartitions": 4}, "the option minPartitions does not apply"),
        ({"endingOffsets": "latest"}, "applies only to batch reads"),
        ({"startOffset": 0}, "startingOffsets"),
        ({"subscribePattern": "t.*"}, "subscribe and subscribePattern are given"),
    ],
    ids=["rows", "case", "end", "unknown", "two"],
)
def test_an_option_that_does_not_apply_is_refused_before_the_query(
    cluster: Cluster, topic: str, option: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidCallError, match=message):
        cluster.for_each_batch(topic, Seen(), **option)


def test_an_unknown_topic_is_refused_before_the_query(cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="nosuch"):
        cluster.for_each_batch("nosuch", Seen())


@pytest.mark.skipif(spark_version() >= LIMITS, reason="this Spark knows limits")
def test_a_limit_that_this_spark_does_not_know_is_refused(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidCallError, StreamingQueryException), match=r"needs Spark 4\.2"):
        to_its_end(cluster.for_each_batch(topic, Seen(), maxRowsPerTrigger=1), tmp_path)

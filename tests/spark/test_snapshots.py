"""Snapshots with Spark: partitions larger than memory, and reading them as a DataFrame (KIP-630)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine import Cluster
from tests.spark.spark_cluster import format_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CONFIGS = {"cleanup.policy": "snapshot", "retention.ms": "-1"}
IN_MEMORY, OUT_OF_CORE = 1 << 30, 0


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Cluster:
    """Topic ``cities``: typed, two partitions, keyed by a struct."""
    made = format_cluster(spark, tmp_path)
    made.create_topic(
        "cities",
        partitions=2,
        replication_factor=2,
        key="land STRING, number INT",
        value="name STRING, people DOUBLE",
        configs=CONFIGS,
    )
    return made


def append(spark: SparkSession, cluster: Cluster, frame: DataFrame) -> None:
    """Columns ``n`` (the key), ``name`` (null: a tombstone), ``at`` (seconds)."""
    frame.createOrReplaceTempView("given")
    rows = spark.sql(
        """SELECT named_struct('land', IF(n % 3 = 0, NULL, 'no'), 'number', CAST(n AS INT)) AS key,
                  IF(name IS NULL, NULL, named_struct('name', name, 'people', CAST(n AS DOUBLE))) AS value,
                  CAST(at AS TIMESTAMP) AS at
           FROM given"""
    )
    columns = {"key": "key", "value": "value", "timestamp": "at"}
    cluster.append(rows, "cities", **columns, order_by=["timestamp"]).raise_for_failures()


def numbers(spark: SparkSession, keys: int, name: str, at: int, *, gone: bool = False) -> DataFrame:
    shown = "NULL" if gone else f"concat('{name}-', id)"
    return spark.range(keys).selectExpr("id AS n", f"CAST({shown} AS STRING) AS name", f"{at} + id AS at")


def by_key(rows: DataFrame) -> dict[str, Any]:
    """Key to value, without tombstones; every key once."""
    found = [(str(row.key), row.value) for row in rows.select("key", "value").collect()]
    assert len({key for key, _ in found}) == len(found)
    return {key: value for key, value in found if value is not None}


def latest(rows: DataFrame) -> dict[str, Any]:
    """Key to value of a log, reduced by its offsets."""
    found = sorted(rows.select("offset", "key", "value").collect(), key=lambda row: row.offset)
    return {key: value for key, value in {str(row.key): row.value for row in found}.items() if value is not None}


@pytest.mark.parametrize("memory_bytes", [IN_MEMORY, OUT_OF_CORE], ids=["in memory", "by Spark"])
def test_a_snapshot_and_the_log_after_it_are_the_whole_log_reduced_by_key(
    spark: SparkSession, cluster: Cluster, memory_bytes: int
) -> None:
    """KIP-630, "Loading Snapshots": load the snapshot, then apply the log from its end offset on. A snapshot on
    top of a snapshot says the same."""
    append(spark, cluster, numbers(spark, 300, "first", 0))
    cluster.snapshot(by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    append(spark, cluster, numbers(spark, 100, "second", 1000))
    append(spark, cluster, numbers(spark, 20, "gone", 2000, gone=True))
    made = cluster.snapshot(by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    assert made.totals["made"] == 2
    append(spark, cluster, numbers(spark, 30, "third", 3000))

    snapshot = cluster.read_snapshot("cities")
    assert snapshot.columns == ["topic", "partition", "end_offset", "timestamp", "key", "value", "headers"]
    ends = {
        row.partition: row.end_offset for row in snapshot.select("partition", "end_offset").distinct().collect()
    }
    assert sorted(ends) == [0, 1]
    whole = cluster.read("cities", start=ends)
    state = by_key(snapshot)
    for key, value in {str(row.key): row.value for row in whole.orderBy("offset").collect()}.items():
        state[key] = value
    expected = {f"third-{n}" for n in range(30)} | {f"second-{n}" for n in range(30, 100)}
    expected |= {f"first-{n}" for n in range(100, 300)}
    assert {value.name for value in state.values() if value is not None} == expected
    assert len(latest(whole)) == 30


def test_spark_and_memory_make_the_same_snapshot(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """The two ways are one fold: the same rows, in the same order, with the same tombstones left out."""
    (tmp_path / "other").mkdir()
    other = format_cluster(spark, tmp_path / "other")
    configs = {**CONFIGS, "delete.retention.ms": str(10**15)}
    other.create_topic(
        "cities",
        partitions=2,
        replication_factor=2,
        key="land STRING, number INT",
        value="name STRING, people DOUBLE",
        configs=configs,
    )
    cluster.alter_configs("cities", {"delete.retention.ms": str(10**15)})
    for one, memory_bytes in ((cluster, IN_MEMORY), (other, OUT_OF_CORE)):
        append(spark, one, numbers(spark, 50, "first", 0))
        one.snapshot(by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
        append(spark, one, numbers(spark, 20, "second", 100))
        append(spark, one, numbers(spark, 5, "", 200, gone=True))
        one.snapshot(by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
    mine, theirs = (
        {p: one.read_snapshot("cities", [p]).drop("topic").collect() for p in (0, 1)} for one in (cluster, other)
    )
    assert sum(row.value is None for rows in mine.values() for row in rows) == 5
    for partition in (0, 1):
        assert mine[partition] == theirs[partition]


def test_spark_counts_what_has_changed(spark: SparkSession, cluster: Cluster) -> None:
    """KIP-630, "When to Snapshot": new records do not count, changes of what the snapshot holds do."""
    cluster.alter_configs("cities", {"metadata.log.max.record.bytes.between.snapshots": "1"})
    append(spark, cluster, numbers(spark, 100, "first", 0))
    assert cluster.snapshot(memory_bytes=OUT_OF_CORE).raise_for_failures().totals["made"] == 2
    append(spark, cluster, numbers(spark, 110, "new", 1000).where("n >= 100"))
    append(spark, cluster, numbers(spark, 30, "changed", 2000))
    waiting = cluster.snapshot(memory_bytes=OUT_OF_CORE).raise_for_failures()
    assert waiting.totals["made"] == 0
    assert all("min.changed_records.ratio" in str(row["why"]) for row in waiting.rows)
    append(spark, cluster, numbers(spark, 100, "changed", 3000))
    assert cluster.snapshot(memory_bytes=OUT_OF_CORE).raise_for_failures().totals["made"] == 2


def test_a_snapshot_of_nothing_but_old_tombstones_is_empty(spark: SparkSession, cluster: Cluster) -> None:
    """Spark runs no task for no rows; there is a snapshot all the same."""
    append(spark, cluster, numbers(spark, 10, "", 0, gone=True))
    made = cluster.snapshot(by_hand=True, memory_bytes=OUT_OF_CORE).raise_for_failures()
    assert [row["records"] for row in made.rows] == [0, 0]
    assert cluster.read_snapshot("cities").collect() == []


def test_the_lag_of_a_group_as_a_frame(spark: SparkSession, cluster: Cluster) -> None:
    """Lag per partition as a DataFrame."""
    cluster.alter_configs(None, {"offsets.topic.replication.factor": "2", "offsets.topic.num.partitions": "2"})
    append(spark, cluster, numbers(spark, 40, "first", 0))
    cluster.commit("g", {("cities", 0): 3})
    frame = cluster.lag_frame("g")
    assert frame.columns == ["topic", "partition", "committed", "log_end", "high_watermark", "lag", "metadata"]
    by_partition = {row.partition: row for row in frame.collect()}
    assert (by_partition[0].committed, by_partition[1].committed) == (3, None)
    assert sum(row.lag for row in by_partition.values()) == 40 - 3

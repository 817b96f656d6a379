"""Spark reads the table of the latest record of each key as ``read_snapshot`` reads the snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.spark_cluster import format_cluster
from tests.spark.test_snapshots import CONFIGS, IN_MEMORY, OUT_OF_CORE, append, numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def rows(frame: DataFrame) -> list[str]:
    columns = ("partition", "end_offset", "timestamp", "key", "value", "headers")
    return sorted(str(row) for row in frame.where("value IS NOT NULL").select(*columns).collect())


@pytest.mark.delta
def test_spark_reads_the_table_of_snapshots(spark: SparkSession, tmp_path: Path) -> None:
    """Made in memory and by Spark, replaced by the next one, and time travel to the one before."""
    cluster = format_cluster(spark, tmp_path)
    cluster.topics.create(
        "cities",
        partitions=2,
        replication_factor=2,
        key="land STRING, number INT",
        value="name STRING, people DOUBLE",
        configs={**CONFIGS, "remote.snapshot.table.enable": "true"},
    )
    (remote,) = tmp_path.glob("remote")
    seen: list[list[str]] = []
    for step, memory_bytes in enumerate((IN_MEMORY, OUT_OF_CORE)):
        append(spark, cluster, numbers(spark, 300 - 100 * step, f"step{step}", 1000 * step))
        append(spark, cluster, numbers(spark, 20, "gone", 1000 * step + 500, gone=True))
        done = cluster.snapshot("cities", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
        assert [row["published"] for row in done.rows] == [True, True]
        (folder,) = (remote / "_snapshots").iterdir()
        table = spark.read.format("delta").load(str(folder))
        assert rows(table) == rows(cluster.read_snapshot("cities"))
        seen.append(rows(table))
        large = sum(row.value.people >= 150 for row in table.collect())
        assert table.where("value.people >= 150").count() == large > 0
    assert len(seen[0]) == len(seen[1]) == 280
    version = spark.sql(f"DESCRIBE HISTORY delta.`{folder}`").agg({"version": "max"}).first()[0]
    before = spark.read.format("delta").option("versionAsOf", version - 1).load(str(folder))
    assert rows(before) == seen[0]

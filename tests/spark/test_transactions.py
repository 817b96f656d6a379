"""Transactions of DataFrames: appended by Spark's tasks, and read by Spark completely or not at all (KIP-98)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from tests.spark.spark_cluster import TIERED, format_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

OUT_OF_CORE = 1


@pytest.fixture
def cluster(spark: SparkSession, tmp_path: Path) -> Cluster:
    made = format_cluster(spark, tmp_path)
    small = {"num.partitions": "1", "replication.factor": "2", "min.isr": "1"}
    made.topics.alter_configs(None, {f"transaction.state.log.{name}": value for name, value in small.items()})
    return made


def numbers(spark: SparkSession, first: int, count: int) -> DataFrame:
    return spark.range(first, first + count).selectExpr("CAST(id % 7 AS STRING) AS k", "id AS n")


def seen(cluster: Cluster, topic: str, isolation: str) -> set[int]:
    return {row.n for row in cluster.read(topic, isolation=isolation).select("value.n").collect()}


@pytest.mark.connect
def test_dataframes_are_appended_to_several_topics_or_to_none(spark: SparkSession, cluster: Cluster) -> None:
    """Hot and cold: aborted records are in neither result, although they are in the files of both."""
    for topic in ("one", "two"):
        cluster.topics.create(topic, partitions=2, replication_factor=2, value="n BIGINT", configs=TIERED)
    with cluster.transactions.begin("loader") as t:
        t.append("one", numbers(spark, 0, 50), key="k")
        t.append("two", numbers(spark, 50, 50), key="k")
        assert seen(cluster, "one", "read_committed") == set()
    t = cluster.transactions.begin("loader")
    t.append("one", numbers(spark, 100, 50), key="k")
    t.abort()
    for _ in range(2):
        assert seen(cluster, "one", "read_committed") == set(range(50))
        assert seen(cluster, "one", "read_uncommitted") == {*range(50), *range(100, 150)}
        assert seen(cluster, "two", "read_committed") == set(range(50, 100))
        cluster.tier().raise_for_failures()
        cluster.merge().raise_for_failures()
        cluster.retain().raise_for_failures()


@pytest.mark.nightly
def test_a_snapshot_by_spark_holds_what_one_in_memory_does(spark: SparkSession, cluster: Cluster) -> None:
    """Aborted records and markers are not among the latest records, merged or not."""
    configs = {"cleanup.policy": "snapshot", "segment.merge.min.files": "2", "retention.ms": "-1"}
    for topic in ("one", "two"):
        cluster.topics.create(topic, partitions=1, replication_factor=2, value="n BIGINT", configs=configs)
    for merged in (False, True):
        for number, commit in enumerate((True, False, True)):
            t = cluster.transactions.begin("loader")
            for topic in ("one", "two"):
                t.append(topic, numbers(spark, 1000 * merged + 10 * number, 5 + number), key="k")
            (t.commit if commit else t.abort)()
        if merged:
            cluster.merge().raise_for_failures()
        cluster.snapshot("one", by_hand=True).raise_for_failures()
        cluster.snapshot("two", by_hand=True, memory_bytes=OUT_OF_CORE).raise_for_failures()
        one, two = (
            {(bytes(row.key), row.value.n) for row in cluster.read_snapshot(topic).collect()}
            for topic in ("one", "two")
        )
        assert one == two
        assert len(one) == 7
        assert not {n for _, n in one} & set(range(1000 * merged + 10, 1000 * merged + 16))

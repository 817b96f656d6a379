"""One log, end to end: append, replicate, merge, tier, drop, lose a broker, bootstrap, read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from stratalog import Cluster
from tests.spark.spark_cluster import format_cluster, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

VALUE = "n BIGINT, carrier STRING, delay DOUBLE, at TIMESTAMP"


@pytest.mark.delta
def test_a_log_lives_through_it_all_and_is_its_source_row_for_row(spark: SparkSession, tmp_path: Path) -> None:
    """The results for users: the demo's steps on small data; the bytes of a bootstrap with and without KIP-1023;
    the remote table with plain delta-spark and with deltalake."""
    cluster = format_cluster(spark, tmp_path, brokers=3)
    cluster.topics.create(
        "flights",
        partitions=3,
        replication_factor=3,
        key="STRING",
        value=VALUE,
        configs={
            "remote.storage.enable": "true",
            "segment.bytes": "12000",
            "segment.merge.min.files": "3",
            "local.retention.bytes": "12000",
            "retention.ms": "-1",
            "file.delete.delay.ms": "0",
        },
    )
    source = spark.range(4000).selectExpr(
        "concat('N', id % 97) AS tail",
        "timestamp_seconds(1356998400 + id * 60) AS hour",
        "id AS n",
        "substr('UAAADLB6', 1 + 2 * (id % 4), 2) AS carrier",
        "if(id % 50 = 0, null, id / 7) AS delay",
        "timestamp_micros(id) AS at",
    )
    parts = [
        source.where(f"n >= {low} AND n < {high}")
        for low, high in [*((500 * i, 500 * i + 500) for i in range(5)), (2500, 3700), (3700, 4000)]
    ]
    for sequence, part in enumerate(parts[:5]):
        cluster.append(
            "flights", part, key="tail", timestamp="hour", producer="demo", sequence=sequence
        ).raise_for_failures()
    again = cluster.append("flights", parts[4], key="tail", timestamp="hour", producer="demo", sequence=4)
    assert {row["outcome"] for row in again.raise_for_failures().rows} == {"duplicate"}
    cluster.append("flights", parts[5], key="tail", timestamp="hour", acks="leader").raise_for_failures()
    for step in (cluster.replicate, cluster.merge, cluster.replicate, cluster.tier):
        step().raise_for_failures()
    cluster.append("flights", parts[6], key="tail", timestamp="hour").raise_for_failures()
    for _ in range(2):
        cluster.retain().raise_for_failures()
    cluster.verify(deep=True).raise_for_failures()
    positions = cluster.describe().raise_for_failures().rows
    assert all(int(row["local_start"] or 0) > 0 for row in positions), "a prefix has left the brokers"
    assert any(row["remote_end"] != row["log_end"] for row in positions), "and something is not tiered yet"

    wanted = rows(source.selectExpr("tail", "hour", "n", "carrier", "delay", "at"))

    def as_source(of: Cluster) -> object:
        frame = of.read("flights").selectExpr("key AS tail", "timestamp AS hour", "value.*")
        return rows(frame, "tail", "hour", "n", "carrier", "delay", "at")

    assert as_source(cluster) == wanted
    copied: list[int] = []
    for last_tiered in ("false", "true"):
        cluster.topics.alter_configs(None, {"follower.fetch.last.tiered.offset.enable": last_tiered})
        shutil.rmtree(tmp_path / "b2")
        (tmp_path / "b2").mkdir()
        copied.append(int(cluster.bootstrap(2).raise_for_failures().totals["copied_bytes"] or 0))
        assert all(set(image.isr) == {1, 2, 3} for image in cluster.image.topic("flights").partitions)
        cluster.verify(deep=True).raise_for_failures()
        assert as_source(Cluster.open(tmp_path / "cluster.toml", spark)) == wanted
    assert copied[1] < copied[0]

    (table,) = (tmp_path / "remote").glob("flights-*")
    tiered = "offset < " + str(cluster.describe().rows[0]["remote_end"])
    by_log = cluster.read("flights", partitions=[0]).where(tiered).select("partition", "offset", "value.*")
    by_delta = (
        spark.read.format("delta").load(str(table)).where("partition = 0").select("partition", "offset", "value.*")
    )
    assert rows(by_delta) == rows(by_log)
    arrow = DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "offset"])
    assert arrow.num_rows == spark.read.format("delta").load(str(table)).count()

    rest = source.limit(10).selectExpr("tail", "hour", "n + 100000 AS n", "carrier", "delay", "at")
    cluster.append("flights", rest, key="tail", timestamp="hour", producer="demo", sequence=5).raise_for_failures()
    assert cluster.read("flights").count() == 4010

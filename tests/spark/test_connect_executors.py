"""Spark Connect with a standalone cluster: executors are separate processes on other hosts than the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stratalog import register_format
from stratalog.engine.spark.runner import SparkRunner
from tests.spark.spark_cluster import TIERED
from tests.spark.standalone import session_settings, standalone
from tests.spark.streams import Numbers, Seen, drain, source, stream_cluster
from tests.spark_session import ON_CONNECT, connect_server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.connect,
    pytest.mark.skipif(not ON_CONNECT, reason="a process has sessions of one kind alone"),
]


@pytest.mark.long("starts a standalone cluster and a server before it")
@pytest.mark.nightly
def test_a_log_lives_on_executors_behind_a_server(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "server").mkdir()
    with (
        standalone(tmp_path) as machines,
        connect_server(tmp_path / "server", {**session_settings(), "spark.master": machines.master}) as address,
    ):
        spark = SparkSession.builder.remote(address).create()  # type: ignore[attr-defined]
        try:
            live(spark, tmp_path)
        finally:
            spark.stop()  # or a later test would take it for the session that runs


def live(spark: SparkSession, folder: Path) -> None:
    register_format(spark)
    assert SparkRunner(spark).processes == 2
    cluster = stream_cluster(spark, folder / "cluster")
    shape = {"key": "STRING", "value": "n BIGINT, word STRING", "configs": TIERED}
    cluster.topics.create("t", partitions=2, replication_factor=2, **shape)
    numbers = Numbers(cluster, spark, "t")
    for _ in range(2):
        numbers.append(1_000)
    for job in (cluster.replicate, cluster.merge, cluster.tier, cluster.retain, cluster.maintain):
        job().raise_for_failures()
    cluster.verify(deep=True).raise_for_failures()
    assert sorted(row.n for row in cluster.read("t").select("value.n").collect()) == list(range(2_000))
    cluster.topics.create("copy", partitions=2, replication_factor=2, key="STRING", value=shape["value"])
    seen = Seen()
    stream = source(spark, folder / "cluster", "t")
    drain(stream, folder / "seen", seen)
    assert seen.all == list(range(2_000))
    drain(stream, folder / "written", cluster.stream_writer("copy", producer="w", key="key", value="value"))
    writer = cluster.records("copy", stream, key="key", value="value").writeStream.format("stratalog")
    writer = writer.option("cluster", str(folder / "cluster" / "cluster.toml")).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "sunk")).start("copy").awaitTermination()
    assert sorted(row.n for row in cluster.read("copy").select("value.n").collect()) == [
        n for n in range(2_000) for _ in range(2)
    ]

"""Executors call a provider of credentials, too: each process that has called it leaves a mark.

The environment of executors has good credentials from the start of the session, and the driver has bad ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.s3_server import ACCESS_KEY, SECRET_KEY
from stratalog import Cluster
from tests.s3_server import S3Endpoint
from tests.spark.spark_cluster import TIERED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]

DAY = date(2013, 1, 10)


def named(root: str) -> Mapping[str, Any]:
    """Each process imports it. The prefix of the root is a folder of this machine with the marks."""
    folder = root.split("/", 3)[3].rpartition("/")[0]
    Path("/", folder, f"asked-{os.getpid()}").touch()
    return {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}


def given() -> Callable[[str], Mapping[str, Any]]:
    """A provider as a notebook defines it, which no process could import."""
    return lambda root: named(root)


@pytest.fixture
def file(s3_endpoint: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a cluster in a bucket, for which the environment of this process has no credentials any more."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-at-all")  # set after the session had started
    root = f"s3://{s3_endpoint.bucket}{tmp_path}"
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "{root}/b{n}"\n' for n in (1, 2))
    server = f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\n'
    made = tmp_path / "cluster.toml"
    made.write_text(f'[cluster]\nid = "c"\nvoters = [1]\nremote = "{root}/tier"\n{brokers}{server}')
    return made


def asked(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("asked-*")}


@pytest.mark.sample(1)
@pytest.mark.long("starts executors that ask a provider")
@pytest.mark.parametrize("way", ["named", "given"])
def test_executors_ask_for_credentials_themselves(
    way: str, spark: SparkSession, file: Path, tmp_path: Path
) -> None:
    provider = f"{__name__}:named" if way == "named" else given()
    cluster = Cluster.format(file, spark, credentials=provider, keeps_short=False)
    cluster.topics.create("t", partitions=2, replication_factor=2)
    frame = spark.range(10_000).selectExpr("cast(id AS STRING) AS value")
    cluster.append("t", frame, acks="leader").raise_for_failures()
    copied = cluster.replicate().raise_for_failures()
    assert sum(int(row["copied_files"]) for row in copied.rows) > 0
    cluster.verify(deep=True).raise_for_failures()
    assert f"asked-{os.getpid()}" in asked(tmp_path)
    assert len(asked(tmp_path)) > 1
    assert SECRET_KEY not in str(spark.sql("SET").collect())


@pytest.mark.long("starts executors that ask a provider")
@pytest.mark.nightly
@pytest.mark.connect
def test_a_read_uses_tasks_that_ask_where_spark_s_own_reader_could_not(
    spark: SparkSession, file: Path, tmp_path: Path
) -> None:
    """Of both tiers, by offsets and times, in SQL, and at an isolation level. The session itself cannot reach the
    server."""
    cluster = Cluster.format(file, spark, credentials=f"{__name__}:named", keeps_short=False)
    cluster.topics.alter_configs(
        None, {f"transaction.state.log.{name}": "1" for name in ("num.partitions", "min.isr")}
    )
    cluster.topics.alter_configs(None, {"transaction.state.log.replication.factor": "2"})
    cluster.topics.create("t", partitions=2, replication_factor=2, value="n BIGINT, word STRING", configs=TIERED)

    def rows(start: int) -> DataFrame:
        columns = (
            "id AS n",
            "repeat('w', id % 9) AS word",
            "cast(id % 2 AS INT) AS p",
            f"timestamp '{DAY}' AS at",
        )
        return spark.range(start, start + 100, numPartitions=1).selectExpr(*columns)

    def append(start: int) -> None:
        report = cluster.append("t", rows(start), partition="p", timestamp="at", order_by=["value.n"])
        report.raise_for_failures()

    for start in (0, 100):
        append(start)
    with pytest.warns(UserWarning, match="a provider gives the credentials"):
        early = cluster.read("t")
    cluster.tier().raise_for_failures()
    for _ in range(2):
        cluster.retain().raise_for_failures()
    assert early.count() == 200, "its files are in the remote tier now"
    append(200)
    with cluster.transactions.begin("never") as transaction:
        transaction.append("t", rows(300), partition="p", timestamp="at")
        transaction.abort()
    assert {part.remote for part in cluster.plan_read("t")} == {True, False}

    def read(*bounds: Any, **more: Any) -> list[tuple[int, int, int, str]]:
        with pytest.warns(UserWarning, match="a provider gives the credentials"):
            frame = cluster.read("t", *bounds, isolation="read_committed", **more)
        found = frame.select("partition", "offset", "value.n", "value.word").collect()
        return sorted(tuple(row) for row in found)

    wanted = [(n % 2, n // 2, n, "w" * (n % 9)) for n in range(300)]
    assert read() == sorted(wanted)
    assert read(40, 120) == sorted(row for row in wanted if 40 <= row[1] < 120)
    assert read(f"{DAY}", f"{DAY + timedelta(days=1)}") == sorted(wanted)
    assert cluster.read("t", f"{DAY + timedelta(days=1)}", isolation="read_committed").count() == 0
    with pytest.warns(UserWarning, match="a provider gives the credentials"):
        cluster.create_view("provided", cluster.plan_read("t", isolation="read_committed"))
    assert spark.sql("SELECT count(*), sum(value.n) FROM provided").first() == (300, sum(range(300)))
    assert SECRET_KEY not in str(spark.sql("SET").collect())


@pytest.mark.long("starts executors that ask a provider")
@pytest.mark.nightly
@pytest.mark.connect
def test_the_latest_snapshots_are_read_by_tasks_that_ask(spark: SparkSession, file: Path, tmp_path: Path) -> None:
    """One snapshot was made in a task's memory, and one by Spark."""
    cluster = Cluster.format(file, spark, credentials=f"{__name__}:named", keeps_short=False)
    kept = {"cleanup.policy": "snapshot", "retention.ms": "-1"}
    cluster.topics.create("t", partitions=2, replication_factor=1, key="k STRING", value="n INT", configs=kept)
    assert cluster.read_snapshot("t").count() == 0

    def snapshot(start: int, memory_bytes: int) -> set[tuple[str, int]]:
        """Snapshot a hundred more keys, from ``start`` on; each key is its value."""
        rows = spark.range(start, start + 100, numPartitions=1).selectExpr(
            "struct(cast(id AS STRING) AS k) AS key", f"struct({start} AS n) AS value"
        )
        cluster.append("t", rows, key="key", value="value").raise_for_failures()
        made = cluster.snapshot("t", by_hand=True, memory_bytes=memory_bytes).raise_for_failures()
        assert made.totals["made"] == 2
        return {(str(n), start) for n in range(start, start + 100)}

    first = snapshot(0, 1 << 30)
    cluster.topics.alter("t", key="k STRING", value="n INT, more STRING")
    columns = "topic", "partition", "end_offset", "key.k", "value.n", "value.more"
    rows = cluster.read_snapshot("t").select(*columns).collect()
    assert {(row.k, row.n) for row in rows} == first
    assert sum({row.partition: row.end_offset for row in rows}.values()) == 100
    assert {(row.topic, row.more) for row in rows} == {("t", None)}
    later = snapshot(50, 0)
    rows = cluster.read_snapshot("t").select("key.k", "value.n").collect()
    assert {tuple(row) for row in rows} == later | {(str(n), 0) for n in range(50)}
    assert SECRET_KEY not in str(spark.sql("SET").collect())

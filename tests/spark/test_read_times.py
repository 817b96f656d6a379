"""A read of a range of times on event times out of order: exactly the records of these times, in either tier."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster, FirstAt
from tests.spark.spark_cluster import TIERED, explained, write_cluster_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY_0 = datetime(2013, 1, 1, tzinfo=UTC)
DAYS, BATCHES, BATCH = 20, 6, 400


def hours_of(batch: int) -> list[int]:
    """The hours, from ``DAY_0`` on, of one append's events: hours of many days, in any order."""
    rng = random.Random(batch)
    around = rng.randrange(DAYS * 24)
    return [max(0, int(rng.gauss(around, 40))) for _ in range(BATCH)]


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The same records in three topics: all local, all but the last file remote, and half of them."""
    file = write_cluster_file(tmp_path_factory.mktemp("times"))
    made = Cluster.format(file)
    for topic, tiered_after in (("local", None), ("remote", BATCHES - 1), ("both", BATCHES // 2)):
        made.topics.create(topic, partitions=2, replication_factor=1, value="n BIGINT", configs=TIERED)
        for batch in range(BATCHES):
            numbered = enumerate(hours_of(batch), batch * BATCH)
            rows = [{"n": n, "at": DAY_0 + timedelta(hours=hour), "p": n % 2} for n, hour in numbered]
            made.produce(topic, rows, partition="p", timestamp="at").raise_for_failures()
            if batch == tiered_after:
                made.tier(topic).raise_for_failures()
                for _ in range(2):
                    made.retain(topic).raise_for_failures()
    return Cluster.open(file, spark)


def expected(start_h: int, end_h: int) -> list[int]:
    hours = [hour for batch in range(BATCHES) for hour in hours_of(batch)]
    return [n for n, hour in enumerate(hours) if start_h <= hour < end_h]


@pytest.mark.sample(1)
@pytest.mark.parametrize("topic", ["both", "local", "remote"])
def test_a_day_is_all_records_of_that_day_and_no_others(cluster: Cluster, topic: str) -> None:
    """Delta and Iceberg prune by the files' bounds, then filter; so does this read."""
    everything = cluster.plan_read(topic)
    for day in (0, 3, 9, 15, DAYS + 30):
        start, end = DAY_0 + timedelta(days=day), DAY_0 + timedelta(days=day + 1)
        plan = cluster.plan_read(topic, start, end)
        assert len(plan) < len(everything)
        found = sorted(row.n for row in cluster.read(plan).select("value.n").collect())
        assert found == expected(day * 24, day * 24 + 24)
        assert cluster.read(topic, start.isoformat(), f"{end:%F}").count() == len(found)
    assert cluster.read(topic, None, "2013-01-06").count() == len(expected(0, 5 * 24))


def test_a_range_of_offsets_found_by_time_has_records_of_other_times(cluster: Cluster) -> None:
    """The look-up returns a range of offsets, which contains records of other times."""
    start, end = "2013-01-10", "2013-01-11"
    looked_up = cluster.read("both", FirstAt(start), FirstAt(end))
    assert sorted(row.n for row in looked_up.select("value.n").collect()) != expected(9 * 24, 10 * 24)


def test_the_times_reach_parquet_and_hold_in_sql_in_any_zone(cluster: Cluster, spark: SparkSession) -> None:
    wanted = expected(9 * 24, 10 * 24)
    frame = cluster.read("both", "2013-01-10", "2013-01-11")
    plan = explained(frame)
    assert "GreaterThanOrEqual(timestamp,2013-01-10" in plan
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        assert cluster.read("both", "2013-01-10T00:00Z", "2013-01-11T00:00Z").count() == len(wanted)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    cluster.create_view("that_day", cluster.plan_read("both", "2013-01-10", "2013-01-11"))
    assert [row.n for row in spark.sql("SELECT value.n FROM that_day ORDER BY 1").collect()] == wanted
    cluster.create_range_function("days_range", cluster.plan_read("both", "2013-01-10", "2013-01-11"))
    rows = spark.sql("SELECT value.n FROM days_range('both', 0, 0, 1000000) ORDER BY 1").collect()
    assert [row.n for row in rows] == [n for n in wanted if n % 2 == 0]


def test_the_job_takes_the_same_words(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stratalog.jobs.read import main

    asked = [
        "--cluster",
        str(cluster.file.path),
        "both",
        "--start",
        "2013-01-10",
        "--end",
        "2013-01-11",
    ]
    assert main([*asked, "--count"]) == 0
    assert f" {len(expected(9 * 24, 10 * 24))}" in capsys.readouterr().out

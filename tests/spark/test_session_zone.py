"""A time without a zone is in the session's time zone with Spark, and in UTC without it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster, FirstAt
from stratalog.engine.spark.time_zone import zone_of
from stratalog.partitions.errors import InvalidCallError
from tests.spark.streams import Seen, to_its_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ZONE = "spark.sql.session.timeZone"
HOURS = [f"2013-06-01 {hour:02}:00:00" for hour in range(24)]
"""The rows: each hour of a day of Tokyo, which begins at 15:00 UTC of the day before."""
FROM_NOON, NOON_UTC = 12, datetime(2013, 6, 1, 3, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def tokyo(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get(ZONE))
    spark.conf.set(ZONE, "Asia/Tokyo")
    yield
    spark.conf.set(ZONE, before)


@pytest.fixture(scope="module")
def topic(cluster: Cluster, spark: SparkSession) -> str:
    """The hours as text that Spark casts, as the record's timestamp and as a field of both types of time."""
    cluster.topics.create(
        "hours", partitions=1, replication_factor=1, value="at TIMESTAMP, ntz TIMESTAMP_NTZ, hour INT"
    )
    rows = spark.createDataFrame(list(enumerate(HOURS)), "hour INT, text STRING").coalesce(1)
    frame = rows.selectExpr("hour", "cast(text AS TIMESTAMP) AS at", "cast(text AS TIMESTAMP_NTZ) AS ntz")
    cluster.append("hours", frame, timestamp="ntz", order_by=["value.hour"]).raise_for_failures()
    return "hours"


def hours(cluster: Cluster, *bounds: object, where: str = "true") -> list[int]:
    frame = cluster.read("hours", *bounds).where(where).selectExpr("value.hour")  # type: ignore[arg-type]
    return sorted(row.hour for row in frame.collect())


@pytest.mark.connect
@pytest.mark.parametrize(
    "start",
    [
        "2013-06-01T12:00:00",
        "2013-06-01 12:00",
        "2013-06-01T03:00:00Z",
        "2013-06-01T12:00:00+09:00",
        NOON_UTC,
        FirstAt("2013-06-01T12:00:00"),
        {0: FirstAt("2013-06-01T12:00:00")},
        {0: "2013-06-01T12:00:00"},
    ],
)
def test_bounds_of_a_read(cluster: Cluster, topic: str, start: object) -> None:
    assert hours(cluster, start) == list(range(FROM_NOON, 24))


@pytest.mark.connect
@pytest.mark.parametrize("column", ["timestamp", "value.at", "value.ntz"])
def test_sql_literals_are_read_in_the_zone_of_the_session(cluster: Cluster, topic: str, column: str) -> None:
    noon = "TIMESTAMP_NTZ" if column == "value.ntz" else "TIMESTAMP"
    assert hours(cluster, where=f"{column} >= {noon}'2013-06-01 12:00:00'") == list(range(FROM_NOON, 24))
    assert hours(cluster, where=f"{column} >= '2013-06-01 12:00:00'") == list(range(FROM_NOON, 24))


def test_timestamps_in_the_log_are_points_in_time(cluster: Cluster, topic: str) -> None:
    record = cluster.fetch(topic, 0, FROM_NOON, max_bytes=1).records.to_pylist()[0]
    assert record["timestamp"] == record["value"]["at"] == NOON_UTC
    assert record["value"]["ntz"] == datetime(2013, 6, 1, 12)


@pytest.mark.connect
def test_without_spark_it_is_utc(cluster: Cluster, topic: str) -> None:
    assert cluster.offsets(topic, "2013-06-01T03:00:00")[0].offset == FROM_NOON  # type: ignore[union-attr]
    at = datetime(2013, 6, 1, 3)
    cluster.topics.create("produced", partitions=1, replication_factor=1, value="at TIMESTAMP")
    cluster.produce("produced", [{"at": at}])
    [row] = cluster.read("produced").selectExpr("cast(value.at AS STRING) AS at").collect()
    assert row.at == "2013-06-01 12:00:00", "Spark shows it in its zone"


def test_the_start_of_a_stream_of_batches(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    seen = Seen("value.hour")
    to_its_end(cluster.for_each_batch(topic, seen, startingTimestamp="2013-06-01 12:00:00"), tmp_path)
    assert seen.all == list(range(FROM_NOON, 24))


@pytest.mark.connect
def test_the_format_takes_no_time_without_a_zone(
    cluster: Cluster, spark: SparkSession, folder: Path, topic: str
) -> None:
    """Spark does not pass the session's zone to a Python source."""
    reader = spark.read.format("stratalog").option("cluster", str(folder / "cluster.toml"))
    given = reader.option("startingTimestamp", "2013-06-01T12:00:00")
    with pytest.raises(Exception, match="without a time zone"):
        given.load(topic).count()
    assert reader.option("startingTimestamp", "2013-06-01T12:00:00+09:00").load(topic).count() == 24 - FROM_NOON


@pytest.mark.connect
@pytest.mark.parametrize(
    "zone",
    ["Asia/Tokyo", "America/New_York", "UTC", "Z", "+05:30", "-08:00", "GMT+2", "UTC+01:00", "GMT", "Etc/GMT+5"],
)
def test_zones_are_what_they_are_to_spark(spark: SparkSession, zone: str) -> None:
    """Including the hours that a clock skips (02:30 does not exist) and repeats (01:30 occurs twice)."""
    texts = ["2013-03-10 02:30:00", "2013-11-03 01:30:00", "2013-07-01 00:00:00"]
    try:
        spark.conf.set(ZONE, zone)
        row = spark.sql("SELECT " + ", ".join(f"unix_micros(TIMESTAMP'{text}')" for text in texts)).collect()[0]
    finally:
        spark.conf.set(ZONE, "Asia/Tokyo")
    ours = [datetime.fromisoformat(text).replace(tzinfo=zone_of(zone)).timestamp() for text in texts]
    assert [int(at * 1_000_000) for at in ours] == list(row)


def test_a_zone_that_only_java_knows_is_refused() -> None:
    with pytest.raises(InvalidCallError, match="'PST', which Python's zone database lacks: give times with their"):
        zone_of("PST")

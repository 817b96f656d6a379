"""Spark reads a compacted log: in a batch, as a stream, and as a stream that continues after the compacted
part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog import Cluster
from tests.spark.streams import Seen, drain, source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CONFIGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
COLUMNS = "partition", "offset", "value.n"


def test_reads_and_streams_get_what_compactions_have_left(
    cluster: Cluster, spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    name = "compacted"
    cluster.topics.create(
        name, partitions=2, replication_factor=2, key="STRING", value="n BIGINT", configs=CONFIGS
    )

    def append(first: int, keys: int) -> None:
        rows = spark.range(first, first + 10, numPartitions=1)
        cluster.append(name, rows.selectExpr("id AS n", f"cast(id % {keys} AS STRING) AS k"), key="k")

    for number in range(4):
        append(10 * number, number + 2)
    goes_on, anew = Seen(*COLUMNS), Seen(*COLUMNS)
    (tmp_path / "anew").mkdir()
    drain(source(spark, folder, name), tmp_path / "goes on", goes_on)
    assert len(goes_on.all) == 40
    append(40, 3)
    cluster.compact([name]).raise_for_failures()
    cluster.retain([name]).raise_for_failures()
    expected = sorted(row for partition in range(2) for row in _fetched(cluster, name, partition))
    assert len(expected) < 25
    frame = cluster.read(name)
    assert sorted(tuple(row) for row in frame.select(*COLUMNS).collect()) == expected
    assert frame.count() == len(expected)
    drain(source(spark, folder, name), tmp_path / "anew", anew)
    assert anew.all == expected
    drain(source(spark, folder, name), tmp_path / "goes on", goes_on)
    assert [row for row in goes_on.all if row[2] >= 40] == [row for row in expected if row[2] >= 40]
    assert {row[2] for row in goes_on.all} >= {row[2] for row in expected}


def _fetched(cluster: Cluster, topic: str, partition: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    offset = 0
    while (got := cluster.fetch(topic, partition, offset)).next_offset > offset:
        found += [(partition, row["offset"], row["value"]["n"]) for row in got.records.to_pylist()]
        offset = got.next_offset
    return found

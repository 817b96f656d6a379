"""Reads of a mirror through librdkafka from a cluster that serves its own topics: no broker and no JVM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.bridges.mirror.compare import records_of
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.source import SourceRange, SourceRecord
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.records import HEADERS, TIMESTAMP
from tests.bridges.endpoint_harness import served
from tests.unit.cluster_harness import LiveCluster

RECORDS = 1300
"""More records than librdkafka returns at once."""
Got = dict[TopicPartition, list[SourceRecord]]


def row(offset: int) -> SourceRecord:
    """With and without a key, a value and headers."""
    headers: list[list[tuple[str, bytes | None]]] = [[("a", b"%d" % offset), ("b", None)], [], [("c", b"")]]
    key = None if offset % 3 == 0 else b"k%d" % offset
    value = None if offset % 4 == 1 else b"v%d" % offset
    return SourceRecord(offset, offset, key, value, headers[offset % 3], None)


def rows(count: int) -> pa.RecordBatch:
    """The first records of a partition."""
    records = [row(offset) for offset in range(count)]
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([n * 1000 for n in range(count)], pa.int64()).cast(TIMESTAMP),
            "key": pa.array([one.key for one in records], pa.binary()),
            "value": pa.array([one.value for one in records], pa.binary()),
            "headers": pa.array([one.headers or None for one in records], HEADERS),
        }
    )


def read(
    address: tuple[str, int], ranges: Mapping[TopicPartition, SourceRange]
) -> tuple[Got, dict[TopicPartition, str]]:
    """The records of each partition up to its end, and the errors of the others."""
    got: Got = {key: [] for key in ranges}
    left, failed = set(ranges), {}
    reads = open_source("{}:{}".format(*address)).read(ranges)
    for one in reads:
        got[one.key] += records_of(pa.Table.from_batches([one.records]))
        if isinstance(one.error, StratalogError):
            failed[one.key] = one.error.code
        if one.error is not None or one.position >= ranges[one.key].end:
            left.discard(one.key)
        if not left:
            break
    reads.close()
    return got, failed


@pytest.mark.slow
def test_all_records_come_as_columns_in_the_order_of_offsets(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=3)
    live.cluster.append_batches("t", {0: [rows(RECORDS)], 1: [rows(3)]}).raise_for_failures()
    with served(live.cluster) as address:
        ranges = {("t", 0): SourceRange(0, RECORDS), ("t", 1): SourceRange(1, 3), ("t", 2): SourceRange(0, 0)}
        got, failed = read(address, ranges)
    assert failed == {}
    assert got == {
        ("t", 0): [row(offset) for offset in range(RECORDS)],
        ("t", 1): [row(1), row(2)],
        ("t", 2): [],
    }


@pytest.mark.slow
def test_a_place_that_the_source_has_not_is_an_error_of_its_partition(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=2)
    live.cluster.append_batches("t", {0: [rows(3)], 1: [rows(3)]}).raise_for_failures()
    with served(live.cluster) as address:
        got, failed = read(address, {("t", 0): SourceRange(7, 9), ("t", 1): SourceRange(0, 3)})
    assert failed == {("t", 0): "OFFSET_OUT_OF_RANGE"}
    assert got == {("t", 0): [], ("t", 1): [row(0), row(1), row(2)]}

"""Reads of a mirror through librdkafka from a cluster that serves its own topics: no broker and no JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import confluent_kafka
import pyarrow as pa
import pytest

from stratalog.bridges.export import kafka_target  # noqa: F401 - its log
from stratalog.bridges.kafka_tier.options import KafkaTierOptions
from stratalog.bridges.mirror import kafka_source
from stratalog.bridges.mirror.compare import records_of
from stratalog.bridges.mirror.kafka_source import open_source
from stratalog.bridges.mirror.source import SourceRange, SourceRecord
from stratalog.partitions.errors import InvalidCallError, StratalogError
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


class Busy:
    """A consumer of two partitions. Producers append to the first all the time; the second has no leader."""

    def __init__(self, configs: object) -> None:
        self._offset, self._paused = 0, False

    def assign(self, partitions: object) -> None: ...

    def pause(self, partitions: Sequence[Any]) -> None:
        assert [(one.topic, one.partition) for one in partitions] == [("t", 0)]
        self._paused = True

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        if self._paused:
            return []
        self._offset += 1
        assert self._offset < 100, "it reads on without an end"
        return [Message(self._offset - 1)]

    def close(self) -> None: ...


class Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def __getattr__(self, name: str) -> Callable[[], object]:
        found = {"topic": "t", "partition": 0, "offset": self._offset, "timestamp": (1, 1), "leader_epoch": 0}
        return lambda: found.get(name)


def test_a_silent_partition_is_an_error_although_records_of_another_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confluent_kafka, "Consumer", Busy)
    monkeypatch.setattr(kafka_source, "TIMEOUT_S", 1.0)
    ranges = {("t", 0): SourceRange(0, 3), ("t", 1): SourceRange(0, 3)}
    reads = list(open_source("127.0.0.1:1").read(ranges))
    assert [read.position for read in reads if read.key == ("t", 0)] == [1, 2, 3]
    assert [(read.key, str(read.error)) for read in reads if read.error is not None] == [
        (("t", 1), "t-1 of the source: no records arrived for 1 s; try again")
    ]


@pytest.mark.parametrize("method", ["mirror", "compare", "export"])
def test_the_log_of_a_kafka_operation_has_no_password(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LiveCluster(tmp_path).cluster
    configs = {"sasl.username": "me", "sasl.password": "hunter2"}
    with caplog.at_level(logging.INFO, "stratalog"), pytest.raises(StratalogError):
        getattr(cluster, method)("absent", "", configs=configs)
    assert f"{method}: begins" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("method", ["mirror", "compare"])
def test_neither_the_log_nor_the_error_has_a_key_of_a_tier_that_was_given_as_a_dict(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LiveCluster(tmp_path).cluster
    tier = {"address": "s3://tier", "layout": "aiven", "keys": {"key-1": "hunter2"}}
    with caplog.at_level(logging.INFO, "stratalog"), pytest.raises(InvalidCallError, match="is a dict") as refused:
        getattr(cluster, method)("absent", "k:9092", tier=tier)
    assert "hunter2" not in caplog.text + str(refused.value)


def test_the_keys_of_a_tier_are_not_shown() -> None:
    assert "hunter2" not in repr(KafkaTierOptions("s3://tier", "aiven", keys={"key-1": "hunter2"}))


@pytest.mark.parametrize("log", ["stratalog.mirror.librdkafka", "stratalog.export.librdkafka"])
def test_a_line_of_librdkafka_has_no_login(log: str, caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka's own words for a ``sasl.oauthbearer.token.endpoint.url`` that does not answer."""
    line = 'Failed to retrieve OIDC token from "http://me:hunter2@host": Could not resolve host: host (-1)'
    logging.getLogger(log).error("%s [%s] %s", "OIDC", "rdkafka#producer-1", line)
    (record,) = caplog.records
    assert record.getMessage() == (
        'OIDC [rdkafka#producer-1] Failed to retrieve OIDC token from "http://host": Could not resolve host: '
        "host (-1)"
    )
    error = Mock(**{"code.return_value": -1, "name.return_value": "_FAIL", "str.return_value": line})
    assert "hunter2" not in str(kafka_source.translated(error, "the source"))

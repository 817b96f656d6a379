"""Tier runs against a real S3 server, and against one that is away, or refuses the credentials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from tests.ports import ports_of
from tests.s3_server import HOST, SECRET_KEY, S3Endpoint, free_ports
from tests.unit.harness import batch

pytestmark = pytest.mark.s3

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "local.retention.bytes": "0",
}
Open = Callable[[str], Cluster]


@pytest.fixture
def cluster_at(tmp_path: Path, s3_endpoint: S3Endpoint, request: pytest.FixtureRequest) -> Open:
    """Drivers of one cluster on folders, whose remote tier has that address."""
    file = tmp_path / "cluster.toml"
    (tmp_path / "b1").mkdir()

    def open_at(url: str) -> Cluster:
        lines = [
            "[cluster]",
            'id = "c"',
            f'remote = "s3://{s3_endpoint.bucket}/{request.node.name}"',
            "voters = [1]",
        ]
        lines += ["[[brokers]]", "id = 1", 'log_dir = "b1"']
        lines += ["[s3]", f'endpoint_url = "{url}"', f'region = "{s3_endpoint.region}"', "retries = 1"]
        lines += ["timeout_s = 5", "part_bytes = 5242880"]
        first = not file.exists()
        file.write_text("\n".join(lines))
        return Cluster.format(file) if first else Cluster.open(file)

    return open_at


def filled(cluster: Cluster, *values: str) -> Cluster:
    """Topic ``t``, one file per value."""
    if "t" not in cluster.image.topic_ids:
        cluster.topics.create("t", partitions=1, replication_factor=1, configs=TIERED)
    for value in values:
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    return cluster


def cell(report: Report, name: str) -> object:
    (row,) = report.rows
    return row[name]


def test_segments_small_and_large_arrive_and_leave_the_broker(cluster_at: Open, s3_endpoint: S3Endpoint) -> None:
    """Large segments go up in one conditional PUT each, because this server completes no upload exclusively."""
    cluster = filled(cluster_at(s3_endpoint.url), "a", "b" * 10_000_000, "c")
    cluster.topics.alter_configs("t", {"compression.type": "uncompressed"})
    filled(cluster, "d" * 10_000_000, "e")
    report = cluster.tier(due=True).raise_for_failures()
    assert (cell(report, "uploaded_files"), cell(report, "remote_end")) == (5, 5)
    assert report.counts.copies == 0, "no bytes were moved a second time"
    assert cluster.tier(due=True).rows == []
    idle = cluster.tier().raise_for_failures()
    assert idle.totals["uploaded_files"] == 0
    for _ in range(2):
        cluster.retain().raise_for_failures()
    assert cluster.describe().raise_for_failures().rows[0]["local_start"] == 4
    cluster.verify(deep=True).raise_for_failures()


def test_a_compacted_topic_keeps_the_last_record_of_each_key(cluster_at: Open, s3_endpoint: S3Endpoint) -> None:
    cluster = cluster_at(s3_endpoint.url)
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}
    cluster.topics.create("t", partitions=1, replication_factor=1, configs={**TIERED, **compacted})
    for number in range(7):
        record = batch([f"v{number}"]).set_column(1, "key", pa.array([b"%d" % (number % 2)]))
        cluster.append_batches("t", {0: [record]}).raise_for_failures()
    cluster.tier().raise_for_failures()
    for _ in range(2):
        cluster.retain().raise_for_failures()
    report = cluster.compact().raise_for_failures()
    assert (cell(report, "remote_segments"), cell(report, "remote_removed")) == (4, 4)
    table = ports_of(cluster).storage.remote_table(cluster.image.topic("t"))
    log = table.load()
    assert [segment.generation for segment in log.of_partition(0)] == [1, 1, 1, 1, 0, 0, 0]
    assert log.generation(0) == 1
    fetched, offset = [], 0
    while (found := cluster.fetch("t", 0, offset)).next_offset > offset:
        fetched += found.records.column("value").to_pylist()
        offset = found.next_offset
    assert fetched == [b"v4", b"v5", b"v6"]
    cluster.verify(deep=True).raise_for_failures()
    cluster.vacuum().raise_for_failures()
    assert cluster.heal().rows == []


def test_a_server_that_is_away_costs_nothing_but_time(cluster_at: Open, s3_endpoint: S3Endpoint) -> None:
    filled(cluster_at(s3_endpoint.url), "a").tier().raise_for_failures()
    [nobody_there] = free_ports(1)
    cluster = filled(cluster_at(f"http://{HOST}:{nobody_there}"), "b")
    report = cluster.tier(check=False)
    assert {failure.code for failure in report.failures} <= {"KAFKA_STORAGE_ERROR", "BROKER_NOT_AVAILABLE"}
    assert (cell(report, "attempts"), cell(report, "remote_end")) == (1, 1)
    assert int(str(cell(report, "backlog_bytes"))) > 0
    again = cluster_at(s3_endpoint.url).tier().raise_for_failures()
    assert (cell(again, "remote_end"), cell(again, "backlog_bytes"), cell(again, "attempts")) == (2, 0, 0)


def test_a_wrong_credential_is_named_and_no_secret_is_shown(
    cluster_at: Open, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = filled(cluster_at(s3_endpoint.url), "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-at-all")
    cluster = filled(cluster_at(s3_endpoint.url.replace("127.0.0.1", "localhost")))
    report = cluster.tier(check=False)
    found = report.to_json()
    assert not report.ok
    assert "SignatureDoesNotMatch" in found or "AccessDenied" in found or "403" in found
    assert SECRET_KEY not in found
    assert "not-the-secret" not in found
    assert cell(report, "attempts") == 1


def test_damaged_and_missing_objects_are_found_and_rebuilt(cluster_at: Open, s3_endpoint: S3Endpoint) -> None:
    """Segments are small, or of several parts; the broker has dropped its records, and still has the files."""
    cluster = filled(cluster_at(s3_endpoint.url), "a", "b", "c")
    cluster.topics.alter_configs("t", {"compression.type": "uncompressed"})
    filled(cluster, "d" * 10_000_000, "e" * 10_000_000, "f").tier().raise_for_failures()
    remote = ports_of(cluster).storage.remote_store("it is tiered")
    objects = [stored.name for stored in remote.list("") if stored.name.endswith(".parquet")]
    for name in (objects[1], objects[3]):
        data = bytearray(remote.read(name))
        data[40] ^= 1
        remote.delete([name])
        remote.create(name, bytes(data))
    remote.delete([objects[2], objects[4]])
    assert not cluster.retain(check=False).ok
    healed = cluster_at(s3_endpoint.url).heal().raise_for_failures()
    assert [row["outcome"] for row in healed.rows] == ["repaired"] * 4
    again = cluster_at(s3_endpoint.url)
    again.verify(deep=True).raise_for_failures()
    again.retain().raise_for_failures()

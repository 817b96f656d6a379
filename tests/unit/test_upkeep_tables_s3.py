"""Tables for other programs on a real S3 server: of snapshots, and of Iceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench.s3_server import ACCESS_KEY, SECRET_KEY
from stratalog import Cluster
from stratalog.tiering import delta_options
from tests.ports import ports_of
from tests.s3_server import S3Endpoint
from tests.unit.cluster_harness import TIERED
from tests.unit.harness import batch
from tests.unit.snapshot_harness import keyed

pytestmark = pytest.mark.s3


@pytest.fixture
def cluster(tmp_path: Path, s3_endpoint: S3Endpoint, request: pytest.FixtureRequest) -> Cluster:
    """A broker on a folder, the remote tier in a bucket."""
    (tmp_path / "b1").mkdir()
    file = tmp_path / "cluster.toml"
    remote = f"s3://{s3_endpoint.bucket}/{request.node.name}"
    file.write_text(
        f'[cluster]\nid = "c"\nremote = "{remote}"\nvoters = [1]\n[[brokers]]\nid = 1\nlog_dir = "b1"\n'
        f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\nretries = 1\n'
    )
    return Cluster.format(file)


def test_a_snapshot_is_published_as_a_table_on_s3_and_deleted_with_its_topic(cluster: Cluster) -> None:
    configs = {"cleanup.policy": "snapshot", "remote.snapshot.table.enable": "true", "file.delete.delay.ms": "0"}
    cluster.topics.create("t", partitions=1, replication_factor=1, configs=configs)
    for value in "12":
        cluster.append_batches("t", {0: [keyed([("k", value)], 1)]}).raise_for_failures()
        (row,) = cluster.snapshot("t", by_hand=True).raise_for_failures().rows
        assert row["published"]
    ports = ports_of(cluster)
    ours = ports.storage.snapshot_table(cluster.image.topic("t"))
    options = delta_options.storage_options(ours.uri, ports.storage.file.remote_storage)
    assert DeltaTable(ours.uri, storage_options=options).to_pyarrow_table()["value"].to_pylist() == [b"2"]
    names = [stored.name for stored in ours.remote.walk(ours.folder)]
    assert sum(name.endswith(".parquet") for name in names) == 1
    cluster.topics.delete("t").raise_for_failures()
    assert ours.remote.walk(ours.folder) == []


@pytest.fixture
def catalogs(
    tmp_path: Path, s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Any:
    """pyiceberg's catalogs: ``lake`` has a warehouse of its own in the bucket."""
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="needs stratalog[iceberg]")
    pytest.importorskip("sqlalchemy", reason="pyiceberg's catalog in SQLite needs SQLAlchemy")
    from pyiceberg.utils.config import Config

    properties = {
        "TYPE": "sql",
        "URI": f"sqlite:///{tmp_path}/catalog.db",
        "WAREHOUSE": f"s3://{s3_endpoint.bucket}/warehouse/{request.node.name}",
        "S3__ENDPOINT": s3_endpoint.url,
        "S3__REGION": s3_endpoint.region,
        "S3__ACCESS_KEY_ID": ACCESS_KEY,
        "S3__SECRET_ACCESS_KEY": SECRET_KEY,
    }
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    return catalogs


def test_a_tiered_topic_is_listed_in_an_iceberg_table_on_s3(cluster: Cluster, catalogs: Any) -> None:
    configs = {**TIERED, "remote.iceberg.table": "lake.flights.trips"}
    cluster.topics.create("t", partitions=1, replication_factor=1, configs=configs)
    for value in "abc":
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    cluster.tier("t").raise_for_failures()
    rows = catalogs.load_catalog("lake").load_table("flights.trips").scan().to_arrow().sort_by("offset")
    assert rows["value"].to_pylist() == [b"a", b"b", b"c"]


def test_the_history_of_an_iceberg_table_is_erased(cluster: Cluster, catalogs: Any, tmp_path: Path) -> None:
    configs = {**TIERED, "remote.iceberg.table": "lake.flights.trips", "file.delete.delay.ms": "0"}
    cluster.topics.create("t", partitions=1, replication_factor=1, configs=configs)
    for key in ("anna", "zoe", "bert"):
        cluster.produce("t", pa.table({"key": [key.encode()], "value": [b"v"]}))
        cluster.tier("t").raise_for_failures()
    report = cluster.erase("t", ["zoe"], certificate=tmp_path / "erased.json")
    assert report.whole
    table = catalogs.load_catalog("lake").load_table("flights.trips")
    rows = table.scan("control IS NULL").to_arrow().sort_by("offset")
    assert rows["key"].to_pylist() == [b"anna", b"bert"]
    entries = [
        entry
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    bounds = [(entry.data_file.lower_bounds, entry.data_file.upper_bounds) for entry in entries]
    assert "anna" in str(bounds)
    assert "zoe" not in str(bounds)
    assert cluster.verify_erased(tmp_path / "erased.json").ok

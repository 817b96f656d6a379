"""Erases records from brokers in a bucket."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Cluster
from tests.ports import ports_of
from tests.s3_server import S3Endpoint
from tests.unit.snapshot_harness import keyed

pytestmark = pytest.mark.s3


def test_nothing_of_a_key_is_left_in_the_bucket(
    tmp_path: Path, s3_endpoint: S3Endpoint, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "cluster.toml"
    root = f"s3://{s3_endpoint.bucket}/{request.node.name}"
    brokers = "".join(f'[[brokers]]\nid = {broker}\nlog_dir = "{root}/b{broker}"\n' for broker in (1, 2))
    file.write_text(
        f'[cluster]\nid = "c"\nvoters = [1]\n{brokers}'
        f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\nretries = 1\n'
    )
    cluster = Cluster.format(file)
    cluster.topics.create("t", partitions=1, replication_factor=2)
    for number in range(4):
        pairs = [(f"keep-{number}", "1"), ("erase-me", f"secret-{number}")]
        cluster.append_batches("t", {0: [keyed(pairs, 1)]}).raise_for_failures()
    report = cluster.erase("t", ["erase-me"], now=True, certificate=tmp_path / "c.json")
    assert report.whole
    assert cluster.verify_erased(tmp_path / "c.json").ok
    assert cluster.fetch("t", 0, 0).records.column("offset").to_pylist() == [0, 2, 4, 6]
    for store in cluster.stores.values():
        for stored in store.list(""):
            data = store.read(stored.name)
            decoded = str(pq.read_table(BytesIO(data)).to_pylist()) if data[:4] == b"PAR1" else ""
            assert b"erase-me" not in data
            assert "erase-me" not in decoded
            assert "secret-" not in decoded


@pytest.mark.parametrize("policy", ["delete", "compact", "snapshot"])
def test_nothing_of_a_key_is_left_in_the_remote_bucket(
    tmp_path: Path, s3_endpoint: S3Endpoint, request: pytest.FixtureRequest, policy: str
) -> None:
    file = tmp_path / "cluster.toml"
    root = f"s3://{s3_endpoint.bucket}/{request.node.originalname}-{policy}"
    file.write_text(
        f'[cluster]\nid = "c"\nremote = "{root}/remote"\nvoters = [1]\n'
        f'[[brokers]]\nid = 1\nlog_dir = "{root}/b1"\n'
        f'[s3]\nendpoint_url = "{s3_endpoint.url}"\nregion = "{s3_endpoint.region}"\nretries = 1\n'
    )
    cluster = Cluster.format(file)
    configs = {"remote.storage.enable": "true", "segment.bytes": "1", "local.retention.bytes": "0"}
    configs |= {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0"}
    if policy == "snapshot":
        configs = {"cleanup.policy": policy, "remote.snapshot.table.enable": "true"}
    cluster.topics.create("t", partitions=1, replication_factor=1, key="STRING", configs=configs)
    for number in range(4):
        pairs = pa.table({"key": [f"keep-{number}", "erase-me"], "value": [b"1", b"secret-%d" % number]})
        cluster.produce("t", pairs)
    if policy == "snapshot":
        cluster.snapshot("t", by_hand=True).raise_for_failures()
    else:
        cluster.tier("t").raise_for_failures()
        cluster.retain("t").raise_for_failures()
    if policy == "compact":
        assert cluster.compact("t").totals["remote_removed"]
    report = cluster.erase("t", ["erase-me"], now=True, certificate=tmp_path / "c.json")
    assert report.whole
    assert cluster.verify_erased(tmp_path / "c.json").ok
    if policy != "snapshot":
        assert cluster.fetch("t", 0, 0).records.column("offset").to_pylist()[:1] == [0]
    remote = ports_of(cluster).storage.remote
    assert remote is not None
    objects = list(remote.walk(""))
    assert any("_delta_log" in stored.name for stored in objects)
    for stored in objects:
        data = remote.read(stored.name)
        decoded = str(pq.read_table(BytesIO(data)).to_pylist()) if data[:4] == b"PAR1" else ""
        assert b"erase-me" not in data, stored.name
        assert "erase-me" not in decoded, stored.name
        assert "secret-" not in decoded, stored.name

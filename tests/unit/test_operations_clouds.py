"""The life of a log on a cluster whose brokers and remote tier are on emulators of Azure and Google."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster
from tests.cloud_servers import CloudEndpoint
from tests.unit.harness import batch

pytestmark = [pytest.mark.s3, pytest.mark.nightly]

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "local.retention.bytes": "0",
}


@pytest.mark.parametrize("kind", ["azure", "gcs"])
def test_a_cluster_appends_replicates_tiers_reads_and_verifies_on_a_cloud(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    endpoint: CloudEndpoint = request.getfixturevalue(f"{kind}_endpoint")
    root = f"{endpoint.root}/life"
    brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "{root}/b{n}"\n' for n in (1, 2, 3))
    file = tmp_path / "cluster.toml"
    file.write_text(f'[cluster]\nid = "c"\nremote = "{root}/remote"\nvoters = [1, 2, 3]\n{brokers}')
    cluster = Cluster.format(file)
    cluster.topics.create("t", partitions=1, replication_factor=3, configs=TIERED)
    for value in ("a", "b", "c"):
        cluster.append_batches("t", {0: [batch([value])]}).raise_for_failures()
    again = Cluster.open(file)
    again.replicate().raise_for_failures()
    assert again.tier().raise_for_failures().totals["uploaded_files"] == 3
    again.retain().raise_for_failures()
    again.append_batches("t", {0: [batch(["d"])]}).raise_for_failures()
    again.replicate().raise_for_failures()
    fetched = again.fetch("t", 0, 0)
    values = list(fetched.records.column("value").to_pylist())
    while len(values) < 4:  # the rest comes from the other tier
        values += again.fetch("t", 0, len(values)).records.column("value").to_pylist()
    assert values == [b"a", b"b", b"c", b"d"]
    again.verify(deep=True).raise_for_failures()
    again.vacuum().raise_for_failures()

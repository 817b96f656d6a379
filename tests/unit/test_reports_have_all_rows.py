"""A report has a row for every requested partition, including those that an operation has not tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster, Report
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import batch

ASKED = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]

OPERATIONS: dict[str, Callable[[Cluster], Report]] = {
    "replicate": lambda cluster: cluster.replicate(check=False),
    "merge": lambda cluster: cluster.merge(check=False),
    "tier": lambda cluster: cluster.tier(check=False),
    "retain": lambda cluster: cluster.retain(check=False),
    "verify": lambda cluster: cluster.verify(deep=True),
    "delete_records": lambda cluster: cluster.topics.delete_records("a", {0: 0, 1: 0}, check=False),
}


def _no_fault(_: LiveCluster) -> None:
    """No fault."""


def _broker_away(live: LiveCluster) -> None:
    (live.folder / "b3").rename(live.folder / "away")


def _tables_damaged(live: LiveCluster) -> None:
    for entry in live.folder.rglob("_delta_log/*.json"):
        entry.write_bytes(b"{")


def _folder_is_a_file(live: LiveCluster) -> None:
    """Replace the folder of topic a on each broker by a file."""
    for folder in [found for broker in ("b1", "b2", "b3") for found in (live.folder / broker).glob("*/a-*")]:
        folder.rename(folder.with_name("elsewhere"))
        folder.write_bytes(b"")


FAULTS = (_no_fault, _broker_away, _tables_damaged, _folder_is_a_file)


@pytest.mark.sample(12)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_partition_has_a_row(operation: str, fault: Callable[[LiveCluster], None], tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    for topic, copies in (("a", 3), ("b", 1)):
        configs = {"remote.storage.enable": "true", "segment.bytes": "1"}
        live.cluster.topics.create(topic, partitions=2, replication_factor=copies, configs=configs)
        for _ in range(2):
            live.cluster.append_batches(topic, {0: [batch("x")], 1: [batch("y")]})
    live.cluster.tier()
    fault(live)
    report = OPERATIONS[operation](live.driver())
    rows = {(row["topic"], row["partition"]) for row in report.rows} - {("__cluster_metadata", 0)}
    assert sorted(rows, key=str) == [one for one in ASKED if operation != "delete_records" or one[0] == "a"]
    assert report.ok or report.failures

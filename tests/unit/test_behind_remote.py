"""Brokers that are behind their remote tier: their storage was put back from an older copy, or emptied, and the
remote tier is whole. Nothing is appended before the leader goes on from the end of the remote log."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.cluster import Cluster
from tests.unit.cluster_harness import TIERED, LiveCluster, codes

KEPT = {**TIERED, "local.retention.bytes": "-2"}
"""Tiered, and kept on the brokers too."""


class PutBack(LiveCluster):
    """A cluster on folders of which copies are kept, and put back beneath the brokers' ``broker.json``."""

    def __init__(self, folder: Path, replicas: int) -> None:
        super().__init__(folder, 3, on_disk=True, voters=(1, 2, 3))
        self.cluster.topics.create("t", partitions=1, replication_factor=replicas, configs=KEPT)
        self.copies = folder / "copies"

    def add(self, *numbers: int) -> None:
        """An append for each number, by the driver of before."""
        for number in numbers:
            self.append([f"v{number}"]).raise_for_failures()

    def copy(self) -> None:
        """Copy the brokers' folders away."""
        for broker in (1, 2, 3):
            shutil.copytree(self.root(broker), self.copies / str(broker))

    def put_back(self) -> Cluster:
        """Put the copies back; a driver that knows nothing of before."""
        for broker in (1, 2, 3):
            self._empty(self.root(broker))
            for entry in (self.copies / str(broker)).iterdir():
                if entry.is_dir():
                    shutil.copytree(entry, self.root(broker) / entry.name)
        return self.fresh()

    def put_records_back(self) -> Cluster:
        """The same of the topic's folders alone: the metadata stays."""
        for broker in (1, 2, 3):
            copied = self.copies / str(broker)
            for old in copied.glob("*/t-*"):
                new = self.root(broker) / old.relative_to(copied)
                shutil.rmtree(new)
                shutil.copytree(old, new)
        return self.fresh()

    def lose_records(self) -> Cluster:
        """The topic's folders are gone."""
        for broker in (1, 2, 3):
            for folder in self.root(broker).glob("*/t-*"):
                shutil.rmtree(folder)
        return self.fresh()

    def fresh(self) -> Cluster:
        """Another driver, from now on that of the appends."""
        self.cluster = self.driver()
        return self.cluster

    def _empty(self, root: Path) -> None:
        for entry in root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)


LOST: dict[str, Callable[[PutBack], Cluster]] = {
    "brokers with their metadata": PutBack.put_back,
    "the topic's folders": PutBack.put_records_back,
    "no folders": PutBack.lose_records,
}


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("lost", LOST)
def test_a_partition_behind_its_remote_log_takes_nothing_and_goes_on_from_its_end(
    tmp_path: Path, lost: str, replicas: int
) -> None:
    live = PutBack(tmp_path, replicas)
    live.add(*range(12))
    live.copy()
    live.add(*range(12, 30))
    live.cluster.tier().raise_for_failures()
    driver = LOST[lost](live)
    assert codes(live.append(["too early"])) == {"LOG_BEHIND_REMOTE": 1}
    assert "LOG_BEHIND_REMOTE" in codes(driver.verify())
    assert "LOG_BEHIND_REMOTE" in codes(driver.verify(deep=True))
    assert "LOG_BEHIND_REMOTE" in codes(driver.describe())
    assert "behind-remote" in [row["finding"] for row in driver.health().rows]
    assert "LOG_BEHIND_REMOTE" in codes(driver.tier())
    report = driver.replicate()
    assert codes(report) == {}
    assert any("goes on from the end" in note for note in report.notes)
    live.add(30, 31)
    assert live.read() == {0: [f"v{number}" for number in range(32)]}
    driver.tier().raise_for_failures()
    driver.verify(deep=True).raise_for_failures()
    assert codes(driver.health()) == {}

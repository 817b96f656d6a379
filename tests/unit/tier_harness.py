"""A cluster whose remote tier fails as a test requires, and serial drivers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

import stratalog.tiering.delta_table
from stratalog import Cluster
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store import Store
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.ports import in_turn, ports_of
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import FaultyStore

Call = Callable[[], object]


class RemoteFaults(LiveCluster):
    """``on_remote(what, name, call)`` wraps every call to the remote store; ``down`` is the whole remote tier,
    tables included.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, brokers: int = 3) -> None:
        self.down: Callable[[], None] | None = None
        """Raises the error of every call to the remote tier."""
        self.on_remote: Callable[[str, str, Call], object] = lambda what, name, call: call()
        live = self

        class Table(DeltaTopicTable):
            def _open(self) -> DeltaTable | None:
                live.check()
                return super()._open()

        patch.setattr(stratalog.tiering.delta_table, "DeltaTopicTable", Table)
        super().__init__(folder, brokers, through=self._wrapped)

    def check(self) -> None:
        """Raise the current error of the remote tier."""
        if self.down is not None:
            self.down()

    def _wrapped(self, uri: str, store: Store) -> Store:
        if not uri.endswith("remote"):
            return store
        faulty = FaultyStore(store)

        def hook(what: str, name: str, call: Call) -> object:
            self.check()
            return self.on_remote(what, name, call)

        faulty.hook = hook
        return faulty

    def ports(self, driver: Cluster | None = None) -> Ports:
        return ports_of(driver or self.cluster)

    def in_turn(self) -> Cluster:
        """Another driver, which works serially."""
        return in_turn(self.driver())

    def remote_ends(self, topic: str = "t") -> dict[int, int]:
        """The end of each partition in the remote table."""
        image = self.cluster.image
        log = DeltaTopicTable.load(self.ports().storage.remote_table(image.topic(topic)))
        return {partition: found[-1].next_offset for partition, found in log.segments.items()}


def refused() -> None:
    """The error of an unreachable remote tier."""
    raise StorageError("the remote tier cannot be reached")


def states(report: Report) -> dict[tuple[str, int], tuple[int, int]]:
    """Attempts, and the age of the first failure, by topic and partition."""
    return {
        (str(row["topic"]), int(str(row["partition"]))): (int(str(row["attempts"])), int(str(row["failing_ms"])))
        for row in report.rows
    }

"""The places of a topic's replicas, and brokers that accept none, for tests of reassignments."""

from __future__ import annotations

from stratalog.partitions.errors import StorageError
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults


def replicas(live: LiveCluster, topic: str = "t", partition: int = 0) -> tuple[int, ...]:
    return live.replicas(topic, partition).view.replicas


def two_others(live: LiveCluster) -> tuple[int, int]:
    """The brokers without a replica of t-0, which has three."""
    one, two = sorted({1, 2, 3, 4, 5} - {*replicas(live)})
    return one, two


def without_copies(faults: Faults, *brokers: int) -> None:
    """Let all copies to these brokers fail."""

    def fail(uri: str, what: str, name: str) -> None:
        if what == "stage" and uri in {f"memory://b{broker}" for broker in brokers}:
            raise StorageError(f"no space left on {uri}")

    faults.before = fail

"""Topics with tiered logs, and the result of retention."""

from __future__ import annotations

from stratalog.engine.driver.report import Report
from tests.unit.cluster_harness import LiveCluster


def local_start(live: LiveCluster, broker: int | None = None) -> int:
    return live.log(live.leader() if broker is None else broker).local_start


def filled(live: LiveCluster, values: str, **configs: str) -> None:
    """A topic that is tiered completely, one segment per value."""
    live.tiered(**configs)
    live.fill(values)
    live.cluster.tier().raise_for_failures()


def retained(live: LiveCluster) -> Report:
    """Run retention twice: it moves local starts first, then deletes the files below them."""
    live.cluster.retain().raise_for_failures()
    return live.cluster.retain().raise_for_failures()

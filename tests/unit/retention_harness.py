"""Topics whose logs are tiered, and what retention leaves of them."""

from __future__ import annotations

from stratalog.engine.driver.report import Report
from tests.unit.cluster_harness import LiveCluster


def local_start(live: LiveCluster, broker: int | None = None) -> int:
    return live.log(live.leader() if broker is None else broker).local_start


def filled(live: LiveCluster, values: str, **configs: str) -> None:
    """A topic of which all is tiered, one segment a value."""
    live.tiered(**configs)
    live.fill(values)
    live.cluster.tier().raise_for_failures()


def retained(live: LiveCluster) -> Report:
    """Twice: local starts first, then what lies below them."""
    live.cluster.retain().raise_for_failures()
    return live.cluster.retain().raise_for_failures()

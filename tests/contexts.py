"""The context behind the door of a cluster, for tests of the floors below. Nothing else reaches for it."""

from __future__ import annotations

from stratalog import Cluster
from stratalog.engine.driver.context import Context


def context_of(cluster: Cluster) -> Context:
    """The context that the operations of ``cluster`` work with."""
    return cluster._context

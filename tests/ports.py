"""The ports behind the door of a cluster, for tests of the floors below. Nothing else reaches for them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from stratalog import Cluster
from stratalog.engine.driver.opening import Ports

_NAMES = ("metadata", "storage", "execution", "clock", "memory", "events")


def ports_of(cluster: Cluster) -> Ports:
    """The ports of the operations of ``cluster``."""
    return cluster._ports


def with_ports(operation: Callable[..., Any], ports: Ports) -> partial[Any]:
    """The operation with those ports that its signature names first."""
    named = [name for name in inspect.signature(operation).parameters if name in _NAMES]
    return partial(operation, *(getattr(ports, name) for name in named))

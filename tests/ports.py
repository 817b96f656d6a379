"""The ports of an open cluster, for tests of the lower layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from stratalog import Cluster
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.partitions.probing import SerialProber
from stratalog.partitions.runner import SerialRunner

_NAMES = ("metadata", "storage", "execution", "clock", "memory", "events")


def ports_of(cluster: Cluster) -> Ports:
    """The ports of the operations of ``cluster``."""
    return cluster._ports


def in_turn(driver: Cluster) -> Cluster:
    """The driver, which works serially from now on."""
    ports = driver._ports
    ports.execution.tasks, ports.storage.threads, ports.storage.prober = (
        LocalTasks(1),
        SerialRunner(),
        SerialProber(),
    )
    return driver


def with_ports(operation: Callable[..., Any], ports: Ports) -> partial[Any]:
    """The operation, bound to the ports that its signature names first."""
    named = [name for name in inspect.signature(operation).parameters if name in _NAMES]
    return partial(operation, *(getattr(ports, name) for name in named))

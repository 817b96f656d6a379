"""The cluster with the methods of all bridges: the class that the door hands out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from stratalog.engine.cluster import Cluster as Core
from stratalog.engine.config.bridges import Bridge, bridges
from stratalog.partitions.errors import EnvironmentUnusableError


def with_bridges() -> type[Core]:
    """A subclass of ``Cluster`` with the methods of each bridge; those of one that is not installed raise
    EnvironmentUnusableError. The core's own methods go before.
    """
    homes = tuple(_home(bridge) for bridge in bridges() if bridge.home)
    return type(
        "Cluster", (Core, *homes), {"__doc__": Core.__doc__, "__module__": "stratalog", "__qualname__": "Cluster"}
    )


def _home(bridge: Bridge) -> type:
    try:
        loaded: type = bridge.load(bridge.home)
    except EnvironmentUnusableError:
        return type(f"No{bridge.name.title()}", (), {name: _absent(bridge) for name in bridge.methods})
    return loaded


def _absent(bridge: Bridge) -> Callable[..., NoReturn]:
    def absent(*_: Any, **__: Any) -> NoReturn:
        raise bridge.missing()

    return absent


Cluster = with_bridges()

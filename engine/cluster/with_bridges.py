"""The cluster with the methods of all bridges: the class that users import."""

from __future__ import annotations

from typing import Any, NoReturn

from stratalog.engine.cluster import Cluster as Core
from stratalog.engine.config.bridges import Bridge, bridges, warn
from stratalog.partitions.errors import EnvironmentUnusableError


def with_bridges() -> type[Core]:
    """Return a subclass of ``Cluster`` with the methods of each bridge. If a bridge is not installed, or cannot be
    loaded, its methods raise EnvironmentUnusableError. The core's own methods take precedence."""
    homes: tuple[type, ...] = ()
    for bridge in bridges():
        if bridge.home:
            homes += (_home(bridge, homes),)
    return type(
        "Cluster", (Core, *homes), {"__doc__": Core.__doc__, "__module__": "stratalog", "__qualname__": "Cluster"}
    )


def _home(bridge: Bridge, others: tuple[type, ...]) -> type:
    """Return the class with the methods of a bridge. Logs a warning if this class cannot be a base class of
    ``Cluster`` together with the ``others``."""
    try:
        loaded: type = bridge.load(bridge.home)
        type("Cluster", (Core, *others, loaded), {})
    except EnvironmentUnusableError as error:
        return _absent(bridge, error)
    except Exception as error:  # foreign code may raise anything
        broken = bridge.broken(error)
        warn(broken)
        return _absent(bridge, broken)
    return loaded


def _absent(bridge: Bridge, why: EnvironmentUnusableError) -> type:
    """Return a class with the methods of a missing bridge. Each method raises ``why``."""

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise EnvironmentUnusableError(str(why))

    return type("Absent", (), dict.fromkeys(bridge.methods, absent))


Cluster = with_bridges()

"""The replaceable parts of a cluster: clock, ids, storage, probes. Tests, simulations and benchmarks replace them
with ``with_parts``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from stratalog.engine.driver.opening import OpenStore
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.probing import Prober
from stratalog.partitions.store import open_store

if TYPE_CHECKING:
    from stratalog.engine.cluster import Cluster

    C = TypeVar("C", bound=Cluster)


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The parts that a class of clusters uses. If ``prober`` is None, probes use threads."""

    clock: Clock = field(default_factory=SystemClock)
    new_id: NewId = random_id
    opener: OpenStore = open_store
    prober: Prober | None = None


def with_parts(
    door: type[C],
    *,
    clock: Clock | None = None,
    new_id: NewId = random_id,
    opener: OpenStore = open_store,
    prober: Prober | None = None,
) -> type[C]:
    """Return a subclass of the client class ``door`` (such as Cluster) with the given parts: ``with_parts(Cluster,
    clock=clock).open(file)``."""
    parts = ClusterParts(clock if clock is not None else SystemClock(), new_id, opener, prober)
    return type(door.__name__, (door,), {"_parts": parts, "__doc__": door.__doc__, "__module__": door.__module__})

"""Snapshots of the metadata log: taken, counted and damaged, for tests."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.upkeep import Upkeep, keep_up
from stratalog.engine.quorum.voter import VoterListing
from stratalog.partitions.paths import CheckpointName, DataName, base_name, parse_name
from tests.unit.quorum_harness import Quorum, config, unreachable

LAG_MS = 7 * 24 * 60 * 60 * 1000


def committed(log: MetadataLog, *values: int) -> ClusterImage:
    """Commit a batch for each value."""
    for value in values:
        log.claim()
        image = log.commit(config(value))
    return image


def snapshot(quorum: Quorum, log: MetadataLog | None = None) -> Upkeep:
    return keep_up(log if log is not None else quorum.log(), quorum.clock, lag_ms=LAG_MS)


def takes_no_snapshot(what: str, name: str, call: Callable[[], object]) -> object:
    """A hook: no snapshot gets its name."""
    if what in ("create", "commit") and isinstance(parse_name(base_name(name)), CheckpointName):
        return unreachable(what, name, call)
    return call()


def listing(quorum: Quorum, broker: int) -> VoterListing:
    return quorum.voters[broker - 1].list()


def ends(quorum: Quorum, broker: int = 1) -> list[int]:
    """The end offsets of the snapshots of a voter."""
    return sorted(name.end_offset for name in listing(quorum, broker).checkpoints)


def bases(quorum: Quorum, broker: int = 1) -> list[int]:
    """The base offsets of the data files of a voter."""
    return sorted(name.base_offset for name in listing(quorum, broker).files)


def path(quorum: Quorum, broker: int, name: CheckpointName | DataName) -> str:
    return quorum.voters[broker - 1].path(name)


def damage(quorum: Quorum, broker: int, end: int) -> None:
    """Flip a bit in the middle of a snapshot."""
    (name,) = (name for name in listing(quorum, broker).checkpoints if name.end_offset == end)
    store, where = quorum.stores[broker], path(quorum, broker, name)
    content = bytearray(store.read(where))
    content[len(content) // 2] ^= 1
    store.delete([where])
    store.create(where, bytes(content))

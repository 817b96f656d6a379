"""Variants of the checks of bytes, each without one property (``mutations_of_bytes``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stratalog.engine.replicas.logs import NOT_WALKED, Walked
from stratalog.engine.replicas.repair import Repair
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.watermark import record_high_watermark
from stratalog.engine.upkeep.verification.structure import ReplicaStructure, _SeenReplica
from stratalog.partitions.errors import OutcomeUnknownError, RetriableError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing
from stratalog.partitions.runner import Runner
from stratalog.partitions.segments.check import CheckedSegment, check_segment
from stratalog.partitions.store import Store


def unchecked(*_: object) -> None:
    """The bytes are not read."""


def deleting_what_is_forgotten(*given: Any, forgotten: bool = False, **more: Any) -> Repair:
    """Without "it is not deleted"."""
    return Repair(*given, **more)


def nothing_wrong(*_: object) -> Iterator[Any]:
    """The bytes are not read, and nothing is reported."""
    return iter(())


def line_of(content: bytes) -> bytes:
    """Without "a second one is its CRC-32"."""
    return content.rpartition(b"\n")[0]


def nothing_bad(store: Store, file: DataFile) -> CheckedSegment:
    """Everything is read, and considered good."""
    return replace(check_segment(store, file), bad=())


def known_of_any_epoch(
    replicas: PartitionReplicas,
    seen: Mapping[int, _SeenReplica],
    looks: Iterable[ReplicaStructure],
    leader: ReplicaStructure,
) -> Iterator[tuple[int, str]]:
    """Without "once both have joined the view's epoch"."""
    for other in looks:
        if other is not leader and other.joined_epoch == leader.joined_epoch:
            yield other.end, f"broker {other.broker_id} has copied records up to"


def followers_first(replicas: PartitionReplicas, offset: int, _copies: Runner) -> None:
    """As when all replicas get the file at once, and the leader's is the slowest."""
    for broker in (*replicas.acknowledging, replicas.leader.broker_id):
        with suppress(RetriableError, OutcomeUnknownError):
            record_high_watermark(replicas.replica(broker), replicas.epoch, offset)


def all_of_it(listing: Listing, lineage: Lineage) -> int:
    """Without "what it knows to be committed"."""
    return 1 << 62


def nothing_walked(*_: object) -> Walked:
    """Each partition is listed by itself: a finding of a walk is always checked once more."""
    return NOT_WALKED


def leader_first(items: Iterable[Any], key: Callable[[Any], Any] | None = None) -> list[Any]:
    """Without "followers before their leader": the replicas are sorted only by whether they lead."""
    found = sorted(items, key=key)  # type: ignore[type-var]
    return found[::-1] if key is not None and {type(each) for each in map(key, found)} == {bool} else found

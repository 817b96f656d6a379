"""State transitions of a partition that proposals, elections and reassignments share. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import UNSET, UnsetType

from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionImage
from stratalog.engine.metadata.records import PartitionChangeRecord

Value = TypeVar("Value")


def first_candidate(order: Sequence[int], isr: Container[int], brokers: Mapping[int, BrokerImage]) -> int | None:
    """The leader in a clean election: the first unfenced member of the ISR in order of preference."""
    return next((broker for broker in order if broker in isr and not brokers[broker].fenced), None)


def in_order(order: Sequence[int], members: Iterable[int]) -> tuple[int, ...]:
    """The ``members`` that are in ``order``, in that order."""
    wanted = set(members)
    return tuple(broker for broker in order if broker in wanted)


def is_complete(present: PartitionImage, isr: Iterable[int]) -> bool:
    """Whether a reassignment is in progress that this ISR completes."""
    return bool(present.target) and set(present.joining) <= set(isr)


def replace_replicas(
    image: ClusterImage,
    topic_id: str,
    present: PartitionImage,
    *,
    replicas: tuple[int, ...],
    isr: Iterable[int],
    adding: Iterable[int],
    target: tuple[int, ...] = (),
    joining: tuple[int, ...] = (),
) -> PartitionChangeRecord | None:
    """The record that sets these replicas; None if they are already set. Members of the ISR remain members, and
    replicas being added are still added, if they are among the new replicas. If the leader is removed, a member of
    the ISR becomes the leader, or there is no leader.
    """
    isr, adding = in_order(replicas, isr), in_order(replicas, adding)
    leader: int | UnsetType | None = UNSET
    if present.leader is not None and present.leader not in isr:
        leader, adding = first_candidate(replicas, isr, image.brokers), ()
    before = (present.replicas, present.target, present.joining, present.isr, present.adding)
    if before == (replicas, target, joining, isr, adding):
        return None
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition=present.partition,
        replicas=_if_other(present.replicas, replicas),
        target=_if_other(present.target, target),
        joining=_if_other(present.joining, joining),
        isr=_if_other(present.isr, isr),
        adding=_if_other(present.adding, adding),
        leader=leader,
    )


def _if_other(before: Value, after: Value) -> Value | UnsetType:
    return UNSET if after == before else after

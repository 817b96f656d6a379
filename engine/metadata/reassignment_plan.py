"""Plans of replicas in Kafka's JSON format, and plans computed from requested changes. Pure.

    {"version": 1, "partitions": [{"topic": "trips", "partition": 0, "replicas": [2, 3]}]}

A change (``ReplicaChange``) applies to the target of a reassignment in progress if there is one, otherwise to the
current replicas. Other replicas stay, in their order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.placement import Placer
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.numbers import whole

ReplicaPlan = Mapping[TopicPartition, Sequence[int]]
"""By topic and partition, the target brokers in order of preference."""

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """The changes, in this order: moves, additions, removals, drained brokers, replication factor."""

    add: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()
    move: Mapping[int, int] = field(default_factory=dict)
    """From broker to broker; partitions without a replica on the first broker are unchanged."""
    drain: tuple[int, ...] = ()
    """Every replica leaves these brokers for brokers that the placement chooses."""
    replication_factor: int | None = None

    @property
    def brokers(self) -> set[int]:
        """All brokers that the change names."""
        return {*self.add, *self.remove, *self.move, *self.move.values(), *self.drain}


class _PlannedPartition(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int
    replicas: list[int]
    log_dirs: list[str] = []


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    partitions: list[_PlannedPartition]


def parse_plan(text: str | bytes, what: str) -> ReplicaPlan:
    """Parse a plan from JSON in the format of Kafka's ``kafka-reassign-partitions``; ``what`` names the text.

    Raises: InvalidCallError saying where the text is wrong.
    """
    try:
        found = parse_json(text, _PlanFile)
    except ValueError as error:
        raise InvalidCallError(
            f"{what} is not a reassignment plan: {error}; the format is "
            '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}]}'
        ) from error
    if found.version != 1:
        raise InvalidCallError(f"{what} is a plan of version {found.version}; only version 1 is supported")
    plan: dict[TopicPartition, tuple[int, ...]] = {}
    for planned in found.partitions:
        key = planned.topic, planned.partition
        if key in plan:
            raise InvalidCallError(f"{what} names {_name(key)} twice; give each partition once")
        if set(planned.log_dirs) - {"any"}:
            raise InvalidCallError(
                f'{what}: log_dirs of {_name(key)}: a broker has one log dir; omit log_dirs, or write "any"'
            )
        plan[key] = tuple(planned.replicas)
    return plan


def plan_json(plan: ReplicaPlan) -> str:
    """The plan's JSON text; ``parse_plan`` reads it."""
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in plan.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions}, indent=1) + "\n"


def plain_plan(plan: ReplicaPlan) -> ReplicaPlan:
    """The plan with plain ints. Raises: InvalidCallError for any other value."""
    plain: dict[TopicPartition, tuple[int, ...]] = {}
    for key, replicas in plan.items():
        match key:
            case (str() as topic, number):
                partition = whole(number, f"the plan names topic {topic!r}: partition")
                name = _name((topic, partition))
                plain[topic, partition] = tuple(whole(broker, f"{name}: broker") for broker in replicas)
            case _:
                raise InvalidCallError(
                    f"the plan names {key!r}, which is not a partition: write it as (topic, number)"
                )
    return plain


def check_plan(image: ClusterImage, plan: ReplicaPlan) -> None:
    """Check the plan as a whole, independent of the state of brokers.

    Raises: UnknownTopicOrPartitionError, UnknownBrokerError naming all that are unknown;
        InvalidReplicaAssignmentError for a partition without replicas, or with two on one broker.
    """
    unknown = [
        key
        for key in plan
        if key[0] not in image.topic_ids or not 0 <= key[1] < len(image.topic(key[0]).partitions)
    ]
    if unknown:
        raise UnknownTopicOrPartitionError(
            f"the plan names partitions that do not exist: {', '.join(map(_name, unknown))}; nothing was changed"
        )
    check_brokers(image, {broker for replicas in plan.values() for broker in replicas})
    for key, replicas in plan.items():
        twice = sorted({broker for broker in replicas if list(replicas).count(broker) > 1})
        if twice or not replicas:
            wrong = f"broker {twice[0]} twice" if twice else "no replica at all"
            raise InvalidReplicaAssignmentError(
                f"{_name(key)}: the plan gives it {wrong} ({list(replicas)}); nothing was changed"
            )


def check_brokers(image: ClusterImage, brokers: Iterable[int]) -> None:
    """Check that the brokers are registered. Raises: UnknownBrokerError naming all that are not registered."""
    unknown = sorted(set(brokers) - image.brokers.keys())
    if unknown:
        raise UnknownBrokerError(
            f"not registered: broker {', '.join(map(str, unknown))}; the cluster has broker "
            f"{', '.join(map(str, sorted(image.brokers)))}; add it to the cluster file and format it first"
        )


def plan_change(image: ClusterImage, topics: Iterable[str], change: ReplicaChange) -> ReplicaPlan:
    """The partitions of the topics that the change alters, with their new replicas. Deterministic in image and
    change.

    Raises: UnknownTopicOrPartitionError, UnknownBrokerError; InvalidReplicaAssignmentError,
        InvalidReplicationFactorError naming the partitions that cannot be changed.
    """
    check_brokers(image, change.brokers)
    if both := {*change.add, *change.move.values()} & {*change.remove, *change.drain, *change.move}:
        raise InvalidReplicaAssignmentError(
            f"broker {min(both)} would both get and lose replicas in one call: request only one of these"
        )
    planner = _Planner(image, change)
    plan: dict[TopicPartition, tuple[int, ...]] = {}
    impossible: dict[tuple[type[InvalidCallError], str], list[str]] = {}
    for topic in dict.fromkeys(topics):
        for partition in image.topic(topic).partitions:
            before = goal(partition)
            try:
                after = planner.plan(before, partition.isr)
            except InvalidCallError as error:
                impossible.setdefault((type(error), str(error)), []).append(_name((topic, partition.partition)))
                continue
            if after != before:
                plan[topic, partition.partition] = after
    for (kind, why), where in impossible.items():
        more = f" and {len(where) - _MOST_NAMED} more" if len(where) > _MOST_NAMED else ""
        raise kind(f"{', '.join(where[:_MOST_NAMED])}{more}: {why}")
    return plan


def goal(partition: PartitionImage) -> tuple[int, ...]:
    """The target of a reassignment in progress, otherwise the current replicas."""
    return partition.target or partition.replicas


class _Planner:
    """Applies a change to one partition after the other, considering the load of the entire cluster."""

    def __init__(self, image: ClusterImage, change: ReplicaChange) -> None:
        self._change = change
        self._fenced = {broker.broker_id for broker in image.brokers.values() if broker.fenced}
        everywhere = {broker.broker_id: broker.rack for broker in image.brokers.values()}
        unusable = {*self._fenced, *change.drain, *change.remove, *change.move}
        usable = {broker_id: rack for broker_id, rack in everywhere.items() if broker_id not in unusable}
        # Seeded, so that a run does exactly what its dry run shows.
        self._placer = Placer(usable, random.Random(image.cluster_id), full=everywhere)
        for topic in image.topics.values():
            for partition in topic.partitions:
                self._placer.count(goal(partition))

    def plan(self, before: tuple[int, ...], isr: Sequence[int]) -> tuple[int, ...]:
        """The replicas of the next partition after the change.

        Raises: InvalidReplicaAssignmentError, InvalidReplicationFactorError, without the partition's name.
        """
        after = self._resized(self._drained(self._added_and_removed(self._moved(before))), isr)
        self._placer.count(before, -1)
        if before[0] not in after:  # another replica must become the preferred leader
            first = self._placer.leader([b for b in after if b not in self._fenced] or after)
            after = (first, *(b for b in after if b != first))
        self._placer.count(after)
        return after

    def _moved(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        for source, destination in self._change.move.items():
            if source in replicas and destination in replicas:
                raise InvalidReplicaAssignmentError(
                    f"broker {destination} already has a replica, so the replica on broker {source} cannot "
                    f"move there; remove the replica from {source}, or move it elsewhere"
                )
            replicas = tuple(destination if broker == source else broker for broker in replicas)
        return replicas

    def _added_and_removed(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        added = (*replicas, *(b for b in dict.fromkeys(self._change.add) if b not in replicas))
        after = tuple(b for b in added if b not in self._change.remove)
        if not after:
            raise InvalidReplicaAssignmentError(
                f"without broker {', '.join(map(str, sorted(replicas)))} no replica is left; "
                "add another replica as well"
            )
        return after

    def _drained(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        after = list(replicas)
        for index, broker in enumerate(replicas):
            if broker in self._change.drain:
                kept = [other for other in after if other not in self._change.drain]
                instead = self._placer.another(kept)
                if instead is None:
                    raise InvalidReplicaAssignmentError(
                        f"no unfenced broker is left to take the replica of broker {broker}; add a "
                        "broker, or lower the replication factor first"
                    )
                after[index] = instead
        return tuple(after)

    def _resized(self, replicas: tuple[int, ...], isr: Sequence[int]) -> tuple[int, ...]:
        factor = self._change.replication_factor
        if factor is None:
            return replicas
        if factor < 1:
            raise InvalidReplicationFactorError(f"replication factor {factor}: it must be at least 1")
        after = list(replicas)
        while len(after) < factor:
            another = self._placer.another(after)
            if another is None:
                raise InvalidReplicationFactorError(
                    f"replication factor {factor}, but only broker {', '.join(map(str, sorted(after)))} can "
                    "have a replica; add brokers, or bring back fenced brokers"
                )
            after.append(another)
        while len(after) > factor:
            # Remove fenced or out-of-sync replicas first, then replicas that are not the preferred leader.
            lame = [b for b in after if b in self._fenced or b not in isr]
            after.remove(self._placer.dispensable(after, lame or after[1:]))
        return tuple(after)


def _name(key: TopicPartition) -> str:
    return f"{key[0]}-{key[1]}"

"""Reassign: moves replicas of partitions to other brokers. New replicas are added before old replicas are removed
(Kafka's KIP-455).

    1. tasks: read the existing files that will replace the removed replicas (``letting_go``)
    2. commit the target replicas of all partitions in one commit; new replicas are *joining*
    3. replicate the topics to the new replicas; every byte is checked in transit
    4. the commit that adds the last new replica of a partition to its ISR completes the reassignment. The files
       that replace the removed replicas are read before that commit

An interrupted run needs no repair: ``replicate`` continues the reassignment, and ``cancel`` restores the former
replicas. ``vacuum`` deletes folders without an owner.

A throttle (``follower.replication.throttled.rate``) is committed with step 2, so that every driver's ``replicate``
obeys the throttle, even after this run has ended. The throttle is removed when no partition is being reassigned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.engine.metadata.reassignment_plan import (
    ReplicaChange,
    ReplicaPlan,
    check_plan,
    goal,
    plain_plan,
    plan_change,
)
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.throttle import checked_rate
from stratalog.engine.upkeep.replication.letting_go import CoverWork, check_covers, plan_cover
from stratalog.engine.upkeep.replication.planned import plan_copies, send_probe
from stratalog.engine.upkeep.replication.replicate import end_throttle, replicate
from stratalog.engine.upkeep.replication.replicate import plan as plan_replicate
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed

IN_PROGRESS = "REASSIGNMENT_IN_PROGRESS"


@dataclass(slots=True)
class _Planned:
    """The state of one partition of a plan during a run."""

    topic: str
    before: PartitionImage
    replicas: tuple[int, ...]
    refused: bool = False
    copied_bytes: int = 0
    """In a dry run, the bytes to copy."""

    def __str__(self) -> str:
        return f"{self.topic}-{self.before.partition}"


class ReassignRow(PartitionRow, frozen=True, kw_only=True):
    """A partition of the plan: with the outcome if the plan was carried out, or in a dry run with the bytes to
    copy. Brokers are separated by spaces.
    """

    replicas_before: str
    replicas: str
    joining: str
    leaving: str
    state: str | msgspec.UnsetType = msgspec.UNSET
    leader: int | msgspec.UnsetType | None = msgspec.UNSET
    copied_bytes: int | msgspec.UnsetType = msgspec.UNSET
    bytes: int | msgspec.UnsetType = msgspec.UNSET


class CancelRow(PartitionRow, frozen=True, kw_only=True):
    """A partition whose former replicas were restored."""

    replicas: str
    joining_no_more: str


def plan_replicas(metadata: MetadataClient, topics: Sequence[str] | None, change: ReplicaChange) -> ReplicaPlan:
    """The plan of a change for the topics (None: all), based on the current cluster. Changes nothing.

    Raises: see ``stratalog.engine.metadata.reassignment_plan.plan_change``.
    """
    image = metadata.image()
    return plan_change(image, [topic.name for topic in chosen_topics(image, topics)], change)


def reassign(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    plan: ReplicaPlan,
    *,
    force: bool = False,
    throttle_bytes_per_s: float | None = None,
    dry_run: bool = False,
) -> Report:
    """Carry out the plan. A partition that is refused, or cannot be finished now, is a failure in the report; the
    run continues with the other partitions. ``force`` also removes the last replica in sync; records that only
    this replica has are lost.

    Raises: UnknownTopicOrPartitionError, UnknownBrokerError, InvalidReplicaAssignmentError for a wrong plan,
        InvalidCallError for an invalid plan or a throttle of 0. If it raises any of these, nothing was changed.
    """
    plan = plain_plan(plan)
    rate = None if throttle_bytes_per_s is None else math.ceil(checked_rate(throttle_bytes_per_s))
    with execution.run("reassign", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        check_plan(image, plan)
        image = probe_first(metadata, storage, run, image)
        check_plan(image, plan)
        planned = {
            TopicIdPartition(image.topic_ids[topic], partition): _Planned(
                topic, image.partition(image.topic_ids[topic], partition), tuple(replicas)
            )
            for (topic, partition), replicas in plan.items()
        }
        if not force:
            read_image = (lambda: image) if dry_run else metadata.image
            _check_cover(read_image, storage, planned, run)
            if dry_run:
                sends.send_look(image)
        targets = {key: one.replicas for key, one in planned.items() if not one.refused}
        after: ClusterImage | None = image
        if dry_run:
            left = {key: planned[key] for key in targets}
            _plan(metadata, sends, execution, image, left, _command(targets, force, rate), run)
            run.estimate = sends.estimate()
        else:
            _commit(metadata, planned, targets, force, run, rate)
            after = None
            with run.still_reporting():
                after = _copy(metadata, storage, execution, memory, planned, run)
                end_throttle(metadata, after)
            if after is not None:
                _note_unfinished(planned, after, run)
        run.add(_row(key, one, after, dry_run) for key, one in planned.items())
    copied = sum(one.copied_bytes for one in planned.values())
    run.totals |= {"partitions": len(run.rows), "bytes" if dry_run else "copied_bytes": copied}
    return run.report()


def cancel(
    metadata: MetadataClient, execution: Execution, topics: Sequence[str] | None = None, *, dry_run: bool = False
) -> Report:
    """Restore the former replicas of the partitions of the topics (None: all) that are being reassigned.
    ``vacuum`` deletes the copies on new replicas.

    Raises: UnknownTopicOrPartitionError; a partition that is refused is a failure in the report.
    """
    with execution.run("reassign --cancel", dry_run=dry_run) as run:
        image = metadata.image()
        planned = {
            TopicIdPartition(topic.topic_id, partition.partition): _Planned(
                topic.name, partition, partition.original
            )
            for topic in chosen_topics(image, topics)
            for partition in topic.partitions
            if partition.target
        }
        cancelled = _commit(metadata, planned, dict.fromkeys(planned), False, run)
        if planned and not dry_run:
            with run.still_reporting():
                end_throttle(metadata, image)
        run.add(
            CancelRow(
                topic=one.topic,
                partition=one.before.partition,
                replicas=named(one.replicas),
                joining_no_more=named(one.before.joining),
            )
            for one in cancelled
        )
    run.totals["cancelled"] = len(run.rows)
    return run.report()


def _check_cover(
    read_image: Callable[[], ClusterImage],
    storage: Storage,
    planned: dict[TopicIdPartition, _Planned],
    run: OperationRun,
) -> None:
    """Step 1. If no intact replica of a partition would remain, the partition is refused. ``read_image``: see
    ``check_covers``.
    """

    def plan(key: TopicIdPartition, image: ClusterImage) -> CoverWork | None:
        topic, one = image.topics.get(key[0]), planned[key]
        return None if topic is None else plan_cover(storage, image, topic, key[1], one.replicas, run)

    for outcome in check_covers(read_image, run.tasks, planned, plan):
        one = planned[outcome.item]
        match outcome:
            case Done(_, damaged):
                run.notes += [f"{one}: {error}; run heal" for error in damaged]
            case Failed(_, error):
                one.refused = True
                run.fail(one, error)


def _commit(
    metadata: MetadataClient,
    planned: dict[TopicIdPartition, _Planned],
    targets: dict[TopicIdPartition, tuple[int, ...]] | dict[TopicIdPartition, None],
    force: bool,
    run: OperationRun,
    throttled_rate: int | None = None,
) -> list[_Planned]:
    """Step 2. Returns the partitions that were changed; all others become failures."""
    command = _command(targets, force, throttled_rate)
    done = run.commit(metadata, command, {key: planned[key] for key in targets})
    for key in targets.keys() - done.keys():
        planned[key].refused = True
    return [*done.values()]


def _command(
    targets: Mapping[TopicIdPartition, tuple[int, ...] | None], force: bool, throttled_rate: int | None
) -> AlterPartitionReassignments:
    requests = tuple(Reassignment(*key, target=target, force=force) for key, target in targets.items())
    return AlterPartitionReassignments(requests, throttled_rate)


def _plan(
    metadata: MetadataClient,
    sends: Planned,
    execution: Execution,
    image: ClusterImage,
    planned: dict[TopicIdPartition, _Planned],
    command: AlterPartitionReassignments,
    run: OperationRun,
) -> None:
    """The copies and the requests of a dry run, which assumes that the new replicas are committed."""
    storage = sends.storage
    decision = command.decide(image)
    kept = run.refuse(decision.answer, planned)
    after = decision.image_after(image)
    if decision.records:
        metadata.check_may_commit()
        sends.send_commit(image)
        sends.send_look(image, times=2)
    joining = {key for key in kept if after.partition(*key).joining}
    if joining:
        send_probe(sends, after)
    brokers = sorted({broker for key in joining for broker in after.partition(*key).joining})
    topics = list(dict.fromkeys(planned[key].topic for key in joining))
    works = plan_replicate(storage, execution, after, topics, joining, brokers, run) if joining else []
    by_name = {str(one): one for one in planned.values()}
    for row in plan_copies(sends, after, works, run):
        by_name[f"{row.topic}-{row.partition}"].copied_bytes = row.bytes


def _copy(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    planned: dict[TopicIdPartition, _Planned],
    run: OperationRun,
) -> ClusterImage:
    """Steps 3 and 4. Returns the metadata after these steps. Raises: errors from reading the metadata."""
    image = metadata.image()
    waiting = {key: now for key in planned if (now := _now(image, key)) is not None and now.target}
    if not waiting:
        return image
    topics = list(dict.fromkeys(planned[key].topic for key in waiting))
    joining = sorted({broker for now in waiting.values() for broker in now.joining})
    copied = replicate(metadata, storage, execution, memory, topics, brokers=joining)
    run.absorb(copied)
    by_name = {str(one): one for one in planned.values()}
    for row in copied.rows:
        one = by_name.get(f"{row['topic']}-{row['partition']}")
        if one is not None:
            one.copied_bytes += int(row.get("copied_bytes") or 0)
    return metadata.image()


def _note_unfinished(planned: dict[TopicIdPartition, _Planned], image: ClusterImage, run: OperationRun) -> None:
    elsewhere = 0
    for key, one in planned.items():
        now = _now(image, key)
        if now is None or one.refused:
            continue
        if now.target == one.replicas:
            missing = [broker for broker in now.joining if broker not in now.isr]
            run.failures.append(
                Failure(
                    str(one),
                    IN_PROGRESS,
                    f"broker {named(missing)} is not in the ISR yet; the next replicate run continues, and "
                    "reassign --cancel reverts the move",
                )
            )
        elsewhere += now.leader is not None and not now.target and now.leader != now.replicas[0]
    if elsewhere:
        run.notes.append(f"{elsewhere} partitions are not led by their preferred replica: run elect")


def _row(key: TopicIdPartition, one: _Planned, image: ClusterImage | None, dry_run: bool) -> ReassignRow:
    """The row of a partition; without the metadata after the work (``image``), its state is unknown."""
    now = None if image is None else _now(image, key)
    before = one.before
    row = ReassignRow(
        topic=one.topic,
        partition=before.partition,
        replicas_before=named(goal(before) if dry_run else before.replicas),
        replicas=named(one.replicas),
        joining=named(b for b in one.replicas if b not in before.original),
        leaving=named(b for b in before.original if b not in one.replicas),
    )
    if dry_run:
        return msgspec.structs.replace(row, bytes=one.copied_bytes)
    if one.refused:
        state = "refused"
    elif image is None:
        state = "unknown"
    elif now is None or goal(now) != one.replicas:
        state = "changed since"
    else:
        state = "in progress" if now.target else "done"
    leader = None if now is None else now.leader
    return msgspec.structs.replace(row, state=state, leader=leader, copied_bytes=one.copied_bytes)


def _now(image: ClusterImage, key: TopicIdPartition) -> PartitionImage | None:
    """The current state of the partition; None if the topic has been deleted meanwhile."""
    topic = image.topics.get(key[0])
    return None if topic is None else topic.partitions[key[1]]


def named(brokers: Iterable[int]) -> str:
    """The brokers, separated by spaces."""
    return " ".join(map(str, brokers))

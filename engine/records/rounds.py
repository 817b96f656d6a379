"""The rounds of an append: retries partitions whose leader has changed, or that lost a race."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.metadata.partition_commands import Altered, AlterPartition
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.acknowledge import PendingAppend, acknowledge, deleted
from stratalog.engine.records.bad_record_lane import Lane
from stratalog.engine.records.bad_records import BadRecordFilter, BadRecordRule, FoundBad
from stratalog.engine.records.remote_end import replicas_to_append_to
from stratalog.engine.replicas.damaged import ahead_of_metadata, replace_leaders
from stratalog.engine.replicas.foreign_files import note_foreign
from stratalog.engine.replicas.in_sync import is_current, without
from stratalog.engine.replicas.taking_writes import FailedCreates, unwritable_leaders
from stratalog.engine.replication.append import Appended, AppendOutcome, NotAppended, Raced, append
from stratalog.engine.replication.append_file import AppendOptions
from stratalog.engine.replication.log_end import LogEnd
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    FencedLeaderEpochError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.producers import ProducerAppend
from stratalog.partitions.runner import Runner
from stratalog.partitions.store import StoreCounts

_ROUNDS = 10
"""The maximum number of tries per partition, after changes of leader or races lost to other appends."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one partition's task."""

    partition: int
    outcome: AppendOutcome | None
    """None if all of the task's records are bad, and were not appended."""
    counts: StoreCounts
    bad: FoundBad | None = None
    """None if the append was refused because of a bad record."""


PartitionTask = Callable[[int, Iterator[pa.RecordBatch]], TaskResult]
"""Appends the batches of one partition, in a thread or on an executor."""


@dataclass(frozen=True, slots=True)
class RunTasks:
    """The records of an append, fed to its tasks."""

    run: Callable[[PartitionTask, Sequence[int]], list[TaskResult]]
    """Run a task for each listed partition that has records; returns their results."""
    partitions: Sequence[int] | None = None
    """The partitions that have records; None if only the tasks can find these partitions."""


def partition_task(
    replicas_of: Mapping[int, PartitionReplicas],
    who: ProducerAppend,
    options: AppendOptions,
    clock: Clock,
    copies: Runner,
    known: Mapping[int, LogEnd],
    rule: BadRecordRule | None = None,
) -> PartitionTask:
    """Make the function that appends one partition's batches. If the function runs twice, the records are appended
    once, because ``who`` is the same. ``known`` has the log ends that earlier appends found. With a ``rule``, bad
    records are not appended.
    """

    def appended(partition: int, batches: Iterator[pa.RecordBatch]) -> AppendOutcome:
        end = known.get(partition)
        return append(replicas_of[partition], who, batches, options, clock=clock, copies=copies, known=end)

    def left_out(
        rule: BadRecordRule, partition: int, batches: Iterator[pa.RecordBatch]
    ) -> tuple[AppendOutcome | None, FoundBad]:
        checked = BadRecordFilter(rule, partition, batches)
        good = checked.good()
        outcome: AppendOutcome | None = None
        try:
            first = next(good, None)
            if first is not None:
                outcome = appended(partition, chain([first], good))
            if isinstance(outcome, Appended):
                deque(good, maxlen=0)  # the append of a duplicate may not have read all records
        except StratalogError as error:
            outcome = NotAppended(error, tried=outcome is not None, ours=False)
        return outcome, checked.found()

    def task(partition: int, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        replicas = replicas_of[partition]
        before = [store.counts.snapshot() for store in replicas.stores.values()]
        outcome, bad = (appended(partition, batches), None) if rule is None else left_out(rule, partition, batches)
        spent = StoreCounts()
        for store, earlier in zip(replicas.stores.values(), before, strict=True):
            spent = spent + (store.counts - earlier)
        return TaskResult(partition, outcome, spent, bad)

    return task


def append_all(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    tasks: RunTasks,
    who: ProducerAppend,
    options: AppendOptions,
    partitions: Sequence[int],
    notes: list[str],
    lane: Lane | None = None,
) -> dict[int, PendingAppend]:
    """Append to the ``partitions`` that have records, until each of these is acknowledged or failed. ``lane``
    receives the bad records; partitions with only bad records are not changed.
    """
    rule = None if lane is None else lane.rule(topic.name, options, who)
    states: dict[int, PendingAppend] = {}
    failed_creates = FailedCreates(metadata, storage)
    for _ in range(_ROUNDS):
        views = {partition: image.view(topic.topic_id, partition) for partition in partitions}
        try:
            replicas_of = replicas_to_append_to(storage, clock, memory, image, views.values(), notes)
            known = memory.log_ends.of(views.values())
            results = tasks.run(
                partition_task(replicas_of, who, options, clock, storage.copies, known, rule), partitions
            )
        except StratalogError as error:
            lost = isinstance(error, OutcomeUnknownError)  # lost tasks may have appended
            if not states and not lost:
                raise
            for partition, view in views.items():  # the report still has the outcomes of earlier rounds
                before = states.get(partition)
                tried = lost or (before is not None and before.tried)
                states[partition] = PendingAppend(view, error=error, tried=tried)
            break
        outcomes = {one.partition: one.outcome for one in results if one.outcome is not None}
        for partition, outcome in outcomes.items():
            states[partition] = state_after(outcome, views[partition], states.get(partition))
            if isinstance(outcome, Appended) and replicas_of[partition].remote_tail is not None:
                memory.remote_ends.remember(views[partition])
        if lane is not None:
            for result in results:
                lane.add(result.partition, result.bad)
        appended = {p: states[p] for p, outcome in outcomes.items() if isinstance(outcome, Appended)}
        raced = [p for p, outcome in outcomes.items() if isinstance(outcome, Raced)]
        troubled = [p for p, outcome in outcomes.items() if isinstance(outcome, NotAppended)]
        try:
            if options.acks_all:
                ended = list(appended.values())
                troubled += acknowledge(metadata, storage, clock, appended, options.min_insync_replicas, notes)
                appended.clear()
                _remember_ends(memory, image, ended)
            if not raced and not troubled:
                break
            image, partitions = _next_round(
                metadata, storage, topic, states, raced, troubled, notes, failed_creates
            )
        except StratalogError as error:  # the metadata is unreachable; the records stay in the logs
            if options.acks_all:
                for state in appended.values():  # partitions without an outcome
                    state.error = error
            notes.append(f"it stopped early: {error.code}: {error}")
            break
        if not partitions:
            break
    return states


def state_after(outcome: AppendOutcome, view: PartitionView, before: PendingAppend | None = None) -> PendingAppend:
    """The state of a partition after a task under ``view``. An earlier task may have written records, too."""
    tried, ours = (False, False) if before is None else (before.tried, before.ours)
    match outcome:
        case Appended(missed=missed, duplicate=duplicate):
            return PendingAppend(view, outcome, missed, tried=True, ours=ours or not duplicate)
        case Raced(again):
            error = RetriableError("another append was faster; run this append again with the same sequence")
            return PendingAppend(view, error=error, tried=tried or again, ours=ours or again)
        case NotAppended(failure, may_be_in_log, by_this):
            return PendingAppend(view, error=failure, tried=tried or may_be_in_log, ours=ours or by_this)


def _remember_ends(memory: Memory, image: ClusterImage, ended: Sequence[PendingAppend]) -> None:
    ends = [
        (state.view, state.appended.end)
        for state in ended
        if state.error is None and not state.missed and state.appended is not None
    ]
    known = [(view, end) for view, end in ends if end is not None]
    for view, end in known:
        memory.log_ends.remember(view, end)
    memory.behind_appends.appended(image, known)


def _next_round(
    metadata: MetadataClient,
    storage: Storage,
    topic: TopicImage,
    states: Mapping[int, PendingAppend],
    raced: Sequence[int],
    troubled: Sequence[int],
    notes: list[str],
    failed_creates: FailedCreates,
) -> tuple[ClusterImage, list[int]]:
    """Handle failed leaders. Returns the current metadata, and the partitions to append to again: those that lost
    a race, or have a new view.
    """
    errors = {partition: states[partition].error for partition in troubled}
    if any(isinstance(error, BrokerUnreachableError | StaleMetadataError) for error in errors.values()):
        probed = probe_brokers(metadata, storage)
        image, noted = probed.image, probed.notes
    else:
        image, noted = metadata.image(), ()
    notes += noted
    if topic.topic_id not in image.topics:
        return image, _end_deleted(states, [*raced, *troubled])
    damaged: dict[TopicIdPartition, tuple[PartitionView, StratalogError]] = {
        states[partition].view.key: (states[partition].view, error)
        for partition, error in errors.items()
        if isinstance(error, CorruptionError)
    }
    noted_foreign = {p for p, error in errors.items() if error and note_foreign(metadata, storage, error)}
    for partition, error in errors.items():
        view = states[partition].view
        if partition in noted_foreign:
            continue
        if isinstance(error, FencedLeaderEpochError) and is_current(image, view):
            ahead = ahead_of_metadata(metadata, storage, view)
            if view.leader in ahead:
                damaged[view.key] = view, ahead[view.leader]
            elif members := ahead.keys() & {*view.isr, *view.adding}:
                (answer,) = metadata.submit(AlterPartition((without(view, members),)))
                image = metadata.image()
                if isinstance(answer, Altered):
                    notes += [f"{view}: broker {b} leaves the ISR: {ahead[b]}" for b in sorted(members)]
    unwritable = unwritable_leaders((states[partition].view, error) for partition, error in errors.items())
    resigned, try_again = failed_creates.resign(unwritable)
    notes += resigned.values()
    if unwritable:
        image = metadata.image()
    if damaged:
        replaced = replace_leaders(metadata, storage, damaged)
        image, noted = metadata.image(), tuple(replaced.values())
        notes += noted
    if topic.topic_id not in image.topics:
        return image, _end_deleted(states, [*raced, *troubled])
    again = [
        p
        for p in troubled
        if p in noted_foreign or states[p].view.key in try_again or image.view(topic.topic_id, p) != states[p].view
    ]
    return image, [*raced, *again]


def _end_deleted(states: Mapping[int, PendingAppend], partitions: Sequence[int]) -> list[int]:
    """End the appends of a deleted topic. Returns the partitions to append to again, which is none."""
    for partition in partitions:
        states[partition].error = deleted(states[partition].view)
    return []

"""Snapshot: shortens the logs of topics with cleanup.policy=snapshot (internal topics and users' topics), and the
metadata log (KIP-630).

0. probe the roots
1. append records that delete expired groups and transactional ids, and that abort overdue transactions
2. tasks: make the next snapshot of a partition on its leader, if the policy requires one
3. Spark, if available, makes the snapshots of partitions that are larger than a task's memory
4. tasks: copy the latest snapshot to live followers, and compute how far the log start may advance
5. one commit for all log starts (``retain`` moves local starts)
6. tasks: delete the snapshots below the log start, never the latest one
7. write the latest records of each key to the tables of topics that publish them (``publish``)
8. make a snapshot of the metadata log, which includes the commits of the previous steps (``metadata``)

If a partition's leader is replaced meanwhile, the work is repeated under the new leader, up to ``VIEWS`` times
(KIP-630, "Response Handling", "Errors": the follower discovers the leader again, and continues).

Every file is created exclusively, under a name that describes its content, and every number only grows. So at
worst, two concurrent runs do the same work twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from msgspec import UNSET

from stratalog.engine.brokers.probe import probe_first
from stratalog.engine.driver.compared_clocks import compared_clocks, removal_time
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.metrics import GEN_LATENCY
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.tasks import TaskRunner
from stratalog.engine.metadata.chosen import chosen_partitions, chosen_topics, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.partition_commands import AdvanceLogStart, LogStart, RefusedPartition
from stratalog.engine.metadata.protection import is_protected
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.coordinator import TransactionCoordinator
from stratalog.engine.records.groups import forget_expired
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, without_metadata
from stratalog.engine.state.keyed import FORMATS
from stratalog.engine.upkeep.snapshots.estimate import send_metadata_snapshot, send_snapshots
from stratalog.engine.upkeep.snapshots.metadata import (
    SnapshotRow,
    keep_metadata_short,
    metadata_failures,
    metadata_row,
)
from stratalog.engine.upkeep.snapshots.partition import (
    PartitionSnapshot,
    SnapshotPlan,
    SnapshotWork,
    make_snapshot,
    plan_snapshot,
)
from stratalog.engine.upkeep.snapshots.publish import publish
from stratalog.engine.upkeep.snapshots.spread import Cleaned, Spread, clean_snapshots, spread_snapshot
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    InvalidCallError,
    LogGapError,
    StaleMetadataError,
    StratalogError,
    UnknownLeaderEpochError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.records import schema_of
from stratalog.partitions.runner import Done, Failed, Runner, SerialRunner
from stratalog.snapshots.snapshot_id import EMPTY

MEMORY_BYTES = 256 * 1024 * 1024
"""The maximum uncompressed size of a partition for a task. Larger partitions are left to Spark."""

VIEWS = 3
"""The number of views under which a partition is tried in one run."""

EXPIRY_MS = 60 * 60 * 1000
"""The interval at which an idle partition is checked for expired state."""

R = TypeVar("R")


ReduceLarge = Callable[[SnapshotWork], tuple[SnapshotPlan, PartitionSnapshot | None]]
"""Like ``make_snapshot``, for a partition that is larger than a task's memory."""


def needs_spark(work: SnapshotWork) -> tuple[SnapshotPlan, PartitionSnapshot | None]:
    """The error for a partition that only Spark can read, as InvalidCallError with the remedy."""
    raise InvalidCallError(
        f"{work} is larger than the memory limit of {work.memory_bytes} bytes: run this job on Spark "
        "(spark-submit, or --master)"
    )


@dataclass(slots=True)
class _State:
    """The state of one partition during a run."""

    work: SnapshotWork
    planned: SnapshotPlan | None = None
    made: PartitionSnapshot | None = None
    spread: Spread | None = None
    cleaned: Cleaned | None = None
    expired: int = 0
    published: bool = False


def snapshot(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    memory: Memory,
    topics: Sequence[str] | None = None,
    *,
    only: Collection[TopicIdPartition] | None = None,
    reduce_large: ReduceLarge = needs_spark,
    by_hand: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    dry_run: bool = False,
) -> Report:
    """Make snapshots of the topics. None: of all topics with cleanup.policy=snapshot (only the partitions in
    ``only``, if given), and of the metadata log, whose name is ``__cluster_metadata``. ``by_hand``: the snapshots
    cover all new records, whatever the policy. Partitions larger than ``memory_bytes`` are left to
    ``reduce_large``.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a topic with another policy; errors of reading the
        metadata. Any other error is a failure of its partition in the report.
    """
    topics, with_metadata = without_metadata(topics)
    with execution.run("snapshot", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        snapshot_topics(image, topics)
        works = _works(storage, execution.clock, image, topics, only, by_hand, memory_bytes)
        if works and not dry_run:
            works = _works(
                storage, execution.clock, probe_first(metadata, storage, run), topics, only, by_hand, memory_bytes
            )
        states = {work.replicas.view.key: _State(work) for work in works}
        steps = _SnapshotRun(metadata, storage, execution, memory, reduce_large, states, run)
        if dry_run:
            steps.plan()
        elif states:
            steps.carry_out()
        for state in states.values():
            damaged = state.planned.damaged if state.planned is not None else ()
            run.notes += [f"{state.work}: skipped a damaged snapshot: {what}" for what in damaged]
        run.add(_row(state, dry_run) for state in states.values())
        later_ms = execution.clock.now_ms() + EXPIRY_MS
        run.settle((state.work.replicas.view, later_ms) for state in states.values() if _is_settled(state))
        if with_metadata:
            run.add([_metadata(metadata, execution.clock, memory, run, by_hand=by_hand)])
        if dry_run:
            plans = [(state.work, state.planned) for state in states.values() if state.planned is not None]
            send_snapshots(sends, image, plans)
            commits = by_hand and any(planned.wait is None for _, planned in plans)
            if with_metadata and (commits or run.rows[-1].get("why", "") is None):
                send_metadata_snapshot(sends, image)
            run.estimate = sends.estimate()
    run.totals |= {"partitions": len(run.rows), "made": sum(row["outcome"] == "made" for row in run.rows)}
    return run.report()


def _is_settled(state: _State) -> bool:
    """Whether every replica that needs a snapshot has one that replaces the whole log. If so, no snapshot becomes
    due merely because time passes.
    """
    planned, spread, cleaned = state.planned, state.spread, state.cleaned
    return (
        planned is not None
        and (state.made, planned.large) == (None, False)
        and planned.next <= planned.latest
        and not (planned.damaged or state.expired)
        and (spread is not None and not spread.failed)
        and (cleaned is None or not cleaned.failed)
    )


def snapshot_topics(image: ClusterImage, names: Sequence[str] | None) -> list[TopicImage]:
    """The topics with cleanup.policy=snapshot, or the named ones.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a named topic with another policy.
    """
    chosen = chosen_topics(image, names)
    having = [topic for topic in chosen if topic_config_of(image, topic).snapshots]
    if names is not None and len(having) < len(chosen):
        other = next(topic.name for topic in chosen if topic not in having)
        raise InvalidCallError(f"topic {other!r} has no snapshots: set its cleanup.policy to snapshot first")
    return having


def _works(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    names: Sequence[str] | None,
    only: Collection[TopicIdPartition] | None,
    by_hand: bool,
    memory_bytes: int,
) -> list[SnapshotWork]:
    works = []
    now_ms = cache(lambda: compared_clocks(storage, clock, image).agreed_ms)
    having = snapshot_topics(image, names if names is None else [n for n in names if n in image.topic_ids])
    for topic, views in chosen_partitions(image, [topic.name for topic in having], only):
        config = topic_config_of(image, topic)
        works += [
            SnapshotWork(
                replicas=storage.replicas(view),
                schema=schema_of(topic.key_schema, topic.value_schema),
                policy=config.snapshotting,
                by_hand=by_hand,
                delete_retention_ms=config.delete_retention_ms,
                lag_time_max_ms=config.metadata_start_offset_lag_time_max_ms,
                delete_delay_ms=config.file_delete_delay_ms,
                compression=config.compression_type,
                memory_bytes=memory_bytes,
                published=config.snapshot_table and topic.name not in FORMATS,
                clock=clock,
                protected=is_protected(image, topic.topic_id, now_ms),
            )
            for view in views
        ]
    return works


def _metadata(
    metadata: MetadataClient, clock: Clock, memory: Memory, run: OperationRun, *, by_hand: bool
) -> SnapshotRow:
    """Step 8."""
    try:
        kept = keep_metadata_short(metadata, clock, memory, by_hand=by_hand, dry_run=run.dry_run)
    except StratalogError as error:
        run.fail(METADATA_TOPIC, error)
        return SnapshotRow(topic=METADATA_TOPIC, partition=0, outcome="failed")
    if kept.done is not None:
        run.failures += metadata_failures(kept.done)
    return metadata_row(kept, run.dry_run)


@dataclass(frozen=True, slots=True)
class _SnapshotRun:
    """The steps of one run, over the partitions in ``states``."""

    metadata: MetadataClient
    storage: Storage
    execution: Execution
    memory: Memory
    reduce_large: ReduceLarge
    states: Mapping[TopicIdPartition, _State]
    run: OperationRun

    def plan(self) -> None:
        for state, planned in self._each(self.execution.tasks, plan_snapshot, list(self.states.values())):
            state.planned = planned

    def carry_out(self) -> None:
        self._expire()
        sound = self._make()
        self._spread(sound)
        self._clean(sound)
        published = publish(self.metadata, self.storage, self.execution, [state.work for state in sound], self.run)
        for key in published:
            self.states[key].published = True

    def _each(
        self, runner: Runner | TaskRunner, task: Callable[[SnapshotWork], R], states: Sequence[_State]
    ) -> Iterator[tuple[_State, R]]:
        """Run the task for these partitions; yields the successful ones with their results. If a task fails
        because its view is outdated, it is retried under the current view. A gap may have that cause, too: an
        erasure since the view has deleted the snapshots that the view knows.
        """
        waiting = list(states)
        for last in (*[False] * (VIEWS - 1), True):
            by_key = {state.work.replicas.view.key: state for state in waiting}
            stale: list[tuple[_State, StratalogError]] = []
            for outcome in runner.run(task, [state.work for state in waiting]):
                state = by_key[outcome.item.replicas.view.key]
                match outcome:
                    case Done(_, value):
                        yield state, value
                    case Failed(_, StaleMetadataError() | UnknownLeaderEpochError() | LogGapError() as error) if (
                        not last
                    ):
                        stale.append((state, error))
                    case Failed(_, error):
                        self.run.fail(state.work, error)
            if not stale:
                return
            before = {state.work.replicas.view.key: state.work.replicas.view for state, _ in stale}
            self._refresh([state for state, _ in stale])
            waiting = []
            for state, error in stale:
                if state.work.replicas.view == before[state.work.replicas.view.key]:
                    self.run.fail(state.work, error)
                else:
                    waiting.append(state)

    def _refresh(self, states: Sequence[_State]) -> None:
        """Give the partitions their current view; deleted partitions keep the old one."""
        image = self.metadata.image()
        for state in states:
            topic_id, partition = state.work.replicas.view.key
            if topic_id in image.topics:
                state.work = replace(state.work, replicas=self.storage.replicas(image.view(topic_id, partition)))

    def _expire(self) -> None:
        """Step 1."""
        internal = [
            state
            for state in self.states.values()
            if state.work.replicas.view.topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        ]
        if not internal:
            return
        now_ms = removal_time(self.storage, self.execution.clock, self.metadata.image(), self.run)

        ports = self.metadata, self.storage, self.execution.clock, self.memory

        def expire(work: SnapshotWork) -> int:
            view = work.replicas.view
            if view.topic == OFFSETS_TOPIC:
                return forget_expired(*ports, view, now_ms)
            return TransactionCoordinator(*ports).end_overdue(view, now_ms)

        for state, count in self._each(self.storage.threads, expire, internal):
            state.expired = count

    def _make(self) -> list[_State]:
        """Steps 2 and 3; returns the partitions that can continue."""
        sound: list[_State] = []
        large: list[_State] = []
        self.execution.progress.start("snapshot", len(self.states), "partitions")
        every = list(self.states.values())
        for state, (planned, made) in self._each(self.execution.tasks, make_snapshot, every):
            state.planned, state.made = planned, made
            (large if planned.large else sound).append(state)
            if not planned.large:
                self.execution.progress.advance(planned.log_bytes if made is not None else 0)
        for state, (planned, made) in self._each(SerialRunner(), self.reduce_large, large):
            state.planned, state.made = planned, made
            sound.append(state)
            self.execution.progress.advance(planned.log_bytes if made is not None else 0)
        self.execution.progress.finish()
        for state in sound:
            if state.made is not None:
                view = state.work.replicas.view
                self.memory.snapshot_metrics.add(GEN_LATENCY, view.topic, view.partition, state.made.ms)
        return sound

    def _spread(self, states: Sequence[_State]) -> None:
        """Steps 4 and 5, repeated for a partition whose leader was replaced, or from which keys were erased,
        between the two."""
        waiting = list(states)
        refused: dict[TopicIdPartition, StratalogError] = {}
        for _ in range(VIEWS):
            spread = []
            for state, found in self._each(self.execution.tasks, spread_snapshot, waiting):
                state.spread = found
                spread.append(state)
            refused = self._advance(spread)
            waiting = [
                state
                for state in spread
                if isinstance(refused.get(state.work.replicas.view.key), StaleMetadataError)
            ]
            self.run.failures += [
                Failure.of(state.work, refused[state.work.replicas.view.key])
                for state in spread
                if state.work.replicas.view.key in refused and state not in waiting
            ]
            if not waiting:
                break
        self.run.failures += [Failure.of(state.work, refused[state.work.replicas.view.key]) for state in waiting]
        for state in states:
            if state.spread is not None:
                self.run.failures += [
                    Failure.of(f"{state.work} on broker {broker}", error) for broker, error in state.spread.failed
                ]

    def _advance(self, states: Sequence[_State]) -> dict[TopicIdPartition, StratalogError]:
        """Step 5; returns the refused partitions, with the errors."""
        wanted = tuple(
            LogStart(
                *state.work.replicas.view.key,
                state.spread.log_start,
                state.work.replicas.epoch,
                state.work.replicas.view.generation,
            )
            for state in states
            if state.spread is not None and state.spread.log_start > state.work.replicas.view.log_start_offset
            if not state.work.protected
        )
        if not wanted:
            return {}
        answers = self.metadata.submit(AdvanceLogStart(wanted))
        self._refresh(states)
        return {one.key: one.error for one in answers if isinstance(one, RefusedPartition)}

    def _clean(self, states: Sequence[_State]) -> None:
        """Step 6."""
        started = [state for state in states if state.work.replicas.view.log_start_offset > 0]
        for state, cleaned in self._each(self.execution.tasks, clean_snapshots, started):
            state.cleaned = cleaned
            self.run.failures += [
                Failure.of(f"{state.work} on broker {broker}", error) for broker, error in cleaned.failed
            ]


def _row(state: _State, dry_run: bool) -> SnapshotRow:
    view, planned, made, spread = state.work.replicas.view, state.planned, state.made, state.spread
    latest = EMPTY if planned is None else planned.latest
    if made is not None:
        latest = made.snapshot_id
    elif spread is not None:
        latest = spread.latest
    return SnapshotRow(
        topic=view.topic,
        partition=view.partition,
        outcome=_outcome(state, dry_run),
        snapshot=None if latest == EMPTY else str(latest),
        records=None if made is None else made.records,
        size_bytes=None if spread is None else spread.size_bytes,
        lag=_lag(planned, spread),
        gen_latency_ms=None if made is None else round(made.ms, 1),
        log_start=view.log_start_offset,
        copied_bytes=UNSET if dry_run else 0 if spread is None else spread.copied_bytes,
        deleted=UNSET if dry_run else 0 if state.cleaned is None else state.cleaned.deleted,
        expired=UNSET if dry_run else state.expired,
        published=UNSET if dry_run else state.published,
        why=None if planned is None else planned.wait,
    )


def _lag(planned: SnapshotPlan | None, spread: Spread | None) -> int | None:
    if spread is not None:
        return spread.lag
    return None if planned is None else planned.high_watermark - planned.latest.end_offset


def _outcome(state: _State, dry_run: bool) -> str:
    if state.planned is None:
        return "failed"
    if state.planned.wait is not None:
        return "not now"
    if dry_run:
        return f"would be made up to {state.planned.next.end_offset}"
    if state.made is None:
        return "failed"
    return "made" if state.made.new else "there already"

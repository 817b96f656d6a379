"""Snapshot: short logs for the topics with cleanup.policy=snapshot, internal ones and those of users (KIP-630).

0. probe the roots
1. committed offsets that have expired are forgotten: an append to their partition
2. tasks: make the next snapshot of a partition on its leader, where the policy wants one
3. those of partitions that are larger than a task's memory are made by Spark, out of core
4. tasks: bring the live followers the latest snapshot; how far the log start may grow
5. one commit for all log starts (local starts follow by ``retain``)
6. tasks: delete the snapshots that the log start has passed, never the latest one

Everything is created exclusively under a name that says what it is, or only grows, or was passed for good: two
runs at once do the same work twice, at worst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.context import Context
from engine.metadata.image import ClusterImage, TopicImage
from engine.metadata.partition_commands import AdvanceLogStart, LogStart, Refused
from engine.metrics import GEN_LATENCY, LAG, SIZE
from engine.operations.append import append_options
from engine.operations.brokers import settle_brokers
from engine.operations.snapshot_partition import Made, Planned, SnapshotWork, make_snapshot, plan_snapshot
from engine.operations.snapshot_spread import Cleaned, Spread, clean_snapshots, spread_snapshot
from engine.operations.state_log import append_state, read_state
from engine.report import Failure, OperationFailedError, Report, Value
from engine.state.internal_topics import OFFSETS_TOPIC
from engine.state.keyed import OFFSETS
from partitions.errors import InvalidCallError, StratalogError
from partitions.runner import Done, Failed
from snapshots.policy import SnapshotPolicy
from snapshots.snapshot_id import EMPTY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_BYTES = 256 * 1024 * 1024
"""What a task may read of a partition, uncompressed; a larger one is Spark's."""

PartitionKey = tuple[str, int]


@dataclass(slots=True)
class _State:
    """One partition in the course of a run."""

    work: SnapshotWork
    planned: Planned | None = None
    made: Made | None = None
    spread: Spread | None = None
    cleaned: Cleaned | None = None
    expired: int = 0


def snapshot(
    context: Context,
    topics: Sequence[str] | None = None,
    *,
    spark: SparkSession | None = None,
    by_hand: bool = False,
    memory_bytes: int = MEMORY_BYTES,
    dry_run: bool = False,
) -> Report:
    """Snapshots of the topics (of all with cleanup.policy=snapshot when None). ``by_hand``: of all that is new,
    whatever the policy says. Partitions larger than ``memory_bytes`` need ``spark``.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a topic with another policy; everything else is a
        failure of its partition in the report.
    """
    notes: list[str] = []
    failures: list[Failure] = []
    with context.measured() as measure:
        image = context.metadata.image()
        snapshot_topics(context, image, topics)
        works = _works(context, image, topics, by_hand, memory_bytes)
        if not dry_run:
            settled = settle_brokers(context)
            notes += settled.notes
            works = _works(context, settled.image, topics, by_hand, memory_bytes)
        states = {_key(work): _State(work) for work in works}
        if dry_run:
            _plan(context, states, failures)
        else:
            _run(context, spark, states, failures)
        for state in states.values():
            damaged = state.planned.damaged if state.planned is not None else ()
            notes += [f"{state.work}: passed over a damaged snapshot: {what}" for what in damaged]
    rows = [_row(state, dry_run) for state in states.values()]
    return Report(
        operation="snapshot",
        rows=rows,
        failures=failures,
        totals=_totals(states, rows),
        dry_run=dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
        notes=notes,
    )


def snapshot_topics(context: Context, image: ClusterImage, names: Sequence[str] | None) -> list[TopicImage]:
    """The topics with cleanup.policy=snapshot, or those that are named.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a named one with another policy.
    """
    chosen = context.topics(image, names)
    having = [topic for topic in chosen if context.topic_config(image, topic).snapshots]
    if names is not None and len(having) < len(chosen):
        other = next(topic.name for topic in chosen if topic not in having)
        raise InvalidCallError(f"topic {other!r} has no snapshots: set its cleanup.policy to snapshot first")
    return having


def _works(
    context: Context, image: ClusterImage, names: Sequence[str] | None, by_hand: bool, memory_bytes: int
) -> list[SnapshotWork]:
    works = []
    for topic in snapshot_topics(context, image, [n for n in names if n in image.topic_ids] if names else names):
        config = context.topic_config(image, topic)
        works += [
            SnapshotWork(
                site=context.site(view),
                schema=append_options(topic, config, "all").schema,
                policy=SnapshotPolicy(
                    min_changed_records_ratio=config.metadata_snapshot_min_changed_records_ratio,
                    max_record_bytes_between_snapshots=config.metadata_log_max_record_bytes_between_snapshots,
                ),
                by_hand=by_hand,
                delete_retention_ms=config.delete_retention_ms,
                lag_time_max_ms=config.metadata_start_offset_lag_time_max_ms,
                delete_delay_ms=config.file_delete_delay_ms,
                compression=config.compression_type,
                memory_bytes=memory_bytes,
                clock=context.clock,
            )
            for view in image.views(topic.name)
        ]
    return works


def _key(work: SnapshotWork) -> PartitionKey:
    return work.site.view.topic_id, work.site.view.partition


def _plan(context: Context, states: Mapping[PartitionKey, _State], failures: list[Failure]) -> None:
    for outcome in context.tasks.run(plan_snapshot, [state.work for state in states.values()]):
        match outcome:
            case Done(work, planned):
                states[_key(work)].planned = planned
            case Failed(work, error):
                failures.append(Failure.of(work, error))


def _run(
    context: Context,
    spark: SparkSession | None,
    states: Mapping[PartitionKey, _State],
    failures: list[Failure],
) -> None:
    _expire(context, states, failures)
    sound = _make(context, spark, states, failures)
    _spread(context, sound, failures)
    _advance(context, sound, failures)
    _clean(context, sound, failures)


def _expire(context: Context, states: Mapping[PartitionKey, _State], failures: list[Failure]) -> None:
    """Step 1."""
    image = context.metadata.image()
    groups = [state for state in states.values() if state.work.site.view.topic == OFFSETS_TOPIC]

    def expire(state: _State) -> int:
        view = state.work.site.view
        gone = read_state(context, view, OFFSETS).expired(context.clock.now_ms(), image.topics)
        if gone:
            append_state(context, image.topic(OFFSETS_TOPIC), view.partition, OFFSETS, gone)
        return len(gone)

    for outcome in context.threads.run(expire, groups):
        match outcome:
            case Done(state, count):
                state.expired = count
            case Failed(state, OperationFailedError(report=report)):
                failures += report.failures
            case Failed(state, error):
                failures.append(Failure.of(state.work, error))


def _make(
    context: Context,
    spark: SparkSession | None,
    states: Mapping[PartitionKey, _State],
    failures: list[Failure],
) -> list[_State]:
    """Steps 2 and 3; the partitions that can go on."""
    sound: list[_State] = []
    large: list[_State] = []
    context.progress.start("snapshot", len(states), "partitions")
    for outcome in context.tasks.run(make_snapshot, [state.work for state in states.values()]):
        match outcome:
            case Done(work, (planned, made)):
                state = states[_key(work)]
                state.planned, state.made = planned, made
                (large if planned.large else sound).append(state)
                if not planned.large:
                    context.progress.advance(planned.log_bytes if made is not None else 0)
            case Failed(work, error):
                failures.append(Failure.of(work, error))
                context.progress.advance()
    for state in large:
        assert state.planned is not None
        try:
            state.planned, state.made = _reduce(spark, state.work)
            sound.append(state)
        except StratalogError as error:
            failures.append(Failure.of(state.work, error))
        context.progress.advance(state.planned.log_bytes if state.made is not None else 0)
    context.progress.finish()
    for state in sound:
        if state.made is not None:
            view = state.work.site.view
            context.snapshot_metrics.add(GEN_LATENCY, view.topic, view.partition, state.made.ms)
    return sound


def _reduce(spark: SparkSession | None, work: SnapshotWork) -> tuple[Planned, Made | None]:
    if spark is None:
        raise InvalidCallError(
            f"{work} is larger than the {work.memory_bytes} bytes that are reduced in memory: run this job on "
            "Spark (spark-submit, or --master)"
        )
    from engine.spark.reducing import make_large_snapshot

    return make_large_snapshot(spark, work)


def _spread(context: Context, states: Sequence[_State], failures: list[Failure]) -> None:
    """Step 4."""
    by_key = {_key(state.work): state for state in states}
    for outcome in context.tasks.run(spread_snapshot, [state.work for state in states]):
        match outcome:
            case Done(work, spread):
                by_key[_key(work)].spread = spread
                failures += [Failure.of(f"{work} on broker {broker}", error) for broker, error in spread.failed]
            case Failed(work, error):
                failures.append(Failure.of(work, error))


def _advance(context: Context, states: Sequence[_State], failures: list[Failure]) -> None:
    """Step 5."""
    wanted = tuple(
        LogStart(*_key(state.work), state.spread.log_start)
        for state in states
        if state.spread is not None and state.spread.log_start > state.work.site.view.log_start_offset
    )
    if not wanted:
        return
    for answer in context.metadata.submit(AdvanceLogStart(wanted)):
        if isinstance(answer, Refused):
            failures.append(Failure.of(f"{answer.topic_id}-{answer.partition}", answer.error))
    image = context.metadata.image()
    for state in states:
        topic_id, partition = _key(state.work)
        if topic_id in image.topics:
            state.work = replace(state.work, site=context.site(image.view(topic_id, partition)))


def _clean(context: Context, states: Sequence[_State], failures: list[Failure]) -> None:
    """Step 6."""
    by_key = {_key(state.work): state for state in states}
    works = [state.work for state in states if state.work.site.view.log_start_offset > 0]
    for outcome in context.tasks.run(clean_snapshots, works):
        match outcome:
            case Done(work, cleaned):
                by_key[_key(work)].cleaned = cleaned
                failures += [Failure.of(f"{work} on broker {broker}", error) for broker, error in cleaned.failed]
            case Failed(work, error):
                failures.append(Failure.of(work, error))


def _row(state: _State, dry_run: bool) -> dict[str, Value]:
    view, planned, made, spread = state.work.site.view, state.planned, state.made, state.spread
    latest = EMPTY if planned is None else planned.latest
    if made is not None:
        latest = made.snapshot_id
    elif spread is not None:
        latest = spread.latest
    row: dict[str, Value] = {
        "topic": view.topic,
        "partition": view.partition,
        "outcome": _outcome(state, dry_run),
        "snapshot": None if latest == EMPTY else str(latest),
        "records": None if made is None else made.records,
        SIZE: None if spread is None else spread.size_bytes,
        LAG: spread.lag
        if spread is not None
        else None
        if planned is None
        else planned.high_watermark - latest.end_offset,
        GEN_LATENCY: None if made is None else round(made.ms, 1),
        "log_start": view.log_start_offset,
    }
    if not dry_run:
        row["copied_bytes"] = 0 if spread is None else spread.copied_bytes
        row["deleted"] = 0 if state.cleaned is None else state.cleaned.deleted
        row["expired"] = state.expired
    row["why"] = None if planned is None else planned.wait
    return row


def _lag(planned: Planned | None, spread: Spread | None) -> int | None:
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


def _totals(states: Mapping[PartitionKey, _State], rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    made = sum(state.made is not None and state.made.new for state in states.values())
    return {"partitions": len(rows), "made": made}

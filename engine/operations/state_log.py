"""The engine's own topics as logs of state: created by whoever needs them first, read, appended to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView, TopicImage
from engine.metadata.topic_commands import CreateTopic
from engine.operations.append import append_given
from engine.replication.damage import blaming, check_whole
from engine.replication.snapshots import latest_snapshot
from engine.state.internal_topics import InternalTopic
from engine.state.keyed import KeyedMachine, StateFormat
from partitions.errors import (
    InvalidReplicationFactorError,
    LogGapError,
    SourceChangedError,
    TopicAlreadyExistsError,
)
from partitions.listing import ReplicaLog
from partitions.producers import ProducerAppend
from partitions.replica import Replica
from partitions.segment import read_batches
from snapshots.state_machine import load_dump

M = TypeVar("M", bound=KeyedMachine[Any])
R = TypeVar("R")

_LOOKS = 5
_COLUMNS = ["key", "value"]


def ensure_topic(context: Context, image: ClusterImage, wanted: InternalTopic) -> TopicImage:
    """The internal topic, which is created where it is not there yet.

    Raises: InvalidReplicationFactorError on too few brokers.
    """
    if wanted.name in image.topic_ids:
        return image.topic(wanted.name)
    command = CreateTopic(
        name=wanted.name,
        topic_id=context.new_id(),
        partitions=wanted.partitions,
        replication_factor=wanted.replication_factor,
        configs=wanted.configs,
        internal=True,
    )
    try:
        with suppress(TopicAlreadyExistsError):  # another driver was faster
            context.metadata.submit(command)
    except InvalidReplicationFactorError as error:
        raise InvalidReplicationFactorError(
            f"{wanted.name} is needed for the first time, and cannot be created: {error}; or set "
            f"{wanted.factor_config} on the cluster"
        ) from error
    return context.metadata.image().topic(wanted.name)


def read_state(context: Context, view: PartitionView, form: StateFormat[M, R], until: int | None = None) -> M:
    """The state of a partition of an internal topic below its high watermark (``until`` an offset below it, if
    given): its latest snapshot, and the log after it.

    Raises: LeaderNotAvailableError and its like; CorruptionError kinds, LogGapError when neither a snapshot nor
        the log holds a part of it.
    """
    for _ in range(_LOOKS - 1):
        with suppress(SourceChangedError):  # deleted since it was listed
            return _read_once(context, view, form, until)
    return _read_once(context, view, form, until)


def _read_once(context: Context, view: PartitionView, form: StateFormat[M, R], until: int | None) -> M:
    leader = context.site(view).leader
    log = leader.log()
    check_whole(leader, log)
    end = log.high_watermark if until is None else min(until, log.high_watermark)

    def fits(state: KeyedMachine[Any], epoch: int) -> bool:
        return log.local_start <= state.next_offset <= end and log.lineage.epoch_at(state.next_offset - 1) == epoch

    state: M | None = context.states.get(view.topic_id, view.partition, fits)
    if state is None:
        with context.snapshot_metrics.loading(view.topic, view.partition, context.clock):
            state = load_state(leader, log, form, end)
    state = replay(leader, log, form, state, end)
    if state.next_offset > 0:
        context.states.put(view.topic_id, view.partition, state, log.lineage.epoch_at(state.next_offset - 1) or 0)
    return state


def load_state(replica: Replica, log: ReplicaLog, form: StateFormat[M, R], end: int) -> M:
    """The state of the latest snapshot that verifies, with an end offset up to ``end``; empty without one.

    Raises: LogGapError when the log starts behind it.
    """
    with blaming(replica):
        snapshot = latest_snapshot(replica, log, until=end)
        state = form.empty
        if snapshot is not None:
            state = load_dump(snapshot.rows(), snapshot.snapshot_id.end_offset, form.codec, form.load)
    if state.next_offset < log.local_start:
        with blaming(replica):
            raise LogGapError(
                f"{replica}: the log starts at offset {log.local_start}, and what its snapshots stand for ends at "
                f"{state.next_offset}: restore a later one from another replica"
            )
    return state


def replay(replica: Replica, log: ReplicaLog, form: StateFormat[M, R], state: M, end: int) -> M:
    """The state after the records ``[state.next_offset, end)`` of the log."""
    for link in log.chain:
        start, stop = max(link.start, state.next_offset), min(link.end, end)
        if start < stop:
            with blaming(replica):
                batches = read_batches(replica.store, link.file, start, stop, _COLUMNS)
                state = form.apply_batches(state, start, batches)
    return state


def append_state(
    context: Context, topic: TopicImage, partition: int, form: StateFormat[M, R], records: Iterable[R]
) -> int:
    """Append records of the engine's own (at least one) with acks=all; the offset of the first one.

    Raises: OperationFailedError.
    """
    batch = form.to_batch(records, context.clock.now_ms())
    with context.own_producer.turn(context.new_id) as (producer_id, sequence):
        who = ProducerAppend(producer_id, 0, sequence)
        report = append_given(context, topic.name, {partition: [batch]}, who)
    (row,) = report.raise_for_failures().rows
    return int(row["base_offset"] or 0)

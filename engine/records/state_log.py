"""Keeps state in the engine's own topics: creates these topics at first use, reads them, and appends to them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Failure, OperationFailedError, Report
from stratalog.engine.driver.state_cache import OwnAppend, ReadState
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.metadata.topic_commands import CreateTopic
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.append import append_given
from stratalog.engine.replicas.nearest import follower_log, footers_nearby
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.snapshots import latest_snapshot
from stratalog.engine.state.internal_topics import OPERATIONS_TOPIC, InternalTopic, operations_topic
from stratalog.engine.state.keyed import KeyedMachine, StateFormat
from stratalog.engine.state.operations import Event, to_batch
from stratalog.partitions.agreed_time import stamp_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    CoordinatorNotAvailableError,
    CorruptionError,
    InvalidReplicationFactorError,
    LogGapError,
    OutcomeUnknownError,
    RetriableError,
    StaleMetadataError,
    StorageAuthorizationError,
    StratalogError,
    TopicAlreadyExistsError,
    codes_of,
)
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.segments.reader import read_batches
from stratalog.snapshots.state_machine import load_dump

M = TypeVar("M", bound=KeyedMachine[Any])
R = TypeVar("R")

_COLUMNS = ["key", "value"]
_log = logging.getLogger(__name__)


def stamp_of(storage: Storage, clock: Clock, image: ClusterImage, topic_id: str, partition: int) -> int:
    """The timestamp for a record that is about to be appended to this partition (``agreed_time``)."""
    topic = image.topics.get(topic_id)
    leader = None if topic is None else topic.partitions[partition].leader
    store = None if leader is None else storage.stores.get(leader)
    return clock.now_ms() if store is None else stamp_ms(clock, store)


def ensure_topic(
    metadata: MetadataClient, storage: Storage, image: ClusterImage, wanted: InternalTopic
) -> ClusterImage:
    """Return the metadata with the internal topic. Creates the topic if ``image`` lacks it.

    Raises: InvalidReplicationFactorError if there are too few brokers.
    """
    if wanted.name in image.topic_ids:
        return image
    command = CreateTopic(
        name=wanted.name,
        topic_id=storage.new_id(),
        partitions=wanted.partitions,
        replication_factor=wanted.replication_factor,
        key_schema=wanted.key_schema,
        value_schema=wanted.value_schema,
        configs=wanted.configs,
        internal=True,
    )
    try:
        with suppress(TopicAlreadyExistsError):  # another driver was faster
            metadata.submit(command)
    except InvalidReplicationFactorError as error:
        raise InvalidReplicationFactorError(
            f"{wanted.name} is needed for the first time, but cannot be created: {error}"
            + (f"; or set {wanted.factor_config} on the cluster" if wanted.factor_config else "")
        ) from error
    return metadata.image()


def read_state(
    storage: Storage,
    clock: Clock,
    memory: Memory,
    view: PartitionView,
    form: StateFormat[M, R],
    *,
    until: int | None = None,
    since: ReadState[M] | None = None,
) -> ReadState[M]:
    """Read the state of a partition of an internal topic below its high watermark: the latest snapshot, and the
    log after the snapshot. The driver reads only records that it has not read before. ``until`` bounds the state;
    ``since`` is an earlier state to continue from. If the leader's copy is damaged, the state is read from a
    follower whose high watermark covers the complete state.

    Raises: LeaderNotAvailableError kinds; CorruptionError kinds, LogGapError when a part of the state is neither
        in a snapshot nor in the log.
    """
    return while_it_changes(lambda: _read_once(storage, clock, memory, view, form, until, since))


def look_at_state(
    storage: Storage, clock: Clock, memory: Memory, view: PartitionView, form: StateFormat[M, R]
) -> ReadState[M]:
    """Like ``read_state``, for reads on which no decision depends. If the leader does not answer, the state comes
    from the member of the ISR with the greatest high watermark, and may lack the latest records.

    Raises: see ``read_state``, if no member of the ISR answers.
    """
    try:
        return read_state(storage, clock, memory, view, form)
    except RetriableError:
        found = _of_any_member(storage.replicas(view), form)
        if found is None:
            raise
        return found


def _of_any_member(replicas: PartitionReplicas, form: StateFormat[M, R]) -> ReadState[M] | None:
    logs: list[tuple[Replica, ReplicaLog]] = []
    for broker in set(replicas.view.isr) & set(replicas.followers):
        with suppress(StratalogError):
            replica = replicas.replica(broker)
            logs.append((replica, replica.log()))
    for replica, log in sorted(logs, key=lambda one: -one[1].high_watermark):
        end = log.high_watermark
        with suppress(StratalogError):
            state = replay(replica, log, form, load_state(replica, log, form, end), end)
            return ReadState(state, log.lineage.epoch_at(state.next_offset - 1) or 0)
    return None


def _read_once(
    storage: Storage,
    clock: Clock,
    memory: Memory,
    view: PartitionView,
    form: StateFormat[M, R],
    until: int | None,
    since: ReadState[M] | None,
) -> ReadState[M]:
    replicas = storage.replicas(view)
    log = look_at_leader(replicas, footers_nearby(replicas))
    end = log.high_watermark if until is None else min(until, log.high_watermark)
    known: ReadState[M] | None = memory.states.get(view.topic_id, view.partition)
    usable = [read.state for read in (known, since) if read is not None and _fits(read, log, end)]

    def read_from(replica: Replica, held: ReplicaLog) -> M:
        if usable:
            state = max(usable, key=lambda one: one.next_offset)
        else:
            with memory.snapshot_metrics.loading(view.topic, view.partition, clock):
                state = load_state(replica, held, form, end)
        return replay(replica, held, form, state, end)

    try:
        state = read_from(replicas.leader, log)
    except CorruptionError as error:
        found = _of_a_follower(replicas, log, end, read_from)
        if found is None:
            raise
        state = found
        _log.warning("%s; it was read from another replica: run heal", error)
    read = ReadState(state, log.lineage.epoch_at(state.next_offset - 1) or 0)
    if until is None:
        memory.states.put(view.topic_id, view.partition, read)
    return read


def _of_a_follower(
    replicas: PartitionReplicas, leader: ReplicaLog, end: int, read_from: Callable[[Replica, ReplicaLog], M]
) -> M | None:
    """Read the state from a follower that has a good copy, and whose high watermark is at least ``end``; None
    without such a follower.
    """
    for broker in replicas.followers:
        chosen = follower_log(replicas, broker, leader)
        if chosen is not None and chosen.high_watermark >= end:
            with suppress(StratalogError):
                return read_from(chosen.replica, chosen.log)
    return None


def _fits(read: ReadState[Any], log: ReplicaLog, end: int) -> bool:
    """Whether a state belongs to a prefix of this log up to ``end``."""
    offset = read.state.next_offset
    return log.local_start <= offset <= end and (log.lineage.epoch_at(offset - 1) or 0) == read.epoch


def load_state(replica: Replica, log: ReplicaLog, form: StateFormat[M, R], end: int) -> M:
    """The state of the latest intact snapshot with an end offset up to ``end``; empty without such a snapshot.

    Raises: LogGapError when the log starts after the snapshot.
    """
    with errors_of(replica):
        snapshot = latest_snapshot(replica, log, until=end)
        state = form.empty
        if snapshot is not None:
            state = load_dump(snapshot.rows(), snapshot.snapshot_id.end_offset, form.codec, form.load)
    if state.next_offset < log.local_start:
        raise LogGapError(
            f"{replica}: the log starts at offset {log.local_start}, but its snapshots end "
            f"at {state.next_offset}: restore a later snapshot from another replica",
            broker_id=replica.broker_id,
        )
    return state


def replay(replica: Replica, log: ReplicaLog, form: StateFormat[M, R], state: M, end: int) -> M:
    """The state after the records ``[state.next_offset, end)`` of the log."""
    offset = state.next_offset
    if offset >= end:
        return state
    parts = [(link.file, max(link.start, offset), min(link.end, end)) for link in log.chain]
    with errors_of(replica):
        batches = (
            batch
            for file, start, stop in parts
            if start < stop
            for batch in read_batches(replica.store, file, start, stop, _COLUMNS)
        )
        return form.apply_batches(state, offset, batches)


def append_state(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: TopicImage,
    partition: int,
    form: StateFormat[M, R],
    records: Iterable[R],
    probed: ClusterImage | None = None,
) -> int:
    """Append records of the engine (at least one) with acks=all, all or none of them. Returns the offset of the
    first record. Concurrent appends of other threads of this driver share the file. ``probed`` is the metadata as
    just read, after a probe of the roots.

    Raises: CoordinatorNotAvailableError when nothing was appended and a retry may succeed;
        StorageAuthorizationError when storage denies access; OutcomeUnknownError when the records may have been
        appended; OperationFailedError for permanent errors.
    """
    return append_own(
        metadata, storage, clock, memory, topic.name, partition, form.to_batch(records, clock.now_ms()), probed
    )


def append_own(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    topic: str,
    partition: int,
    batch: pa.RecordBatch,
    probed: ClusterImage | None = None,
) -> int:
    """Append records to any internal topic; see ``append_state``."""
    wanted = OwnAppend(topic, partition, batch, probed)
    return memory.own_producer.append(
        wanted, lambda together: _append_together(metadata, storage, clock, memory, together)
    )


def _append_together(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, together: Sequence[OwnAppend]
) -> None:
    """Combine all waiting requests into one append, with one file per partition. Every request gets its result."""
    batches: dict[int, list[pa.RecordBatch]] = {}
    for one in together:
        batches.setdefault(one.partition, []).append(one.batch)
    images = [one.probed for one in together if one.probed is not None]
    latest = max(images, key=lambda image: image.next_offset) if len(images) == len(together) else None
    report = append_given(
        *(metadata, storage, clock, memory, together[0].topic, batches),
        who=None,
        image=latest,
        probed=latest is not None,
    )
    outcomes = {row["partition"]: row for row in report.rows}
    failures = {failure.item: failure for failure in report.failures}
    appended = Counter[int]()
    for one in together:
        row, failure = outcomes[one.partition], failures.get(f"{one.topic}-{one.partition}")
        if failure is None:
            one.base_offset = int(row["base_offset"] or 0) + appended[one.partition]
            appended[one.partition] += one.batch.num_rows
        else:
            one.error = _error(failure, report, unknown=row["outcome"] == "unknown")


def _error(failure: Failure, report: Report, *, unknown: bool) -> StratalogError:
    if unknown:
        return OutcomeUnknownError(f"{failure}; the records may be in the log: read it before you retry")
    if failure.code in _NOT_ALLOWED:
        return StorageAuthorizationError(f"{failure}; nothing was appended")
    if failure.code in _PASSING:
        return CoordinatorNotAvailableError(f"{failure}; nothing was appended, try again")
    return OperationFailedError(str(failure), report)


_NOT_ALLOWED = codes_of(StorageAuthorizationError)
_PASSING = codes_of(RetriableError, StaleMetadataError)
"""Codes of errors that a retry may overcome."""


def append_event(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, image: ClusterImage, event: Event
) -> None:
    """Append an event to ``__operations``, with acks=all. ``image`` is the metadata as just read. The first event
    of a cluster creates the topic. The roots are not probed again: the append itself detects a lost root.

    Raises: see ``append_state``; InvalidReplicationFactorError when no broker is in service.
    """
    brokers = sum(not broker.fenced for broker in image.brokers.values())
    image = ensure_topic(metadata, storage, image, operations_topic(brokers, tiered=storage.remote is not None))
    append_own(metadata, storage, clock, memory, OPERATIONS_TOPIC, 0, to_batch(event), image)

"""Snapshots of one partition: determines the content of the next snapshot, and makes it on the leader (KIP-630,
"Snapshot Format").

A snapshot is made of the committed records below the last stable offset, up to a batch boundary, in the leader's
folder; other replicas copy it. A task reads at most ``memory_bytes``, uncompressed; a larger partition of a user's
topic is left to Spark (``stratalog.engine.spark.reducing``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.replication.leader import leader_log, look_at_leader
from stratalog.engine.replication.partition import PartitionWork
from stratalog.engine.replication.snapshots import (
    check_not_erased_since,
    check_still_there,
    checkpoints_of,
    newest_id,
    repair_snapshot,
    uncompressed_bytes,
    usable_snapshot,
)
from stratalog.engine.state.keyed import FORMATS, StateFormat
from stratalog.engine.state.latest_by_key import LatestByKey, record_schema, reduced, without_tombstones
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import LogGapError, SourceChangedError, StratalogError
from stratalog.partitions.growth import fitted
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.producers import without_transactions
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.store import StoredObject
from stratalog.partitions.transactions import transactions_of
from stratalog.snapshots.policy import SinceSnapshot, SnapshotPolicy, changed_records, reason_to_wait
from stratalog.snapshots.reader import Snapshot
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId, check_may_snapshot
from stratalog.snapshots.state_machine import load_dump, write_dump
from stratalog.snapshots.writer import SnapshotWriter

_EARLIEST_US = -(2**63)
"""The earliest timestamp of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWork(PartitionWork):
    """One partition of a topic with cleanup.policy=snapshot."""

    schema: pa.Schema
    """The physical schema of the topic."""
    policy: SnapshotPolicy
    by_hand: bool
    """Whether to make a snapshot of all new records, whatever the policy."""
    delete_retention_ms: int
    lag_time_max_ms: int
    delete_delay_ms: int
    compression: str
    memory_bytes: int
    published: bool
    """Whether the partition's snapshots are also in a table in the remote tier (``publish``)."""
    clock: Clock
    complete: bool = False
    """Whether the snapshot must replace every record before its end. If not, the first one by hand may lack some
    (``plan_of``)."""
    protected: bool = False
    """Whether the log keeps the records that its snapshots replace (``protect.until.ms``)."""


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The plan for a partition's next snapshot, from one listing of the leader."""

    latest: SnapshotId
    """The partition's latest usable snapshot; ``EMPTY`` if there is none."""
    next: SnapshotId
    """The id of the next snapshot; ``EMPTY`` when nothing is committed."""
    high_watermark: int
    log_bytes: int
    """The size of the log between the two snapshots."""
    log_files: int
    """The number of files of that part of the log."""
    since_ms: int
    """The time when the latest snapshot was made; without a snapshot, the time when the log began."""
    wait: str | None
    """The reason why no snapshot is made now."""
    large: bool = False
    """Whether a snapshot is due if enough records have changed, but is too large for the memory of one task."""
    damaged: tuple[str, ...] = ()
    """Skipped snapshots, with their damage."""


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A snapshot that was made, or that already existed under its name."""

    snapshot_id: SnapshotId
    records: int
    new: bool
    """Whether this call has made the snapshot."""
    ms: float
    """GenSnapshotLatencyMs."""


def plan_snapshot(work: SnapshotWork) -> SnapshotPlan:
    """The task of a dry run: the plan of ``make_snapshot``, without reading records."""

    def look() -> SnapshotPlan:
        return plan_of(work, work.replicas.leader, look_at_leader(work.replicas))[0]

    return while_it_changes(look)


def make_snapshot(work: SnapshotWork) -> tuple[SnapshotPlan, PartitionSnapshot | None]:
    """The task: make the partition's next snapshot if the policy requires one and memory is sufficient.

    Raises: see ``leader_log``; SourceChangedError when the log keeps changing meanwhile; CorruptionError kinds.
    """
    return while_it_changes(lambda: _make_once(work))


def _make_once(work: SnapshotWork) -> tuple[SnapshotPlan, PartitionSnapshot | None]:
    began_s = work.clock.monotonic_s()
    leader = work.replicas.leader
    log, planned, earlier = plan_and_repair(work)
    if planned.wait is not None or planned.large:
        return planned, None
    # The writer is opened before any record is read, so that an erasure meanwhile finds it.
    with errors_of(leader), open_writer(work, leader, log, planned.next) as writer:
        content = _content(work, leader, log, earlier, planned.next.end_offset)
        refused = reason_not_to(work, planned, earlier, content.changed)
        if refused is not None:
            return refused, None
        records = content.write(writer)
        new = freeze(work, writer, planned.next, None if earlier is None else earlier.stored)
    return planned, PartitionSnapshot(planned.next, records, new, 1000 * (work.clock.monotonic_s() - began_s))


def plan_and_repair(work: SnapshotWork) -> tuple[ReplicaLog, SnapshotPlan, Snapshot | None]:
    """The leader's log, and ``plan_of`` it. Damaged or missing snapshots of the leader are first replaced by
    intact copies from other replicas, if there are any.

    Raises: see ``leader_log`` and ``plan_of``.
    """
    leader = work.replicas.leader
    log = leader_log(work.replicas)
    damaged: tuple[str, ...] = ()
    if needed_from(work, log) > 0 and newest_id(log) is None:
        repair_snapshot(work.replicas, leader, log)
        log = leader_log(work.replicas)
    try:
        planned, earlier = plan_of(work, leader, log)
        if not planned.damaged:
            return log, planned, earlier
        damaged = planned.damaged
    except LogGapError:
        pass  # raised again below unless it can be repaired
    with errors_of(leader):
        repair_snapshot(work.replicas, leader, log)
    log = leader_log(work.replicas)
    planned, earlier = plan_of(work, leader, log)
    return log, replace(planned, damaged=damaged), earlier


def open_writer(work: SnapshotWork, leader: Replica, log: ReplicaLog, snapshot_id: SnapshotId) -> SnapshotWriter:
    """The writer of a snapshot of the leader's log as it was listed.

    Raises: InvalidCallError when no snapshot may be made; SourceChangedError; CorruptSegmentError.
    """
    last = _last_link(log, snapshot_id.end_offset)
    check_may_snapshot(
        snapshot_id,
        lineage=log.lineage,
        log_start=log.local_start,
        high_watermark=log.high_watermark,
        is_boundary=last is not None,
        latest=newest_id(log, snapshot_id.end_offset - 1) or EMPTY,
    )
    assert last is not None
    footer = leader.footer(last.file)
    return SnapshotWriter(
        leader.store,
        leader.folder,
        snapshot_id,
        owner=leader.topic_id,
        partition=leader.partition,
        lineage=log.lineage,
        last_contained_log_timestamp_ms=footer.created_ms,
        schema=work.schema,
        clock=work.clock,
        compression=work.compression,
        producers=without_transactions(
            leader.producers_at(log, snapshot_id.end_offset)
        ),  # the snapshot ends at or below the last stable offset
    )


def freeze(
    work: SnapshotWork,
    writer: SnapshotWriter,
    snapshot_id: SnapshotId,
    earlier: StoredObject | None,
) -> bool:
    """List the leader once more, because the records that were read must still be its history, and no run may
    have begun to erase them, or have deleted the ``earlier`` snapshot that was read; then give the snapshot its
    name. Returns whether this call named it.

    Raises: FencedLeaderEpochError, InvalidUpdateVersionError, SourceChangedError.
    """
    leader = work.replicas.leader
    log = look_at_leader(work.replicas)
    check_not_erased_since(leader, log.listing, work.replicas.view)
    if earlier is not None:
        check_still_there(leader, log.listing, earlier)
    if log.lineage.epoch_at(snapshot_id.end_offset - 1) != snapshot_id.epoch or (
        log.high_watermark < snapshot_id.end_offset
    ):
        raise SourceChangedError(f"{leader}: its log has changed below offset {snapshot_id.end_offset}; try again")
    return writer.freeze()


def tombstone_horizon_us(work: SnapshotWork, leader: Replica, log: ReplicaLog, end: int) -> int:
    """The greatest timestamp (microseconds) of tombstones to omit from a snapshot that ends at ``end``: such
    tombstones were older than ``delete.retention.ms`` when the snapshot's last record was appended.
    """
    last = _last_link(log, end)
    assert last is not None
    until_us = 1000 * (leader.footer(last.file).created_ms - work.delete_retention_ms)
    return max(until_us, _EARLIEST_US)


# ------------------------------------------------------------------------------------ the plan


def reason_not_to(
    work: SnapshotWork, planned: SnapshotPlan, earlier: Snapshot | None, changed: int
) -> SnapshotPlan | None:
    """The plan with the reason not to make a snapshot, or None: make one. The number of records that have changed
    since the ``earlier`` snapshot is now known.
    """
    wait = reason_to_wait(work.policy, _since(work, planned, earlier, changed), by_hand=work.by_hand)
    return None if wait is None else replace(planned, wait=wait, large=False)


def plan_of(work: SnapshotWork, leader: Replica, log: ReplicaLog) -> tuple[SnapshotPlan, Snapshot | None]:
    """The plan for the leader's log as it was listed, based on names alone, and the latest usable snapshot.

    Raises: LogGapError when the log starts after that snapshot; InvalidUpdateVersionError when a run has numbered
        an erasure since the view.
    """
    usable = usable_snapshot(leader, log)
    earlier = usable.snapshot
    latest = EMPTY if earlier is None else earlier.snapshot_id
    needed = needed_from(work, log)
    if latest.end_offset < needed and not _may_be_first(work, leader, log):
        check_not_erased_since(leader, log.listing, work.replicas.view)  # the view may not know the snapshot
        raise LogGapError(
            f"{leader}: the log starts at offset {needed}, but the latest usable snapshot ends at "
            f"{latest.end_offset}. If the log start had already advanced when cleanup.policy was set, take the "
            "first snapshot by hand; otherwise restore a snapshot from another replica",
            broker_id=leader.broker_id,
        )
    stable = _stable_end(leader, log)
    ends = [link.end for link in log.chain if link.end <= stable]
    following = EMPTY
    if ends:
        following = SnapshotId(ends[-1], log.lineage.epoch_at(ends[-1] - 1) or 0, leader.generation)
    between = [link for link in log.chain if latest.end_offset < link.end <= following.end_offset]
    planned = SnapshotPlan(
        latest=latest,
        next=following,
        high_watermark=log.high_watermark,
        log_bytes=sum(link.file.object.size_bytes for link in between),
        log_files=len(between),
        since_ms=_since_ms(leader, log, earlier, work.clock.now_ms()),
        wait=None,
        damaged=tuple(str(error) for _, error in usable.damaged),
    )
    # Assume that everything has changed: only reading the records shows whether it has.
    since = _since(work, planned, earlier, changed=0 if earlier is None else earlier.records)
    wait = reason_to_wait(work.policy, since, by_hand=work.by_hand)
    large = False
    if wait is None and work.replicas.view.topic not in FORMATS:
        size = sum(leader.footer(link.file).uncompressed_bytes for link in between)
        size += _snapshot_bytes(leader, log, latest)
        large = size > work.memory_bytes
    return replace(planned, wait=wait, large=large), earlier


def _may_be_first(work: SnapshotWork, leader: Replica, log: ReplicaLog) -> bool:
    """Whether the next snapshot may lack the records before the log start. Only the first one may, if made by
    hand: retention deleted those records before the policy was set. The leader may have lost its snapshots, so no
    replica may have any.

    Raises: LogGapError if a replica cannot be listed.
    """
    view = work.replicas.view
    if not work.by_hand or work.complete or view.last_erasure or leader.topic in FORMATS:
        return False
    if log.listing.checkpoints or log.listing.other_snapshots:
        return False
    for broker in sorted({*view.replicas} - {leader.broker_id}):
        try:
            listing = work.replicas.replica(broker).list()
        except StratalogError as error:
            raise LogGapError(
                f"{leader}: the log starts at offset {log.local_start}, and no snapshot replaces the records "
                f"before it. Broker {broker} may have one, but cannot be listed ({error.code}: {error}): bring it "
                "back, or move its replica to another broker",
                broker_id=leader.broker_id,
            ) from error
        if listing.checkpoints or listing.other_snapshots:
            return False
    return True


def needed_from(work: SnapshotWork, log: ReplicaLog) -> int:
    """The offset at which the latest snapshot must end, or later. After an erasure, that is the log start: a log
    that still begins before it has erased records (``stratalog.snapshots.erasure``).
    """
    view = work.replicas.view
    return max(log.local_start, view.log_start_offset) if view.last_erasure else log.local_start


def _stable_end(leader: Replica, log: ReplicaLog) -> int:
    """The end of the decided part of the log. Internal topics have no appends in transactions."""
    if leader.topic in FORMATS:
        return log.high_watermark
    return transactions_of(log, leader.footer).last_stable_offset


def _since(work: SnapshotWork, planned: SnapshotPlan, earlier: Snapshot | None, changed: int) -> SinceSnapshot:
    return SinceSnapshot(
        latest=planned.latest,
        next=planned.next,
        log_bytes=planned.log_bytes,
        snapshot_records=0 if earlier is None else earlier.records,
        changed_records=changed,
        age_ms=work.clock.now_ms() - planned.since_ms,
    )


def _since_ms(leader: Replica, log: ReplicaLog, earlier: Snapshot | None, now_ms: int) -> int:
    if earlier is not None:
        return earlier.created_ms
    if not log.chain:
        return now_ms
    first = log.chain[0].file
    # A merge may have rewritten the file. By the file's own age, a log that is kept short would never be old
    # enough for its first snapshot.
    return min(first.object.modified_ms, leader.footer(first).min_timestamp_us // 1000)


def _snapshot_bytes(leader: Replica, log: ReplicaLog, latest: SnapshotId) -> int:
    stored: list[StoredObject] = [found for name, found in checkpoints_of(log) if SnapshotId.of(name) == latest]
    return sum(uncompressed_bytes(leader, one) for one in stored)


def _last_link(log: ReplicaLog, end: int) -> Link | None:
    """The file of the log that ends at ``end``."""
    return next((link for link in log.chain if link.end == end), None)


# --------------------------------------------------------------------------------- the content


@dataclass(frozen=True, slots=True)
class _StateContent:
    """The content of a snapshot of an internal topic."""

    form: StateFormat[Any, Any]
    state: Any
    changed: int

    def write(self, writer: SnapshotWriter) -> int:
        """Write the records; returns their number."""
        return write_dump(self.state.dump(), self.form.codec, writer)


@dataclass(frozen=True, slots=True)
class _LatestContent:
    """The content of a snapshot of a user's topic."""

    table: pa.Table
    changed: int

    def write(self, writer: SnapshotWriter) -> int:
        """Write the records; returns their number."""
        for batch in LatestByKey(self.table).dump():
            writer.write(batch)
        return int(self.table.num_rows)


def _content(
    work: SnapshotWork, leader: Replica, log: ReplicaLog, earlier: Snapshot | None, end: int
) -> _StateContent | _LatestContent:
    start = 0 if earlier is None else earlier.snapshot_id.end_offset
    form = FORMATS.get(leader.topic)
    if form is not None:
        return _state_content(form, leader, log, earlier, start, end)
    wanted = record_schema(work.schema)
    before = wanted.empty_table()
    if earlier is not None:
        before = pa.Table.from_batches([fitted(batch, wanted, str(work)) for batch in earlier.batches()], wanted)
    read = committed_batches(leader, log, start, end, list(RECORD_COLUMNS))
    later = [fitted(batch, wanted, str(work)) for _, batch in read]
    found = reduced(before, pa.Table.from_batches(later, wanted))
    horizon_us = tombstone_horizon_us(work, leader, log, end)
    return _LatestContent(without_tombstones(found.table, horizon_us), found.changed)


def _state_content(
    form: StateFormat[Any, Any], leader: Replica, log: ReplicaLog, earlier: Snapshot | None, start: int, end: int
) -> _StateContent:
    held: set[bytes | None] = set()
    state = form.empty
    if earlier is not None:
        held = {key for key, _ in earlier.rows()}
        state = load_dump(earlier.rows(), start, form.codec, form.load)
    touched: list[bytes | None] = []
    for offset, batch in log_batches(leader, log, start, end, ["key", "value"]):
        touched += batch.column("key").to_pylist()
        state = form.apply_batches(state, offset, [batch])
    return _StateContent(form, state, changed_records(held, touched))


def log_batches(
    leader: Replica, log: ReplicaLog, start: int, end: int, columns: list[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """``(first offset, records)`` of the log's part ``[start, end)``."""
    for link in log.chain:
        offset, stop = max(link.start, start), min(link.end, end)
        if offset < stop:
            for batch in read_batches(leader.store, link.file, offset, stop, columns):
                yield offset, batch
                offset += batch.num_rows


def committed_batches(
    leader: Replica, log: ReplicaLog, start: int, end: int, columns: list[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Like ``log_batches``, without markers and records of aborted transactions. ``end`` is stable."""
    for link, is_decided in committed_links(leader, log, start, end):
        offset, stop = max(link.start, start), min(link.end, end)
        wanted = [*columns, "control"] if is_decided else columns
        for batch in read_batches(leader.store, link.file, offset, stop, wanted):
            runs = committed_runs(batch.column("control")) if is_decided else [(0, batch.num_rows)]
            for first, until in runs:
                yield offset + first, batch.select(columns).slice(first, until - first)
            offset += batch.num_rows


def committed_links(leader: Replica, log: ReplicaLog, start: int, end: int) -> Iterator[tuple[Link, bool]]:
    """The files of the log with committed records in ``[start, end)``, and whether each file may also hold other
    records.
    """
    transactions = transactions_of(log, leader.footer, start)
    hidden = transactions.hidden(Isolation.READ_COMMITTED)
    for link in log.chain:
        if max(link.start, start) < min(link.end, end) and link.name not in hidden:
            decided = link.name.merged and leader.footer(link.file).may_hold_control
            yield link, decided or link.name in transactions.gaps


def committed_runs(control: pa.Array) -> list[tuple[int, int]]:
    """The maximal runs ``[first, until)`` of rows without ``control``."""
    runs = pc.run_end_encode(pc.is_null(control))
    ends = runs.run_ends.to_pylist()
    plain = runs.values.to_pylist()
    return [(first, until) for first, until, wanted in zip([0, *ends], ends, plain, strict=False) if wanted]

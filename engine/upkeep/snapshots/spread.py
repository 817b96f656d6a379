"""Snapshots of one partition on all its replicas: copies the latest snapshot to replicas that lack it, and deletes
snapshots below the log start (KIP-630, "When to Increase the LogStartOffset", "When to Delete Snapshots").
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.snapshots import (
    checkpoints_of,
    fetch_latest,
    latest_snapshot,
    newest_id,
    outdated_files,
    repair_snapshot,
)
from stratalog.engine.upkeep.snapshots.partition import SnapshotWork
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.errors import (
    CorruptSegmentError,
    FencedLeaderEpochError,
    InvalidUpdateVersionError,
    StratalogError,
    UnknownLeaderEpochError,
)
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.store import StoredObject
from stratalog.snapshots.reader import read_snapshot
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId
from stratalog.snapshots.start_offset import FrozenSnapshot, leader_start_offset, to_delete

LEADER_CHANGED = (FencedLeaderEpochError, UnknownLeaderEpochError, InvalidUpdateVersionError)
"""The errors of a fetch if the leader, or the erasure that its snapshots follow, is not the one of the view."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The result of copying the leader's latest snapshot to its followers."""

    latest: SnapshotId
    size_bytes: int
    """SnapshotSizeBytes: the size of the leader's latest snapshot; 0 if there is none."""
    lag: int
    """SnapshotLag: the distance from that snapshot's end to the high watermark."""
    log_start: int
    """The offset up to which the partition's log start may grow."""
    copied_bytes: int
    failed: tuple[tuple[int, StratalogError], ...]
    """The errors of followers that did not get the snapshot, by broker id."""


def spread_snapshot(work: SnapshotWork) -> Spread:
    """The task. A failed follower does not stop the others. The log start waits for failed and slow followers, but
    not for fenced ones, because these first fetch the snapshot when they return.

    Raises: see ``leader_log``; the errors of ``LEADER_CHANGED`` while followers fetch: fetched chunks stay.
    """
    return while_it_changes(lambda: _spread_once(work))


def _spread_once(work: SnapshotWork) -> Spread:
    leader = work.replicas.leader
    log = leader_log(work.replicas)
    wanted = newest_id(log)
    fetched = [log.log_end]
    failed: list[tuple[int, StratalogError]] = []
    copied = 0
    for broker in work.replicas.followers:
        try:
            follower = work.replicas.replica(broker)
            end, size_bytes = while_it_changes(lambda: _bring(work, follower, wanted))  # noqa: B023 - called at once
        except LEADER_CHANGED:
            raise  # under this view no other follower could fetch either
        except StratalogError as error:
            failed.append((broker, error))
            end, size_bytes = 0, 0
        fetched.append(end)
        copied += size_bytes
    held = dict(checkpoints_of(log))
    latest = EMPTY if wanted is None else wanted
    return Spread(
        latest=latest,
        size_bytes=held[latest.name].size_bytes if wanted is not None else 0,
        lag=log.high_watermark - latest.end_offset,
        log_start=_log_start(work, leader, log, fetched),
        copied_bytes=copied,
        failed=tuple(failed),
    )


def _bring(work: SnapshotWork, follower: Replica, wanted: SnapshotId | None) -> tuple[int, int]:
    """The offset up to which the follower has both the leader's log and a snapshot of it, and the number of copied
    bytes."""
    log = follower.log()
    held = newest_id(log)
    copied = 0
    if wanted is not None and not any(name == wanted.name for name, _ in log.listing.checkpoints):
        done = fetch_latest(work.replicas, follower)
        copied = 0 if done is None else done.size_bytes
        log = follower.log()
        held = newest_id(log)
    if held is None or log.joined_epoch != work.replicas.epoch:  # the history of its log is not known
        return 0, copied
    return min(log.log_end, held.end_offset), copied


def _log_start(work: SnapshotWork, leader: Replica, log: ReplicaLog, fetched: list[int]) -> int:
    """The greatest allowed log start. It must be the end of an intact snapshot, because no other copy of the
    records below it remains.
    """
    candidates = dict(checkpoints_of(log, log.high_watermark))
    start = work.replicas.view.log_start_offset
    while True:
        wanted = leader_start_offset(
            start,
            [FrozenSnapshot(SnapshotId.of(name), stored.modified_ms) for name, stored in candidates.items()],
            fetched,
            now_ms=agreed_ms(work.clock, leader.store),
            lag_time_max_ms=work.lag_time_max_ms,
        )
        chosen = next((name for name in candidates if name.end_offset == wanted), None)
        if wanted == start or chosen is None:
            return start
        try:
            read_snapshot(
                leader.store, leader.folder, candidates[chosen], owner=leader.topic_id, partition=leader.partition
            )
        except CorruptSegmentError:
            del candidates[chosen]
            continue
        return wanted


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The files that the replicas of one partition have deleted."""

    deleted: int
    """The number of deleted snapshots, and of chunks that no run fetches any more."""
    deleted_bytes: int
    failed: tuple[tuple[int, StratalogError], ...]


def clean_snapshots(work: SnapshotWork) -> Cleaned:
    """The task: on every replica delete snapshots that are below the log start and below the latest snapshot, if
    the latest one is intact and a later one is ``file.delete.delay.ms`` old. The latest snapshot is never deleted.
    """
    deleted = deleted_bytes = 0
    failed: list[tuple[int, StratalogError]] = []
    for broker in work.replicas.view.replicas:
        if work.replicas.view.brokers[broker].fenced:
            continue
        try:
            replica = work.replicas.replica(broker)
            with errors_of(replica):
                litter = while_it_changes(lambda: _litter(work, replica))  # noqa: B023 - called at once
            if litter:
                replica.store.delete([stored.name for stored in litter])
        except StratalogError as error:
            failed.append((broker, error))
            continue
        deleted += len(litter)
        deleted_bytes += sum(stored.size_bytes for stored in litter)
    return Cleaned(deleted, deleted_bytes, tuple(failed))


def _litter(work: SnapshotWork, replica: Replica) -> list[StoredObject]:
    log = replica.log()
    log_start = work.replicas.view.log_start_offset
    now_ms = agreed_ms(work.clock, replica.store)
    if now_ms is None:
        return []
    delay_over_ms = now_ms - work.delete_delay_ms
    held = {SnapshotId.of(name): stored for name, stored in checkpoints_of(log)}
    doomed = [held[gone] for gone in to_delete(held, log_start)]
    # Snapshots of an abandoned history: below the log start, that history can never be the replica's again.
    doomed += [
        stored
        for name, stored in log.listing.checkpoints
        if SnapshotId.of(name) not in held and name.end_offset < log_start
    ]
    doomed += [
        stored
        for name, stored in log.listing.chunks
        if name.end_offset <= log_start and stored.modified_ms <= delay_over_ms
    ]
    view = work.replicas.view
    doomed += [one for one in outdated_files(replica, log, view) if one.modified_ms <= delay_over_ms]
    if not doomed:
        return []
    successor = latest_snapshot(replica, log)
    if successor is None or successor.snapshot_id != newest_id(log):  # the later one is damaged
        repair_snapshot(work.replicas, replica, log)
        return []  # its copy can be old enough only in a later run
    if successor is None or successor.snapshot_id.end_offset < log_start:
        return []
    # Check all later snapshots, not only the latest: if every run makes one, the latest is always young.
    settled = max((one for one, stored in held.items() if stored.modified_ms <= delay_over_ms), default=EMPTY)
    spared = {held[one].name for one in held if one >= min(settled, successor.snapshot_id)}
    return [stored for stored in doomed if stored.name not in spared] if settled > EMPTY else []

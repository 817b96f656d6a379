"""Snapshots of one partition on its replicas: selects the valid snapshot, and fetches it (KIP-630).

The leader makes a snapshot, and the other replicas fetch its bytes. (In Kafka each replica makes its own
snapshot.) A follower in sync gets the snapshot from the run that made it, or from the next ``replicate``; appends
never wait for a snapshot. A follower whose log ends below the log start fetches the snapshot first. It starts its
log at the snapshot's end, and then copies files.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.leader import check_not_fenced
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import (
    CorruptSegmentError,
    InvalidUpdateVersionError,
    SourceChangedError,
    StratalogError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog
from stratalog.partitions.paths import CheckpointName, ChunkName, DataName, base_name, name_in, parse_name
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.store import StoredObject
from stratalog.snapshots.erasure import is_abandoned, proves_change
from stratalog.snapshots.fetch import RESPONSE_MAX_BYTES, FetchedSnapshot, Source, fetch_snapshot
from stratalog.snapshots.reader import Snapshot, Usable, latest_usable, stage_snapshot
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId


def checkpoints_of(log: ReplicaLog, until: int | None = None) -> list[tuple[CheckpointName, StoredObject]]:
    """The snapshots of the replica's history, by end offset; up to the end offset ``until`` if given. Snapshots of
    a history that an unclean election has abandoned are not included.
    """
    return [
        (name, stored)
        for name, stored in log.listing.checkpoints
        if log.lineage.epoch_at(name.end_offset - 1) == name.epoch
        and name.end_offset <= (log.log_end if until is None else until)
    ]


def usable_snapshot(replica: Replica, log: ReplicaLog, until: int | None = None) -> Usable:
    """The latest intact snapshot of the replica's log, with an end offset up to ``until``, and the damaged
    snapshots after it. Raises: see ``stratalog.snapshots.reader.latest_usable``.
    """
    return _latest_usable(replica, [stored for _, stored in checkpoints_of(log, until)])


def _latest_usable(replica: Replica, checkpoints: Sequence[StoredObject]) -> Usable:
    with errors_of(replica):
        return latest_usable(
            replica.store, replica.folder, checkpoints, owner=replica.topic_id, partition=replica.partition
        )


def latest_snapshot(replica: Replica, log: ReplicaLog, until: int | None = None) -> Snapshot | None:
    """The usable snapshot of ``usable_snapshot``."""
    return usable_snapshot(replica, log, until).snapshot


def snapshot_ahead(replica: Replica, log: ReplicaLog) -> Snapshot | None:
    """The greatest verified snapshot of the replica, if it ends beyond the replica's log: the replica has fetched
    the snapshot, but does not yet start its log at the snapshot's end (KIP-630, "Changes to Leader Election").
    None in all other cases.

    Raises: see ``stratalog.snapshots.reader.latest_usable``.
    """
    last_epoch = log.lineage.epoch_at(log.log_end - 1) if log.log_end else None
    end = SnapshotId(log.log_end, last_epoch or 0, replica.generation)
    ahead = [
        stored
        for name, stored in log.listing.checkpoints
        if SnapshotId.of(name) > end
        # A history that the replica has joined since may have abandoned the snapshot's records.
        and (name.epoch > log.joined_epoch or log.lineage.epoch_at(name.end_offset - 1) == name.epoch)
    ]
    return _latest_usable(replica, ahead).snapshot


def repair_snapshot(replicas: PartitionReplicas, replica: Replica, log: ReplicaLog) -> SnapshotId | None:
    """Copy a snapshot from another live replica: the greatest snapshot of the replica's history that is intact
    there, if the replica's own usable snapshots end before it. Returns None if no other replica has a better
    snapshot.

    A damaged file of the same name is deleted only when the complete copy is staged and checked.

    Raises: StorageError kinds for the replica itself; unreadable sources are skipped.
    """
    best = better_snapshot(replicas, replica, log)
    if best is None:
        return None
    source, snapshot = best
    name = replica.path(snapshot.snapshot_id.name)
    staged = stage_snapshot(source.store, snapshot, replica.store, name)
    try:
        if any(held == snapshot.snapshot_id.name for held, _ in log.listing.checkpoints):
            replica.store.delete([name])
        staged.commit()
    finally:
        staged.abort()
    return snapshot.snapshot_id


def better_snapshot(
    replicas: PartitionReplicas, replica: Replica, log: ReplicaLog
) -> tuple[Replica, Snapshot] | None:
    """The snapshot that ``repair_snapshot`` copies, and the replica that has it."""
    own = usable_snapshot(replica, log).snapshot
    greatest = EMPTY if own is None else own.snapshot_id
    best: tuple[Replica, Snapshot] | None = None
    for broker in replicas.view.replicas:
        if broker == replica.broker_id or replicas.view.brokers[broker].fenced:
            continue
        with suppress(StratalogError):
            other = replicas.replica(broker)
            theirs = other.log()
            found = usable_snapshot(other, theirs, until=log.log_end).snapshot
            if found is None or found.snapshot_id <= greatest:
                continue
            if log.lineage.epoch_at(found.snapshot_id.end_offset - 1) == found.snapshot_id.epoch:
                greatest = found.snapshot_id
                best = other, found
    return best


def uncompressed_bytes(replica: Replica, stored: StoredObject) -> int:
    """The size of the replica's snapshot in memory, in bytes."""
    name = parse_name(base_name(stored.name))
    assert isinstance(name, CheckpointName)
    return read_segment(replica.store, DataFile(DataName(0, None, name.epoch), stored)).footer.uncompressed_bytes


def newest_id(log: ReplicaLog, until: int | None = None) -> SnapshotId | None:
    """The greatest snapshot of the replica's log with an end offset up to ``until``, judged by name alone; None if
    there is none.
    """
    return max((SnapshotId.of(name) for name, _ in checkpoints_of(log, until)), default=None)


def outdated_files(replica: Replica, log: ReplicaLog, view: PartitionView) -> list[StoredObject]:
    """The snapshots of a replica, and their pieces, that do not follow the last erasure of the view, and those of
    an erasure that ended before its commit (``stratalog.snapshots.erasure``). No reader uses them.
    """
    found = []
    for stored in log.listing.other_snapshots:
        name = parse_name(name_in(replica.folder, stored.name))
        assert isinstance(name, CheckpointName | ChunkName)
        if name.generation < view.generation or is_abandoned(name.generation, view.partition_epoch):
            found.append(stored)
    return found


def check_not_erased_since(leader: Replica, listing: Listing, view: PartitionView) -> None:
    """Raises: InvalidUpdateVersionError if a snapshot of the leader proves that a run has numbered an erasure
    since the view. The snapshots of the view may then have its keys (``stratalog.snapshots.erasure``).
    """
    for stored in listing.other_snapshots:
        name = parse_name(name_in(leader.folder, stored.name))
        assert isinstance(name, CheckpointName | ChunkName)
        if proves_change(name.generation, view.partition_epoch):
            raise InvalidUpdateVersionError(
                f"{leader} has a snapshot of erasure {name.generation}, which began after this view (partition "
                f"epoch {view.partition_epoch}): read the metadata again"
            )


def check_still_there(leader: Replica, listing: Listing, snapshot: StoredObject) -> None:
    """Check that the leader still has a snapshot that the caller has read. If not, an erasure may have deleted it,
    and the caller must not name a file with its records.

    Raises: SourceChangedError.
    """
    if all(stored.name != snapshot.name for _, stored in listing.checkpoints):
        raise SourceChangedError(f"{leader}: {base_name(snapshot.name)} was deleted while it was read; try again")


def repair_if_damaged(replicas: PartitionReplicas, replica: Replica, log: ReplicaLog) -> tuple[ReplicaLog, Usable]:
    """Return the replica's log and snapshots. Calls ``repair_snapshot`` first if the latest snapshot is damaged,
    or if all snapshots are gone. Raises: see ``repair_snapshot``.
    """
    usable = usable_snapshot(replica, log)
    gone = usable.snapshot is None and log.local_start > 0
    if (usable.damaged or gone) and repair_snapshot(replicas, replica, log) is not None:
        log = replica.log()
        usable = usable_snapshot(replica, log)
    return log, usable


def check_start_is_covered(replicas: PartitionReplicas, replica: Replica, log: ReplicaLog) -> None:
    """If snapshots replace the records below the local start of the replica's log, check that one of them is
    intact. If none is intact, copy a snapshot from another replica first.

    Raises: CorruptSegmentError naming the damaged snapshot; see ``repair_snapshot``.
    """
    log, usable = repair_if_damaged(replicas, replica, log)
    end = 0 if usable.snapshot is None else usable.snapshot.snapshot_id.end_offset
    if end < log.local_start and usable.damaged:
        raise CorruptSegmentError(
            f"{usable.damaged[0][1]}; only this snapshot replaces the records below offset {log.local_start}, "
            "and no available replica has an intact copy"
        )


def fetch_latest(replicas: PartitionReplicas, follower: Replica) -> FetchedSnapshot | None:
    """Copy the leader's latest verified snapshot to the follower; returns None when the leader has none. A leader
    whose own snapshot is damaged first gets a copy from another replica.

    Raises: FencedLeaderEpochError when the view is stale; InvalidUpdateVersionError when a run has numbered an
        erasure since the view; UnknownLeaderEpochError when the leader's folder is
        behind the view, UnknownTopicOrPartitionError when the folder is gone; CorruptionError kinds;
        RetriableError kinds. After an error, the fetched chunks are kept, and the next call continues from them.
    """
    leader = replicas.leader

    def check_leader() -> None:
        """Check the folder again at each chunk, because another replica may lead by then."""
        listing = leader.list()
        if listing.joined_epoch == 0:
            raise UnknownTopicOrPartitionError(f"{leader} has never led, or its folder is gone")
        check_not_fenced(leader, listing, replicas.epoch)
        check_not_erased_since(leader, listing, replicas.view)
        if listing.joined_epoch < replicas.epoch:
            raise UnknownLeaderEpochError(f"{leader} does not know leader epoch {replicas.epoch} yet: try again")

    def discover() -> Source | None:
        log = leader.log()
        check_not_fenced(leader, log.listing, replicas.epoch)
        check_not_erased_since(leader, log.listing, replicas.view)
        with errors_of(leader):
            _, usable = repair_if_damaged(replicas, leader, log)
        if usable.snapshot is None:
            return None
        return Source(leader.store, leader.folder, usable.snapshot.snapshot_id, check_leader)

    return fetch_snapshot(
        follower.store,
        follower.folder,
        discover,
        owner=follower.topic_id,
        partition=follower.partition,
        max_bytes=RESPONSE_MAX_BYTES,
    )

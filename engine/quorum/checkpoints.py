"""Snapshots of the metadata log in the folders of its voters: written, read, copied (KIP-630, "Design").

A snapshot is made of a log that is known to be committed, up to its end: a batch boundary. So every driver that
makes the one of an offset makes it of the same image, whatever it lacks and however late it comes, and the first
that freezes it wins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from engine.metadata.dump import CODEC, decode, dump, load
from engine.quorum.state import LogState
from engine.quorum.voter import Voter, VoterListing
from partitions.clock import Clock
from partitions.errors import CorruptionError
from partitions.paths import METADATA_TOPIC, CheckpointName
from partitions.records import physical_schema
from partitions.store.protocol import StoredObject
from snapshots.fetch import NotFetched, SnapshotFetch, Wanted, fetch_snapshots
from snapshots.messages import RESPONSE_MAX_BYTES
from snapshots.reader import Snapshot, read_snapshot, stage_snapshot
from snapshots.snapshot_id import SnapshotId
from snapshots.source import HostedPartition, SnapshotSource
from snapshots.state_machine import write_dump
from snapshots.writer import SnapshotWriter

Loading = Callable[[], AbstractContextManager[object]]
"""What a snapshot is loaded in: measures how long that takes (LoadSnapshotLatencyMs)."""


def write_checkpoint(cluster_id: str, voter: Voter, state: LogState, clock: Clock) -> int | None:
    """Freeze the snapshot of a committed log in the voter's folder: how many records it holds; None when it is
    there already.

    Raises: StorageError, OutcomeUnknownError: what was written is staged, and no file yet.
    """
    with SnapshotWriter(
        voter.store,
        voter.folder,
        SnapshotId.of(state.snapshot),
        owner=cluster_id,
        partition=0,
        lineage=state.lineage,
        last_contained_log_timestamp_ms=state.appended_ms,
        schema=physical_schema(),
        clock=clock,
    ) as writer:
        records = write_dump(dump(state.image), CODEC, writer)
        return records if writer.freeze() else None


def read_checkpoint(cluster_id: str, voter: Voter, name: CheckpointName, stored: StoredObject) -> LogState:
    """The log that a snapshot stands for; every byte was verified before anything of it is used.

    Raises: CorruptSegmentError, CorruptionError, InconsistentClusterIdError naming the file; SourceChangedError
        when it is gone; StorageError.
    """
    snapshot = verify_checkpoint(cluster_id, voter, stored)
    try:
        image = load(map(decode, snapshot.values()), name.end_offset)
    except CorruptionError as error:
        raise CorruptionError(f"{voter}: {name}: {error}") from error
    return LogState(
        image=image,
        lineage=snapshot.lineage,
        epoch=name.epoch,
        start=name.end_offset,
        appended_ms=snapshot.last_contained_log_timestamp_ms,
    )


def verify_checkpoint(cluster_id: str, voter: Voter, stored: StoredObject) -> Snapshot:
    """A snapshot all of whose checksums are right. Raises: as ``read_checkpoint``."""
    return read_snapshot(voter.store, voter.folder, stored, owner=cluster_id, partition=0)


def copy_checkpoint(cluster_id: str, source: VoterListing, name: CheckpointName, target: Voter) -> None:
    """Give ``target`` a snapshot that ``source`` was listed with, and that is verified there first.

    A small one is one copy of that very object, checked as it passes. A larger one is fetched in chunks
    (KIP-630, "Fetching Snapshots"), so that whoever comes after an interruption goes on where it was; its parts
    are verified as one file before they get its name.

    Raises: as ``read_checkpoint``; OutcomeUnknownError.
    """
    stored = source.checkpoints[name]
    snapshot = verify_checkpoint(cluster_id, source.voter, stored)
    if stored.size_bytes > RESPONSE_MAX_BYTES:
        _fetch_checkpoint(cluster_id, source.voter, SnapshotId.of(name), target)
        return
    staged = stage_snapshot(source.voter.store, snapshot, target.store, target.path(name))
    try:
        staged.commit()
    except BaseException:
        staged.abort()
        raise


def _fetch_checkpoint(cluster_id: str, source: Voter, snapshot_id: SnapshotId, target: Voter) -> None:
    # A voter serves what it has, whoever leads: a snapshot is of committed records only.
    hosted = HostedPartition(
        store=source.store,
        folder=source.folder,
        broker_id=source.broker_id,
        leader=source.broker_id,
        leader_epoch=snapshot_id.epoch,
    )
    fetch = SnapshotFetch(
        target.store,
        target.folder,
        topic_id=METADATA_TOPIC,
        partition=0,
        owner=cluster_id,
        # One that has got the name meanwhile is never replaced (see ``engine.quorum.upkeep``).
        discover=lambda: (
            None if snapshot_id.name in target.list().checkpoints else Wanted(snapshot_id, leader_epoch=None)
        ),
    )
    fetch_snapshots(
        [fetch],
        SnapshotSource(lambda topic_id, partition: hosted, cluster_id=cluster_id).answer,
        cluster_id=cluster_id,
        replica_id=target.broker_id,
        max_bytes=RESPONSE_MAX_BYTES,
    )
    if isinstance(fetch.outcome, NotFetched):
        raise fetch.outcome.error

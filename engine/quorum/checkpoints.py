"""Snapshots of the metadata log in the folders of its voters: written, read, copied (KIP-630, "Design").

A snapshot is made of a log that is known to be committed, up to its end: a batch boundary. So every driver that
makes the one of an offset makes it of the same image, whatever it lacks and however late it comes, and the first
that freezes it wins.
"""

from __future__ import annotations

from engine.metadata.dump import decode, dump, load
from engine.metadata.machine import CODEC
from engine.quorum.state import LogState
from engine.quorum.voter import Voter, VoterListing
from partitions.clock import Clock
from partitions.errors import CorruptionError
from partitions.paths import CheckpointName
from partitions.records import physical_schema
from partitions.store.protocol import StoredObject
from snapshots.reader import Snapshot, read_snapshot
from snapshots.snapshot_id import SnapshotId
from snapshots.state_machine import write_dump
from snapshots.writer import SnapshotWriter


def write_checkpoint(cluster_id: str, voter: Voter, state: LogState, clock: Clock) -> bool:
    """Freeze the snapshot of a committed log in the voter's folder; False when it is there already.

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
        write_dump(dump(state.image), CODEC, writer)
        return writer.freeze()


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
    """Give ``target`` a snapshot that ``source`` was listed with: the very object that was verified there.

    Raises: as ``read_checkpoint``; OutcomeUnknownError.
    """
    stored = source.checkpoints[name]
    verify_checkpoint(cluster_id, source.voter, stored)
    staged = target.store.stage_copy(source.voter.store, stored, target.path(name))
    try:
        staged.commit()
    except BaseException:
        staged.abort()
        raise

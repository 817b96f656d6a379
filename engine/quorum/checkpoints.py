"""Snapshots of the metadata log in the folders of its voters: written, read, copied (KIP-630, "Design").

A snapshot contains a log that is known to be committed. The end of the snapshot is a batch boundary. So all
snapshots of one offset have the same image, whichever driver makes them and when, and the first snapshot that is
frozen wins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from stratalog.engine.metadata.dump import CODEC, decode, dump, load
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter, VoterListing
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.paths import CheckpointName, base_name
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.signature import check_signature
from stratalog.partitions.store.protocol import Readable, StoredObject
from stratalog.snapshots.fetch import RESPONSE_MAX_BYTES, Source, fetch_snapshot
from stratalog.snapshots.reader import Check, Snapshot, believed, read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.state_machine import write_dump
from stratalog.snapshots.writer import SnapshotWriter

KIND = "checkpoint"
"""The kind in the tags of snapshots."""

Loading = Callable[[], AbstractContextManager[object]]
"""A context for loading a snapshot: measures how long that takes (LoadSnapshotLatencyMs)."""


def write_checkpoint(cluster_id: str, voter: Voter, state: LogState, clock: Clock) -> int | None:
    """Freeze the snapshot of a committed log in the voter's folder. Returns the snapshot's number of records, or
    None when the snapshot already exists.

    Raises: StorageError, OutcomeUnknownError: the bytes may be staged, but there is no file.
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
        sign=None if voter.key is None else partial(voter.key.tag, KIND, str(state.snapshot)),
    ) as writer:
        records = write_dump(dump(state.image), CODEC, writer)
        return records if writer.freeze() else None


def read_checkpoint(cluster_id: str, voter: Voter, name: CheckpointName, stored: StoredObject) -> LogState:
    """The log that a snapshot replaces; every byte is verified before any of it is used.

    Raises: CorruptSegmentError, CorruptionError, InconsistentClusterIdError naming the file; SourceChangedError
        when the file is gone; StorageError.
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
        signed=snapshot.signed,
    )


def verify_checkpoint(cluster_id: str, voter: Voter, stored: StoredObject) -> Snapshot:
    """Verify all checksums of a snapshot, and return it. Raises: see ``read_checkpoint``."""
    return read_snapshot(voter.store, voter.folder, stored, owner=cluster_id, partition=0, check=_signature(voter))


def _signature(voter: Voter) -> Check:
    """Checks a snapshot's tag before any part of the snapshot is decoded."""
    key = voter.key
    if key is None:
        return believed

    def check(source: Readable, stored: StoredObject) -> None:
        with source.open(stored) as file:
            check_signature(key, KIND, base_name(stored.name), file, source.uri_of(stored.name))

    return check


def copy_checkpoint(cluster_id: str, source: VoterListing, name: CheckpointName, target: Voter) -> None:
    """Verify a snapshot that ``source`` lists, and copy it to ``target``.

    A small snapshot is written from the verified bytes: a second read might return other bytes, and then one
    corrupt voter would corrupt another. A larger snapshot is fetched in chunks (KIP-630, "Fetching Snapshots"), so
    that an interrupted copy resumes. The chunks are verified as one file before that file gets the snapshot's
    name.

    Raises: see ``read_checkpoint``; OutcomeUnknownError.
    """
    stored = source.checkpoints[name]
    snapshot = verify_checkpoint(cluster_id, source.voter, stored)
    if stored.size_bytes <= RESPONSE_MAX_BYTES:
        target.store.create(target.path(name), snapshot.content())
        return
    # A voter serves its snapshots under any leader, because they contain only committed records.
    found = Source(source.voter.store, source.voter.folder, SnapshotId.of(name))
    fetch_snapshot(
        target.store,
        target.folder,
        # A snapshot that already has the name is never replaced (see ``stratalog.engine.quorum.upkeep``).
        lambda: None if name in target.list().checkpoints else found,
        owner=cluster_id,
        partition=0,
        check=_signature(target),
        max_bytes=RESPONSE_MAX_BYTES,
    )

"""Snapshots for tests: written in one line, with the values needed to read them again."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import join
from stratalog.partitions.records import physical_schema
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.snapshots.reader import Snapshot, read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.writer import SnapshotWriter

OWNER = "f" * 32
PARTITION = 3
FOLDER = "replica"
LINEAGE = Lineage([(1, 0), (2, 10), (4, 30)])
ID = SnapshotId(20, 2)
LATER = SnapshotId(40, 4)
TIMESTAMP_MS = 1_700_000_000_123


def writer(
    store: Store,
    snapshot_id: SnapshotId = ID,
    *,
    folder: str = FOLDER,
    partition: int = PARTITION,
    clock: ManualClock | None = None,
) -> SnapshotWriter:
    """A writer of a snapshot of binary records."""
    return SnapshotWriter(
        store,
        folder,
        snapshot_id,
        owner=OWNER,
        partition=partition,
        lineage=LINEAGE,
        last_contained_log_timestamp_ms=TIMESTAMP_MS,
        schema=physical_schema(),
        clock=clock or ManualClock(),
    )


def write(
    store: Store,
    values: Sequence[bytes],
    snapshot_id: SnapshotId = ID,
    *,
    folder: str = FOLDER,
    partition: int = PARTITION,
) -> StoredObject:
    """A frozen snapshot of these values."""
    with writer(store, snapshot_id, folder=folder, partition=partition) as snapshot:
        snapshot.append(values)
        assert snapshot.freeze()
    return stored(store, snapshot_id, folder=folder)


def stored(store: Store, snapshot_id: SnapshotId = ID, *, folder: str = FOLDER) -> StoredObject:
    """The file of a snapshot, as a listing sees it."""
    name = join(folder, str(snapshot_id.name))
    return next(one for one in store.list(folder) if one.name == name)


def read(store: Store, snapshot_id: SnapshotId = ID, *, folder: str = FOLDER) -> Snapshot:
    """The snapshot of that id, verified."""
    return read_snapshot(
        store, folder, stored(store, snapshot_id, folder=folder), owner=OWNER, partition=PARTITION
    )


def names(store: Store, folder: str = FOLDER) -> list[str]:
    """The file names in a folder."""
    return [one.name.removeprefix(f"{folder}/") for one in store.list(folder)]

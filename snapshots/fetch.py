"""FetchSnapshot: how a follower fetches the snapshot of its leader (KIP-630, "Fetching Snapshots").

One driver runs both sides, over two folders. ``Source`` is the leader's side: for each chunk it checks what a
broker would check. ``fetch_snapshot`` is the follower's side: it discovers a snapshot, stores it chunk by chunk,
verifies the whole, gives it its name, and deletes the chunks. An interrupted run leaves chunks, which the next run
continues or deletes. The caller does the next steps: a log that starts at the snapshot's end, and the state loaded
from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    InvalidUpdateVersionError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    SourceChangedError,
    StorageError,
)
from stratalog.partitions.paths import join
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.snapshots.chunks import PartialSnapshot
from stratalog.snapshots.reader import Check, believed, read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId

RESPONSE_MAX_BYTES = 10 * 1024 * 1024
"""``replica.fetch.response.max.bytes``, Kafka's default: the size of a chunk."""
ATTEMPTS = 5
"""The number of times that a follower discovers a snapshot again before it fails."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes of a snapshot."""

    size_bytes: int
    """The size of the whole snapshot."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot in the leader's folder (KIP-630, "Request Handling")."""

    store: Store
    folder: str
    snapshot_id: SnapshotId
    check_leader: Callable[[], None] = lambda: None
    """Raises FencedLeaderEpochError, UnknownLeaderEpochError or UnknownTopicOrPartitionError if the folder does
    not belong to the leader that the follower knows."""

    def check(self) -> StoredObject:
        """The snapshot, which still exists, under a leader that is still the same.

        Raises: SnapshotNotFoundError if the snapshot was deleted; errors from ``check_leader``; StorageError.
        """
        self.check_leader()
        name = join(self.folder, str(self.snapshot_id.name))
        try:
            return self.store.stat(name)
        except (FileNotFoundError, SourceChangedError) as error:
            raise self._deleted(name) from error

    def _deleted(self, name: str) -> SnapshotNotFoundError:
        return SnapshotNotFoundError(
            f"{self.store.uri_of(name)} does not exist (any more): fetch again to find a later snapshot"
        )

    def chunk(self, position: int, max_bytes: int) -> SnapshotChunk:
        """At most ``max_bytes`` bytes from ``position``; empty at the end of the snapshot.

        Raises: PositionOutOfRangeError for a position after the end of the snapshot; see ``check``.
        """
        stored = self.check()
        if position > stored.size_bytes:
            raise PositionOutOfRangeError(
                f"{self.store.uri_of(stored.name)} has {stored.size_bytes} bytes, but the fetch starts "
                f"at position {position}"
            )
        if position == stored.size_bytes:
            return SnapshotChunk(stored.size_bytes, b"")
        try:
            with self.store.open(stored) as file:
                file.seek(position)
                return SnapshotChunk(stored.size_bytes, file.read(max_bytes))
        except (FileNotFoundError, SourceChangedError) as error:
            raise self._deleted(stored.name) from error


@dataclass(frozen=True, slots=True)
class FetchedSnapshot:
    """The snapshot is frozen in the follower's folder: start the log at its end, and load it."""

    snapshot_id: SnapshotId
    size_bytes: int
    """The number of bytes that this run fetched; 0 if the snapshot already existed."""


def fetch_snapshot(
    store: Store,
    folder: str,
    discover: Callable[[], Source | None],
    *,
    owner: str,
    partition: int,
    check: Check = believed,
    max_bytes: int = RESPONSE_MAX_BYTES,
) -> FetchedSnapshot | None:
    """Fetch the snapshot that ``discover`` names into the follower's folder; None if it names none, because the
    leader's log has the records that the follower lacks. For ``owner``, ``partition`` and ``check`` see
    ``read_snapshot``.

    If the snapshot is deleted meanwhile, the follower discovers one again. It also does so if the parts do not fit
    together, after it deleted them (KIP-630, "Response Handling"). Any other failure is raised immediately. The
    source is checked again before the copy gets its name, because an erasure may have deleted it.

    Raises: errors from ``discover``; see ``Source.chunk``, ``read_snapshot``. Parts are kept for the next run,
        except parts of a snapshot of another log, or from before an erasure.
    """
    failed: SnapshotNotFoundError | SourceChangedError | PositionOutOfRangeError | CorruptSegmentError
    partial: PartialSnapshot | None = None
    for _ in range(ATTEMPTS):
        try:
            source = discover()
        except InvalidUpdateVersionError:
            if partial is not None:
                partial.drop()  # the parts may have records that were erased since
            raise
        if partial is not None and (source is None or source.snapshot_id != partial.snapshot_id):
            partial.drop()
        if source is None:
            return None
        partial = PartialSnapshot(store, folder, source.snapshot_id)
        try:
            damaged = partial.frozen
            if damaged is not None:
                try:
                    read_snapshot(store, folder, damaged, owner=owner, partition=partition, check=check)
                except CorruptSegmentError:
                    pass  # the snapshot's successor takes its place
                else:
                    partial.drop()
                    return FetchedSnapshot(source.snapshot_id, 0)
            size_bytes = _fetch_parts(source, partial, max_bytes)
            partial.freeze(source.check, owner=owner, partition=partition, damaged=damaged, check=check)
        except (SnapshotNotFoundError, SourceChangedError) as error:
            failed = error  # the part was deleted, or another run that fetches it was faster
        except (PositionOutOfRangeError, CorruptSegmentError) as error:
            partial.drop()  # parts of two different files of that name, or of a damaged file
            failed = error
        except (CorruptionError, InconsistentClusterIdError):
            partial.drop()  # a later attempt would get the same bytes
            raise
        except InvalidUpdateVersionError:
            partial.drop()  # the parts may have records that were erased since
            raise
        else:
            partial.drop()
            return FetchedSnapshot(source.snapshot_id, size_bytes)
    raise failed


def _fetch_parts(source: Source, partial: PartialSnapshot, max_bytes: int) -> int:
    """Fetch the missing parts of the snapshot. Returns their number of bytes."""
    fetched = 0
    while True:
        chunk = source.chunk(partial.position, max_bytes)
        if chunk.data:
            partial.add(chunk.data)
            fetched += len(chunk.data)
        elif partial.position < chunk.size_bytes:
            name = join(source.folder, str(source.snapshot_id.name))
            raise StorageError(f"{source.store.uri_of(name)} returned no bytes from {partial.position} on")
        if partial.position == chunk.size_bytes:
            return fetched

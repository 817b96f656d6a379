"""FetchSnapshot: how a follower gets the snapshot of its leader (KIP-630, "Fetching Snapshots").

One driver runs both sides, over two folders. ``Source`` is the leader's: it checks at every chunk what a broker
would check. ``fetch_snapshot`` is the follower's, in this order: hear of a snapshot; keep it chunk by chunk;
verify the whole of it; give it its name; drop the chunks. A run that stops in between leaves chunks, which the
next run goes on from or drops. The next steps, a log that starts at the snapshot's end and the state that is
loaded from it, are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    SourceChangedError,
    StorageError,
)
from stratalog.partitions.paths import join
from stratalog.partitions.store.protocol import Store
from stratalog.snapshots.chunks import PartialSnapshot
from stratalog.snapshots.reader import Check, believed, read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId

RESPONSE_MAX_BYTES = 10 * 1024 * 1024
"""``replica.fetch.response.max.bytes``, Kafka's default: the size of a chunk."""
ATTEMPTS = 5
"""How often a follower asks for a snapshot anew before it gives up."""


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Bytes of a snapshot."""

    size_bytes: int
    """Of the whole snapshot."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Source:
    """A snapshot in the leader's folder (KIP-630, "Request Handling")."""

    store: Store
    folder: str
    snapshot_id: SnapshotId
    check_leader: Callable[[], None] = lambda: None
    """Raises FencedLeaderEpochError, UnknownLeaderEpochError or UnknownTopicOrPartitionError when the folder is
    not that of the leader that the follower knows."""

    def chunk(self, position: int, max_bytes: int) -> SnapshotChunk:
        """At most ``max_bytes`` bytes from ``position`` on; none at the end of the snapshot.

        Raises: SnapshotNotFoundError when the snapshot is gone; PositionOutOfRangeError for a position behind its
            end; as ``check_leader``; StorageError.
        """
        self.check_leader()
        name = join(self.folder, str(self.snapshot_id.name))
        try:
            stored = self.store.stat(name)
            if position > stored.size_bytes:
                raise PositionOutOfRangeError(
                    f"{self.store.uri_of(name)} has {stored.size_bytes} bytes, but the fetch starts "
                    f"at position {position}"
                )
            if position == stored.size_bytes:
                return SnapshotChunk(stored.size_bytes, b"")
            with self.store.open(stored) as file:
                file.seek(position)
                return SnapshotChunk(stored.size_bytes, file.read(max_bytes))
        except (FileNotFoundError, SourceChangedError) as error:
            raise SnapshotNotFoundError(
                f"{self.store.uri_of(name)} does not exist, or no longer exists: fetch again "
                "to learn of a later snapshot"
            ) from error


@dataclass(frozen=True, slots=True)
class FetchedSnapshot:
    """The snapshot is frozen in the follower's folder: start the log at its end, and load it."""

    snapshot_id: SnapshotId
    size_bytes: int
    """Fetched by this run; 0 when it was there already."""


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
    """Bring the snapshot that ``discover`` names into the follower's folder; None when it names none: the leader's
    log has what the follower lacks. ``owner``, ``partition``, ``check`` as of ``read_snapshot``.

    A snapshot that is gone in the middle is discovered anew; so is one whose parts do not fit together, and they
    are dropped first (KIP-630, "Response Handling"). Whatever else fails is told at once.

    Raises: as ``discover``, ``Source.chunk``, ``read_snapshot``. Parts stay for the next run, but for those whose
        whole is another log's.
    """
    failed: SnapshotNotFoundError | SourceChangedError | PositionOutOfRangeError | CorruptSegmentError
    for _ in range(ATTEMPTS):
        source = discover()
        if source is None:
            return None
        partial = PartialSnapshot(store, folder, source.snapshot_id)
        try:
            damaged = partial.frozen
            if damaged is not None:
                try:
                    read_snapshot(store, folder, damaged, owner=owner, partition=partition, check=check)
                except CorruptSegmentError:
                    pass  # its successor takes its place
                else:
                    partial.drop()
                    return FetchedSnapshot(source.snapshot_id, 0)
            size_bytes = _fetch_parts(source, partial, max_bytes)
            partial.freeze(owner=owner, partition=partition, damaged=damaged, check=check)
        except (SnapshotNotFoundError, SourceChangedError) as error:
            failed = error  # deleted, or another run fetches it, too, and was faster
        except (PositionOutOfRangeError, CorruptSegmentError) as error:
            partial.drop()  # parts of two files of one name, from two leaders, or of a damaged one
            failed = error
        except (CorruptionError, InconsistentClusterIdError):
            partial.drop()  # a later attempt would get the same bytes
            raise
        else:
            partial.drop()
            return FetchedSnapshot(source.snapshot_id, size_bytes)
    raise failed


def _fetch_parts(source: Source, partial: PartialSnapshot, max_bytes: int) -> int:
    """Keep what is missing of the snapshot: how many bytes that was."""
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

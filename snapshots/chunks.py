"""What a follower has of a snapshot that it fetches: write-once part files (KIP-630, "Response Handling").

Kafka appends to one ``.checkpoint.part``. Here every chunk is a file of its own beside it,
``<snapshot>.checkpoint.<position>.part``; together they are that file. Whoever comes later, after a crash or at
the same time, goes on from what is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from isal import isal_zlib

from partitions.errors import CorruptSegmentError, InvalidCallError, SourceChangedError
from partitions.listing import parse
from partitions.paths import ChunkName, join
from partitions.store.protocol import Store, StoredObject
from partitions.store.reader import RangeReader
from snapshots.messages import Chunk
from snapshots.reader import verify_snapshot
from snapshots.snapshot_id import SnapshotId

_PIECE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``[start, end)`` of a snapshot, in a part file that begins at ``position``."""

    start: int
    end: int
    position: int
    stored: StoredObject


class PartialSnapshot:
    """The parts of one snapshot in a follower's folder, as listed when this was made; then as added here."""

    def __init__(self, store: Store, folder: str, snapshot_id: SnapshotId) -> None:
        """Raises: BrokerUnreachableError, ListingUnstableError."""
        self._store = store
        self._folder = folder
        self.snapshot_id = snapshot_id
        self._list()

    def _list(self) -> None:
        listing = parse(self._folder, self._store.list(self._folder))
        self._parts = dict(listing.chunks)
        self._pieces = _chain(
            (name, stored) for name, stored in listing.chunks if name.checkpoint == self.snapshot_id.name
        )
        self.frozen = next((one for name, one in listing.checkpoints if name == self.snapshot_id.name), None)
        """The snapshot itself, where it was there."""

    @property
    def position(self) -> int:
        """How many of the first bytes of the snapshot are here."""
        return self._pieces[-1].end if self._pieces else 0

    def add(self, chunk: Chunk) -> None:
        """Keep bytes that begin at ``position``. Where somebody has kept some already, those stay, and count.

        Raises: InvalidCallError for bytes of another place or snapshot; SourceChangedError when the name is taken
            by what brings us no further; StorageError, OutcomeUnknownError.
        """
        if chunk.snapshot_id != self.snapshot_id or chunk.position != self.position:
            raise InvalidCallError(
                f"bytes of snapshot {chunk.snapshot_id} from {chunk.position} on do not go on from byte "
                f"{self.position} of {self.snapshot_id}"
            )
        if not chunk.data:
            return
        name = ChunkName(self.snapshot_id.end_offset, self.snapshot_id.epoch, chunk.position)
        path = join(self._folder, str(name))
        if not self._store.create(path, chunk.data):
            self._list()
            if self.position <= chunk.position:
                self._make_room(name)
            return
        stored = StoredObject(path, len(chunk.data), 0, "")
        self._parts[name] = stored
        self._pieces.append(Piece(chunk.position, chunk.position + len(chunk.data), chunk.position, stored))

    def _make_room(self, name: ChunkName) -> None:
        """Delete a part that has no bytes: none of ours was ever made so, and it would be in the way for ever.

        Raises: SourceChangedError in any case: nothing was kept.
        """
        found = self._parts.get(name)
        if found is not None and found.size_bytes == 0:
            self._store.delete([found.name])
        raise SourceChangedError(
            f"{self._store.uri_of(join(self._folder, str(name)))} was taken, and holds nothing"
        )

    def freeze(self, *, owner: str, partition: int, damaged: StoredObject | None = None) -> bool:
        """Verify the parts as one file, and give that file its name. The parts stay. False: somebody else has
        frozen that snapshot meanwhile. ``damaged`` has the name and is no good: it makes room at the last moment.

        Raises: CorruptionError kinds and InconsistentClusterIdError, as ``read_snapshot``: nothing was frozen;
            SourceChangedError when a part was deleted meanwhile; StorageError, OutcomeUnknownError.
        """
        name = join(self._folder, str(self.snapshot_id.name))
        whole = StoredObject(name, self.position, 0, "")
        snapshot = verify_snapshot(
            _Joined(self._store, tuple(self._pieces)), whole, owner=owner, partition=partition
        )
        staged = self._store.stage_writer(name)
        try:
            crc32 = 0
            for piece in self._pieces:
                for data in _bytes_of(self._store, piece, piece.start, piece.end):
                    staged.file.write(data)
                    crc32 = isal_zlib.crc32(data, crc32)
            if crc32 != snapshot.segment.crc32:
                raise CorruptSegmentError(f"{self._store.uri_of(name)}: its parts changed while they were read")
            if damaged is not None:
                self._store.delete([damaged.name])
            return staged.commit()
        finally:
            staged.abort()

    def drop(self) -> None:
        """Delete the parts of this snapshot and of those before it, which nobody fetches any more.

        Raises: StorageError.
        """
        doomed = stale_chunks(self._parts, self.snapshot_id)
        if doomed:
            self._store.delete(self._parts.pop(name).name for name in doomed)
        self._pieces = []


def stale_chunks(chunks: Iterable[ChunkName], end: SnapshotId) -> list[ChunkName]:
    """The parts of snapshots that a replica which has everything up to ``end`` needs no more: litter of runs that
    stopped.
    """
    return [name for name in chunks if SnapshotId.of(name.checkpoint) <= end]


def _chain(parts: Iterable[tuple[ChunkName, StoredObject]]) -> list[Piece]:
    """The pieces that the parts come to from byte 0 on, up to the first gap: at each byte the part that reaches
    furthest. Parts overlap where two runs asked for chunks of different sizes.
    """
    pieces: list[Piece] = []
    end = 0
    reaching: tuple[int, int, StoredObject] | None = None
    for name, stored in sorted(parts, key=lambda part: part[0].position):
        if name.position > end and reaching is not None and reaching[0] > end:
            pieces.append(Piece(end, *reaching))
            end, reaching = reaching[0], None
        if name.position > end:
            break
        if reaching is None or name.position + stored.size_bytes > reaching[0]:
            reaching = (name.position + stored.size_bytes, name.position, stored)
    if reaching is not None and reaching[0] > end:
        pieces.append(Piece(end, *reaching))
    return pieces


def _bytes_of(store: Store, piece: Piece, start: int, end: int) -> Iterable[bytes]:
    """Bytes ``[start, end)`` of the snapshot, which lie in the piece."""
    with store.open(piece.stored) as source:
        source.seek(start - piece.position)
        while start < end:
            data = source.read(min(_PIECE_BYTES, end - start))
            if not data:
                raise SourceChangedError(f"{store.uri_of(piece.stored.name)} is shorter than it was listed")
            yield data
            start += len(data)


class _Joined:
    """The parts as the file that they will be."""

    def __init__(self, store: Store, pieces: tuple[Piece, ...]) -> None:
        self._store = store
        self._pieces = pieces

    def open(self, source_object: StoredObject) -> BinaryIO:
        return RangeReader(source_object.size_bytes, self._fetch).as_file()

    def _fetch(self, start: int, end: int) -> bytes:
        found = [
            data
            for piece in self._pieces
            if piece.start < end and start < piece.end
            for data in _bytes_of(self._store, piece, max(start, piece.start), min(end, piece.end))
        ]
        return found[0] if len(found) == 1 else b"".join(found)

    def uri_of(self, name: str) -> str:
        return f"{self._store.uri_of(name)} as fetched"

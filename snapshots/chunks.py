"""The parts of a snapshot that a follower has fetched, as write-once files (KIP-630, "Response Handling").

Kafka appends to one ``.checkpoint.part``. Here every chunk is a separate file,
``<snapshot>.checkpoint.<position>.part``, and together the chunks are the content of that file. A later or
concurrent run continues from the existing parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from isal import isal_zlib

from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.listing import parse
from stratalog.partitions.paths import ChunkName, join
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.partitions.store.reader import RangeReader
from stratalog.snapshots.reader import Check, believed, verify_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId

_READ_BYTES = 8 * 1024 * 1024


class PartialSnapshot:
    """The parts of one snapshot in a follower's folder, as listed at creation, plus those added here.

    A part counts if it begins at the end of the one before it. Others come from a run with another chunk size, and
    are deleted with the rest.
    """

    def __init__(self, store: Store, folder: str, snapshot_id: SnapshotId) -> None:
        """Raises: BrokerUnreachableError, ListingUnstableError."""
        self._store = store
        self._folder = folder
        self.snapshot_id = snapshot_id
        self._list()

    def _list(self) -> None:
        generation = self.snapshot_id.generation
        listing = parse(self._folder, self._store.list(self._folder), generation=generation)
        self._listed = dict(listing.chunks)
        self.frozen = next((one for name, one in listing.checkpoints if name == self.snapshot_id.name), None)
        """The snapshot itself, if it existed."""
        self._parts: list[tuple[int, StoredObject]] = []
        """Position in the snapshot and file, without gaps."""
        self.position = 0
        """The number of leading bytes of the snapshot that the follower has."""
        while (found := self._listed.get(self._name(self.position))) is not None and found.size_bytes:
            self._parts.append((self.position, found))
            self.position += found.size_bytes

    def _name(self, position: int) -> ChunkName:
        name = self.snapshot_id.name
        return ChunkName(name.end_offset, name.epoch, position, name.generation)

    def add(self, data: bytes) -> None:
        """Store the bytes starting at ``position``, at least one. If another run has already stored bytes there,
        those count instead.

        Raises: SourceChangedError when the name is taken by a part that cannot be used; StorageError,
            OutcomeUnknownError.
        """
        name = self._name(self.position)
        path = join(self._folder, str(name))
        if self._store.create(path, data):
            stored = self._listed[name] = StoredObject(path, len(data), 0, "")
            self._parts.append((self.position, stored))
            self.position += len(data)
            return
        self._list()
        if self.position <= name.position:
            self._make_room(name)

    def _make_room(self, name: ChunkName) -> None:
        """Delete an empty part, which no run writes, and which would block the name.

        Raises: SourceChangedError, always, because nothing was stored.
        """
        found = self._listed.get(name)
        if found is not None and found.size_bytes == 0:
            self._store.delete([found.name])
        raise SourceChangedError(
            f"{self._store.uri_of(join(self._folder, str(name)))} already exists, but is empty"
        )

    def freeze(
        self,
        check_source: Callable[[], object],
        *,
        owner: str,
        partition: int,
        damaged: StoredObject | None = None,
        check: Check = believed,
    ) -> bool:
        """Verify the parts as one file, and give that file its name, unless ``check_source`` raises an error. The
        parts stay. Returns False if another run has frozen the snapshot meanwhile. ``damaged`` is a damaged file
        of that name, which is deleted at the last moment. ``check``: see ``read_snapshot``.

        Raises: errors from ``check_source``; CorruptionError kinds and InconsistentClusterIdError, see
            ``read_snapshot``: nothing was frozen;
            SourceChangedError when a part was deleted meanwhile; StorageError, OutcomeUnknownError.
        """
        name = join(self._folder, str(self.snapshot_id.name))
        whole = StoredObject(name, self.position, 0, "")
        joined = _Joined(self._store, tuple(self._parts))
        check(joined, whole)
        snapshot = verify_snapshot(joined, whole, owner=owner, partition=partition)
        staged = self._store.stage_writer(name)
        try:
            crc32 = 0
            for data in joined.read(0, self.position):
                staged.file.write(data)
                crc32 = isal_zlib.crc32(data, crc32)
            if crc32 != snapshot.segment.crc32:
                raise CorruptSegmentError(f"{self._store.uri_of(name)}: its chunks changed during the read")
            check_source()
            if damaged is not None:
                self._store.delete([damaged.name])
            return staged.commit()
        finally:
            staged.abort()

    def drop(self) -> None:
        """Delete the parts of this snapshot and of earlier ones, which no run fetches any more.

        Raises: StorageError.
        """
        stale = stale_chunks(self._listed, self.snapshot_id)
        if stale:
            self._store.delete(self._listed.pop(name).name for name in stale)
        self._parts, self.position = [], 0


def stale_chunks(chunks: Iterable[ChunkName], end: SnapshotId) -> list[ChunkName]:
    """The parts, left by interrupted runs, that a replica with everything up to ``end`` no longer needs."""
    return [name for name in chunks if SnapshotId.of(name.checkpoint) <= end]


class _Joined:
    """The parts, read as if they were already one file."""

    def __init__(self, store: Store, parts: tuple[tuple[int, StoredObject], ...]) -> None:
        self._store = store
        self._parts = parts

    def open(self, source_object: StoredObject) -> BinaryIO:
        return RangeReader(source_object.size_bytes, lambda start, end: b"".join(self.read(start, end))).as_file()

    def uri_of(self, name: str) -> str:
        return f"{self._store.uri_of(name)} as fetched"

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Bytes ``[start, end)`` of the snapshot. Raises: SourceChangedError, StorageError."""
        for position, stored in self._parts:
            at, until = max(start, position), min(end, position + stored.size_bytes)
            if at >= until:
                continue
            with self._store.open(stored) as file:
                file.seek(at - position)
                while at < until:
                    data = file.read(min(_READ_BYTES, until - at))
                    if not data:
                        raise SourceChangedError(
                            f"{self._store.uri_of(stored.name)} is shorter than it was listed"
                        )
                    yield data
                    at += len(data)

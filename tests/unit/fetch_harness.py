"""A leader and a follower of FetchSnapshot (KIP-630), each with its own store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.partitions.errors import FencedLeaderEpochError
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from stratalog.snapshots.fetch import FetchedSnapshot, SnapshotChunk, Source, fetch_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from tests.unit.snapshot_files import FOLDER, ID, OWNER, PARTITION, names, write

VALUES = [bytes([n]) * 300 for n in range(20)]


class Leader:
    """The leader's folder, and its requests."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or MemoryStore("memory://leader")
        self.leads = True
        self.asked: list[int] = []
        """The positions of the chunks."""
        self.before: Callable[[int], None] = lambda count: None
        """Called before each chunk with the number of chunks so far."""

    def source(self, snapshot_id: SnapshotId = ID) -> Source:
        return _Watched(self, snapshot_id)

    def check_leader(self) -> None:
        if not self.leads:
            raise FencedLeaderEpochError("another one leads")


class _Watched(Source):
    def __init__(self, leader: Leader, snapshot_id: SnapshotId) -> None:
        super().__init__(leader.store, FOLDER, snapshot_id, leader.check_leader)
        object.__setattr__(self, "_leader", leader)

    def chunk(self, position: int, max_bytes: int) -> SnapshotChunk:
        leader: Leader = self._leader  # type: ignore[attr-defined]
        leader.before(len(leader.asked))
        leader.asked.append(position)
        return super().chunk(position, max_bytes)


def fetch(
    store: Store,
    leader: Leader,
    *,
    discover: Callable[[], Source | None] | None = None,
    max_bytes: int = 1000,
    owner: str = OWNER,
) -> FetchedSnapshot | None:
    """One run of a follower."""
    return fetch_snapshot(
        store, FOLDER, discover or leader.source, owner=owner, partition=PARTITION, max_bytes=max_bytes
    )


def leader_with(values: Sequence[bytes] = VALUES) -> Leader:
    leader = Leader()
    write(leader.store, values)
    return leader


def parts(store: Store) -> list[str]:
    return [name for name in names(store) if name.endswith(".part")]

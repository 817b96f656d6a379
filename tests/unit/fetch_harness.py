"""A leader and a follower of FetchSnapshot (KIP-630), each with a store of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from partitions.store.memory import MemoryStore
from partitions.store.protocol import Store
from snapshots.fetch import (
    Outcome,
    SnapshotFetch,
    Wanted,
    fetch_snapshots,
)
from snapshots.messages import (
    RESPONSE_MAX_BYTES,
    FetchSnapshotRequest,
    PartitionAnswer,
    PartitionRequest,
)
from snapshots.source import HostedPartition, SnapshotSource
from tests.unit.snapshot_files import FOLDER, ID, OWNER, PARTITION, names, write

CLUSTER = "c"
LEADER, FOLLOWER = 1, 2
EPOCH = 7
VALUES = [bytes([n]) * 300 for n in range(20)]
WANTED = Wanted(ID, EPOCH)


class Leader:
    """A broker that leads every partition it has a folder for; ``folders`` by partition."""

    def __init__(self, store: Store | None = None, response_max_bytes: int = RESPONSE_MAX_BYTES) -> None:
        self.store = store or MemoryStore("memory://leader")
        self.folders = {PARTITION: FOLDER}
        self.leader: int | None = LEADER
        self.epoch = EPOCH
        self.asked: list[FetchSnapshotRequest] = []
        self.before: Callable[[int], None] = lambda count: None
        """Called before each answer with how many there were."""
        self._source = SnapshotSource(self._hosted, cluster_id=CLUSTER, response_max_bytes=response_max_bytes)

    def _hosted(self, topic_id: str, partition: int) -> HostedPartition | None:
        folder = self.folders.get(partition)
        if topic_id != OWNER or folder is None:
            return None
        return HostedPartition(
            store=self.store, folder=folder, broker_id=LEADER, leader=self.leader, leader_epoch=self.epoch
        )

    def ask(self, request: FetchSnapshotRequest) -> list[PartitionAnswer]:
        self.before(len(self.asked))
        self.asked.append(request)
        return self._source.answer(request)

    def ask_one(self, **changes: Any) -> PartitionAnswer:
        fields: dict[str, Any] = {
            "topic_id": OWNER,
            "partition": PARTITION,
            "current_leader_epoch": EPOCH,
            "snapshot_id": ID,
            "position": 0,
        }
        return self.ask(of(PartitionRequest(**{**fields, **changes})))[0]


def of(*partitions: PartitionRequest, max_bytes: int = 10_000_000) -> FetchSnapshotRequest:
    return FetchSnapshotRequest(
        cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=max_bytes, partitions=partitions
    )


def fetch(
    store: Store,
    leader: Leader,
    *,
    discover: Callable[[], Wanted | None] = lambda: WANTED,
    max_bytes: int = 1000,
    owner: str | None = None,
) -> Outcome:
    """One run of a follower."""
    one = SnapshotFetch(store, FOLDER, topic_id=OWNER, partition=PARTITION, discover=discover, owner=owner)
    [outcome] = fetch_snapshots([one], leader.ask, cluster_id=CLUSTER, replica_id=FOLLOWER, max_bytes=max_bytes)
    return outcome


def leader_with(values: Sequence[bytes] = VALUES) -> Leader:
    leader = Leader()
    write(leader.store, values)
    return leader


def parts(store: Store) -> list[str]:
    return [name for name in names(store) if name.endswith(".part")]

"""Damages a cluster by hand: files of replicas and of the remote tier are flipped, cut, removed or replaced."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.partitions.paths import base_name
from stratalog.partitions.store import Store
from stratalog.partitions.store.local import LocalStore
from tests.unit.cluster_harness import LiveCluster


@dataclass(frozen=True)
class Spot:
    """A file to damage."""

    store: Store
    path: str

    @property
    def name(self) -> str:
        return base_name(self.path)

    def read(self) -> bytes:
        return self.store.read(self.path)

    def there(self) -> bool:
        folder = self.path.rpartition("/")[0]
        return any(stored.name == self.path for stored in self.store.list(folder))

    def remove(self) -> None:
        self.store.delete([self.path])

    def replace(self, data: bytes) -> None:
        self.remove()
        self.store.create(self.path, data)

    def flip(self, at: int) -> None:
        """Flip a bit of a byte."""
        data = bytearray(self.read())
        data[at] ^= 1
        self.replace(bytes(data))

    def cut(self, by: int = 100) -> None:
        """Remove the last bytes."""
        self.replace(self.read()[:-by])


def spot(live: LiveCluster, broker: int, index: int) -> Spot:
    """A file of a replica's log."""
    return Spot(live.store(broker), live.log(broker).chain[index].file.object.name)


def register(live: LiveCluster, broker: int, ending: str) -> Spot:
    """The last register of a replica with that suffix."""
    replica = live.replica(broker)
    names = [stored.name for stored in replica.store.list(replica.folder) if stored.name.endswith(ending)]
    return Spot(live.store(broker), names[-1])


def remote_spot(live: LiveCluster, index: int) -> Spot:
    """An object of the remote tier, in the order of offsets."""
    path = sorted(live.remote.rglob("0/*.parquet"))[index]
    return Spot(LocalStore(str(live.remote)), str(path.relative_to(live.remote)))

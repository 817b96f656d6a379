"""All copies of the data files of topics, on every root: in the logs, beside them, and of former replicas.

A staged object may become a file of any partition. So the walk through a root begins when every staged object on
it has its name, or has been deleted. An object that stays staged is reported as unfinished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replicas.former import owned_folders
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import BrokerUnreachableError, StaleBrokerError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import CheckpointName, ChunkName, DataName
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.store import Store, StoredObject

_LOOKS, _PAUSE_S = 6, 1.0
"""The number of listings of staged objects, and the pause between them. A live writer finishes within seconds."""


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file in the folder of a replica, or of a former one; an object of the remote tier."""

    broker: int | None
    """None: the remote tier."""
    store: Store
    key: TopicIdPartition
    object: StoredObject
    file: DataFile | None
    """None for a file that is neither a data file nor a register."""
    owned: bool
    """Whether the folder is that of a present replica."""
    why: str = "it is not a data file of a log"
    """The reason why its content is unknown, if ``file`` is None."""
    snapshot: bool = False
    """Whether it is a snapshot, or a piece of one; ``file`` is None then."""
    published: CheckpointName | None = None
    """The snapshot whose records it has, if it is a file of the table in which a topic publishes its snapshots;
    ``file`` is None then."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies on one broker, or in the remote tier; ``error`` if it cannot be looked at, or not completely."""

    broker: int | None
    """None: the remote tier."""
    found: tuple[FileCopy, ...]
    unfinished: int = 0
    """Objects of the whole root that were staged before the walk, and had no name yet when it began."""
    error: StratalogError | None = None


def copies_of(storage: Storage, image: ClusterImage, topic_ids: Collection[str], clock: Clock) -> Iterator[Copies]:
    """A walk through the root of every broker named by the metadata or the cluster file, including decommissioned
    brokers."""
    owned = owned_folders(storage, image)
    staged = still_staged(storage.stores, clock)
    for broker in sorted({*image.brokers, *storage.stores}):
        try:
            if broker not in storage.stores:
                raise BrokerUnreachableError(f"broker {broker}: the cluster file does not name it: add it there")
            store, unfinished = storage.stores[broker], staged[broker]
            _check_root(broker, store, image)
            if isinstance(unfinished, StratalogError):
                raise unfinished
            objects = store.walk("")
        except StratalogError as error:
            yield Copies(broker, (), 0, error)
            continue
        found = tuple(_copies_in(broker, store, objects, topic_ids, owned))
        yield Copies(broker, found, len(unfinished))


K = TypeVar("K")


def still_staged(stores: Mapping[K, Store], clock: Clock) -> dict[K, frozenset[str] | StratalogError]:
    """The objects on each root that are staged now, and are still staged after a while; or the error, if the root
    cannot be listed.
    """
    found: dict[K, frozenset[str] | StratalogError] = {}
    for look in range(_LOOKS):
        if look:
            clock.sleep(_PAUSE_S)
        waiting = False
        for broker, store in stores.items():
            before = found.get(broker)
            if before is not None and (isinstance(before, StratalogError) or not before):
                continue
            try:
                now = store.staged()
            except StratalogError as error:
                found[broker] = error
                continue
            found[broker] = left = now if before is None else before & now
            waiting = waiting or bool(left)
        if not waiting:
            break
    return found


def _check_root(broker: int, store: Store, image: ClusterImage) -> None:
    """Raises: BrokerUnreachableError if the root has no ``broker.json``, for example because a volume is not
    mounted; StaleBrokerError if it is not the registered root."""
    found, registered = read_broker_file(store), image.brokers.get(broker)
    if found is None:
        what = "mount its volume" if registered else "mount its volume, or remove the broker from the cluster file"
        raise BrokerUnreachableError(f"broker {broker}: {store.uri} has no broker.json: {what}")
    if registered is not None and found.directory_id != registered.directory_id:
        raise StaleBrokerError(f"broker {broker}: {store.uri} is not the root that is registered for this broker")


def _copies_in(
    broker: int,
    store: Store,
    objects: Sequence[StoredObject],
    topic_ids: Collection[str],
    owned: Collection[tuple[int, str]],
) -> Iterator[FileCopy]:
    parsed: dict[str, TopicIdPartition | None] = {}
    for stored in objects:
        folder = paths.folder_of(stored.name)
        if folder not in parsed:
            parsed[folder] = _partition_of(folder, topic_ids)
        key = parsed[folder]
        if key is None:
            continue
        name = paths.parse_name(paths.base_name(stored.name))
        if isinstance(name, DataName) and not stored.special:
            file = DataFile(name, stored)
        elif name is None or stored.special or isinstance(name, CheckpointName | ChunkName):
            file = None
        else:
            continue
        snapshot = isinstance(name, CheckpointName | ChunkName) and not stored.special
        yield FileCopy(broker, store, key, stored, file, (broker, folder) in owned, snapshot=snapshot)


def _partition_of(folder: str, topic_ids: Collection[str]) -> TopicIdPartition | None:
    """The partition of a replica's folder, or of a folder inside one."""
    replica = paths.parse_replica_path("/".join(folder.split("/")[:3]))
    return TopicIdPartition(replica[2], replica[3]) if replica is not None and replica[2] in topic_ids else None

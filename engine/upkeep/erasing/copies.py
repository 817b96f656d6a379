"""All copies of the data files of topics, on every root: in the logs, beside them, and of former replicas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replicas.former import owned_folders
from stratalog.partitions import paths
from stratalog.partitions.errors import BrokerUnreachableError, StaleBrokerError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import CheckpointName, ChunkName, DataName
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.store import Store, StoredObject


@dataclass(frozen=True, slots=True)
class FileCopy:
    """A file in the folder of a replica, or of a former one."""

    broker: int
    store: Store
    key: TopicIdPartition
    object: StoredObject
    file: DataFile | None
    """None for a file that is neither a data file nor a register."""
    owned: bool
    """Whether the folder is that of a present replica."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies on one broker; ``error`` if it cannot be looked at, or not completely."""

    broker: int
    found: tuple[FileCopy, ...]
    unfinished: int = 0
    """Staged objects of the whole root without a name yet, that nothing was written to since a time."""
    error: StratalogError | None = None


def copies_of(
    storage: Storage, image: ClusterImage, topic_ids: Collection[str], unfinished_ms: int
) -> Iterator[Copies]:
    """One walk through the root of each broker. ``unfinished_ms``: see ``Store.sweep_staging``."""
    owned = owned_folders(storage, image)
    for broker in sorted(image.brokers):
        store = storage.stores.get(broker)
        if store is None:
            continue
        try:
            _check_root(broker, store, image)
            objects = store.walk("")
            unfinished = store.sweep_staging(unfinished_ms, dry_run=True)
        except StratalogError as error:
            yield Copies(broker, (), 0, error)
            continue
        found = tuple(_copies_in(broker, store, objects, topic_ids, owned))
        yield Copies(broker, found, unfinished)


def _check_root(broker: int, store: Store, image: ClusterImage) -> None:
    """Raises: BrokerUnreachableError for a root without ``broker.json``, as of a volume that is not mounted;
    StaleBrokerError for another one than the registered one."""
    found = read_broker_file(store)
    if found is None:
        raise BrokerUnreachableError(f"broker {broker}: {store.uri} has no broker.json: mount its volume")
    if found.directory_id != image.brokers[broker].directory_id:
        raise StaleBrokerError(f"broker {broker}: {store.uri} is another root than the registered one")


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
        yield FileCopy(broker, store, key, stored, file, (broker, folder) in owned)


def _partition_of(folder: str, topic_ids: Collection[str]) -> TopicIdPartition | None:
    """The partition of a replica's folder, or of a folder inside one."""
    replica = paths.parse_replica_path("/".join(folder.split("/")[:3]))
    return TopicIdPartition(replica[2], replica[3]) if replica is not None and replica[2] in topic_ids else None

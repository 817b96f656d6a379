"""Former replicas: folders of replicas that the metadata no longer assigns to the broker of the folder.

A reassignment leaves a former replica behind, and so does a root that became another incarnation. Usually the
partition's log has the records of a former replica. But if its broker was unreachable during an unclean election,
the folder may have the only copy of acknowledged records. So ``history`` and ``recover`` search the folder like a
replica. ``vacuum`` closes the folder, and for ``file.delete.delay.ms`` after that it keeps the files whose history
differs from the leader's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.partitions import paths
from stratalog.partitions.discarded import Discarded, truncated_by
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import EpochName
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import StoredObject

CLOSED = EpochName(9_999_999_999)
"""The epoch that closes a former replica: all leader epochs are smaller."""


def owned_folders(storage: Storage, image: ClusterImage) -> frozenset[tuple[int, str]]:
    """The folders of all replicas, by broker."""
    return frozenset(
        (broker, storage.replicas(view).replica(broker).folder)
        for topic in image.topics.values()
        for view in image.views(topic.name)
        for broker in view.replicas
        if broker in storage.stores
    )


def former_replica(storage: Storage, image: ClusterImage, broker_id: int, folder: str) -> Replica | None:
    """The former replica in an unassigned folder; None if its partition no longer exists."""
    parsed, registered = paths.parse_replica_path(folder), image.brokers.get(broker_id)
    if parsed is None or registered is None:
        return None
    incarnation_folder, topic, topic_id, partition, assignment = parsed
    if topic_id not in image.topics or partition >= len(image.topics[topic_id].partitions):
        return None
    return Replica(
        broker_id=broker_id,
        store=storage.stores[broker_id],
        directory_id=registered.directory_id,
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        assignment=assignment,
        root=registered.root,
        incarnation_folder=incarnation_folder,
    )


def find_former(
    storage: Storage, image: ClusterImage, topic_ids: Iterable[str], run: OperationRun
) -> dict[TopicIdPartition, list[Replica]]:
    """The former replicas of the topics on the roots of all brokers. A root that cannot be listed is a failure."""
    wanted, owned = set(topic_ids), owned_folders(storage, image)
    found: dict[TopicIdPartition, list[Replica]] = {}
    for broker_id, store in sorted(storage.stores.items()):
        if broker_id not in image.brokers:
            continue
        try:
            objects: Sequence[StoredObject] = store.list("")
        except StratalogError as error:
            run.fail(f"broker {broker_id}, which may hold former replicas", error)
            continue
        for folder in sorted({paths.folder_of(stored.name) for stored in objects}):
            replica = None
            if (broker_id, folder) not in owned:
                replica = former_replica(storage, image, broker_id, folder)
            if replica is not None and replica.topic_id in wanted:
                found.setdefault(TopicIdPartition(replica.topic_id, replica.partition), []).append(replica)
    return found


def truncated_in(replica: Replica, lineage: Lineage, began_ms: int) -> list[Discarded]:
    """The files of a former replica whose history differs from the leader's, each with the time when the file was
    abandoned. This is the time when the leader took over (``began_ms``) or when vacuum closed the folder,
    whichever is later; None until vacuum has closed the folder.

    Raises: see ``Replica.list``.
    """
    listing = replica.list()
    since = max(listing.joined_ms, began_ms) if listing.joined_epoch == CLOSED.epoch else None
    return [replace(each, since_ms=since) for each in truncated_by(listing, lineage)]

"""Sweep: deletes folders that do not belong to any replica in the metadata.

These are folders of deleted topics, of reassigned replicas, and of former incarnations of a root. A replica's
folder is *closed* before it is emptied. If the folder were not closed, a zombie whose view still has this replica
as leader would find an empty log, and take over the view's epoch a second time. The zombie would then copy a
second history of that epoch to followers that both views have in common. To close a folder, one small file is
written: the lineage of an epoch above all leader epochs. This file shows every driver that its view is outdated,
and is kept until the topic is deleted.

Files of a former replica whose history differs from the leader's may be the only copy of acknowledged records.
Such files are kept until ``file.delete.delay.ms`` have passed since the folder was closed. They are also kept
while the leader's history cannot be read (``stratalog.engine.replicas.former``).

Foreign files outside the product's folders, or inside owned folders, are kept. Links, FIFOs and other special
files are kept everywhere, and are reported because they may block an operation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.former import CLOSED, former_replica, owned_folders, truncated_in
from stratalog.partitions import paths
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, parse_name
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.store import LEFT_ALONE, Store, StoredObject

_CLOSED_LINEAGE = Lineage([(CLOSED.epoch, 0)])
_DAY_MS = 24 * 60 * 60 * 1000
_NAMED = 5


def sweep_roots(
    metadata: MetadataClient, storage: Storage, clock: Clock, run: OperationRun, *, older_than_ms: int = _DAY_MS
) -> int:
    """Delete files in folders without an owner; returns the number of files. A root that cannot be listed, or a
    folder that cannot be swept, is a failure. Temporary files that a crash has left are deleted if they are older
    than ``older_than_ms``.

    The roots are listed before the metadata is read. Writers get the names of folders from the metadata. So if a
    listed folder has no owner in the later metadata, no writer will write to it.
    """
    seen: dict[int, Sequence[StoredObject]] = {}
    for broker_id, store in storage.stores.items():
        try:
            seen[broker_id] = store.list("")
        except StratalogError as error:
            run.fail(f"broker {broker_id}", error)
    image = metadata.image()
    owned = owned_folders(storage, image)
    replaced = {
        lost.broker_id
        for topic in image.topics.values()
        for partition in topic.partitions
        for lost in partition.lost
    }
    swept = 0
    for broker_id, objects in seen.items():
        run.failures += special_files(f"broker {broker_id}", storage.stores[broker_id], objects)
        store, registered = storage.stores[broker_id], image.brokers.get(broker_id)
        now_ms = agreed_ms(clock, store)
        before_ms = None if now_ms is None else now_ms - older_than_ms
        try:
            found = read_broker_file(store)
            if registered is None or found is None or found.directory_id != registered.directory_id:
                continue  # the root is about to be registered, or missing: this driver must not delete there
            if broker_id in replaced:
                continue  # an earlier incarnation may have the only copy of a partition
            kept = {
                paths.voter_path(registered.directory_id),
                *(
                    paths.schedule_folder(registered.incarnation_folder, of)
                    for of in (*paths.SCHEDULES, paths.REPLICATION_THROTTLE)
                ),
            }
            litter: dict[str, list[str]] = {}
            for stored in objects:
                folder = paths.folder_of(stored.name)
                if stored.special:
                    continue
                is_probe = paths.is_probe(paths.base_name(stored.name))
                if is_probe and before_ms is not None and stored.modified_ms < before_ms:
                    litter.setdefault(folder, []).append(stored.name)
                if any(above in kept or (broker_id, above) in owned for above in _and_above(folder)):
                    continue
                if paths.is_top_folder(folder.partition("/")[0]):
                    litter.setdefault(folder, []).append(stored.name)
        except StratalogError as error:
            run.fail(f"broker {broker_id}", error)
            continue
        for folder, names in litter.items():
            try:
                needed = _needed(storage, clock, image, broker_id, folder, names, run)
                swept += _sweep_folder(store, folder, names, needed, image, run.dry_run)
            except StratalogError as error:
                run.fail(f"broker {broker_id}", error)
    return swept


def special_files(where: str, store: Store, objects: Sequence[StoredObject]) -> list[Failure]:
    """Failures for the first few links, FIFOs and other special files among the objects of a root."""
    found = [stored for stored in objects if stored.special]
    more = f"; there are {len(found)} such objects" if len(found) > 1 else ""
    return [
        Failure.of(
            where,
            CorruptionError(f"{store.uri_of(stored.name)} is {stored.special}: {LEFT_ALONE}{more}"),
        )
        for stored in found[:_NAMED]
    ]


def _and_above(folder: str) -> Iterator[str]:
    """A folder and all folders above it, except the root."""
    while folder:
        yield folder
        folder = paths.folder_of(folder)


def _needed(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    broker_id: int,
    folder: str,
    names: Sequence[str],
    run: OperationRun,
) -> set[str]:
    """The files to keep in a folder without an owner: data files of a former replica that may have records which
    the log lacks.
    """
    replica = former_replica(storage, image, broker_id, folder)
    data = {name for name in names if isinstance(parse_name(paths.base_name(name)), DataName)}
    if replica is None or not data:
        return set()
    view = image.view(replica.topic_id, replica.partition)
    if view.leader is None:
        return data
    try:
        leader = storage.replicas(view).leader
        listing = leader.list()
        lineage = leader.lineage(listing)
        if lineage.latest_epoch != view.leader_epoch:
            return data  # the pending take-over decides where the history continues
        delay_ms = topic_config_of(image, image.topics[replica.topic_id]).file_delete_delay_ms
        lost = truncated_in(replica, lineage, listing.joined_ms)
    except StratalogError as error:
        run.fail(f"{replica}, a former replica, whose data remains", error)
        return data
    now_ms = agreed_ms(clock, replica.store)
    kept = [each for each in lost if now_ms is None or (at := each.deletable_ms(delay_ms)) is None or at > now_ms]
    return {each.file.object.name for each in kept}


def _sweep_folder(
    store: Store, folder: str, names: Sequence[str], needed: Collection[str], image: ClusterImage, dry_run: bool
) -> int:
    """Delete the files of a folder except the ``needed`` files; returns the number of deleted files. If the
    folder's topic still exists, the folder is closed first.
    """
    closed = paths.join(folder, str(CLOSED))
    topic = paths.parse_topic_folder(paths.base_name(paths.folder_of(folder)))
    alive = topic is not None and topic[1] in image.topics
    doomed = [name for name in names if name not in needed and (not alive or name != closed)]
    if not dry_run:
        if alive and closed not in names:
            store.create(closed, _CLOSED_LINEAGE.to_json())
        if doomed:
            store.delete(doomed)
    return len(doomed)

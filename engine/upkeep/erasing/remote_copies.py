"""All remote copies of partitions: the objects in the folders of their topics, listed by the tables or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stratalog.engine.driver.storage import Storage
from stratalog.engine.upkeep.erasing.certificate import ErasedPartition, ErasedRemote, ErasedTable, ErasedTopic
from stratalog.engine.upkeep.erasing.copies import Copies, FileCopy, still_staged
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import DataFile
from stratalog.partitions.store import Store, StoredObject
from stratalog.tiering.erasure import log_litter, older_log_files
from stratalog.tiering.remote_objects import RemoteObjects

_WHERE = "remote tier"


def remote_copies(
    storage: Storage, topics: Sequence[ErasedTopic], clock: Clock
) -> Iterator[tuple[TopicIdPartition, Copies]]:
    """The remote copy of each partition in a certificate whose topic has objects in the remote tier, or had when
    it was erased. Objects that belong to no partition count for each. Unfinished uploads are listed before the
    objects, because they may end meanwhile; the first copy counts them."""
    remote = storage.remote
    if remote is None:
        for topic in topics:
            for one in topic.partitions:
                if one.remote is not None or one.published is not None:
                    error = InvalidCallError("the cluster file has no [cluster] remote: add it, and verify again")
                    yield TopicIdPartition(topic.topic_id, one.partition), Copies(None, (), 0, error)
        return
    staged = still_staged({_WHERE: remote}, clock)[_WHERE]
    unfinished = 0 if isinstance(staged, StratalogError) else len(staged)
    for topic in topics:
        folder = paths.topic_folder(topic.topic, topic.topic_id)
        try:
            stored, published = remote.walk(folder), remote.walk(paths.join(paths.SNAPSHOT_TABLES, folder))
            known = any(one.remote or one.published for one in topic.partitions)
            if isinstance(staged, StratalogError) and (stored or published or known):
                raise staged
        except StratalogError as error:
            for one in topic.partitions:
                yield TopicIdPartition(topic.topic_id, one.partition), Copies(None, (), 0, error)
            continue
        objects = RemoteObjects.of(folder, stored)
        of_table = RemoteObjects.of(paths.join(paths.SNAPSHOT_TABLES, folder), published)
        for one in topic.partitions:
            if not stored and not published and one.remote is None and one.published is None:
                continue
            key = TopicIdPartition(topic.topic_id, one.partition)
            found = [
                FileCopy(None, remote, key, each.object, DataFile(each.name, each.object), True)
                for each in objects.segments.values()
                if each.partition == one.partition
            ]
            found += [
                FileCopy(None, remote, key, each, None, True, why) for each, why in _unknown(objects, one.remote)
            ]
            found += _published(remote, key, of_table, one)
            yield key, Copies(None, tuple(found), unfinished)
            unfinished = 0


def _published(
    remote: Store, key: TopicIdPartition, objects: RemoteObjects, erased: ErasedPartition
) -> Iterator[FileCopy]:
    """The objects of the table in which the topic publishes its snapshots. If the topic did not publish them when
    it was erased, the table is younger: a run refuses a topic with objects of a former one."""
    others: dict[str, StoredObject] = {}
    for path, stored in objects.foreign.items():
        parsed = None if stored.special else paths.parse_published_path(path)
        if parsed is None:
            others[path] = stored
        elif parsed[0] == key.partition:
            yield FileCopy(None, remote, key, stored, None, True, published=parsed[1])
    entries = () if erased.published is None and not erased.not_erased else objects.log_entries
    for stored, why in _unknown(RemoteObjects({}, entries, others), erased.published):
        yield FileCopy(None, remote, key, stored, None, True, why)


def _unknown(
    objects: RemoteObjects, erased: ErasedRemote | ErasedTable | None
) -> Iterator[tuple[StoredObject, str]]:
    """The objects with unknown content, each with the reason."""
    for stored in (*objects.foreign.values(), *log_litter(objects.log_entries)):
        yield stored, "it is neither a segment nor a file of the table's log"
    version = None if erased is None else erased.version
    older: Sequence[StoredObject] = objects.log_entries
    if version is not None:
        older = older_log_files(objects.log_entries, version)
    for stored in older:
        yield stored, "it belongs to a version from before the erasure, whose statistics may have erased values"

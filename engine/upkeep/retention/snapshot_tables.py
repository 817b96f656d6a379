"""Vacuum of the tables of snapshots (``stratalog.tiering.snapshot_table``): files that nobody needs any more,
tables of topics that have switched theirs off, and those of deleted topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.partitions import paths
from stratalog.partitions.store import StoredObject

LITTER, SWITCHED_OFF, DELETED_TOPIC = "replaced", "switched off", "deleted topic"


def tables_in(objects: Iterable[StoredObject]) -> dict[str, list[StoredObject]]:
    """The objects of each folder of a table, of those below ``_snapshots``."""
    found: dict[str, list[StoredObject]] = {}
    for stored in objects:
        _, folder, *below = stored.name.split("/", 2)
        if below:
            found.setdefault(folder, []).append(stored)
    return found


def doomed_in(
    storage: Storage,
    image: ClusterImage,
    folder: str,
    objects: Sequence[StoredObject],
    *,
    before_ms: int,
    clean_before_ms: int,
    dry_run: bool,
) -> tuple[str, Sequence[StoredObject]] | None:
    """The objects of one table's folder that go, and why; a table that goes as a whole is gone already, if this
    is no ``dry_run``. None: the folder is no table's, or was kept. A file that was never listed goes if it
    was made before ``before_ms``; a log with entries from before ``clean_before_ms`` is cleaned.

    Raises: StorageError kinds; as ``SnapshotTable.load``.
    """
    parsed = paths.parse_topic_folder(folder)
    if parsed is None:
        return None
    name, topic_id = parsed
    topic = image.topics.get(topic_id)
    if topic is None:
        table = storage.snapshot_table(
            TopicImage(name=name, topic_id=topic_id, key_schema=None, value_schema=None)
        )
        marked = table.is_marked_deleted()
        if marked is False or (marked is None and max(one.modified_ms for one in objects) >= before_ms):
            return None
        if not dry_run:
            table.delete()
        return DELETED_TOPIC, objects
    table, config = storage.snapshot_table(topic), topic_config_of(image, topic)
    if not config.snapshot_table:
        if not dry_run:
            table.delete()
        return SWITCHED_OFF, objects
    doomed = table.litter(objects, delay_ms=config.file_delete_delay_ms, before_ms=before_ms)
    if not dry_run:
        if doomed:
            table.remote.delete([stored.name for stored in doomed])
        log = paths.join(table.folder, paths.DELTA_LOG)
        if any(one.modified_ms < clean_before_ms for one in objects if paths.folder_of(one.name) == log):
            table.clean_log()
    return LITTER, doomed

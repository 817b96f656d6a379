"""Vacuum of the tables of snapshots (``stratalog.tiering.snapshot_table``): unused files, tables of topics that
have disabled theirs, and tables of deleted topics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.partitions import paths
from stratalog.partitions.store import StoredObject

LITTER, SWITCHED_OFF, DELETED_TOPIC = "replaced", "switched off", "deleted topic"


def tables_in(objects: Iterable[StoredObject]) -> dict[str, list[StoredObject]]:
    """The objects below ``_snapshots``, by the folder of their table."""
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
    """The objects to delete in one table's folder, and the reason. Unless ``dry_run``, a table to delete as a
    whole is deleted here already. None: the folder is not a table's, or was kept. A file that was never listed is
    deleted if it was made before ``before_ms``; a log with entries from before ``clean_before_ms`` is cleaned.

    Raises: StorageError kinds; see ``SnapshotTable.load``.
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

"""Vacuum: deletes files that are no longer needed, in the remote tier and on the brokers.

1. walk through the remote tier once; then read the metadata
2. for each topic, read its table, and find the litter in its folder (``stratalog.tiering.remote_objects``); read
   the leader's lineage only if it is needed to decide
3. read the table once more; keep the objects that the table lists now, and delete the rest in bulk
4. delete the folders of deleted topics, if the folders are marked as deleted (``topics.delete_topic``)
5. in every store, delete temporary files, probes and unfinished uploads that are a day old; on brokers, delete
   folders without an owner
6. clean the tables of snapshots (``stratalog.tiering.snapshot_table``): delete unused files, tables of topics
   whose snapshot table was disabled, and tables of deleted topics
7. bring outdated Iceberg tables up to date, and expire their old snapshots
8. clean the logs of the tables: delete entries that a checkpoint replaces and that are older than their retention

A folder of an unknown topic is kept if it is not marked as deleted, and is reported: either an operator kept the
remote log of a topic, or another cluster shares the remote tier. Ages are measured with the clock of the storage
that holds the objects. If this clock and the clock of this machine disagree, nothing is deleted in that storage
(``stratalog.partitions.agreed_time``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.driver.compared_clocks import compared_clocks
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.retention.sweep import special_files, sweep_roots
from stratalog.engine.upkeep.tiering.iceberg import expire, follow
from stratalog.partitions import paths
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.runner import Done
from stratalog.partitions.store import Store, StoredObject
from stratalog.tiering.remote_objects import RemoteObjects, TopicLitter, find_litter

DAY_MS = 24 * 60 * 60 * 1000
LITTER, SWITCHED_OFF, DELETED_TOPIC = "replaced", "switched off", "deleted topic"
_LOG_RETENTION_MS = 30 * DAY_MS
"""delta.logRetentionDuration of this product's tables."""


class VacuumRow(Row, frozen=True, kw_only=True):
    """Files that are deleted in one place for one reason."""

    where: str
    why: str
    files: int
    bytes: int


def vacuum(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    *,
    older_than_ms: int = DAY_MS,
    dry_run: bool = False,
) -> Report:
    """Delete the litter of these topics, or (None) everywhere. ``older_than_ms``: the minimum age at which an
    upload that was never committed is deleted.

    Raises: UnknownTopicOrPartitionError; anything that cannot be listed or deleted is a failure in the report.
    """
    with execution.run("vacuum", dry_run=dry_run) as run:
        sends = Planned(storage)
        work = _Vacuum(metadata, storage, execution.clock, older_than_ms, run)
        names = None if topics is None else [topic.name for topic in chosen_topics(metadata.image(), topics)]
        if storage.remote is not None:
            try:
                work.remote_tier(storage.remote, names)
            except StratalogError as error:
                run.fail("remote tier", error)
        if topics is None:
            with run.still_reporting():
                work.brokers()
        if dry_run:  # deletes are free, but before a complete table is deleted, it is listed again
            tables = sum(row["why"] in (SWITCHED_OFF, DELETED_TOPIC) for row in run.rows)
            sends.send(storage.remote, puts=tables)
            run.estimate = sends.estimate()
    run.totals |= {"deleted_files": run.sum("files"), "deleted_bytes": run.sum("bytes")}
    return run.report()


@dataclass(slots=True)
class _Vacuum:
    metadata: MetadataClient
    storage: Storage
    clock: Clock
    older_than_ms: int
    run: OperationRun

    def remote_tier(self, remote: Store, names: Sequence[str] | None) -> None:
        """Steps 1 to 4, and 6 to 8."""
        folders, beside = self._walk(remote, names)
        now_ms = agreed_ms(self.clock, remote)
        if now_ms is None:
            if folders or beside:  # a new folder has no staging folder yet, so it reports no time
                self.run.notes.append(
                    "remote tier: it reports no time, or its time differs from this machine's clock, so "
                    "nothing is deleted there"
                )
            return
        image = self.metadata.image()
        by_table: dict[str, list[StoredObject]] = {}
        for stored in folders.pop(paths.SNAPSHOT_TABLES, ()):
            _, folder, *below = stored.name.split("/", 2)
            if below:
                by_table.setdefault(folder, []).append(stored)
        for folder, seen in by_table.items():
            try:
                self._snapshot_table(image, folder, seen, now_ms)
            except StratalogError as error:
                self.run.fail(paths.join(paths.SNAPSHOT_TABLES, folder), error)
        for folder, seen in folders.items():
            parsed = paths.parse_topic_folder(folder)
            if parsed is None:
                continue
            topic = image.topics.get(parsed[1])
            try:
                if topic is None:
                    self._deleted_topic(folder, *parsed, seen, now_ms)
                else:
                    self._topic(image, topic, RemoteObjects.of(folder, seen), now_ms)
            except StratalogError as error:
                self.run.fail(folder, error)
        if names is None:
            before_ms = now_ms - self.older_than_ms
            left = [o for o in beside if paths.is_probe(o.name) and o.modified_ms < before_ms]
            self._delete(remote, "remote tier", [(o, "unfinished") for o in left])
            self._staged("remote tier", remote)

    def _walk(
        self, remote: Store, names: Sequence[str] | None
    ) -> tuple[dict[str, list[StoredObject]], list[StoredObject]]:
        """Walk all objects, or the objects in the folders of these topics. Returns the objects by top folder, and
        the objects outside of folders. An object that is not a file is a failure.
        """
        if names is None:
            objects = remote.walk("")
        else:
            image = self.metadata.image()
            topics = [image.topic(name) for name in names]
            of_topics = [topic.folder for topic in topics]
            of_topics += [paths.join(paths.SNAPSHOT_TABLES, folder) for folder in of_topics]
            objects = [stored for folder in of_topics for stored in remote.walk(folder)]
        self.run.failures += special_files("remote tier", remote, objects)
        folders: dict[str, list[StoredObject]] = {}
        beside: list[StoredObject] = []
        for stored in objects:
            folder, slash, _ = stored.name.partition("/")
            (folders.setdefault(folder, []) if slash else beside).append(stored)
        return folders, beside

    def _topic(self, image: ClusterImage, topic: TopicImage, objects: RemoteObjects, now_ms: int) -> None:
        """Steps 2, 3, 7 and 8."""
        config = topic_config_of(image, topic)
        table = self.storage.remote_table(topic)
        before_ms = now_ms - self.older_than_ms

        def look(lineages: Mapping[int, Lineage]) -> TopicLitter | None:
            log, removed = table.load_with_removed(config.file_delete_delay_ms)
            now = self.metadata.image().topics.get(topic.topic_id)
            if now is None:
                return None
            log_starts = {p.partition: p.log_start_offset for p in now.partitions}
            return find_litter(
                objects,
                log,
                removed,
                log_starts=log_starts,
                lineages=lineages,
                tiered=config.remote_storage_enable,
                before_ms=before_ms,
            )

        first = look({})
        lineages = {} if first is None else self._lineages(image, topic, first.undecided)
        found = look(lineages) if first is not None and (lineages or first.litter) else first
        if found is None:
            return  # the topic was deleted after the run began: the next run deletes its folder
        doomed = [(objects.at(path), why) for path, why in found.litter.items()]
        if config.remote_storage_enable and follow(self.metadata, self.storage, topic, config, self.run):
            self.run.notes.append(f"{topic.name}: its Iceberg table was outdated, and was updated")
        self._delete(table.remote, topic.name, doomed)
        expire(self.storage, topic, config, before_ms, self.run)
        if not self.run.dry_run and any(o.modified_ms < now_ms - _LOG_RETENTION_MS for o in objects.log_entries):
            table.clean_log()

    def _snapshot_table(
        self, image: ClusterImage, folder: str, objects: Sequence[StoredObject], now_ms: int
    ) -> None:
        """Step 6. Raises: StorageError kinds; see ``SnapshotTable.load``."""
        parsed, where = paths.parse_topic_folder(folder), paths.join(paths.SNAPSHOT_TABLES, folder)
        if parsed is None:
            return
        topic = image.topics.get(parsed[1])
        config = None if topic is None else topic_config_of(image, topic)
        table = self.storage.snapshot_table(_gone(*parsed) if topic is None else topic)
        if config is None:
            marked = table.is_marked_deleted()
            if marked is False or (marked is None and self._is_recent(objects, now_ms)):
                return
        if config is None or not config.snapshot_table:
            if not self.run.dry_run:
                if config is not None and self._publishes(self.metadata.image(), parsed[1]):
                    return  # switched on again since the run began
                table.delete()
            why = DELETED_TOPIC if config is None else SWITCHED_OFF
            self._add_row(where, why, len(objects), sum(stored.size_bytes for stored in objects))
            return
        before_ms, clean_before_ms = now_ms - self.older_than_ms, now_ms - _LOG_RETENTION_MS
        doomed = table.litter(objects, delay_ms=config.file_delete_delay_ms, before_ms=before_ms)
        self._delete(table.remote, where, [(stored, LITTER) for stored in doomed])
        log = [one for one in objects if paths.folder_of(one.name) == paths.join(table.folder, paths.DELTA_LOG)]
        if not self.run.dry_run and any(one.modified_ms < clean_before_ms for one in log):
            table.clean_log()

    @staticmethod
    def _publishes(image: ClusterImage, topic_id: str) -> bool:
        topic = image.topics.get(topic_id)
        return topic is not None and topic_config_of(image, topic).snapshot_table

    def _is_recent(self, objects: Sequence[StoredObject], now_ms: int) -> bool:
        """Whether a job that was still active after the deletion of a topic may have made these objects."""
        return max(stored.modified_ms for stored in objects) >= now_ms - self.older_than_ms

    def _lineages(self, image: ClusterImage, topic: TopicImage, partitions: frozenset[int]) -> dict[int, Lineage]:
        """The lineages of the leaders that can be listed and have joined the metadata's leader epoch."""
        found: dict[int, Lineage] = {}
        replicas_of = [
            self.storage.replicas(image.view(topic.topic_id, partition)) for partition in sorted(partitions)
        ]
        for outcome in self.storage.threads.run(lambda replicas: replicas.leader.log().lineage, replicas_of):
            match outcome:
                case Done(replicas, lineage) if lineage.latest_epoch == replicas.epoch:
                    found[replicas.view.partition] = lineage
        return found

    def _deleted_topic(
        self, folder: str, name: str, topic_id: str, seen: Sequence[StoredObject], now_ms: int
    ) -> None:
        """Step 4. If there is no table, the objects are uploads of a tier run that was still active after the
        deletion.
        """
        table = self.storage.remote_table(_gone(name, topic_id))
        marked = table.is_marked_deleted()
        size = sum(stored.size_bytes for stored in seen)
        if marked is None and self._is_recent(seen, now_ms):
            return
        if marked is False:
            self.run.notes.append(f"{folder}: the topic was deleted, but its remote table was kept: {size} bytes")
            return
        if not self.run.dry_run:
            table.delete()
        self._add_row(name, DELETED_TOPIC, len(seen), size)

    def brokers(self) -> None:
        """Step 5."""
        self.run.notes += compared_clocks(self.storage, self.clock, self.metadata.image()).notes
        for broker_id, store in sorted(self.storage.stores.items()):
            self._staged(f"broker {broker_id}", store)
        swept = sweep_roots(self.metadata, self.storage, self.clock, self.run, older_than_ms=self.older_than_ms)
        if swept:
            self._add_row("brokers", "folders without an owner", swept, 0)

    def _staged(self, where: str, store: Store) -> None:
        try:
            count = store.sweep_staging(self.older_than_ms, dry_run=self.run.dry_run)
        except StratalogError as error:
            self.run.fail(where, error)
        else:
            if count:
                self._add_row(where, "unfinished", count, 0)

    def _delete(self, store: Store, what: str, doomed: Sequence[tuple[StoredObject, str]]) -> None:
        if doomed and not self.run.dry_run:
            store.delete([stored.name for stored, _ in doomed])
        sizes: Counter[str] = Counter()
        for stored, why in doomed:
            sizes[why] += stored.size_bytes
        for why, files in sorted(Counter(why for _, why in doomed).items()):
            self._add_row(what, why, files, sizes[why])

    def _add_row(self, where: str, why: str, files: int, size_bytes: int) -> None:
        self.run.add([VacuumRow(where=where, why=why, files=files, bytes=size_bytes)])


def _gone(name: str, topic_id: str) -> TopicImage:
    return TopicImage(name=name, topic_id=topic_id, key_schema=None, value_schema=None)

"""Erases from the tables in which topics publish their snapshots (``stratalog.snapshots.erasure``, "The published
table").

    search    objects that have the keys give their partition an erasure, as records on its brokers do
    publish   the leaders' snapshots, which follow the erasures, replace the files of the tables
    clean     objects that do not follow the erasures are deleted, then the history of the tables
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.erasing.certificate import ErasedTable, NotErased
from stratalog.engine.upkeep.erasing.partition import ErasingPartition
from stratalog.engine.upkeep.erasing.remote_clean import unfinished_uploads, waiting
from stratalog.engine.upkeep.snapshots.partition import SnapshotWork
from stratalog.engine.upkeep.snapshots.publish import publish
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.partitions import paths
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError, SourceChangedError, StratalogError
from stratalog.partitions.growth import fitted
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import CheckpointName
from stratalog.partitions.rewrites.wanted_where import RecordFinder
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store, StoredObject
from stratalog.tiering.erasure import log_litter
from stratalog.tiering.published import Published, published_batches
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles

if TYPE_CHECKING:
    from stratalog.tiering.snapshot_table import Listed, SnapshotTable

_WHERE = "remote tier"
_DAY_MS = 24 * 3_600_000
"""The age at which a file that was never listed belongs to no running job, as for ``vacuum``."""


@dataclass(slots=True)
class _Cleaned:
    """One partition in the table of its topic after a run."""

    replaced: int = 0
    """In a dry run, the listed files that a run would replace."""
    deleted: int = 0
    left: list[NotErased] = field(default_factory=list)
    version: int | None = None
    """See ``ErasedTable``."""
    file: str | None = None


@dataclass(frozen=True, slots=True)
class _TableFile:
    """An object in the folder of a table that has, or had, the snapshot of a partition."""

    path: str
    partition: int
    snapshot: CheckpointName
    object: StoredObject


@dataclass(frozen=True, slots=True)
class _TableFolder:
    """The objects in the folder of a table."""

    files: tuple[_TableFile, ...]
    foreign: Mapping[str, StoredObject]
    """Objects of other programs, and links, by path."""
    log_files: tuple[StoredObject, ...]

    @classmethod
    def of(cls, table: SnapshotTable, partitions: Collection[int]) -> _TableFolder:
        """Raises: errors from the store."""
        objects = RemoteObjects.of(table.folder, table.remote.walk(table.folder))
        files: list[_TableFile] = []
        foreign: dict[str, StoredObject] = {}
        for path, stored in objects.foreign.items():
            parsed = None if stored.special else paths.parse_published_path(path)
            if parsed is None or parsed[0] not in partitions:
                foreign[path] = stored
            else:
                files.append(_TableFile(path, parsed[0], parsed[1], stored))
        return cls(tuple(files), foreign, objects.log_entries)


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for keys in one object."""

    remote: Store
    folder: str
    """The table's."""
    file: _TableFile
    keys: RecordFinder

    def stores_used(self) -> Iterable[Store]:
        """The store of the object."""
        return [self.remote]

    def __str__(self) -> str:
        return self.file.object.name


def has_keys(work: _Search) -> bool:
    """The task: whether an object has a row of the keys. A damaged object may have one. An object that another run
    has deleted meanwhile has none.

    Raises: errors from the store.
    """
    columns = work.keys.read
    try:
        for batch in published_batches(work.remote, work.file.object, columns.names):
            if work.keys.selects(fitted(batch.select(columns.names), columns, str(work))).any():
                return True
    except CorruptionError:
        return True
    except SourceChangedError:
        return work.file.object.name in {stored.name for stored in work.remote.walk(work.folder)}
    return False


@dataclass(slots=True)
class PublishedErasing:
    """The tables of snapshots in one run."""

    storage: Storage
    run: OperationRun
    tables: dict[str, SnapshotTable] = field(default_factory=dict)
    """Keyed by topic id: the topics that publish their snapshots."""
    unused: dict[str, str] = field(default_factory=dict)
    """Keyed by topic id: the folders of the tables of the other topics. They are empty when the run begins."""
    taken: dict[TopicIdPartition, set[int]] = field(default_factory=dict)
    """The generations of the objects of each partition. After a restore, these may be the former cluster's, so a
    new erasure gets another one."""
    holders: set[TopicIdPartition] = field(default_factory=set)
    """The partitions with an object that has the keys, or that could not be searched."""
    _searched: dict[str, bool | StratalogError] = field(default_factory=dict)
    """By name of an object: whether it has the keys, or why it could not be searched."""

    def open(self, image: ClusterImage, topics: Iterable[TopicImage]) -> None:
        """Read the tables of the topics that publish their snapshots.

        Raises: see ``SnapshotTable.load``; a snapshot job creates an unreadable table again. InvalidCallError
        without a remote tier.
        """
        for topic in topics:
            config = topic_config_of(image, topic)
            if config.snapshot_table:
                table = self.tables[topic.topic_id] = self.storage.snapshot_table(topic)
                table.load()
            elif self.storage.remote is not None:
                self.unused[topic.topic_id] = paths.join(paths.SNAPSHOT_TABLES, topic.folder)

    def search(self, parts: Mapping[TopicIdPartition, ErasingPartition]) -> None:
        """Find the ``holders``. Raises: errors from the store."""
        for topic_id, table in self.tables.items():
            some = {key.partition: part for key, part in parts.items() if key.topic_id == topic_id}
            files = _TableFolder.of(table, some).files
            self._search(table, files, some)
            for file in files:
                key = TopicIdPartition(topic_id, file.partition)
                self.taken.setdefault(key, set()).add(file.snapshot.generation)
            held = (file.partition for file in files if self.why_not_clean(file, some[file.partition]))
            self.holders |= {TopicIdPartition(topic_id, partition) for partition in held}

    def why_not_clean(self, file: _TableFile, part: ErasingPartition) -> str | None:
        """The reason why an object may have the keys of the run; None if it has none, or the run has no keys."""
        if part.keys is None:
            return None
        found = self._searched.get(file.object.name, False)
        if isinstance(found, StratalogError):
            return f"it cannot be searched ({found.code}: {found})"
        return "it has a record of the keys, or is damaged" if found else None

    def _check_unused(
        self, image: ClusterImage, parts: Mapping[TopicIdPartition, ErasingPartition], unfinished: list[NotErased]
    ) -> None:
        """Find objects that a slow job has written since the run began, and the ``unfinished`` uploads of one."""
        remote = self.storage.remote
        for topic_id, folder in self.unused.items():
            assert remote is not None
            try:
                found = {stored.name for stored in remote.walk(folder)}
                why = (
                    "a job wrote it before the topic stopped publishing its snapshots: run `stratalog vacuum` "
                    "until it is deleted, then erase again"
                )
            except StratalogError as error:
                found = {folder}
                why = f"it cannot be listed: {error.code}: {error}; erase again when the remote tier answers"
            left = [NotErased(f"{_WHERE}: {name}", why) for name in sorted(found)]
            if topic_id in image.topics and topic_config_of(image, image.topics[topic_id]).snapshots:
                left += unfinished
            for key, part in parts.items():
                if key.topic_id == topic_id:
                    part.left += left

    def _unfinished(self, image: ClusterImage, clock: Clock) -> list[NotErased]:
        """See ``unfinished_uploads``; empty in a dry run, and for topics that never had snapshots."""
        others = (image.topics[topic_id] for topic_id in self.unused if topic_id in image.topics)
        wanted = bool(self.tables) or any(topic_config_of(image, topic).snapshots for topic in others)
        return unfinished_uploads(self.storage, clock) if wanted and not self.run.dry_run else []

    def _search(
        self, table: SnapshotTable, files: Sequence[_TableFile], parts: Mapping[int, ErasingPartition]
    ) -> None:
        """Search the objects that have not been searched yet; an object never changes under its name."""
        waiting = []
        for file in files:
            keys = parts[file.partition].keys
            if keys is not None and not isinstance(self._searched.get(file.object.name), bool):
                waiting.append(_Search(table.remote, table.folder, file, keys))
        for outcome in self.run.tasks.run(has_keys, waiting):
            found = outcome.value if isinstance(outcome, Done) else outcome.error
            self._searched[outcome.item.file.object.name] = found

    def publish(
        self, metadata: MetadataClient, execution: Execution, works: Sequence[SnapshotWork]
    ) -> frozenset[TopicIdPartition]:
        """Replace the files of these partitions with the latest snapshots of their leaders, where they differ;
        returns the partitions that changed. The run reports an error as a failure; ``clean`` finds what is left.
        """
        return publish(metadata, self.storage, execution, works, self.run, delete_replaced=False)

    def clean(
        self,
        image: ClusterImage,
        parts: Mapping[TopicIdPartition, ErasingPartition],
        clock: Clock,
        *,
        now: bool,
    ) -> None:
        """Delete what may be deleted, and add the outcome to the partitions. Nothing is deleted in a dry run."""
        unfinished = self._unfinished(image, clock)
        self._check_unused(image, parts, unfinished)
        of_topic: dict[str, dict[int, ErasingPartition]] = {}
        for key, part in parts.items():
            if key.topic_id in image.topics and key.topic_id in self.tables:
                of_topic.setdefault(key.topic_id, {})[key.partition] = part
        if not of_topic:
            return
        work = []
        for topic_id, some in of_topic.items():
            delay_ms = 0 if now else topic_config_of(image, image.topics[topic_id]).file_delete_delay_ms
            work.append(_Cleaning(self, self.tables[topic_id], some, clock, delay_ms, unfinished))
        for outcome in ask_remote(self.storage, _Cleaning.look, work):
            if isinstance(outcome, Failed):
                outcome.item.failed(outcome.error)
        for topic in work:
            self._search(topic.table, topic.folder.files, topic.parts)
        for outcome in ask_remote(self.storage, _Cleaning.clean, [topic for topic in work if topic.sound]):
            if isinstance(outcome, Failed):
                outcome.item.failed(outcome.error)
        for topic in work:
            for partition, one in topic.cleaned.items():
                part = topic.parts[partition]
                part.deleted += one.deleted
                part.remote_files += one.replaced
                part.left += [left for left in one.left if not (self.run.dry_run and left.waits)]
                if not self.run.dry_run:
                    part.published = ErasedTable(one.version, one.file)


@dataclass(slots=True, eq=False)
class _Cleaning:
    """The work on the folder of one table."""

    erasing: PublishedErasing
    table: SnapshotTable
    parts: Mapping[int, ErasingPartition]
    """All partitions of the topic."""
    clock: Clock
    delay_ms: int
    unfinished: Sequence[NotErased]
    cleaned: dict[int, _Cleaned] = field(init=False)
    sound: bool = True
    """Whether no step has failed."""
    folder: _TableFolder = field(default_factory=lambda: _TableFolder((), {}, ()))
    listed: Listed = field(init=False)
    removed: RemovedFiles = field(default_factory=RemovedFiles)

    def __post_init__(self) -> None:
        self.cleaned = {partition: _Cleaned(left=[*self.unfinished]) for partition in self.parts}

    @property
    def dry_run(self) -> bool:
        """Whether there is nothing to delete."""
        return self.erasing.run.dry_run

    def failed(self, error: StratalogError) -> None:
        """Record that the table could not be cleaned."""
        self.sound = False
        why = f"cleaning failed: {error.code}: {error}; erase again when the remote tier answers"
        self._leave(self.parts, self.table.folder, why)

    def look(self) -> None:
        """List the objects, and then the table. Raises: errors from the store and the table."""
        self.folder = _TableFolder.of(self.table, self.parts)
        self.listed, self.removed = self.table.load_with_removed(self.delay_ms)

    def clean(self) -> None:
        """Delete what may be deleted. Raises: errors from the store and the table."""
        if failed := sorted(partition for partition, part in self.parts.items() if part.failed):
            why = f"the work on partitions {failed} failed: correct this, then erase again"
            self._leave(self.parts, self.table.folder, why)
        elif self.dry_run:
            self._objects_to_delete()
            self._plan()
        elif self._check_listed():
            doomed = self._objects_to_delete()
            if doomed:
                self.table.remote.delete(doomed)
            self._forget_history()

    def _check_listed(self) -> bool:
        """Whether the table lists only files that follow the erasures, so that all others may be deleted."""
        again = "run `stratalog snapshot --by-hand`, then erase again"
        sound = True
        for one in self.listed.foreign:
            sound = False
            why = f"the table lists it, and another program has written it: {again}"
            self._leave(self.parts, f"{self.table.folder}/{one.path}", why)
        objects = {file.path: file for file in self.folder.files}
        for partition, listed in self.listed.files.items():
            name, part = f"{self.table.folder}/{listed.path}", self.parts.get(partition)
            if part is None:
                sound = False
                self._leave(self.parts, name, f"the table lists it, and the topic has no partition {partition}")
                continue
            self.cleaned[partition].file = listed.path
            if listed.snapshot.generation != part.view.generation:
                why = "it does not follow the last erasure"
            elif not self._is_there(name, listed):
                why = "it is missing, or has another size"
            elif listed.path in objects and (found := self.erasing.why_not_clean(objects[listed.path], part)):
                why = found
            else:
                continue
            sound = False
            self._leave([partition], name, f"the table lists it, and {why}: {again}")
        for partition, part in self.parts.items():
            if part.view.last_erasure and partition not in self.listed.files:
                sound = False  # a job may be about to list a file from before the erasure
                why = f"the table lists no snapshot of partition {partition}, although it has one: {again}"
                self._leave([partition], self.table.folder, why)
        return sound

    def _is_there(self, name: str, listed: Published) -> bool:
        try:
            return self.table.remote.stat(name).size_bytes == listed.size_bytes
        except FileNotFoundError:
            return False

    def _objects_to_delete(self) -> list[str]:
        """The names of the objects; the others are left, or have no record of the keys."""
        held = {file.path for file in self.listed.files.values()}
        listed_by_others = {one.path for one in self.listed.foreign}
        time_ms = agreed_ms(self.clock, self.table.remote)
        doomed: list[str] = []
        for file in self.folder.files:
            part = self.parts[file.partition]
            if file.path in held:
                continue
            if self._is_outdated(file.snapshot, part):
                if self._is_due(file, part, time_ms):
                    doomed.append(file.object.name)
                    self.cleaned[file.partition].deleted += 1
                else:
                    self.cleaned[file.partition].left.append(waiting(file.object))
            elif found := self.erasing.why_not_clean(file, part):
                self._leave([file.partition], file.object.name, f"{found}: erase again")
        for path, stored in self.folder.foreign.items():
            if stored.special or path not in self.removed.ever:
                if not (self.dry_run and path in listed_by_others):  # they leave the table before
                    why = "it is not an object of the table, so its content is unknown: remove it by hand"
                    self._leave(self.parts, stored.name, why)
            elif self.delay_ms == 0 or path in self.removed.due:
                doomed.append(stored.name)
            else:
                for one in self.cleaned.values():
                    one.left.append(waiting(stored))
        return doomed

    def _is_outdated(self, snapshot: CheckpointName, part: ErasingPartition) -> bool:
        """Whether a file does not follow the last erasure of its partition, or in a dry run, the next one."""
        if self.dry_run and (part.records or part.view.key in self.erasing.holders):
            return True
        return snapshot.generation != part.view.generation

    def _is_due(self, file: _TableFile, part: ErasingPartition, time_ms: int | None) -> bool:
        """Whether no reader needs an outdated object any more, and no job may be about to list it."""
        if file.path in self.removed.ever:
            return self.delay_ms == 0 or file.path in self.removed.due
        if file.snapshot.generation <= part.view.generation:
            return True  # the table refuses it
        return time_ms is not None and file.object.modified_ms + _DAY_MS <= time_ms

    def _plan(self) -> None:
        """Count the files that a run would replace first."""
        for partition, part in self.parts.items():
            file, one = self.listed.files.get(partition), self.cleaned[partition]
            if (
                part.records
                or part.view.key in self.erasing.holders
                or (file is not None and self._is_outdated(file.snapshot, part))
            ):
                one.replaced = 1
                one.deleted += file is not None and self.delay_ms == 0

    def _forget_history(self) -> None:
        """Delete the older versions, unless an object of one is left for readers."""
        where = paths.join(self.table.folder, paths.DELTA_LOG)
        if any(one.left for one in self.cleaned.values()):
            why = "its older versions are deleted with the last of their objects"
            for each in self.cleaned.values():
                waits = all(one.waits for one in each.left)
                each.left.append(NotErased(f"{_WHERE}: {where}", why, waits=waits))
            return
        for stored in log_litter(self.folder.log_files):
            why = "it is not a file of the table's log, so its content is unknown: remove it by hand"
            self._leave(self.parts, stored.name, why)
        present = {partition: part.view.generation for partition, part in self.parts.items()}
        version = self.table.delete_history(present)
        for each in self.cleaned.values():
            each.version = None if version < 0 else version

    def _leave(self, partitions: Iterable[int], name: str, why: str) -> None:
        for partition in partitions:
            self.cleaned[partition].left.append(NotErased(f"{_WHERE}: {name}", why))

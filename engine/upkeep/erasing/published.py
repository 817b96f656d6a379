"""Erases from the tables in which topics publish their snapshots (``stratalog.snapshots.erasure``, "The published
table").

    publish   the leaders' snapshots, which follow the erasures, replace the files of the tables
    clean     other objects that may have the keys are deleted, then the history of the tables
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

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
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store, StoredObject
from stratalog.partitions.wanted_keys import WantedKeys
from stratalog.tiering.erasure import log_litter
from stratalog.tiering.published import published_batches
from stratalog.tiering.remote_objects import RemoteObjects, RemovedFiles

if TYPE_CHECKING:
    from stratalog.tiering.snapshot_table import Listed, SnapshotTable

_WHERE = "remote tier"
_DAY_MS = 24 * 3_600_000
"""The age at which a file that was never listed belongs to no running job, as for ``vacuum``."""


@dataclass(slots=True)
class CleanedTable:
    """One partition in the table of its topic after a run."""

    replaced: int = 0
    """In a dry run, the listed files that a run would replace."""
    deleted: int = 0
    left: list[NotErased] = field(default_factory=list)
    version: int | None = None
    """See ``ErasedTable``."""
    file: str | None = None

    def certified(self) -> ErasedTable:
        """The partition in the certificate."""
        return ErasedTable(self.version, self.file)


@dataclass(frozen=True, slots=True)
class _TableFile:
    """An object in the folder of a table that has, or had, the snapshot of a partition."""

    path: str
    partition: int
    snapshot: CheckpointName
    object: StoredObject
    listed: bool


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for keys in one object."""

    remote: Store
    folder: str
    """The table's."""
    file: _TableFile
    keys: WantedKeys

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
    key = pa.schema([pa.field("key", work.keys.keys.type)])
    try:
        for batch in published_batches(work.remote, work.file.object, ["key"]):
            if work.keys.matches(fitted(batch, key, str(work)).column(0)).any():
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
    """Keyed by topic id."""

    def open(self, image: ClusterImage, topics: Iterable[TopicImage]) -> None:
        """Read the tables of the topics that publish their snapshots. An unreadable one is created again later.

        Raises: see ``SnapshotTable.load``; InvalidCallError without a remote tier.
        """
        for topic in topics:
            if not topic_config_of(image, topic).snapshot_table:
                continue
            table = self.storage.snapshot_table(topic)
            try:
                table.load()
            except CorruptionError as error:
                self.run.notes.append(f"{topic.name}: its table of snapshots is created again: {error}")
            self.tables[topic.topic_id] = table

    def publish(
        self, metadata: MetadataClient, execution: Execution, works: Sequence[SnapshotWork]
    ) -> frozenset[TopicIdPartition]:
        """Replace the files of these partitions by the latest snapshots of their leaders, where they differ;
        returns the partitions that changed. An error is a failure of the run, and ``clean`` finds what is left.
        """
        return publish(metadata, self.storage, execution, works, self.run, delete_replaced=False)

    def clean(
        self,
        image: ClusterImage,
        parts: Mapping[TopicIdPartition, ErasingPartition],
        clock: Clock,
        *,
        now: bool,
    ) -> dict[TopicIdPartition, CleanedTable]:
        """Delete what may be deleted, for partitions that have not failed. Nothing is deleted in a dry run."""
        of_topic: dict[str, dict[int, ErasingPartition]] = {}
        for key, part in parts.items():
            if key.topic_id in self.tables and key.topic_id in image.topics and not part.failed:
                of_topic.setdefault(key.topic_id, {})[key.partition] = part
        if not of_topic:
            return {}
        unfinished = [] if self.run.dry_run else unfinished_uploads(self.storage, clock)
        work = []
        for topic_id, some in of_topic.items():
            config = topic_config_of(image, image.topics[topic_id])
            delay_ms = 0 if now else config.file_delete_delay_ms
            work.append(_CleaningTable(self.tables[topic_id], some, clock, delay_ms, self.run.dry_run, unfinished))
        self._each(_CleaningTable.look, work)
        of_folder = {topic.table.folder: topic for topic in work}
        for outcome in self.run.tasks.run(has_keys, [search for topic in work for search in topic.searches()]):
            topic = of_folder[outcome.item.folder]
            if isinstance(outcome, Done):
                topic.searched[outcome.item.file.path] = outcome.value
            else:
                topic.failed(outcome.error)
        self._each(_CleaningTable.clean, [topic for topic in work if topic.sound])
        return {
            TopicIdPartition(topic.table.topic_id, partition): one
            for topic in work
            for partition, one in topic.cleaned.items()
        }

    def _each(self, step: Callable[[_CleaningTable], None], work: Sequence[_CleaningTable]) -> None:
        for outcome in ask_remote(self.storage, step, work):
            if isinstance(outcome, Failed):
                outcome.item.failed(outcome.error)


@dataclass(slots=True, eq=False)
class _CleaningTable:
    """The work on the folder of one table."""

    table: SnapshotTable
    parts: Mapping[int, ErasingPartition]
    clock: Clock
    delay_ms: int
    dry_run: bool
    unfinished: Sequence[NotErased]
    cleaned: dict[int, CleanedTable] = field(init=False)
    sound: bool = True
    """Whether no step has failed."""
    searched: dict[str, bool] = field(default_factory=dict)
    """Whether an object has the keys, by path."""
    files: list[_TableFile] = field(default_factory=list)
    foreign: dict[str, StoredObject] = field(default_factory=dict)
    log_files: Sequence[StoredObject] = ()
    listed: Listed | None = None
    removed: RemovedFiles = field(default_factory=RemovedFiles)

    def __post_init__(self) -> None:
        self.cleaned = {partition: CleanedTable(left=[*self.unfinished]) for partition in self.parts}

    def failed(self, error: StratalogError) -> None:
        """Record that the table could not be cleaned."""
        self.sound = False
        why = f"cleaning failed: {error.code}: {error}; erase again when the remote tier answers"
        self._leave(self.parts, NotErased(f"{_WHERE}: {self.table.folder}", why))

    def look(self) -> None:
        """List the objects, and then the table. Raises: errors from the store and the table."""
        objects = RemoteObjects.of(self.table.folder, self.table.remote.walk(self.table.folder))
        listed, self.removed = self.table.load_with_removed(self.delay_ms)
        if listed.foreign and not self.dry_run:
            self.table.commit((), dict)
            listed, self.removed = self.table.load_with_removed(self.delay_ms)
        self.listed, self.log_files = listed, objects.log_entries
        held = {file.path for file in listed.files.values()}
        for path, stored in objects.foreign.items():
            parsed = None if stored.special else paths.parse_published_path(path)
            if parsed is None:
                self.foreign[path] = stored
            else:
                self.files.append(_TableFile(path, parsed[0], parsed[1], stored, path in held))

    def searches(self) -> Iterable[_Search]:
        """The objects whose names do not say whether they may have the keys."""
        for file in self.files:
            part = self.parts.get(file.partition)
            if part is not None and isinstance(part.keys, WantedKeys) and not _is_outdated(file, part):
                yield _Search(self.table.remote, self.table.folder, file, part.keys)

    def clean(self) -> None:
        """Delete what may be deleted. Raises: errors from the store and the table."""
        time_ms = agreed_ms(self.clock, self.table.remote)
        doomed: list[str] = []
        for file in self.files:
            part = self.parts.get(file.partition)
            if part is None:
                continue
            if file.listed:
                self._check_listed(file, part)
            elif self._may_hold(file, part):
                if self._is_due(file, part, time_ms):
                    doomed.append(file.object.name)
                    self.cleaned[file.partition].deleted += 1
                else:
                    self._leave([file.partition], waiting(file.object))
        for path, stored in self.foreign.items():
            if stored.special or path not in self.removed.ever:
                why = "it is not an object of the table, so its content is unknown: remove it by hand"
                self._leave(self.parts, NotErased(f"{_WHERE}: {stored.name}", why))
            elif self.delay_ms == 0 or path in self.removed.due:
                doomed.append(stored.name)
            else:
                self._leave(self.parts, waiting(stored))
        if self.dry_run:
            self._plan()
            return
        if doomed:
            self.table.remote.delete(doomed)
        self._forget_history()

    def _plan(self) -> None:
        """Count the files that a run would replace first."""
        listed = {file.partition: file for file in self.files if file.listed}
        for partition, part in self.parts.items():
            file, one = listed.get(partition), self.cleaned[partition]
            if part.records or (file is not None and _is_outdated(file, part)):
                one.replaced = 1
                one.deleted += file is not None and self.delay_ms == 0

    def _check_listed(self, file: _TableFile, part: ErasingPartition) -> None:
        self.cleaned[file.partition].file = file.path
        if self.dry_run:
            return  # a run publishes before it cleans
        if _is_outdated(file, part):
            why = "the table lists it, and it does not follow the last erasure"
        elif self.searched.get(file.path):
            why = "the table lists it, and it has a record of the keys, or is damaged"
        else:
            return
        remedy = "run `stratalog snapshot --by-hand`, then erase again"
        self._leave([file.partition], NotErased(f"{_WHERE}: {file.object.name}", f"{why}: {remedy}"))

    def _may_hold(self, file: _TableFile, part: ErasingPartition) -> bool:
        """Whether an object that the table does not list may have records of the keys. Without keys, each may."""
        return part.keys is None or _is_outdated(file, part) or self.searched.get(file.path, True)

    def _is_due(self, file: _TableFile, part: ErasingPartition, time_ms: int | None) -> bool:
        """Whether no reader needs the object any more, and no job may be about to list it."""
        if file.path in self.removed.ever:
            return self.delay_ms == 0 or file.path in self.removed.due
        delay_ms = max(self.delay_ms, _DAY_MS) if self._may_be_listed(file, part) else self.delay_ms
        return delay_ms == 0 or (time_ms is not None and file.object.modified_ms + delay_ms <= time_ms)

    def _may_be_listed(self, file: _TableFile, part: ErasingPartition) -> bool:
        """Whether the table would accept an object that it has never listed."""
        assert self.listed is not None
        if file.snapshot.generation != part.view.generation:
            return file.snapshot.generation > part.view.generation  # of a later erasure
        present = self.listed.files.get(file.partition)
        return present is None or file.snapshot.end_offset > present.snapshot.end_offset

    def _forget_history(self) -> None:
        """Delete the older versions, unless an object of one is left for readers."""
        where = f"{_WHERE}: {paths.join(self.table.folder, paths.DELTA_LOG)}"
        if any(one.left for one in self.cleaned.values()):
            why = "its older versions are deleted with the last of their objects"
            for each in self.cleaned.values():
                each.left.append(NotErased(where, why, waits=all(one.waits for one in each.left)))
            return
        for stored in log_litter(self.log_files):
            why = "it is not a file of the table's log, so its content is unknown: remove it by hand"
            self._leave(self.parts, NotErased(f"{_WHERE}: {stored.name}", why))
        version = self.table.delete_history()
        for each in self.cleaned.values():
            each.version = None if version < 0 else version

    def _leave(self, partitions: Iterable[int], left: NotErased) -> None:
        for partition in partitions:
            self.cleaned[partition].left.append(left)


def _is_outdated(file: _TableFile, part: ErasingPartition) -> bool:
    """Whether an object does not follow the last erasure of its partition, by its name."""
    return file.snapshot.generation != part.view.generation

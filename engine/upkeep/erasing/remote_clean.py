"""Deletes what a remote tier still has of erased records: objects that the tables no longer list, and the history
of the tables (``stratalog.tiering.erasure``, steps 5 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.erasing.certificate import ErasedFile, ErasedIceberg, ErasedRemote, NotErased
from stratalog.engine.upkeep.erasing.copies import still_staged
from stratalog.engine.upkeep.erasing.iceberg import IcebergTwin
from stratalog.engine.upkeep.erasing.partition import ErasingPartition, RemoteFigures
from stratalog.engine.upkeep.erasing.remote import RemoteErasing, erased_segment
from stratalog.engine.upkeep.erasing.tasks import may_hold
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.partitions import paths
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.erasure import within
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import DataFile
from stratalog.partitions.runner import Failed
from stratalog.partitions.store import StoredObject
from stratalog.tiering.erasure import log_litter, to_erase_remotely
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemoteObject, RemovedFiles

_WHERE = "remote tier"
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class CleanedRemote:
    """One partition in the remote tier after a run."""

    deleted: int = 0
    made: tuple[ErasedFile, ...] = ()
    left: list[NotErased] = field(default_factory=list)
    version: int | None = None
    """The oldest version of the table that is left. None: older ones may be left."""
    iceberg: ErasedIceberg | None = None

    def certified(self, figures: RemoteFigures | None) -> ErasedRemote:
        """The remote copy in the certificate."""
        replaced = () if figures is None else tuple(figures.replaced)
        return ErasedRemote(self.version, replaced, self.made, self.iceberg)


def clean_remotely(
    erasing: RemoteErasing,
    image: ClusterImage,
    parts: Mapping[TopicIdPartition, ErasingPartition],
    clock: Clock,
    *,
    now: bool,
) -> dict[TopicIdPartition, CleanedRemote]:
    """Steps 5 and 6 for partitions of tiered topics. Nothing is deleted in a dry run."""
    of_topic: dict[str, list[ErasingPartition]] = {}
    for key, part in parts.items():
        if key.topic_id in erasing.tables and key.topic_id in image.topics and not part.failed:
            of_topic.setdefault(key.topic_id, []).append(part)
    if not of_topic:
        return {}
    unfinished = [] if erasing.run.dry_run else unfinished_uploads(erasing.storage, clock)
    work = [
        _CleaningTopic(
            erasing, image, topic_id, {part.view.partition: part for part in some}, clock, now, unfinished
        )
        for topic_id, some in of_topic.items()
    ]
    cleaned: dict[TopicIdPartition, CleanedRemote] = {}
    for outcome in ask_remote(erasing.storage, _CleaningTopic.clean, work):
        topic = outcome.item
        if isinstance(outcome, Failed):
            why = (
                f"cleaning failed: {outcome.error.code}: {outcome.error}; erase again when the remote tier answers"
            )
            topic.leave(topic.parts, NotErased(f"{_WHERE}: {topic.folder}", why))
        erasing.run.notes += topic.notes
        for partition, one in topic.cleaned.items():
            cleaned[TopicIdPartition(topic.topic_id, partition)] = one
    return cleaned


def unfinished_uploads(storage: Storage, clock: Clock) -> list[NotErased]:
    """Unfinished uploads. They are listed before the objects, because an upload becomes an object when it ends."""
    remote = storage.remote
    assert remote is not None
    found = still_staged({_WHERE: remote}, clock)[_WHERE]
    if isinstance(found, StratalogError):
        return [NotErased(_WHERE, f"it cannot be searched ({found.code}: {found}): fix this, then erase again")]
    if not found:
        return []
    why = (
        f"{len(found)} unfinished uploads have no name yet, and may have erased records: erase again when their "
        "writers have ended; after a day, `stratalog vacuum` deletes unfinished uploads of drivers that died"
    )
    return [NotErased(f"{_WHERE}: unfinished uploads", why)]


@dataclass(slots=True)
class _CleaningTopic:
    """The work on the folder of one topic."""

    erasing: RemoteErasing
    image: ClusterImage
    topic_id: str
    parts: Mapping[int, ErasingPartition]
    clock: Clock
    now: bool
    unfinished: Sequence[NotErased]
    cleaned: dict[int, CleanedRemote] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cleaned = {partition: CleanedRemote(left=[*self.unfinished]) for partition in self.parts}

    @property
    def folder(self) -> str:
        """The topic's folder in the remote tier."""
        return self.erasing.tables[self.topic_id].folder

    def leave(self, partitions: Iterable[int], left: NotErased) -> None:
        """Record that something is left that may hold erased records of these partitions."""
        for partition in partitions:
            self.cleaned[partition].left.append(left)

    def clean(self) -> None:
        """Delete what may be deleted. Raises: errors of the store and of the table."""
        table = self.erasing.tables[self.topic_id]
        config = topic_config_of(self.image, self.image.topics[self.topic_id])
        delay_ms = 0 if self.now else config.file_delete_delay_ms
        objects = table.objects()  # before the table, so that an object is not listed afterwards
        log, removed = table.load_with_removed(delay_ms)
        if delay_ms == 0:
            removed = replace(removed, due=removed.ever)
        if not self.erasing.run.dry_run:
            self._check_listed(log)
        time_ms = agreed_ms(self.clock, table.remote)
        listed = {segment.path for segment in log.all_segments()}
        doomed: list[str] = []
        for path, found in objects.segments.items():
            part = self.parts.get(found.partition)
            if part is None or path in listed or not self._may_hold(part, found):
                continue
            if self._is_due(path, found.object, removed, delay_ms, time_ms):
                doomed.append(found.object.name)
                self.cleaned[found.partition].deleted += 1
            else:
                self.leave([found.partition], waiting(found.object))
        for path, stored in objects.foreign.items():
            if path in removed.ever and not stored.special:
                if path in removed.due:
                    doomed.append(stored.name)
                else:
                    self.leave(self.parts, waiting(stored))
            else:
                why = "it is not an object of the table, so its content is unknown: remove it by hand"
                self.leave(self.parts, NotErased(f"{_WHERE}: {stored.name}", why))
        twin = self._twin()
        if self.erasing.run.dry_run:
            self.notes += [] if twin is None else [twin.planned()]
            return
        if twin is not None:
            twin.follow()  # before the objects of its snapshots go
        if doomed:
            table.remote.delete(doomed)
        self._forget_history(objects.log_entries)
        if twin is not None:
            self._forget_iceberg(twin, None if delay_ms == 0 else _settled_ms(time_ms, delay_ms))

    def _may_hold(self, part: ErasingPartition, found: RemoteObject) -> bool:
        table = self.erasing.tables[self.topic_id]
        file = DataFile(found.name, found.object)
        return may_hold(table.remote, file, part.view, part.keys, part.looked_to)

    def _is_due(
        self, path: str, stored: StoredObject, removed: RemovedFiles, delay_ms: int, time_ms: int | None
    ) -> bool:
        """Whether no reader of the table needs an object any more. No table will list one that it never listed."""
        if path in removed.ever:
            return path in removed.due
        return delay_ms == 0 or (time_ms is not None and stored.modified_ms + delay_ms <= time_ms)

    def _check_listed(self, log: RemoteLog) -> None:
        """The listed segments that hold the offsets now, and those that should not be listed."""
        copies = self.erasing
        for partition, part in self.parts.items():
            segments, erasures = log.of_partition(partition), part.view.erasures
            for segment in to_erase_remotely(segments, erasures):
                why = "the table lists it, and it has erased records: erase again"
                self.leave([partition], NotErased(f"{_WHERE}: {self.folder}/{segment.path}", why))
            copy = copies.copy_of(part.view)
            assert copy is not None
            self.cleaned[partition].made = tuple(
                erased_segment(copy, segment)
                for segment in segments
                if any(within(one.offsets, segment.base_offset, segment.next_offset) for one in erasures)
            )

    def _forget_history(self, log_files: Iterable[StoredObject]) -> None:
        """Step 6, unless an object of an older version is left for readers."""
        where = f"{_WHERE}: {paths.join(self.folder, paths.DELTA_LOG)}"
        if any(one.left for one in self.cleaned.values()):
            why = (
                "its older versions have statistics of erased records, and are deleted with the last of their "
                "objects"
            )
            for each in self.cleaned.values():
                each.left.append(NotErased(where, why, waits=all(one.waits for one in each.left)))
            return
        for stored in log_litter(log_files):
            why = "it is not a file of the table's log, so its content is unknown: remove it by hand"
            self.leave(self.parts, NotErased(f"{_WHERE}: {stored.name}", why))
        version = self.erasing.tables[self.topic_id].delete_history()
        for each in self.cleaned.values():
            each.version = version

    def _twin(self) -> IcebergTwin | None:
        """The topic's Iceberg table, if it has one."""
        topic = self.image.topics[self.topic_id]
        name = topic_config_of(self.image, topic).remote_iceberg_table
        return IcebergTwin(self.erasing.storage, topic, name, self.erasing.tables[self.topic_id]) if name else None

    def _forget_iceberg(self, twin: IcebergTwin, settled_ms: int | None) -> None:
        """Delete the history of the Iceberg table, when that of the Delta table is gone."""
        due = all(one.version is not None for one in self.cleaned.values())
        found = twin.delete_history(due=due, settled_ms=settled_ms)
        for left in found.left:
            for each in self.cleaned.values():
                waits = left.waits and all(one.waits for one in each.left)
                each.left.append(msgspec.structs.replace(left, waits=waits))
        for each in self.cleaned.values():
            each.iceberg = found.erased
        self.notes += found.notes


def _settled_ms(time_ms: int | None, delay_ms: int) -> int:
    """The time before which a file was written that no job is about to commit. 0 if the time is unknown."""
    return 0 if time_ms is None else time_ms + -delay_ms // _HOUR_MS * _HOUR_MS


def waiting(stored: StoredObject) -> NotErased:
    """An object that is deleted later."""
    return NotErased(
        f"{_WHERE}: {stored.name}",
        "readers of the table may need it until file.delete.delay.ms has passed, rounded up to hours: erase again "
        "then, or immediately with now (a job: --now)",
        waits=True,
    )

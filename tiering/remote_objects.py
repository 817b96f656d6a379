"""Compares the objects in a topic's folder of the remote store with the topic's table, and finds litter. Pure.

    listed                                          stays
    removed from the table                          deleted after the delay, for running readers (KIP-405,
                                                    DELETE_SEGMENT_STARTED)
    uploaded, never committed (COPY_SEGMENT_STARTED):
      below the log start offset                    deleted: it is not needed
      begins below the end of the remote log        deleted: a commit would find other files with its offsets
      of a different history than the leader's      deleted: no commit would take it
      the topic is no longer tiered                 deleted
      of a removal rule that is not applied yet     stays: a commit may list it, until the table has the rule
      anything else                                 stays: the next tier run commits it, or files with its offsets

An upload without a commit is deleted only after a day, by the clock of the storage. For an upload that is below
the log start, or begins below the end of the remote log, an earlier deletion would also be safe, because log
starts never move back, and a late commit is superseded. (An upload that only begins below the log start may be
about to be committed, if the log start has just moved; such an upload is superseded soon.) All other uploads may
become valid again, if another unclean election restores the lost history. Then a tier run finds the file, or
uploads it again. Even if the run finds the file just before another run deletes it, no record is lost, because a
broker keeps its records until their remote copy was found after the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stratalog.partitions import paths
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class RemovedFiles:
    """Paths of files that a table has removed."""

    ever: frozenset[str] = frozenset()
    """All removals that the table records."""
    due: frozenset[str] = frozenset()
    """The removed files that running readers no longer need."""


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object with a segment's name."""

    path: str
    """Relative to the topic's folder."""
    partition: int
    name: DataName
    object: StoredObject


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """The objects of one topic's folder."""

    segments: Mapping[str, RemoteObject] = field(default_factory=dict)
    """Keyed by path."""
    log_entries: tuple[StoredObject, ...] = ()
    """The files of the table's own log."""
    foreign: Mapping[str, StoredObject] = field(default_factory=dict)
    """All other objects there, by path, such as a link in place of a segment."""

    @classmethod
    def of(cls, folder: str, objects: Iterable[StoredObject]) -> RemoteObjects:
        """The objects of a walk through ``folder``."""
        segments: dict[str, RemoteObject] = {}
        log_entries: list[StoredObject] = []
        foreign: dict[str, StoredObject] = {}
        for stored in objects:
            path = stored.name.removeprefix(folder + "/")
            parsed = paths.parse_remote_segment_path(path)
            if parsed is not None and not stored.special:
                partition, name, _ = parsed
                segments[path] = RemoteObject(path, partition, name, stored)
            elif path.startswith(paths.DELTA_LOG + "/") and not stored.special:
                log_entries.append(stored)
            else:
                foreign[path] = stored
        return cls(segments, tuple(log_entries), foreign)

    def at(self, path: str) -> StoredObject:
        """The existing object at a path."""
        found = self.segments.get(path)
        return self.foreign[path] if found is None else found.object

    def holds(self, segment: RemoteSegment) -> bool:
        """Whether a listed segment's object exists and has the listed size."""
        found = self.segments.get(segment.path)
        return found is not None and found.object.size_bytes == segment.size_bytes


class Why(StrEnum):
    """The reason why an object is litter."""

    REMOVED = "removed"
    EXPIRED = "below the log start"
    SUPERSEDED = "superseded"
    LOST_HISTORY = "lost history"
    NOT_TIERED = "not tiered"
    OF_OTHERS = "of others"


@dataclass(frozen=True, slots=True)
class TopicLitter:
    """The litter among a topic's objects, and the partitions with undecided objects."""

    litter: Mapping[str, Why]
    """Keyed by path."""
    undecided: frozenset[int]
    """Partitions with an old upload beyond the end of their remote log, which can be judged only by the leader's
    lineage.
    """


def find_litter(
    objects: RemoteObjects,
    log: RemoteLog,
    removed: RemovedFiles,
    *,
    log_starts: Mapping[int, int],
    lineages: Mapping[int, Lineage],
    tiered: bool,
    before_ms: int,
) -> TopicLitter:
    """Find the litter, by the table in the module's docstring. ``log`` and ``removed`` were read after
    ``objects``, and ``log_starts`` after ``log`` and ``removed``. ``lineages`` are the known lineages of leaders;
    ``before_ms`` is a day ago on the storage's clock."""
    listed = {segment.path for segment in log.all_segments()}
    litter: dict[str, Why] = {
        path: Why.OF_OTHERS
        for path, stored in objects.foreign.items()
        if path in removed.due and stored.modified_ms < before_ms and not stored.special
    }
    undecided: set[int] = set()
    for path, found in objects.segments.items():
        if path in listed:
            continue
        if path in removed.ever:
            if path in removed.due:
                litter[path] = Why.REMOVED
            continue
        if found.object.modified_ms >= before_ms:
            continue
        lineage = lineages.get(found.partition)
        next_offset = found.name.least_end
        if not tiered:
            litter[path] = Why.NOT_TIERED
        elif found.name.generation > log.generation(found.partition):
            continue  # a late commit may still list the object (tiering.removal)
        elif next_offset <= log_starts.get(found.partition, 0):
            litter[path] = Why.EXPIRED
        elif found.name.base_offset < (log.end(found.partition) or 0):
            litter[path] = Why.SUPERSEDED
        elif lineage is None:
            undecided.add(found.partition)
        elif lineage.epoch_at(next_offset - 1) != found.name.epoch:
            litter[path] = Why.LOST_HISTORY
    return TopicLitter(litter, frozenset(undecided))

"""Decides on a batch of changes to a remote log: the change for the log's next version, and the outcome. Pure,
except that a decision reads the current leaders between two steps of a commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.removal import Rule
from stratalog.tiering.divergence import Histories
from stratalog.tiering.foreign_commits import ListedFile
from stratalog.tiering.plan import expired_segments
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded

_NOBODYS = Histories()
_MOST_NAMED = 20
"""The number of ranges of offsets that a note names."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The outcome of a batch. ``log`` is the table as read again afterwards."""

    log: RemoteLog
    listed: tuple[Uploaded, ...]
    """Segments that are now in the table, by this commit or a commit of another writer."""
    superseded: tuple[Uploaded, ...]
    """Segments that are not in the table because other files contain their offsets, or the log start has passed
    them. Their objects are litter in the remote tier.
    """
    fenced: tuple[Uploaded, ...] = ()
    """Segments that are not in the table because their partitions have a later leader epoch than the upload."""
    stale: tuple[Uploaded, ...] = ()
    """Segments that are not in the table because they were uploaded before an erasure of their partition, or
    because they follow an older removal rule than the log does. Later segments of the same partition are also
    refused.
    """
    made: frozenset[str] = frozenset()
    """Paths of the segments that this commit added."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Adjacent segments with damaged or missing objects, and their replacements. These have the same records, from
    the log start on.
    """

    lost: tuple[RemoteSegment, ...]
    uploads: tuple[Uploaded, ...]
    """Empty if all records are below the log start."""
    log_start: int


@dataclass(frozen=True, slots=True)
class TableChange:
    """The additions and removals of a version. The object is false if there are none."""

    adds: tuple[Uploaded, ...]
    removes: tuple[RemoteSegment, ...]
    foreign: tuple[ListedFile, ...] = ()
    """Files of other writers to remove."""
    of_data: bool = True
    """Delta's ``dataChange``: false if the same records move to other files, so that followers of the table do not
    mistake them for new records.
    """
    why: str = ""
    """The reason, for readers of the table's history."""
    rules: Mapping[int, Rule] | None = None
    """The removal rules by partition that the table records, in a version without files (``tiering.removal``).
    """
    erased: Mapping[int, int] | None = None
    """The erasures by partition that the table records, in a version without files (``tiering.erasure``)."""
    operation: str = ""
    """The name of the operation; by default it follows from the change."""

    def __bool__(self) -> bool:
        return bool(self.adds or self.removes or self.foreign or self.rules or self.erased)

    def info(self, topic: str) -> dict[str, str]:
        """The commit info. Programs read the topic, the operation and its offsets by partition (JSON, half-open
        ranges). ``userMetadata``, which ``DESCRIBE HISTORY`` shows, has the same information as text.
        """
        arrived, left = _ranges(upload.segment for upload in self.adds), _ranges(self.removes)
        if self.operation:
            operation = self.operation
        elif self.foreign:
            operation = "undo rewrite"
        elif not self.of_data:
            operation = "heal"
        else:
            operation = "tier" if arrived else "retain"
        changes = [f"{operation}: {self.why}" if self.why else operation]
        changes += [f"{verb} {_shown(topic, of)}" for verb, of in (("adds", arrived), ("removes", left)) if of]
        info = {"stratalog.topic": topic, "stratalog.operation": operation, "userMetadata": "; ".join(changes)}
        named = (("stratalog.offsets", arrived), ("stratalog.removedOffsets", left))
        return info | {name: json.dumps(of) for name, of in named if of}


def _ranges(segments: Iterable[RemoteSegment]) -> dict[int, list[tuple[int, int]]]:
    """The offsets of segments by partition: half-open, in order, adjacent ones joined."""
    found: dict[int, list[tuple[int, int]]] = {}
    for one in sorted(segments, key=lambda one: (one.partition, one.base_offset)):
        of = found.setdefault(one.partition, [])
        if of and of[-1][1] == one.base_offset:
            of[-1] = of[-1][0], one.next_offset
        else:
            of.append((one.base_offset, one.next_offset))
    return found


def _shown(topic: str, ranges: Mapping[int, Sequence[tuple[int, int]]]) -> str:
    named = [f"{topic}-{partition} [{a}, {b})" for partition, of in ranges.items() for a, b in of]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more


def decide(
    log: RemoteLog, adds: Sequence[Uploaded], removes: Sequence[RemoteSegment], histories: Histories
) -> TableChange | CommittedBatch:
    """Steps 2 and 3 of ``DeltaTopicTable.commit`` on the table as just read: the change for the next version, or
    the outcome of the batch if nothing changes. The current leaders are read only if there is a change.

    Raises: LogGapError, CorruptionError when the batch would break the log; InvalidCallError, see
        ``Histories.check``.
    """
    for upload in adds:
        histories.check(upload.segment)
    refused = {segment.path for segment in log.stale([upload.segment for upload in adds])}
    stale = tuple(upload for upload in adds if upload.segment.path in refused)
    adds = [upload for upload in adds if upload.segment.path not in refused]
    change = _lacking(log, adds, removes, histories.lineages)
    fenced: frozenset[int] = frozenset()
    if change and histories.lineages:
        present = histories.present()
        fenced = frozenset(histories.lineages.keys() - present.keys())
        outdated = {p for p, each in present.items() if not histories.knows(p, each)}
        stale += tuple(upload for upload in adds if upload.segment.partition in outdated)
        adds = [upload for upload in adds if upload.segment.partition not in outdated]
        starts = {partition: each.log_start for partition, each in present.items()}
        change = _lacking(
            log,
            [upload for upload in adds if _is_wanted(upload.segment, starts)],
            [*removes, *expired_segments(log, starts)],
            {p: lineage for p, lineage in histories.lineages.items() if p in starts},
        )
    if not change:
        return replace(committed(log, adds, fenced), stale=stale)
    log.after([add.segment for add in change.adds], change.removes, log.version + 1)
    return change


def _is_wanted(segment: RemoteSegment, log_starts: Mapping[int, int]) -> bool:
    """Whether the log start has not passed the segment since its upload. If it has, the segment's object may have
    been deleted.
    """
    log_start = log_starts.get(segment.partition)
    return log_start is not None and segment.next_offset > log_start


def decide_rebuilt(
    log: RemoteLog, rebuilt: Sequence[Rebuilt], histories: Histories = _NOBODYS
) -> TableChange | CommittedBatch:
    """Like ``decide``, for rebuilt segments: they replace the lost segments that are still listed. (If some are no
    longer listed, then retention, a removal of records or another heal was first.) Leaders do not matter, because
    the records are the same. A later erasure does matter.

    Raises: LogGapError, CorruptionError when the batch would break the log.
    """
    change, uploads = _rebuilding(log, rebuilt)
    if not change:
        return committed(log, uploads, ())
    outdated = {p for p, each in histories.now().items() if not histories.knows(p, each)}
    if outdated:
        stale = tuple(upload for upload in uploads if upload.segment.partition in outdated)
        current = [each for each in rebuilt if each.lost[0].partition not in outdated]
        change, uploads = _rebuilding(log, current)
        if not change:
            return replace(committed(log, uploads, ()), stale=stale)
    log.after([add.segment for add in change.adds], change.removes, log.version + 1)
    return change


def _rebuilding(log: RemoteLog, rebuilt: Sequence[Rebuilt]) -> tuple[TableChange, list[Uploaded]]:
    """The change, and all uploads. Raises: CorruptionError."""
    listed = {segment.path for segment in log.all_segments()}
    uploads = [upload for each in rebuilt for upload in each.uploads]
    adds: list[Uploaded] = []
    removes: dict[str, RemoteSegment] = {}
    for each in rebuilt:
        lost = [segment for segment in each.lost if segment.path in listed]
        new = [upload for upload in each.uploads if upload.segment.path not in listed]
        if len(lost) < len(each.lost) or len(new) < len(each.uploads):
            continue  # the rebuilt or restored objects are already listed
        for upload in new:
            _check_follows(log, upload.segment, lost)
        adds += new
        removes |= {segment.path: segment for segment in lost}
        first = each.lost[0]
        if first.base_offset < each.log_start:  # the rebuilt segments begin at the log start
            below = (s for s in log.of_partition(first.partition) if s.next_offset <= each.log_start)
            removes |= {segment.path: segment for segment in below}
    return TableChange(tuple(adds), tuple(removes.values()), of_data=False), uploads


def _check_follows(log: RemoteLog, new: RemoteSegment, lost: Iterable[RemoteSegment]) -> None:
    """Raises: CorruptionError when a rebuilt segment may contain records that the recorded rule has removed from a
    lost segment. Records that a later rule has removed may come back until that rule is applied.
    """
    for each in lost:
        overlaps = new.base_offset < each.next_offset and each.base_offset < new.next_offset
        rule = log.rules.get(each.partition)
        if overlaps and rule is not None and new.generation < min(each.generation, rule.generation):
            raise CorruptionError(
                f"{log.what}: {new.path} cannot replace {each.path}, from which a later removal rule has removed "
                "records: run compact, then heal again"
            )


def _lacking(
    log: RemoteLog,
    adds: Sequence[Uploaded],
    removes: Iterable[RemoteSegment],
    lineages: Mapping[int, Lineage],
) -> TableChange:
    """The part of a batch that the table still lacks, and the removal of segments of other histories."""
    listed = {segment.path for segment in log.all_segments()}
    gone = {segment.path: segment for segment in removes if segment.path in listed}
    gone |= {segment.path: segment for segment in log.foreign(lineages)}
    needed = {segment.path for segment in log.needed([upload.segment for upload in adds], gone.values())}
    return TableChange(tuple(upload for upload in adds if upload.segment.path in needed), tuple(gone.values()))


def committed(log: RemoteLog, adds: Sequence[Uploaded], fenced: Collection[int]) -> CommittedBatch:
    """The outcome when each of these segments was added or refused. ``fenced``: partitions with a later leader
    epoch than their uploads have."""
    listed = {segment.path for segment in log.all_segments()}
    there = tuple(upload for upload in adds if upload.segment.path in listed)
    others = [upload for upload in adds if upload.segment.path not in listed]
    return CommittedBatch(
        log,
        there,
        tuple(upload for upload in others if upload.segment.partition not in fenced),
        tuple(upload for upload in others if upload.segment.partition in fenced),
    )

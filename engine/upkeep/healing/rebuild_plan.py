"""Plans which files of replicas replace a damaged or missing object of the remote tier. Pure.

Any good file of a replica can be used (``sources``) until it is deleted. The best source is the same file.
If no replica has that file, the records come from other files, in any pieces, and from several replicas if no
replica has all records. A file is never cut short, because its producer state is valid only at its end. If a file
extends beyond the segment, the next remote segments are rebuilt together with it. If the file extends beyond the
remote log (because a zombie merged late), its remaining records first become a remote segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from stratalog.engine.replicas.repair import BadFile, HeldFile
from stratalog.engine.upkeep.healing.sources import GoodFiles, Offsets, cover
from stratalog.engine.upkeep.verification.audit import Audited
from stratalog.engine.upkeep.verification.findings import Finding, offsets
from stratalog.engine.upkeep.verification.remote import RemotePartition
from stratalog.partitions import paths
from stratalog.partitions.erasure import Erasure, named
from stratalog.partitions.errors import LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Link
from stratalog.tiering.erasure import generation_needed
from stratalog.tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class RebuiltObject:
    """Adjacent files of one replica that become one object."""

    broker_id: int
    links: tuple[Link, ...]
    behind: tuple[Link, ...]
    """The replica's later files, which may have the markers of the transactions in these files."""


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """The pieces that replace adjacent remote segments. If there are no pieces, the segments are below the log
    start, and are only removed.
    """

    lost: tuple[RemoteSegment, ...]
    """The segments to replace. Empty if the table does not list the offsets, because an older copy of the table
    was restored.
    """
    pieces: tuple[RebuiltObject, ...]
    from_table: bool = False
    """Whether the records exist only in files with which another program has replaced the segment."""
    rest: tuple[RebuiltObject, ...] = ()
    """The part of the pieces beyond the end of the remote log, if any. This part is tiered first, and the pieces
    then replace the new segment, too.
    """

    @property
    def start(self) -> int:
        return self.lost[0].base_offset if self.lost else self.pieces[0].links[0].start

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.lost[-1].next_offset if self.lost else self.pieces[-1].links[-1].end

    @property
    def what(self) -> str:
        """The segments, as text."""
        return " ".join(segment.path for segment in self.lost) or offsets(self.start, self.end)

    @property
    def sources(self) -> str:
        """The source of the files, as text."""
        if self.from_table:
            return "table"
        return " ".join(f"broker-{broker}" for broker in dict.fromkeys(piece.broker_id for piece in self.pieces))


@dataclass(frozen=True, slots=True)
class Lacking:
    """A remote object that cannot be rebuilt, with its damage and the remedy."""

    finding: Finding
    remedy: str


def plan_rebuilds(each: Audited) -> tuple[list[RebuildPlan], list[Lacking]]:
    """The plans for the remote objects that an audit found damaged or missing, and the objects that have no
    source.
    """
    remote, looked = each.remote, each.looked
    if remote is None or looked is None:
        return [], []
    bad = {f.damage.file.object.name: f for f in each.findings if f.of_remote and isinstance(f.damage, BadFile)}
    sources = _ObjectSources(each, looked.lineage)
    plans: list[RebuildPlan] = []
    lacking: list[Lacking] = []
    position = 0
    for index, segment in enumerate(remote.segments):
        finding = bad.get(paths.join(remote.folder, segment.path))
        if index < position or finding is None:
            continue
        if not segment.is_of(looked.lineage):
            lacking.append(Lacking(finding, f"{segment.path} belongs to a lost history: tier removes it"))
            continue
        log_start = each.replicas.view.log_start_offset
        plan = sources.plan(remote.segments[index:], log_start)
        if plan is None and remote.rewrite and segment.path in remote.missing and not segment.generation:
            plan = RebuildPlan((segment,), (), from_table=True)
        if plan is None and looked.leader_log is not None:
            committed = looked.leader_log.high_watermark
            plan = sources.reaching_over(remote.segments[index:], log_start, committed)
        if plan is None:
            gone = offsets(segment.base_offset, segment.next_offset)
            remedy = f"no replica has {gone} any more: restore {segment.path} from a backup of the remote tier"
            if segment.generation:
                remedy = (
                    f"no replica has {gone} without the records that compaction has removed from the remote "
                    "tier. Run compact, which also removes these records from the leader, and then heal again; "
                    f"or restore {segment.path} from a backup of the remote tier"
                )
            if generation_needed(segment, each.replicas.view.erasures):
                remedy = (
                    f"no replica has {gone} without the records that an unfinished erasure names: restore "
                    f"{segment.path} from a backup of the remote tier, then erase again"
                )
            lacking.append(Lacking(finding, remedy))
            continue
        plans.append(plan)
        position = index + len(plan.lost)
    if (gap := _gap(each)) is not None:
        finding, start, end, committed = gap
        pieces = sources.cover_gap(start, end, committed)
        if pieces is not None:
            plans.append(RebuildPlan((), pieces))
        else:
            lost = " ".join(offsets(*hole) for hole in sources.holes(start, end))
            remedy = (
                f"no replica has {lost} any more: either another copy of the remote tier has these "
                "offsets, or they are lost"
            )
            lacking.append(Lacking(finding, remedy))
    return plans, lacking


def _gap(each: Audited) -> tuple[Finding, int, int, int] | None:
    """The gap between the end of the remote log and the start of the leader's log, which exists because an older
    copy of the remote tier was restored. Also returns the end of the committed log. None if the remote log is
    empty, because an empty remote log does not belong to the original remote tier.
    """
    remote, log = each.remote, None if each.looked is None else each.looked.leader_log
    finding = next((f for f in each.findings if f.broker_id is None and isinstance(f.error, LogGapError)), None)
    if remote is None or not remote.segments or log is None or finding is None:
        return None
    last = remote.segments[-1]
    start = max(last.next_offset, each.replicas.view.log_start_offset)
    if start >= log.local_start or not last.is_of(log.lineage):
        return None
    return finding, start, log.local_start, log.high_watermark


class _ObjectSources(GoodFiles):
    """The good files of a partition, for objects of the remote tier."""

    def __init__(self, each: Audited, lineage: Lineage) -> None:
        super().__init__(each, lineage, each.replicas.view.leader)
        self._held = {
            broker: [
                held
                for held in files
                if each.remote is None or _follows(held, each.remote, each.replicas.view.erasures)
            ]
            for broker, files in self.by_broker.items()
        }

    def plan(self, segments: Sequence[RemoteSegment], log_start: int) -> RebuildPlan | None:
        """The plan for the first of these segments, and for as many of the next segments as necessary."""
        first = segments[0]
        start = max(first.base_offset, log_start)
        if start >= first.next_offset:
            return RebuildPlan((first,), ())
        itself = self._itself(first)
        if itself is not None:
            return RebuildPlan((first,), (itself,))
        for count, last in enumerate(segments, 1):
            pieces = self._cover(start, last.next_offset)
            if pieces is not None:
                return RebuildPlan(tuple(segments[:count]), pieces)
        return None

    def reaching_over(
        self, segments: Sequence[RemoteSegment], log_start: int, committed: int
    ) -> RebuildPlan | None:
        """The plan for all of these segments, up to the last segment of the remote log, from committed files that
        extend beyond the end of the remote log.
        """
        start, end = max(segments[0].base_offset, log_start), segments[-1].next_offset
        for until in sorted({h.end for files in self._held.values() for h in files if end < h.end <= committed}):
            pieces, rest = self._cover(start, until), self._cover(end, until)
            if pieces is not None and rest is not None:
                return RebuildPlan(tuple(segments), pieces, rest=rest)
        return None

    def _itself(self, segment: RemoteSegment) -> RebuiltObject | None:
        """The file with the segment's name and offsets; among several such files, preferably one with the size in
        the table.
        """
        range_ = segment.base_offset, segment.next_offset
        found = [
            (held.size_bytes != segment.size_bytes, number, broker, held)
            for number, (broker, files) in enumerate(self._held.items())
            for held in files
            if held.name == segment.name and (held.start, held.end) == range_
        ]
        if not found:
            return None
        *_, broker, held = min(found, key=lambda each: each[:2])
        return RebuiltObject(broker, (Link(*range_, held.file),), ())

    def cover_gap(self, start: int, end: int, committed: int) -> tuple[RebuiltObject, ...] | None:
        """Committed pieces with the offsets ``[start, end)``. The pieces extend beyond ``end`` if no file ends
        there.
        """
        held = (held.end for files in self._held.values() for held in files)
        ends = sorted({each for each in held if end <= each <= committed})
        return next((pieces for each in ends if (pieces := self._cover(start, each)) is not None), None)

    def holes(self, start: int, end: int) -> list[Offsets]:
        """The offsets of ``[start, end)`` that no replica's file has."""
        copies = [copy for copy in (*self.log, *self.hidden) if copy.place is not None]
        return cover(copies, start, end, lambda copy: -copy.held.end)[1]

    def _cover(self, start: int, end: int) -> tuple[RebuiltObject, ...] | None:
        pieces: list[RebuiltObject] = []
        while start < end:
            runs = ((broker, _of_one_rule(_chain(files, start, end))) for broker, files in self._held.items())
            there = [(broker, links) for broker, links in runs if links]
            if not there:
                return None
            broker, links = max(there, key=lambda run: run[1][-1].end)
            start = links[-1].end
            pieces.append(RebuiltObject(broker, links, tuple(_chain(self._held[broker], start, None))))
        return tuple(pieces)


def _follows(held: HeldFile, remote: RemotePartition, erasures: Sequence[Erasure]) -> bool:
    """Whether all records of a file may be kept: the remote log's rule has removed none of them from the segments
    at these offsets, and no erasure names any of them. Once the metadata no longer has the offsets of an erasure,
    no replica has a file with erased records.
    """
    over = (s for s in remote.segments if s.base_offset < held.end and held.start < s.next_offset)
    least = min(remote.compacted, max((segment.generation for segment in over), default=0))
    return held.name.generation >= least and not named(held.name, held.end, erasures)


def _of_one_rule(links: Iterable[Link]) -> tuple[Link, ...]:
    """The first links up to a change of the generation, because one object follows one rule."""
    return next((tuple(some) for _, some in groupby(links, key=lambda link: link.name.generation)), ())


def _chain(files: Sequence[HeldFile], start: int, until: int | None) -> Iterator[Link]:
    """Files of a replica that follow each other without a gap from ``start`` on, and do not extend beyond
    ``until``.
    """
    while True:
        there = [f for f in files if f.start <= start < f.end and (until is None or f.end <= until)]
        if not there:
            return
        best = max(there, key=lambda held: (held.end, held.name.merged))
        yield Link(start, best.end, best.file)
        start = best.end

"""Erasure: permanently removes records while all others keep their offsets: the rule, and the invariants. Pure.

An *erasure* is another kind of removal rule (``stratalog.partitions.removal``): it names the offsets to remove.
The offsets are found once, on the leader's committed log below the last stable offset. So the metadata contains
neither a key nor its digest, and every replica removes the same records. Both kinds of rules share one sequence of
generations.

The content of a generation
    A file of generation g follows every rule up to g: it contains no record that an erasure up to g names, or that
    the last compaction up to g removes. So an erasure may follow a compaction only after every member of the ISR
    has the generation of the compaction at *each* offset below the compaction's bound (``is_compacted``),
    including files that cross the bound. Then every rewritten file keeps the gaps of the compaction, and C2 of
    ``removal`` holds. A later compaction keeps the gaps of the erasure.

The files
    Only files with an erased offset are rewritten, so the cost is linear in their size. The last file of the log
    may be one of them: the name of the new segment has its end, and its footer has the producer state, exactly as
    after a merge, which may replace the last file too. So the log end, the high watermark and the lineage do not
    depend on the last record. A file that extends above the last stable offset is not rewritten, and contains no
    erased offset.

How long the offsets are kept
    An unreachable replica keeps its files, and may lack the rewritten ones. So the metadata keeps the offsets of
    an erasure until every replica of the partition has carried it out. Until then, no read uses a replica that has
    not carried it out (``nearest.follower_log``). No election may lose committed records: it could elect such a
    replica, or assign the offsets to other records. A leader that heal has filled from such a replica carries out
    the erasure again. A replica that becomes reachable again copies the rewritten segments in the sync that every
    replica needs before it joins the ISR.

The order of steps
    1. The offsets are found, and committed under the partition epoch: every member of the ISR, and every replica
       being added, has carried out the earlier rules.
    2. The leader rewrites its files in ascending order, and the ISR copies them. An unreachable member is removed
       from the ISR, so it cannot lead before a sync. This step is valid only if the partition epoch is still the
       same. Later elections then choose among members without the records, and no replica joins without syncing
       from one of them.
    3. Replaced files are deleted, after ``file.delete.delay.ms`` and after all bytes of the segments that replace
       them were read.
    4. The offsets are forgotten when no replica needs them.
    After a file is deleted, an append that began before the erasure can take its name. A view from before the
    erasure would count that append as part of the log. So an append lists the log again after it has written, and
    is repeated if it finds a file of a rule that its view does not know (``engine.replication.log_end``).
    A crash between any two steps leaves the log intact; the next run continues.

The remote tier
    ``stratalog.tiering.erasure`` does the same for the remote part of a log, which loses the records before the
    leader does, and for the history of its table.

Invariants
    E1  after an erasure is reported, no read returns a record that it names
    E2  after an erasure is reported complete, no file on any root contains such a record. The only exception is on
        object storage: a writer that has been stalled since before the rule may still create the object of a
        single PUT; no reader sees it
    C2 and C3 of ``removal``
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stratalog.partitions.numbers import Natural
from stratalog.partitions.paths import DataName

if TYPE_CHECKING:
    from stratalog.partitions.listing import Link, ReplicaLog
    from stratalog.partitions.removal import Rule

MOST_RANGES = 20_000
"""The maximum number of ranges of offsets in one erasure: its record in the metadata takes at most 1 MB. A run
that finds more makes several erasures, in ascending order.
"""
MOST_KEPT_RANGES = 200_000
"""The maximum number of ranges in all erasures of a partition that some replica has not carried out."""

OffsetRange = tuple[Natural, Natural]
"""``[start, end)``."""


class Erasure(msgspec.Struct, frozen=True):
    """The offsets whose records are erased from one partition."""

    generation: Natural
    offsets: tuple[OffsetRange, ...]
    """Ascending, not empty, no two adjacent. There are none after every replica has carried out the erasure."""

    def __str__(self) -> str:
        return f"erasure {self.generation} of {count(self.offsets):,} offsets"


def ranges_of(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Ascending offsets as ranges."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = found[-1][0], offset + 1
        else:
            found.append((offset, offset + 1))
    return tuple(found)


def are_ranges(offsets: Sequence[OffsetRange]) -> bool:
    """Whether these are ascending, non-empty ranges, no two of which touch."""
    ends = [-1, *(end for _, end in offsets)]
    return all(before < start < end for before, (start, end) in zip(ends, offsets, strict=False))


def count(offsets: Iterable[OffsetRange]) -> int:
    """The number of offsets in the ranges."""
    return sum(end - start for start, end in offsets)


def within(offsets: Sequence[OffsetRange], start: int, end: int) -> Sequence[OffsetRange]:
    """The ranges that overlap ``[start, end)``."""
    first = bisect_right(offsets, start, key=lambda one: one[1])
    return offsets[first : bisect_left(offsets, end, lo=first, key=lambda one: one[0])]


def to_erase(log: ReplicaLog, erasures: Sequence[Erasure]) -> list[tuple[Link, int]]:
    """The links of a log whose files may have records that the erasures name, each with the generation that it
    needs, ascending. ``erasures`` are all of the partition, ascending.

    Check the whole file, not only the part in the log. A late merge may have produced a segment that covers a
    rewritten one. Its two ends are in the log, and the erased records may be between them.
    """
    if not erasures:
        return []
    found = ((link, max(named(link.name, link.end, erasures), _cut_by(log, link))) for link in log.chain)
    return [(link, generation) for link, generation in found if generation]


def is_erased(log: ReplicaLog, erasures: Sequence[Erasure]) -> bool:
    """Whether a replica's log contains none of the records that the erasures name. Erasures whose offsets are
    forgotten are ignored.
    """
    needed = [one for one in erasures if one.offsets]
    return not needed or not any(named(link.name, link.end, needed) for link in log.chain)


def named(name: DataName, end: int, erasures: Sequence[Erasure]) -> int:
    """The generation of the last erasure that names an offset of a file and that the file does not follow; 0 if
    none. The file's records end at ``end``; erasures are in ascending order.
    """
    start, end = name.base_offset, max(end, name.least_end)
    later = (one for one in reversed(erasures) if one.generation > name.generation)
    return next((one.generation for one in later if within(one.offsets, start, end)), 0)


def _cut_by(log: ReplicaLog, link: Link) -> int:
    """The greatest generation by which a part of the link's file was rewritten; 0 if none."""
    name = link.name  # an append is never cut: runs and local starts end at the ends of appends
    if link.start == name.base_offset and link.end >= name.least_end:
        return 0
    over = log.over(name.base_offset, name.least_end)
    return max((one.name.generation for one in over if one.name.generation > name.generation), default=0)


def is_compacted(log: ReplicaLog, rule: Rule) -> bool:
    """Whether a replica follows the compaction ``rule`` at each offset below its bound, including files that cross
    the bound. An erasure may follow only then.
    """
    return all(link.name.generation >= rule.generation for link in log.over(log.local_start, rule.bound))


def following(earlier: Sequence[Erasure], erasure: Erasure) -> tuple[Erasure, ...]:
    """The erasures to keep when ``erasure`` is committed: those that some replica has not carried out, and
    ``erasure`` itself.
    """
    return (*(one for one in earlier if one.offsets), erasure)


def forgetting(erasures: Sequence[Erasure], generation: int) -> tuple[Erasure, ...]:
    """The erasures to keep after every replica has carried out those up to ``generation``. The last one stays
    without offsets, because its generation is still needed.
    """
    kept = [one for one in erasures if one.generation > generation]
    return tuple(kept) if kept else (Erasure(erasures[-1].generation, ()),)

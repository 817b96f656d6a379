"""Records that are erased for good while all others keep their offsets: the rule, and the invariants. Pure.

An *erasure* is a rule of removal (``stratalog.partitions.removal``) of another kind: it names the offsets to
remove. They are found once, on the leader's committed log below the last stable offset. So the metadata hold
neither a key nor the digest of one, and every replica removes the same records. Both kinds share one sequence of
generations.

The content of a generation
    A file of generation g follows every rule up to g: at its offsets no record is left that an erasure up to g
    names, or that the compaction before g removes. So an erasure follows a compaction only when every member of
    the ISR has the generation of the compaction at *each* offset below its bound (``is_compacted``), also where a
    file crosses the bound. Then a rewrite of any file keeps what the compaction left, and C2 of ``removal`` holds.
    A compaction that follows reads the gaps as gaps.

The files
    Only files with an erased offset are rewritten, so the cost is linear in them. The last file of the log may be
    one of them: the name of a segment has its end, and its footer the state of producers, exactly as after a
    merge, which may replace the last file too. So the log end, the high watermark and the lineage do not depend on
    the last record. A file that reaches above the last stable offset is left alone, and holds no erased offset.

How long the offsets are kept
    A replica that is away keeps its files, and may lack the rewritten ones. So the metadata keep the offsets of an
    erasure until every replica of the partition has carried it out. Until then no read uses a replica that has not
    (``nearest.follower_log``), no election gives up committed records (it might elect such a replica, or give the
    offsets to other records), and a leader that heal has filled from such a replica carries the rule out again.
    A replica that comes back gets the segments by the sync that every replica needs before it joins the ISR.

The order of steps
    1. The offsets are found, and committed under the partition epoch: every member of the ISR, and every replica
       being added, has carried out the rules before.
    2. The leader rewrites its files in ascending order, and the ISR copies them. A member that is not reached
       leaves the ISR, so it cannot lead before a sync. This counts only if the partition epoch is still the same:
       after it, elections choose among members without the records, and nobody joins without a sync from one.
    3. Replaced files are deleted, after ``file.delete.delay.ms`` and after all bytes of the segments that replace
       them were read.
    4. The offsets are forgotten when no replica needs them.
    A deleted file leaves its name to an append that began before it. Under a view from before the rule, the log
    would hold that append. So an append looks again, and is repeated where it meets a file of a rule that its view
    does not know (``engine.replication.log_end``).
    A crash between any two steps leaves a whole log; the next run continues.

The remote tier
    ``stratalog.tiering.erasure`` has the same for the remote part of a log, which loses the records before the
    leader does, and for the history of its table.

Invariants
    E1  once an erasure is reported, no read returns a record that it names
    E2  once it is reported whole, no file on any root holds such a record, except for the object of a single PUT
        that a writer stalled since before the rule creates later on object storage; no reader sees it
    C2 and C3 of ``removal``
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from stratalog.partitions.numbers import Natural

if TYPE_CHECKING:
    from stratalog.partitions.listing import Link, ReplicaLog
    from stratalog.partitions.removal import Rule

MOST_RANGES = 20_000
"""The most ranges of offsets in one erasure: its record in the metadata takes at most 1 MB. A run that finds more
makes several erasures, in ascending order."""
MOST_KEPT_RANGES = 200_000
"""The most ranges in all erasures of a partition that some replica has not carried out."""

OffsetRange = tuple[Natural, Natural]
"""``[start, end)``."""


class Erasure(msgspec.Struct, frozen=True):
    """The offsets whose records are erased from one partition."""

    generation: Natural
    offsets: tuple[OffsetRange, ...]
    """Ascending, not empty, no two adjacent. Empty once every replica has carried the erasure out."""

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
    """Whether these are ascending, non-empty ranges, of which no two touch."""
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
    needs, ascending. ``erasures`` are those of the partition, ascending.

    The whole file counts, not only the part in the log (!): a merge that ended late may have made a segment over a
    rewritten one, of which both ends are in the log, and the erased records between them still in the file.
    """
    if not erasures:
        return []
    found = ((link, max(_named(link, erasures), _cut_by(log, link))) for link in log.chain)
    return [(link, generation) for link, generation in found if generation]


def is_erased(log: ReplicaLog, erasures: Sequence[Erasure]) -> bool:
    """Whether a replica's log holds no record that the erasures name, as long as the metadata keep their
    offsets."""
    needed = [one for one in erasures if one.offsets]
    return not needed or not any(_named(link, needed) for link in log.chain)


def _named(link: Link, erasures: Sequence[Erasure]) -> int:
    """The generation of the last erasure that names an offset of the link's file, and that the file does not
    follow; 0 if there is none."""
    start, end = link.name.base_offset, max(link.end, link.name.least_end)
    later = (one for one in reversed(erasures) if one.generation > link.name.generation)
    return next((one.generation for one in later if within(one.offsets, start, end)), 0)


def _cut_by(log: ReplicaLog, link: Link) -> int:
    """The greatest generation that a part of the link's file was rewritten by; 0 if there is none."""
    name = link.name  # an append is never cut: runs and local starts end where appends do
    if link.start == name.base_offset and link.end >= name.least_end:
        return 0
    over = log.over(name.base_offset, name.least_end)
    return max((one.name.generation for one in over if one.name.generation > name.generation), default=0)


def is_compacted(log: ReplicaLog, rule: Rule) -> bool:
    """Whether a replica follows the compaction ``rule`` at each offset below its bound, also in a file that
    crosses the bound. Without this no erasure may follow."""
    return all(link.name.generation >= rule.generation for link in log.over(log.local_start, rule.bound))


def following(earlier: Sequence[Erasure], erasure: Erasure) -> tuple[Erasure, ...]:
    """The erasures to keep when ``erasure`` is committed: those that some replica has not carried out, and it."""
    return (*(one for one in earlier if one.offsets), erasure)


def forgetting(erasures: Sequence[Erasure], generation: int) -> tuple[Erasure, ...]:
    """The erasures when every replica has carried out those up to ``generation``. The last one stays, without its
    offsets, for its generation."""
    kept = [one for one in erasures if one.generation > generation]
    return tuple(kept) if kept else (Erasure(erasures[-1].generation, ()),)

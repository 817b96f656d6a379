"""The themes of runs: the weights of operations, and the faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """The subject of a run: the weights of operations, and the events."""

    name: str
    weights: tuple[tuple[str, int], ...]
    events: tuple[str, ...] = ("cut", "cut", "fill", "double")
    weight: int = 10
    length: tuple[int, int] = (1, 3)
    """The number of operations of a slot."""
    unclean: bool = False
    tiered: bool = False


_BASE = (("append", 8), ("append_leader", 1), ("append_once", 1), ("replicate", 3), ("elect", 3), ("read", 1))
_READS = (("read", 1), ("read_replica", 1), ("offsets", 1))
THEMES: Sequence[Theme] = (
    Theme("base", (*_BASE, *_READS, ("shrink", 2), ("fence", 1)), weight=20),
    Theme("base", (*_BASE, ("shrink", 2), ("fence", 1), ("fence_by_hand", 1), ("unfence", 1), ("register", 1))),
    Theme("delete", (*_BASE, ("merge", 2), ("retain", 2), ("tidy", 4), ("shrink", 1), ("read_replica", 1))),
    Theme("reuse", (("append", 6), ("tidy", 5), ("shrink", 2), ("replicate", 2)), length=(2, 4)),
    Theme("revive", (("append", 5), ("elect", 6), ("replicate", 4), ("tidy", 4)), ("cut",), length=(1, 3)),
    Theme(
        "tier",
        (
            *_BASE,
            ("tier", 6),
            ("retain", 4),
            ("vacuum", 1),
            ("shrink", 2),
            ("read", 2),
            ("offsets", 1),
            ("merge", 1),
            ("fence", 1),
        ),
        ("cut", "wipe", "replace", "double", "fill"),
        weight=15,
        length=(1, 4),
        tiered=True,
    ),
    Theme("heal", (*_BASE, ("verify", 4), ("heal", 4), ("shrink", 2), ("tidy", 2), ("fence", 1)), weight=8),
    Theme("move", (*_BASE, ("reassign", 5), ("cancel", 1), ("vacuum", 2), ("shrink", 1), ("fence", 1)), weight=12),
    Theme(
        "topics",
        (("append", 3), ("create_other", 5), ("delete_other", 4), ("vacuum", 2), ("replicate", 3), ("elect", 1)),
        weight=4,
        length=(2, 4),
    ),
    Theme(
        "wipe",
        (*_BASE, ("shrink", 1), ("fence", 1), ("bootstrap", 1)),
        ("wipe", "replace", "backup", "restore", "cut"),
        weight=15,
    ),
    Theme(
        "unclean",
        (*_BASE, ("isolate", 6), ("elect_unclean", 4), ("unfence", 3), ("replicate", 2)),
        ("cut",),
        weight=7,
        length=(2, 4),
        unclean=True,
    ),
)

TRANSACTIONS = Theme(
    "transactions",
    (
        ("transact", 9),
        ("append", 2),
        ("replicate", 2),
        ("finish", 3),
        ("merge", 3),
        ("tidy", 1),
        ("elect", 2),
        ("shrink", 1),
        ("fence", 1),
        ("read", 1),
    ),
    ("cut", "double", "double", "fill"),
    length=(1, 4),
)
_CHECKS = (
    *(
        ("verify", 4),
        ("look", 2),
        ("heal", 5),
        ("append", 7),
        ("append_leader", 3),
        ("replicate", 3),
        ("elect", 3),
    ),
    *(("tidy", 2), ("shrink", 2), ("fence", 1), ("reassign", 2), ("retain", 2), ("merge", 1)),
)
CHECKS = (
    Theme("checks", _CHECKS, length=(2, 4)),
    Theme("checks", (*_CHECKS, ("tier", 4), ("vacuum", 1)), ("cut", "double", "fill"), length=(2, 5), tiered=True),
)
"""Verify and heal beside all operations that change a log."""

_SHORT = (
    *(("append", 18), ("append_leader", 1), ("shorten", 8), ("replicate", 2), ("elect", 2), ("shrink", 2)),
    *(
        ("fence", 1),
        ("reassign", 1),
        ("cancel", 1),
        ("read_replica", 1),
        ("transact", 1),
        ("finish", 1),
        ("merge", 1),
        ("retain", 1),
    ),
)
SHORT = (
    Theme("short", _SHORT, length=(3, 7)),
    Theme("short", (*_SHORT, ("tier", 4), ("vacuum", 1)), ("cut", "double", "fill"), length=(3, 7), tiered=True),
    Theme("short", (*_SHORT, ("verify", 1), ("heal", 2)), ("wipe", "replace", "cut", "double"), length=(3, 7)),
)
"""Drivers that keep logs short after their appends, beside all operations that change a log."""

_MAINTAIN = (
    *(("append", 12), ("append_leader", 2), ("maintain", 10), ("elect", 2), ("shrink", 2), ("fence", 1)),
    *(("read", 1), ("read_replica", 1), ("transact", 1), ("reassign", 1)),
)
MAINTAIN = (
    Theme("maintain", (*_MAINTAIN, ("tidy", 1)), length=(2, 5)),
    Theme("maintain", _MAINTAIN, ("cut", "double", "fill"), length=(2, 5), tiered=True),
    Theme("maintain", _MAINTAIN, ("wipe", "replace", "cut", "double"), length=(2, 5)),
)
"""Several drivers that run everything due, beside appends and all operations that change a log."""

_COMPACT = (
    *(("append", 18), ("compact", 8), ("merge", 3), ("tidy", 4), ("retain", 2), ("replicate", 3), ("elect", 5)),
    *(("shrink", 3), ("fence", 1), ("read", 1), ("read_replica", 1), ("shorten", 2), ("look", 1), ("heal", 1)),
)
COMPACT = (
    Theme("compact", _COMPACT, ("cut", "cut", "fill", "double"), length=(3, 7)),
    Theme("compact", (*_COMPACT, ("reassign", 2), ("cancel", 1)), ("cut", "double"), length=(3, 7)),
)
"""Compaction beside all operations that change a log."""

COMPACT_TIERED = Theme(
    "compact tiered",
    (
        *(("append", 18), ("tier", 9), ("compact", 6), ("compact_some", 5), ("retain", 6), ("vacuum", 3)),
        *(("merge", 2), ("replicate", 2), ("elect", 4), ("shrink", 2), ("fence", 1), ("read", 5)),
        *(("read_replica", 1), ("look", 1), ("heal", 1), ("bootstrap", 1), ("reassign", 1)),
    ),
    ("cut", "double"),
    length=(7, 12),
    tiered=True,
)
"""Compaction of both tiers."""

_ERASE = (
    *(("append", 18), ("erase", 8), ("merge", 4), ("tidy", 4), ("retain", 2), ("replicate", 3), ("elect", 5)),
    *(("shrink", 3), ("fence", 1), ("read", 2), ("read_replica", 1), ("shorten", 3), ("look", 1), ("heal", 1)),
)
ERASE = (
    Theme("erase", _ERASE, ("cut", "cut", "fill", "double"), length=(3, 7)),
    Theme("erase", (*_ERASE, ("reassign", 2), ("cancel", 1), ("transact", 2)), ("cut", "double"), length=(3, 7)),
    Theme("erase", (*_ERASE, ("compact", 6)), ("cut", "double"), length=(3, 7)),
)
"""Erasing keys beside all operations that change a log; in the last one the log is compacted, too."""

ERASE_SNAPSHOTS = Theme(
    "erase snapshots",
    (
        *(
            ("append", 18),
            ("snapshot", 8),
            ("erase", 8),
            ("merge", 4),
            ("retain", 4),
            ("replicate", 3),
            ("elect", 5),
        ),
        *(("shrink", 3), ("fence", 1), ("read", 2), ("read_replica", 1), ("shorten", 2), ("look", 1), ("heal", 1)),
        *(("reassign", 1), ("cancel", 1)),
    ),
    ("cut", "cut", "fill", "double"),
    length=(4, 8),
)
"""Erasing keys from a topic with snapshots. Tests select it by name."""

PUBLISHED = Theme(
    "published",
    (
        *(("append", 16), ("snapshot", 10), ("erase", 8), ("rewrite", 6), ("publishing", 1), ("vacuum", 2)),
        *(("merge", 1), ("retain", 3), ("replicate", 3), ("elect", 4), ("shrink", 2), ("fence", 1)),
        *(("reassign", 1), ("cancel", 1)),
    ),
    ("cut", "cut", "fill", "double", "double"),
    length=(4, 8),
)
"""Erasing keys from a topic that publishes its snapshots as a Delta table, which another program rewrites. Tests
select it by name."""

WITH_SNAPSHOTS = (ERASE_SNAPSHOTS, PUBLISHED)

ERASING = frozenset({"erase", "erase tiered", "erase compact tiered", "erase snapshots", "published"})
"""The names of the themes that erase keys."""

ERASE_TIERED = Theme(
    "erase tiered",
    (
        *(("append", 18), ("tier", 9), ("erase", 9), ("retain", 6), ("vacuum", 2), ("merge", 3), ("replicate", 2)),
        *(("elect", 4), ("shrink", 2), ("fence", 1), ("read", 5), ("read_replica", 1), ("look", 1), ("heal", 1)),
        *(("bootstrap", 1), ("reassign", 1)),
    ),
    ("cut", "double"),
    length=(5, 10),
    tiered=True,
)
"""Erasing keys from both tiers."""

ERASE_COMPACT_TIERED = Theme(
    "erase compact tiered",
    (
        *(("append", 18), ("tier", 9), ("compact", 5), ("compact_some", 3), ("erase", 9), ("retain", 6)),
        *(("vacuum", 2), ("merge", 2), ("replicate", 2), ("elect", 4), ("shrink", 2), ("fence", 1), ("read", 5)),
        *(("read_replica", 1), ("look", 1), ("heal", 1), ("bootstrap", 1), ("reassign", 1)),
    ),
    ("cut", "double"),
    length=(7, 12),
    tiered=True,
)
"""Erasing keys from both tiers, which are compacted, too. In some runs the topic becomes tiered in the middle."""

MIXED_IN = (
    ("in transactions", 0.12, (TRANSACTIONS,)),
    ("checks", 0.1, CHECKS),
    ("short", 0.1, SHORT),
    ("maintain", 0.08, MAINTAIN),
    ("compact", 0.1, COMPACT),
    ("compact tiered", 0.05, (COMPACT_TIERED,)),
    ("erase", 0.08, ERASE),
    ("erase tiered", 0.04, (ERASE_TIERED,)),
    ("erase compact tiered", 0.04, (ERASE_COMPACT_TIERED,)),
)
"""The share of all runs that have one of these themes; the last applicable one wins. Other runs are as without the
table."""

BEHIND = Theme(
    "behind",
    (("append", 10), ("tier", 6), ("replicate", 3), ("elect", 2), ("retain", 1), ("read", 1), ("merge", 1)),
    ("double",),
    length=(3, 6),
    tiered=True,
)
"""All replicas are restored from an older copy, or emptied, while the remote tier is intact. Tests select it by
name. The remote tier always answers in these runs, because appends continue without it."""

EARLIER = Theme(
    "earlier",
    (
        *(("append", 10), ("tier", 3), ("tier_uncommitted", 4), ("replicate", 3), ("elect", 1), ("merge", 2)),
        *(("retain", 1), ("read", 1), ("vacuum", 1)),
    ),
    ("double",),
    length=(3, 6),
    tiered=True,
)
"""The content of all brokers, including the metadata, is restored from an older copy, while the remote tier is
intact."""
LOST = Theme(
    "lost",
    (
        *(("append", 10), ("append_leader", 1), ("replicate", 8), ("elect", 2), ("begin_again", 2), ("tidy", 1)),
        *(("shrink", 1), ("read", 1), ("look", 1), ("heal", 1)),
    ),
    ("double",),
    length=(3, 6),
)
"""The folders of all replicas of a partition are lost, and there is no remote log. Tests select both by name."""

ALWAYS_DUE = {
    "leader.imbalance.check.interval.seconds": "1",
    "log.retention.check.interval.ms": "1",
    "vacuum.interval.ms": "1",
    "scrub.interval.ms": "100",
    "scrub.max.bytes": "4000",
}

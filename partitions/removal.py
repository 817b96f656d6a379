"""The removal of records from a log while all other records keep their offsets: the rule, and the invariants.
Pure.

A *rule* names the records of one partition to remove. Below ``bound``, these are the records whose key has a later
record below ``bound``, and the records without a key. Below ``tombstones_before``, tombstones are removed as well.
The rules of a partition have *generations* 1, 2, 3 ... A rule never restores records that an earlier rule removed:
``bound`` and ``tombstones_before`` only grow. So the remaining records of generation g in a range of offsets
depend only on g and the committed log. They do not depend on the driver that applies the rule, nor on the
generations of the files that it reads.

The range
    ``bound`` is at most the last stable offset, so the outcome of every transaction below it is known. ``bound``
    is the end of a file, and below the active tail, so the last record of a log is never below ``bound``. A file
    that crosses the bound remains unchanged until a later rule. Tombstones are removed below the bound of a rule
    that was applied at least ``delete.retention.ms`` ago (KIP-534), so a reader that began before that time has
    had enough time to read them. The commit of a rule proves that the previous rule was applied, and the delay
    starts at that commit. (The run that made the commit may end later, and a later run may apply the new rule.)

A rewritten file
    A segment ``<base>-<next>.<epoch>.<generation>.parquet``, with a row for each offset. The row of a removed
    record is a gap (``records.GAP``): every column except the partition and the offset is null. A gap takes a few
    bits. Because of the gaps, offsets remain contiguous and positions in a file follow from offsets. Readers skip
    the gaps, as they do in a mirror. The footer keeps the base and next offset, the lineage, the producer state,
    the markers that end earlier transactions, and the time of the first append. The footer also has the rule, and
    the number of gaps.

The file that applies
    At each offset, the file of the greatest generation applies. If several files have that generation, the file
    with the greatest end applies (``listing.chain_of``). Merged files have generation 0, and merges skip rewritten
    segments. So neither a late merge nor a late copy of a replaced file brings back a removed record, whatever
    range of offsets the file has. A replaced file is hidden, like a merged file, and is deleted after
    ``file.delete.delay.ms``.

The order of steps
    1. The rule is committed to the metadata, and gets its number there. Every member of the ISR must have applied
       the previous rule (``carried_out``). The logs do not need this condition: the result of a rule does not
       depend on the files that it finds, so no log shows that a rule was skipped. Readers need the condition: on a
       member that has not applied a rule, readers still see the records that the rule's tombstones delete. So the
       delay of the tombstones starts only when every member has applied the rule (``next_rule``).
    2. The leader rewrites its files in ascending order, each as a merge does: read, stage, list again, name.
    3. Followers copy the leader's files, in ascending order. A file of a greater generation replaces a file of a
       lesser generation, and never the reverse.
    4. Hidden files are deleted after ``file.delete.delay.ms``, and only after all bytes of the files that hide
       them were read.

    A crash between any two steps leaves the log intact: some of the log's files follow the rule, and the other
    files follow an earlier rule. The next run continues. A newly elected leader can continue, too, because it has
    all committed records, at some generation, and the rule is in the metadata.

    Ascending order is a safety step: when a tombstone is removed, every earlier record of its key has already
    been removed. In descending order, a crash could leave an earlier record without the tombstone, and the next
    run would treat this earlier record as the last record of its key.

    An unclean election loses committed records, and so does a log that begins again. Because of a record that is
    now lost, a rule may already have removed an earlier record of the same key on some replicas. So an unclean
    election is refused for a partition with a rule (``election_commands``).

The remote tier
    ``stratalog.tiering.removal`` does the same for the remote part of a log. The remote log follows a rule before
    the leader does. The next rule is committed only after all tiers follow the previous rule.

Removed, or lost
    At each offset, a replica has the generation of its file at that offset. At equal generations, two replicas
    contain equal records. A replica of a lesser generation contains more records. Such a replica is *stale*, and a
    sync updates it. A gap is a row that a checksum covers and the footer counts. A replica that lacks the row or
    the file is *damaged*, with or without a rule. A file whose name and footer disagree about the generation is
    damaged.

Invariants
    C1  the last record of each key below the bound is in every copy, at its offset, unless it is a tombstone below
        ``tombstones_before``
    C2  at equal generations, two copies of an offset contain the same record, or both contain a gap
    C3  the log end, the high watermark, the producer state and the lineage are the same with and without rules
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from stratalog.partitions.numbers import Int64, Natural

if TYPE_CHECKING:
    from stratalog.partitions.listing import Link, ReplicaLog


MOST_KEPT = 16
"""The number of rules to keep for their tombstones."""


class Rule(msgspec.Struct, frozen=True):
    """The records to remove from one partition."""

    generation: Natural
    bound: Natural
    """The rule applies to offsets below this bound."""
    tombstones_before: Natural = 0
    """At most ``bound``. Below this offset, the last record of a key is also removed if its value is null."""

    def __str__(self) -> str:
        return f"removal rule {self.generation}, below offset {self.bound}"


class CommittedRule(msgspec.Struct, frozen=True):
    """A rule, and the time of its commit."""

    rule: Rule
    committed_ms: Int64


def next_rule(
    earlier: Sequence[CommittedRule],
    bound: int,
    now_ms: int,
    delete_retention_ms: int,
    generation: int | None = None,
) -> Rule:
    """The rule that follows ``earlier``, the rules of the partition in order. ``generation`` is given if an
    erasure (``stratalog.partitions.erasure``) has the last generation. Raises: ValueError if ``bound`` is below
    the bound of an earlier rule.
    """
    last = earlier[-1].rule if earlier else Rule(0, 0)
    if bound < last.bound:
        raise ValueError(f"a rule up to offset {bound} cannot follow a rule up to {last.bound}")
    carried_out_ms = [*(one.committed_ms for one in earlier[1:]), now_ms]
    old = (
        one.rule.bound
        for one, at_ms in zip(earlier, carried_out_ms, strict=False)
        if at_ms + delete_retention_ms <= now_ms
    )
    return Rule(generation or last.generation + 1, bound, max([last.tombstones_before, *old]))


def still_needed(earlier: Sequence[CommittedRule], rule: Rule) -> tuple[CommittedRule, ...]:
    """The earlier rules that a ``next_rule`` after ``rule`` needs, because their tombstones are not removed yet.
    The commit time of each rule proves that the previous rule was applied. Returns at most the oldest
    ``MOST_KEPT`` rules. Without the newer rules, tombstones are only kept longer.
    """
    return tuple(one for one in earlier if one.rule.bound > rule.tombstones_before)[:MOST_KEPT]


def to_rewrite(log: ReplicaLog, rule: Rule) -> tuple[Link, ...]:
    """The links of a log that are subject to the rule and follow an earlier rule, ascending. A link that crosses
    the bound is not included.
    """
    return tuple(link for link in log.chain if link.end <= rule.bound and link.name.generation < rule.generation)


def carried_out(log: ReplicaLog, rule: Rule) -> bool:
    """Whether a replica contains none of the records that the rule removes, except in a file that crosses the
    rule's bound.
    """
    return not to_rewrite(log, rule)

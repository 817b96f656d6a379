"""Records that leave a remote log while all others keep their offsets (``partitions.removal``). Pure.

A rewritten segment
    ``<base>-<next>.<epoch>.<generation>.parquet``, as on a broker, with a row for each offset. The row of a
    removed record is a gap. Readers of other engines pass over gaps with ``control IS NULL``, as over those of a
    mirror and over markers. Rows stay because everything that reads remote segments counts on them: fetches and
    look-ups by time go from an offset to a position, the page index and partial ranges do too, ``numRecords``
    gives the end of a file whose name does not, a bootstrap and a heal compare a footer's offsets with the
    table's. A gap takes a
    few bits, as runs of nulls and consecutive offsets compress well.

The rule of a partition
    The property ``stratalog.rules`` of the table has for each partition the last rule that its remote log follows
    (``RemoteLog.rules``). A segment that begins below the bound follows that rule, whatever its name says: a
    segment from which nothing goes is not rewritten. Segments above the bound follow the rule of their names.
    A segment that crosses the bound is rewritten like the others, without removing anything above it.

The order of steps
    1. The metadata commit the rule. Every member of the ISR and the table must have the one before. The bound is
       at most the end of the remote log, unless copying to it is disabled. So the remote log alone has the last
       record of each key below the bound: readers of its table miss no key, and a cluster that loses its brokers
       continues there without losing an earlier record for a later one that was never copied.
    2. Segments are rewritten in ascending order, by keys of the whole log: those of the remote part below the
       leader's local start, and of the leader from there on. An object is read back before it is committed. Each
       commit removes the old segments of a range and adds the new one, in one version that changes data, and is
       checked as every commit: each offset once, without gaps, of a greater generation.
    3. The table records the rule, in a version of its own that names it only if each segment below the bound
       follows it or has nothing to remove.
    4. Only then the leader rewrites its own files, and followers copy them (``partitions.removal``).
    A crash between any two steps leaves a whole log. The next run continues, and writes objects that were not
    committed again.

    Step 3 before step 4 is a safety step (!). At each offset the remote log follows at least the rule that any
    replica's file follows. So if a broker drops a local file, and readers go to the remote segment instead, no
    removed record comes back, nor an earlier one whose tombstone is removed.

    A rule removes a tombstone only after all tiers have carried out a rule that removed the earlier records of its
    key. So a reader must not combine a table from before the preceding rule with a present replica: a cached table
    counts only if it has the rule before the partition's last one (``RemoteLog.is_outdated``).

Late uploads, and late removals
    An upload that begins below the recorded bound, with a lesser generation, is refused by the commit
    (``RemoteLog.stale``), as the table that it continues says so. A commit that has read the table before step 3
    loses the race against it. ``tier`` uploads the leader's rewritten files instead. A late commit of rewritten
    segments finds the replaced ones gone, or the rule recorded, and changes nothing. ``vacuum`` deletes an
    uncommitted object only if its rule is recorded, so no late commit lists a deleted object.

Removed, or lost
    A gap is a row that a checksum covers. A segment whose name and footer disagree about the generation is
    damaged.
    A damaged object is rebuilt from a replica whose file follows at least the same rule, or the recorded one: an
    older one would bring back records whose tombstone is removed. If no replica has such a file, ``compact`` makes
    one. Comparisons of records with a replica of another generation leave out gaps.

    A cluster that is restored from the remote tier gets the rules of its tables. Its next rule has a greater
    generation than every segment.

Invariants, in addition to C1 to C3
    C4  a record that a rule has removed from one tier does not come back to a reader of both: at each offset the
        generation of the remote log is at least that of every replica's file
    C5  a replaced object stays until ``vacuum`` deletes it, after ``file.delete.delay.ms``: until then every
        version of the table can be read
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stratalog.partitions.bounded import decode_json
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.numbers import Natural
from stratalog.partitions.removal import Rule
from stratalog.tiering.remote_change import CommittedBatch, TableChange, committed
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded

RULES = "stratalog.rules"
"""The property of the table."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Adjacent segments, and the one that replaces them, with fewer records at the same offsets."""

    former: tuple[RemoteSegment, ...]
    upload: Uploaded


@dataclass(frozen=True, slots=True)
class Followed:
    """A rule that the remote log of a partition follows."""

    rule: Rule
    examined: frozenset[str]
    """The paths of the segments of lesser generations from which it removes nothing."""


def rules_json(rules: Mapping[int, Rule]) -> str:
    """The value of ``RULES``."""
    fields = {
        str(partition): (rule.generation, rule.bound, rule.tombstones_before)
        for partition, rule in sorted(rules.items())
    }
    return json.dumps(fields, separators=(",", ":"))


def rules_of(properties: Mapping[str, str | None], what: str) -> dict[int, Rule]:
    """The rules by partition in the properties of a table, which ``what`` names. Raises: CorruptionError."""
    text = properties.get(RULES)
    if not text:
        return {}
    found = decode_json(text, dict[Natural, tuple[Natural, Natural, Natural]], f"{what}: its property {RULES}")
    return {partition: Rule(*fields) for partition, fields in found.items()}


def decide_removed(
    log: RemoteLog, replaced: Sequence[Replaced], operation: str = "compact"
) -> TableChange | CommittedBatch:
    """Step 2, like ``remote_change.decide``. Replacements of segments that are not listed any more, or by a rule
    that is recorded already, are left out: another driver, retention or a heal was faster.

    Raises: LogGapError, CorruptionError when the batch would break the log.
    """
    listed = {segment.path for segment in log.all_segments()}
    adds: list[Uploaded] = []
    removes: list[RemoteSegment] = []
    for each in replaced:
        new = each.upload.segment
        if new.path in listed or log.generation(new.partition) >= new.generation:
            continue
        if all(former.path in listed for former in each.former):
            _check_greater(log, each)
            adds.append(each.upload)
            removes += each.former
    if not adds:
        return committed(log, [each.upload for each in replaced], ())
    log.after([add.segment for add in adds], removes, log.version + 1)
    return TableChange(tuple(adds), tuple(removes), operation=operation)


def _check_greater(log: RemoteLog, each: Replaced) -> None:
    new = each.upload.segment
    for former in each.former:
        if former.generation >= new.generation:
            raise CorruptionError(
                f"{log.what}: {new.path} cannot replace {former.path}, which follows the same rule of removal or "
                "a later one"
            )


def decide_followed(log: RemoteLog, followed: Mapping[int, Followed]) -> TableChange | RemoteLog:
    """Step 3: a change that records the rules; the log if it has them, or if each of the others must wait: a
    segment was listed that was not examined."""
    new = {
        partition: each.rule
        for partition, each in followed.items()
        if each.rule.generation > log.generation(partition)
        and all(s.path in each.examined for s in to_rewrite(log.of_partition(partition), each.rule))
    }
    return TableChange((), (), rules={**log.rules, **new}, operation="compact") if new else log


def to_rewrite(segments: Iterable[RemoteSegment], rule: Rule) -> tuple[RemoteSegment, ...]:
    """The segments of a partition that are subject to the rule, and whose names have a lesser generation."""
    return tuple(s for s in segments if s.base_offset < rule.bound and s.generation < rule.generation)


def last_rule(log: RemoteLog, partition: int) -> Rule | None:
    """The rule with which a partition begins in a cluster that knows only its remote log: the recorded one, with
    the greatest generation of a segment or an erasure. None if no record was removed."""
    recorded = log.rules.get(partition)
    generations = (segment.generation for segment in log.of_partition(partition))
    generation = max(generations, default=0)
    generation = max(generation, log.erased_to(partition))
    if recorded is None:
        return Rule(generation, 0) if generation else None
    return Rule(max(recorded.generation, generation), recorded.bound, recorded.tombstones_before)

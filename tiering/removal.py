"""Removes records from a remote log while all others keep their offsets (``partitions.removal``). Pure.

A rewritten segment
    It is named ``<base>-<next>.<epoch>.<generation>.parquet``, as on a broker, and has a row for each offset. The
    row of a removed record is a gap. Readers of other engines skip gaps with ``control IS NULL``, like markers and
    the gaps of a mirror. The rows are kept because everything that reads remote segments depends on them. Fetches,
    lookups by time, the page index and partial ranges convert an offset to a position. ``numRecords`` gives the
    end of a file whose name does not contain it. A bootstrap and a heal compare a footer's offsets with the
    table's. A gap takes a few bits, because runs of nulls and consecutive offsets compress well.

The rule of a partition
    The property ``stratalog.rules`` of the table has, for each partition, the last rule that the partition's
    remote log follows (``RemoteLog.rules``). A segment that begins below the rule's bound follows the rule,
    whatever generation the segment's name has: a segment without a record to remove is not rewritten. A segment
    above the bound follows the rule in its own name. A segment that crosses the bound is rewritten like the
    others, but keeps all records above the bound.

The order of steps
    1. The metadata commit the rule. Every member of the ISR and the table must follow the previous rule. The bound
       is at most the end of the remote log, unless uploads are disabled. So the remote log has the last record of
       each key below the bound, without the help of the brokers. Readers of the remote table miss no key. If a
       cluster loses its brokers and continues from the remote log, the rule has removed no record because of a
       later record that was never uploaded.
    2. Segments are rewritten in ascending order, by the keys of the whole log: from the remote log below the
       leader's local start, and from the leader above it. An object is read back before it is committed. Each
       commit removes the old segments of a range and adds the new one, in one version that changes data. Like
       every commit, it is checked: the log still has each offset once, without gaps, and the new segment has a
       greater generation.
    3. The table records the rule, in a version of its own, but only if each segment below the bound follows the
       rule or has nothing to remove.
    4. After step 3, the leader rewrites its own files, and followers copy the rewritten files
       (``partitions.removal``).

    A crash between any two steps leaves the log intact. The next run continues, and again writes the objects that
    were not committed.

    Step 3 before step 4 is a safety step. At each offset, the remote log follows the rule of every replica's
    file, or a later rule. If a broker drops a local file and readers use the remote segment instead, no removed
    record returns to them, and no earlier record whose tombstone has been removed.

    A rule removes a tombstone only after an earlier rule, which removed the earlier records of the tombstone's
    key, was applied in all tiers. So a reader must not combine an old table with a current replica. A reader may
    use a cached table only if the table has the rule before the partition's last rule (``RemoteLog.is_outdated``).

Late uploads, and late removals
    A commit refuses an upload of a lesser generation that begins below the recorded bound (``RemoteLog.stale``).
    The table that the commit continues shows this bound. A commit that has read the table before step 3 loses the
    race against step 3. ``tier`` uploads the leader's rewritten files instead. A late commit of rewritten segments
    finds that the segments to replace are gone, or that the rule is recorded, and changes nothing. ``vacuum``
    deletes an uncommitted object only if the object's rule is recorded, so no late commit lists a deleted object.

Removed, or lost
    A gap is a row that a checksum covers. A segment whose name and footer disagree about the generation is
    damaged. A damaged object is rebuilt from a replica whose file follows the object's rule or a later rule, or
    the recorded rule. A file of an older rule would bring back records whose tombstone has been removed. If no
    replica has such a file, ``compact`` makes one. Comparisons of records with a replica of another generation
    leave out gaps.

    A cluster that is restored from the remote tier gets the rules of its tables, up to the end of the remote log,
    in the metadata and in the tables (``adopted_rules``). The cluster's next rule has a greater generation than
    every segment.

Invariants, in addition to C1 to C3
    C4  a record that a rule has removed from one tier never returns to a reader of both tiers: at each offset, the
        generation of the remote log is at least the generation of every replica's file
    C5  a replaced object is kept until ``vacuum`` deletes it, after ``file.delete.delay.ms``: until the deletion,
        every version of the table can be read
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
    """Adjacent segments, and the segment that replaces them: it has fewer records at the same offsets."""

    former: tuple[RemoteSegment, ...]
    upload: Uploaded


@dataclass(frozen=True, slots=True)
class Followed:
    """A rule that the remote log of a partition follows."""

    rule: Rule
    examined: frozenset[str]
    """The paths of the segments of lesser generations from which the rule removes nothing."""


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
    """Step 2: like ``remote_change.decide``, for replacements. A replacement is skipped if its former segments are
    no longer listed, or if its rule is already recorded. The reason is that another driver, retention or a heal
    was faster.

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
                f"{log.what}: {new.path} cannot replace {former.path}, which follows the same removal rule or a "
                "later one"
            )


def decide_followed(log: RemoteLog, followed: Mapping[int, Followed]) -> TableChange | RemoteLog:
    """Step 3: the change that records the rules, or the log if there is nothing to record. A rule waits while a
    listed segment was not examined.
    """
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
    """The first rule of a partition in a cluster that continues from the remote log alone. This first rule is the
    recorded rule (``adopted_rules``), with the greatest generation of any segment or erasure. None if no record
    was removed.
    """
    recorded = adopted_rules(log).get(partition)
    generations = (segment.generation for segment in log.of_partition(partition))
    generation = max(generations, default=0)
    generation = max(generation, log.erased_to(partition))
    if recorded is None:
        return Rule(generation, 0) if generation else None
    return Rule(max(recorded.generation, generation), recorded.bound, recorded.tombstones_before)


def adopted_rules(log: RemoteLog) -> dict[int, Rule]:
    """The recorded rules, for a cluster that continues from the remote log: none extends above the end of its
    partition. A rule may have been recorded before the first upload, with the bound of the lost brokers; the
    offsets from the end on get new records, to which that rule does not apply.
    """
    return {
        partition: Rule(rule.generation, min(rule.bound, end), min(rule.tombstones_before, end))
        for partition, rule in log.rules.items()
        for end in [log.end(partition) or 0]
    }

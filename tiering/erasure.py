"""Erases records from a remote log, and from the history of its table (``partitions.erasure``). Pure.

The segments
    An erasure names offsets of the complete log, in both tiers. Records are found in the tier in which readers
    read them: in the remote segments below the leader's local start, and in the leader's files from there on. So
    the remote log must share the leader's history and extend to the start of the leader's local log. Otherwise
    nothing is found, and the report says so. A remote segment that contains a named offset is rewritten as in
    ``removal``. The other segments stay unchanged.

The generation of a partition
    The property ``stratalog.erasures`` of the table has, for each partition, the last erasure that the partition's
    complete remote log follows. This property is separate from ``stratalog.rules``: a compaction rule covers all
    offsets below a bound, and an erasure covers single offsets. So a file that contains none of these offsets
    keeps its generation, and may be uploaded.

Beside compaction
    Both kinds of rule share one sequence of generations. Each tier applies them in that order:

        an erasure e is committed    the table records the compaction before e, and each member of the ISR
                                     follows it at each offset below its bound
        a compaction c is committed  the table records the erasure before c, and each member of the ISR has
                                     carried it out
        e or c is recorded           in that order, and before the leader applies it

    So a table that records generation g, of either kind, follows every rule up to g. A segment follows the
    recorded erasure at each offset, and the rule of the generation in its name. If a segment begins below the
    bound of the recorded compaction, it follows that, too. At offsets that no erasure names, a replica's file may
    have a greater generation than the segment: both have the same records there. A rewrite applies both kinds of
    rule, whichever kind made it necessary. An erasure finds segments that follow the last compaction, and keeps
    the records that the compaction has kept, even in a segment that compaction did not have to rewrite. A
    compaction treats gaps as gaps. It also treats records that an earlier erasure names as gaps: such a record
    is removed, and supersedes no other record. This includes records in a file that heal took from a replica that
    was unreachable before. An erasure skips a file to which the preceding compaction has not been applied:
    ``compact`` comes first. A late commit of either kind finds that the segments to replace are gone, or that its
    generation is recorded.

    If the metadata has both, and the table records neither, because tiering began later, both are recorded in one
    version.

Tiering that begins after an erasure
    Either the records are gone from the leader's files, or uploads wait until the records are gone
    (``plan_uploads``). Before ``tier`` adds the first segment of a partition to a table, the table records the
    partition's last rules of both kinds. An upload from an earlier time of tiering was planned under an older
    view, and is not added.

    A topic that was tiered before may still have its table, without segments, and objects. An erasure of such a
    topic performs steps 3, 5 and 6 on that table. The erasure is refused while the table lists segments, or if
    objects are left without a table.

The order of steps
    1. The metadata commit the erasure, with its offsets. The metadata refuse an erasure of a tiered topic if its
       offsets were found without a search of the remote log.
    2. Remote segments are rewritten, and one version of the table replaces them, with a change of data.
    3. The table records the generation, in a version of its own, but only if no listed segment of a lesser
       generation contains a named offset. This version is made even if nothing was rewritten.
    4. Only then does the leader rewrite its own files, and followers copy them.
    5. Objects that may contain erased records (replaced segments, and uploads that were never committed) are
       deleted after ``file.delete.delay.ms``, rounded up to hours, as for every object removed from a table. With
       ``--now`` they are deleted immediately. As on brokers, the walk over the folder first waits for staged
       uploads. The walk cannot see a single PUT that is in progress.
    6. When no such object is left, a checkpoint of the newest version is written, and every older file of the
       table's log is deleted: entries, checkpoints, checksums. Their statistics contain minima and maxima of
       erased records. The checkpoint lists removed objects by path, without statistics.
       The history of an Iceberg table is deleted next (``iceberg_history``).
    7. The offsets are removed from the metadata.
    A crash between any two steps leaves the log intact. The next run continues: the table shows the remaining
    segments, a walk the remaining objects, and the table's log the remaining entries.

    Step 3 before step 4 keeps C4 of ``removal``: if a reader no longer finds an offset on any broker, the remote
    log, where the reader finds it, has already erased the record. A reader may use a cached table only if that
    table records the partition's last erasure (``RemoteLog.lacks_erasure``).

Late uploads
    A driver that planned its uploads before the erasure may commit them later, even after step 7. So a commit
    compares two generations of the partition's last erasure: the one in the metadata, and the one in the view of
    the driver's plan. Partitions with a later erasure are left out (``Histories``). A commit reads the metadata
    after the table. If a driver has read the metadata before step 1, there are two cases. If the driver commits
    before step 3, that step waits until the new segment is rewritten; if it commits later, its commit fails
    because step 3 has written that table version, and it reads again. A plan leaves out files that contain offsets
    of an erasure in its own view.

    A late commit of rewritten segments, of compaction, or of heal finds that the replaced segments are gone, and
    changes nothing. Heal does not use a file that contains named offsets and does not follow the erasure.

History
    Time travel to a version before step 6 fails, because the entries of such versions are gone. A program that has
    such a version open can read objects until they are deleted. A program that follows the table entry by entry
    must start over if it has fallen behind by more than the delay. A writer that has read a version that has since
    been deleted may write the next entry, which no reader reads. This writer then reads the table again, as after
    every commit; the next erasure deletes the entry.

A restored cluster gets the tables unchanged. If the metadata is lost, so is an unfinished erasure: its offsets are
unknown, and it must be repeated with the keys.

Invariants, in addition to E1 and E2
    E3  after the table records an erasure, no version lists a segment with a record that the erasure names
    E4  after an erasure is reported complete, no object in the topic's folder contains such a record, or bounds
        taken from one. There are two exceptions, which a writer that has stalled since before step 1 may create
        later: the object of a single PUT, which is smaller than a part, and an entry of the table's log (see
        History). No reader sees either of them
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from stratalog.partitions import paths
from stratalog.partitions.bounded import decode_json
from stratalog.partitions.erasure import Erasure, within
from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.numbers import Natural
from stratalog.partitions.removal import Rule
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering.remote_change import TableChange
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removal import to_rewrite

ERASURES = "stratalog.erasures"
"""The property of the table."""
_LAST_CHECKPOINT = "_last_checkpoint"
_VERSIONED = re.compile(r"\.?(\d{20})\.")
"""The beginning of the name of a file that belongs to a version. Hadoop's local file system adds hidden files with
checksums."""
_KNOWN = re.compile(
    r"\d{20}\.(json|crc|\d{20}\.compacted\.json|checkpoint(\.\d{10}\.\d{10}|\.[0-9a-f-]{36})?\.(parquet|json))"
    r"|\.(\d{20}\.(json|crc|checkpoint\.parquet)|_last_checkpoint)\.crc"
)
"""The names that Delta gives to such files."""


def erasures_json(generations: Mapping[int, int]) -> str:
    """The value of ``ERASURES``."""
    return json.dumps({str(p): generation for p, generation in sorted(generations.items())}, separators=(",", ":"))


def erasures_of(properties: Mapping[str, str | None], what: str) -> dict[int, int]:
    """The generations by partition in the properties of a table, which ``what`` names. Raises: CorruptionError."""
    text = properties.get(ERASURES)
    return dict(decode_json(text, dict[Natural, Natural], f"{what}: its property {ERASURES}")) if text else {}


def generation_needed(segment: RemoteSegment, erasures: Sequence[Erasure]) -> int:
    """The generation of the partition's last erasure that names an offset of the segment and that the segment does
    not follow; 0 if none.
    """
    later = (one for one in reversed(erasures) if one.generation > segment.generation)
    start, end = segment.base_offset, segment.next_offset
    return next((one.generation for one in later if within(one.offsets, start, end)), 0)


def to_erase_remotely(segments: Iterable[RemoteSegment], erasures: Sequence[Erasure]) -> list[RemoteSegment]:
    """The segments of a partition that contain offsets of its erasures and do not follow these erasures."""
    return [segment for segment in segments if generation_needed(segment, erasures)]


def decide_erased(
    log: RemoteLog, erasures: Mapping[int, Sequence[Erasure]], compacted: Mapping[int, Rule]
) -> TableChange | RemoteLog:
    """Step 3: the change that records each partition's last erasure; ``log`` if each erasure is already recorded,
    or must wait. An erasure waits while a listed segment holds a named offset, or does not follow the partition's
    last compaction. ``compacted`` has the last compaction of each partition that has one; these compactions are
    recorded, too.
    """
    new, rules = {}, {}
    for partition, each in erasures.items():
        segments, rule = log.of_partition(partition), compacted.get(partition)
        if not each or each[-1].generation <= log.erased_to(partition) or to_erase_remotely(segments, each):
            continue
        if lacks_compaction(log, partition, rule):
            continue
        if rule is not None and log.generation(partition) < rule.generation:
            rules[partition] = rule
        new[partition] = each[-1].generation
    if not new:
        return log
    recorded = {**log.rules, **rules} if rules else None
    return TableChange((), (), rules=recorded, erased={**log.erased, **new}, operation="erase")


def decide_begun(
    log: RemoteLog, erasures: Mapping[int, Sequence[Erasure]], compacted: Mapping[int, Rule]
) -> TableChange | RemoteLog:
    """Like ``decide_erased``, but only for partitions that have no segment yet."""
    new = {partition: each for partition, each in erasures.items() if not log.of_partition(partition)}
    return decide_erased(log, new, compacted)


def lacks_compaction(log: RemoteLog, partition: int, rule: Rule | None) -> bool:
    """Whether the remote log of a partition may have records that ``rule``, its last compaction, removes. While it
    may have such records, no erasure may be recorded."""
    if rule is None or log.generation(partition) >= rule.generation:
        return False
    return bool(to_rewrite(log.of_partition(partition), rule))


def check_searchable(
    segments: Sequence[RemoteSegment], lineage: Lineage, log_start: int, local_start: int, what: str
) -> None:
    """Check that the remote segments of a partition and the leader's log, which starts at ``local_start``, are one
    log. Raises: LogGapError, CorruptionError."""
    end = segments[-1].next_offset if segments else log_start
    if end < local_start:
        raise LogGapError(
            f"{what}: the remote log ends at offset {end}, before the local log starts at {local_start}: run "
            "`stratalog tier`, which names what is missing, then erase again"
        )
    for segment in segments:
        if not segment.is_of(lineage):
            raise CorruptionError(
                f"{what}: remote segment {segment.path} belongs to a history that an unclean election has lost: "
                "run `stratalog tier`, which removes it, then erase again"
            )


def older_log_files(log_files: Iterable[StoredObject], version: int) -> list[StoredObject]:
    """The files of a table's log that belong to versions before ``version``, whatever wrote them."""
    found = []
    for stored in log_files:
        name = _VERSIONED.match(_name_in_log(stored))
        if name is not None and int(name[1]) < version:
            found.append(stored)
    return found


def log_litter(log_files: Iterable[StoredObject]) -> list[StoredObject]:
    """The objects in the folder of a table's log that are not Delta's, such as those of a dead writer."""
    names = ((stored, _name_in_log(stored)) for stored in log_files)
    return [stored for stored, name in names if _KNOWN.fullmatch(name) is None and name != _LAST_CHECKPOINT]


def _name_in_log(stored: StoredObject) -> str:
    """The name of an object relative to the folder of the log."""
    return stored.name.rpartition(f"{paths.DELTA_LOG}/")[2]

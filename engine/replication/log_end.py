"""The end of a leader's log, which goes from one append of a driver to the next one.

A look at all of a log costs what it holds. A driver that has seen the end once, under a view, looks only at what
has come behind the last file since. So an append costs the same at any length of the log. And it looks after the
append alone (protocol, rule 2: write, then check): the name at the end is created exclusively, and one question
tells whether it is worth a try. Whatever else has happened (another leader, a merge that had freed the name) is to
be known before the acknowledgement, not before the write.

The records up to there can only move to other files (a merge), or leave by retention. Both stay below the high
watermark. So the end is as it was, unless something behind it says otherwise: another file of the log, a high
watermark or a local start beyond the end, a register of a later epoch. Then all of the log is looked at. (A driver
that was away for long may find the name at the end free again, for the file of that name has been merged and
deleted. A high watermark beyond the end gives that away: the greatest one is never deleted.)

Once in ``LOOK_AGAIN_MS`` all of the log is looked at in any case: storage that has lost files of it is found out.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from stratalog.engine.replication.leader import compare_with_remote, leader_log
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, claimed_high_watermark_of, is_live
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import EndState, Replica
from stratalog.partitions.segment import forget_files

LOOK_AGAIN_MS = 60_000
_NAMES_OF_AN_APPEND = 2
"""Its records, and the high watermark that acknowledges it."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a leader's log under its latest epoch."""

    lineage: Lineage
    last: DataFile | None
    """The last file of the log; None for a log without any."""
    log_end: int
    state: EndState
    """The state that the next append goes on from."""
    looked_ms: int
    """When all of the log was looked at."""
    names: int
    """About how many names of records and of high watermarks the leader's folder has."""
    acknowledged_to: int | None = None
    """The end of the append before, which was acknowledged under this view: all of the maximal ISR holds the log
    up to there, and the leader has a high watermark that says so. None after a look at all of the log."""


def look_at_end(
    replicas: PartitionReplicas, known: LogEnd | None, clock: Clock
) -> tuple[LogEnd, AbstractSet[DataName]]:
    """The end of the leader's log now, and the names of the log's files that this look has seen; ``known`` is
    the end that an earlier one under this view has found. The first look also compares it with the remote
    log, where the caller has read that.

    Raises: as ``leader_log``.
    """
    now_ms = clock.now_ms()
    if known is not None and known.last is not None and now_ms - known.looked_ms < LOOK_AGAIN_MS:
        leader = replicas.leader
        behind = leader.list_behind(known.last.name)
        found = [file for file in behind.data if is_live(file.name, known.lineage, known.log_end)]
        if _goes_on(behind, known):
            if not found:
                return known, frozenset()
            if len(found) == 1 and found[0].name == DataName(known.log_end, None, replicas.epoch):
                leader.check_root()
                return _after(leader, known, found[0]), {found[0].name}
    log = leader_log(replicas)
    if known is None:
        compare_with_remote(replicas, log)
    last = log.chain[-1].file if log.chain else None
    end = LogEnd(log.lineage, last, log.log_end, replicas.leader.end_state(log), now_ms, names_in(log.listing))
    return end, {link.name for link in log.chain}


def is_free(replicas: PartitionReplicas, known: LogEnd, clock: Clock) -> bool:
    """Whether it is worth a try to append at a known end without another look before: nothing has the name of the
    append that would come next. Whatever else has come meanwhile, the look after the append finds it.

    Raises: StorageError and its like.
    """
    if known.last is None or clock.now_ms() - known.looked_ms >= LOOK_AGAIN_MS:
        return False
    leader = replicas.leader
    with suppress(CorruptionError):  # something is there
        try:
            leader.store.stat(leader.path(DataName(known.log_end, None, replicas.epoch)))
        except FileNotFoundError:
            return True
    return False


def names_in(listing: Listing) -> int:
    """How many names a folder has that come with each append."""
    return len(listing.data) + len(listing.watermarks)


def _goes_on(behind: Listing, known: LogEnd) -> bool:
    """Whether the registers behind the known end leave the log as it was."""
    every = replace(behind, late=frozenset())
    epoch, high_watermark = known.lineage.latest_epoch, claimed_high_watermark_of(every, known.lineage)
    if known.acknowledged_to is not None and high_watermark < known.acknowledged_to:
        return False  # its storage has lost it
    return (
        behind.joined_epoch <= epoch
        and all(mark.epoch <= epoch for mark in behind.watermarks)
        and high_watermark <= known.log_end
        and behind.local_start <= known.log_end
    )


def _after(leader: Replica, known: LogEnd, file: DataFile) -> LogEnd:
    """The end of the log with one file more."""
    state, end = known.state.after(leader.footer(file)), leader.end_of_append(file)
    if known.last is not None:
        forget_files(leader.store, [known.last])
    return replace(known, last=file, log_end=end, state=state, names=known.names + _NAMES_OF_AN_APPEND)

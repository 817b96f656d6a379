"""The end of a leader's log, which one append of a driver passes to the driver's next append.

A full listing of a log takes time proportional to the number of its files. A driver that has once seen the end
under a view lists only names after the last file, so the cost of an append does not grow with the log. The driver
lists these names only after the append (protocol, rule 2: write, then check). The name at the end is created
exclusively. Everything else (another leader, a merge that freed the name) must be known before the
acknowledgement, not before the write.

Records below the end only move to other files (a merge), or are deleted by retention, and both only happen below
the high watermark.

So the end is unchanged unless one of these exists: a file of the log after the end, a high watermark or local
start beyond the end, or a register of a later epoch. If any of them exists, the driver lists the complete log. (If
the driver was idle for long, a merge may have freed the name at the end. A high watermark beyond the end reveals
that, because the greatest high watermark is never deleted.) Every ``LOOK_AGAIN_MS`` the driver lists the complete
log anyway, to notice storage that lost files.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from stratalog.engine.replication.later_rule import check_rules_known
from stratalog.engine.replication.leader import compare_with_remote, leader_log
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.clock import Clock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, claimed_high_watermark_of, is_live
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import EndState, Replica, errors_of
from stratalog.partitions.runner import Runner, side_by_side
from stratalog.partitions.segments.reader import forget_files

LOOK_AGAIN_MS = 60_000
_NAMES_OF_AN_APPEND = 2
"""The number of names per append: its records, and the high watermark that acknowledges it."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a leader's log under its latest epoch."""

    lineage: Lineage
    last: DataFile | None
    """The last file of the log; None for an empty log."""
    log_end: int
    state: EndState
    """The producer state at the end, from which the next append continues."""
    looked_ms: int
    """The time of the last full listing of the log."""
    names: int
    """Approximate number of names of records and high watermarks in the leader's folder."""
    acknowledged_to: int | None = None
    """The end of the previous append, which was acknowledged under this view: the complete maximal ISR has the log
    up to this offset, and the leader has a high watermark there. None after a full listing.
    """


def look_at_end(
    replicas: PartitionReplicas,
    known: LogEnd | None,
    clock: Clock,
    copies: Runner,
    read: Callable[[DataFile], None] = lambda file: None,
) -> tuple[LogEnd, AbstractSet[DataName]]:
    """Return the current end of the leader's log, and the names of its files that this call has seen. ``known`` is
    the end that an earlier call found under this view. The first call also compares the log with the remote log,
    if the caller has read the remote log. ``read`` is called with a single new file of the log before its footer
    is read.

    Raises: see ``leader_log``; LaterRuleError when a removal of records that the view lacks has rewritten the end.
    """
    now_ms = clock.now_ms()
    if known is not None and known.last is not None and is_recent(known, clock):
        leader = replicas.leader
        behind = leader.list_behind(known.last.name)
        check_rules_known(replicas, behind, known.log_end)
        found = [file for file in behind.data if is_live(file.name, known.lineage, known.log_end)]
        if _is_unchanged(behind, known):
            if not found:
                return known, frozenset()
            if len(found) == 1 and found[0].name == DataName(known.log_end, None, replicas.epoch):

                def opened() -> None:
                    with errors_of(leader):
                        read(found[0])
                    leader.footer(found[0])

                side_by_side(copies, leader.check_root, opened)
                return _after(leader, known, found[0]), {found[0].name}
    log = leader_log(replicas)
    check_rules_known(replicas, log.listing, log.local_start)
    if known is None:
        compare_with_remote(replicas, log)
    last = log.chain[-1].file if log.chain else None
    end = LogEnd(log.lineage, last, log.log_end, replicas.leader.end_state(log), now_ms, names_in(log.listing))
    return end, {link.name for link in log.chain}


def is_recent(known: LogEnd, clock: Clock) -> bool:
    """Whether an append may use a known end without listing the complete log again. The exclusive create detects a
    taken name. The listing after the append detects any other change.
    """
    return known.last is not None and clock.now_ms() - known.looked_ms < LOOK_AGAIN_MS


def names_in(listing: Listing) -> int:
    """The number of names in a folder that appends have created."""
    return len(listing.data) + len(listing.watermarks)


def _is_unchanged(behind: Listing, known: LogEnd) -> bool:
    """Whether the log is unchanged according to the registers after the known end."""
    every = replace(behind, late=frozenset())
    epoch, high_watermark = known.lineage.latest_epoch, claimed_high_watermark_of(every, known.lineage)
    if known.acknowledged_to is not None and high_watermark < known.acknowledged_to:
        return False  # the storage has lost the high watermark
    return (
        behind.joined_epoch <= epoch
        and all(mark.epoch <= epoch for mark in behind.watermarks)
        and high_watermark <= known.log_end
        and behind.local_start <= known.log_end
    )


def _after(leader: Replica, known: LogEnd, file: DataFile) -> LogEnd:
    """The end of the log after one more file."""
    state, end = known.state.after(leader.footer(file)), leader.end_of_append(file)
    if known.last is not None:
        forget_files(leader.store, [known.last])
    return replace(known, last=file, log_end=end, state=state, names=known.names + _NAMES_OF_AN_APPEND)

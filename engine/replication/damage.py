"""Finds damage: replicas that have less than they once had, as their own files or other replicas prove.

A damaged replica must not be mistaken for a replica that is merely shorter (protocol section 1): a damaged replica
leaves the ISR and is healed. So each error names the broker at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    FencedLeaderEpochError,
    LogGapError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Link, Listing, ReplicaLog, claimed_high_watermark_of
from stratalog.partitions.paths import DataName, EpochName, LocalStartName, name_in, parse_name
from stratalog.partitions.replica import Replica
from stratalog.partitions.retention import KEPT_EPOCHS
from stratalog.partitions.segments.check import verify_bytes

_EARLIER = KEPT_EPOCHS - 1
"""The number of earlier registers of a replica with which its latest register is compared."""


def is_damage_of(broker_id: int | None, error: StratalogError) -> bool:
    """Whether the error reports damage of this broker's storage."""
    return isinstance(error, CorruptionError) and error.broker_id == broker_id


def check_whole(replica: Replica, log: ReplicaLog) -> None:
    """Check that the replica has everything that its own files promise. Raises: LogGapError, CorruptionError if
    the replica has less; FencedLeaderEpochError when a removal rule that the view lacks has replaced the missing
    files.
    """
    if (log.stranded or log.lost_committed) and (later := _of_later_rule(replica, log)):
        raise FencedLeaderEpochError(
            f"{replica} has {later}, which follows a removal rule that this view lacks: read the metadata again"
        )
    latest = log.listing.latest_epoch
    if latest > log.joined_epoch:  # a replica joins an epoch before it gets files of that epoch
        raise CorruptionError(
            f"{replica} holds files of epoch {latest}, but has joined only {log.joined_epoch}: the lineage of "
            "the epochs in between is missing; heal it from another replica",
            broker_id=replica.broker_id,
        )
    if log.stranded:
        raise LogGapError(
            f"{replica}: the log ends at offset {log.log_end}, but {log.stranded[0].name} begins after it: a "
            "file is missing between them; restore it from another replica",
            broker_id=replica.broker_id,
        )
    if log.lost_committed:
        raise CorruptionError(
            f"{replica}: the high watermark reached {log.claimed_high_watermark}, but the log ends at "
            f"{log.log_end}: its storage has lost committed records; heal it from another replica",
            broker_id=replica.broker_id,
        )


def _of_later_rule(replica: Replica, log: ReplicaLog) -> DataName | None:
    """The file that holds the record at the end of the log, if the file's generation is above the generation of
    the view."""
    for stored in log.listing.foreign:
        name = parse_name(name_in(replica.folder, stored.name))
        if isinstance(name, DataName) and name.base_offset <= log.log_end < name.least_end:
            return name
    return None


def uncommitted_epoch(replica: Replica, joined: int, committed: int) -> CorruptionError:
    """The error for a register whose epoch is above the epoch in the metadata, which was read after the
    listing."""
    return CorruptionError(
        f"{replica} has the register {EpochName(joined)}, but {committed} is the latest leader epoch that was "
        "ever committed: stratalog did not write this register; run heal",
        broker_id=replica.broker_id,
    )


def check_members(
    leader: Replica, log: ReplicaLog, members: Iterable[tuple[Replica, ReplicaLog]], epoch: int
) -> None:
    """Check that a leader whose ``log`` has no trace of leader epoch ``epoch`` may take over that epoch.

    No other member of the ISR, listed before the leader, may have joined that epoch, or have recorded a high
    watermark beyond the leader's log end. If one has, the leader's folder was lost, and the log's offsets would be
    assigned twice. A member with a foreign register is ignored.

    Raises: LogGapError, CorruptionError; the leader is to blame.
    """
    for member, known in members:
        foreign = _foreign((leader, log.listing, log.lineage), (member, known.listing, known.lineage))
        if foreign is member:
            continue
        if foreign is leader:
            raise _foreign_register(leader, log.joined_epoch, member)
        if known.joined_epoch == epoch:
            raise LogGapError(
                f"{leader} has no files of leader epoch {epoch}, which {member} has already joined: the leader's "
                "storage has lost its files",
                broker_id=leader.broker_id,
            )
        if known.claimed_high_watermark > log.log_end:
            raise _lost_committed(leader, log, member, known.claimed_high_watermark)


def check_same_history(follower: Replica, listing: Listing, leader: Replica, log: ReplicaLog) -> None:
    """Check that the committed log of a member of the ISR, listed before its leader, belongs to the history of the
    leader's ``log``. A member whose own register is foreign passes the check.

    Raises: CorruptionError; the leader is to blame. SourceChangedError when a register is gone.
    """
    try:
        known = follower.lineage(listing)
    except CorruptionError:
        return  # an unreadable register proves nothing, and joining replaces it
    if _foreign((leader, log.listing, log.lineage), (follower, listing, known)) is leader:
        raise _foreign_register(leader, log.joined_epoch, follower)


_Member = tuple[Replica, Listing, Lineage]
"""A member of the ISR, its files, and the history that they describe."""


def _foreign(one: _Member, other: _Member) -> Replica | None:
    """The member whose latest register is foreign, if the two histories diverge below an offset that is committed
    according to either member. Only a member's own files decide, so no other root can make an intact member look
    wrong.
    """
    if not (one[2].entries and other[2].entries):
        return None  # the member has lost its registers, or has never had any
    committed = max(
        claimed_high_watermark_of(listing, lineage)
        for _, listing, _ in (one, other)
        for _, _, lineage in (one, other)
    )
    if one[2].below(committed) == other[2].below(committed):
        return None
    wrong = [
        replica for replica, listing, lineage in (one, other) if _abandons_committed(replica, listing, lineage)
    ]
    return wrong[0] if len(wrong) == 1 else None


def _abandons_committed(replica: Replica, listing: Listing, lineage: Lineage) -> bool:
    """Whether a lineage abandons records that are committed according to an earlier register and the high
    watermarks of the replica. An unclean election has the same effect, so this proves nothing unless another
    member disagrees.
    """
    earlier = sorted((name.epoch for name, _ in listing.epochs if name.epoch < lineage.latest_epoch), reverse=True)
    for epoch in earlier[:_EARLIER]:
        with suppress(CorruptionError):
            before = replica.lineage(listing, epoch)
            committed = claimed_high_watermark_of(listing, before)
            if lineage.below(committed) != before.below(committed):
                return True
    return False


def _foreign_register(replica: Replica, epoch: int, member: Replica) -> CorruptionError:
    return CorruptionError(
        f"{replica} has the register {EpochName(epoch)}, which drops committed records that {member} has: "
        "stratalog did not write this register; elect another leader",
        broker_id=replica.broker_id,
    )


def check_begun(leader: Replica, log: ReplicaLog) -> None:
    """Check that a leader still has the records that it had when it took over.

    Raises: LogGapError; the leader is at fault.
    """
    start = log.lineage.entries[-1].start_offset
    if start > log.log_end:
        raise LogGapError(
            f"{leader}: leader epoch {log.joined_epoch} began at offset {start}, but the log ends at "
            f"{log.log_end}: its storage has lost records, or stratalog did not write that register; heal it",
            broker_id=leader.broker_id,
        )


def check_claimed_high_watermark(follower: Replica, mine: ReplicaLog, leader: Replica, log: ReplicaLog) -> None:
    """Check that the leader's ``log``, listed later, has everything that a follower's log ``mine`` promises under
    the leader's lineage. The leader must also have every high watermark of its epoch that the follower has.

    Raises: LogGapError; the leader is to blame.
    """
    if mine.claimed_high_watermark > log.log_end:
        raise _lost_committed(leader, log, follower, mine.claimed_high_watermark)
    marks = (mark.offset for mark in mine.listing.watermarks if mark.epoch == log.joined_epoch)
    if (known := max(marks, default=0)) > log.high_watermark:
        raise LogGapError(
            f"{leader}: its high watermark is {log.high_watermark}, but {follower} has {known}, recorded "
            f"under leader epoch {log.joined_epoch}: the leader's storage has lost files",
            broker_id=leader.broker_id,
        )


def check_starts(follower: Replica, mine: ReplicaLog, leader: Replica, log: ReplicaLog) -> None:
    """Check that the local starts of a leader and of a member of its ISR are offsets of the log that both have. A
    register with any other start is foreign, and no replica may drop its log because of a foreign register.

    Raises: CorruptionError with the broker to blame.
    """
    if mine.local_start > log.log_end:
        raise _foreign_start(follower, mine, log.log_end)
    if (mine.chain or mine.claimed_high_watermark) and mine.log_end < log.local_start > log.claimed_high_watermark:
        raise _foreign_start(leader, log, mine.log_end)


def _foreign_start(replica: Replica, log: ReplicaLog, end: int) -> CorruptionError:
    return CorruptionError(
        f"{replica} has the register {LocalStartName(log.local_start)}, beyond the end ({end}) of an in-sync "
        "replica's log. stratalog did not write this register: delete it, or move the replica away and back",
        broker_id=replica.broker_id,
    )


def _lost_committed(leader: Replica, log: ReplicaLog, member: Replica, claimed_high_watermark: int) -> LogGapError:
    return LogGapError(
        f"{leader}: the log ends at offset {log.log_end}, but {member} has recorded that the high watermark "
        f"reached {claimed_high_watermark}: the leader's storage has lost committed records",
        broker_id=leader.broker_id,
    )


def first_lost(mine: ReplicaLog, log: ReplicaLog, missing: Sequence[Link]) -> int | None:
    """The first offset below the leader's high watermark that a member of the ISR with the log ``mine`` has lost;
    None if it has lost nothing. ``missing`` are the leader's files that the member does not have; the member may
    hold the single appends of a merged file instead.
    """
    if mine.log_end < log.high_watermark or mine.stranded:
        return mine.log_end
    return next((link.start for link in missing if not link.name.merged and link.end <= log.high_watermark), None)


def covered(replica: Replica, log: ReplicaLog, names: list[str]) -> tuple[list[str], list[CorruptSegmentError]]:
    """Returns the names of the files that may be deleted, and the damage found. A file is kept if the merged
    segment of this replica that replaces it cannot provide the file's records. All bytes of that segment are read.
    """
    doomed, bad = set(names), set[DataName]()
    damaged: list[CorruptSegmentError] = []
    hidden = [file.name for file in log.hidden if str(file.name) in doomed]
    for link in log.chain:
        over = [name for name in hidden if link.start < name.least_end and name.base_offset < link.end]
        if over:
            try:
                verify_bytes(replica.store, link.file)
            except CorruptSegmentError as error:
                damaged.append(error)
                bad |= set(over)
    return [name for name in names if parse_name(name) not in bad], damaged

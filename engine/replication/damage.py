"""Damage: a replica that holds less than what it, or a copy of it, proves that it once held.

A damaged replica is not silently shorter (protocol section 1): it leaves the ISR and is healed. So an error about
damage has to name its replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from stratalog.partitions.errors import CorruptionError, LogGapError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Link, Listing, ReplicaLog, claimed_high_watermark_of
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.replica import Replica
from stratalog.partitions.retention import KEPT_EPOCHS

_EARLIER = KEPT_EPOCHS - 1
"""Earlier registers of a replica that its latest one is compared with."""


def is_damage_of(broker_id: int | None, error: StratalogError) -> bool:
    """Whether the error says that this broker's storage is damaged."""
    return isinstance(error, CorruptionError) and error.broker_id == broker_id


def check_whole(replica: Replica, log: ReplicaLog) -> None:
    """Raises: LogGapError, CorruptionError when the replica holds less than its own files promise."""
    latest = log.listing.latest_epoch
    if latest > log.joined_epoch:  # a replica joins an epoch before it gets files of it
        raise CorruptionError(
            f"{replica} holds files of epoch {latest}, and has joined {log.joined_epoch}: the lineage of the "
            "epochs between is missing; heal it from another replica",
            broker_id=replica.broker_id,
        )
    if log.stranded:
        raise LogGapError(
            f"{replica}: the log ends at offset {log.log_end}, but {log.stranded[0].name} lies behind it: "
            "a file is missing between them; restore it from another replica",
            broker_id=replica.broker_id,
        )
    if log.lost_committed:
        raise CorruptionError(
            f"{replica}: the high watermark reached {log.claimed_high_watermark}, but the log ends at "
            f"{log.log_end}: its storage has lost committed records; heal it from another replica",
            broker_id=replica.broker_id,
        )


def uncommitted_epoch(replica: Replica, joined: int, committed: int) -> CorruptionError:
    """The error of a register of an epoch above that of the metadata, which was read after it was listed."""
    return CorruptionError(
        f"{replica} has the register {EpochName(joined)}, and leader epoch {committed} is the latest that was "
        "ever committed: stratalog did not write it; run heal",
        broker_id=replica.broker_id,
    )


def check_members(
    leader: Replica, log: ReplicaLog, members: Iterable[tuple[Replica, ReplicaLog]], epoch: int
) -> None:
    """A leader whose ``log`` shows nothing of leader epoch ``epoch`` may take it over: none of the other members
    of the ISR, listed before it, has joined that epoch or knows more to be committed than it holds. Else its
    folder was lost, and offsets would be given away a second time. One with a foreign register tells nothing.

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
                f"{leader} has nothing of leader epoch {epoch}, which {member} has joined already: the "
                "leader's storage has lost its files",
                broker_id=leader.broker_id,
            )
        if known.claimed_high_watermark > log.log_end:
            raise _lost_committed(leader, log, member, known.claimed_high_watermark)


def check_same_history(follower: Replica, listing: Listing, leader: Replica, log: ReplicaLog) -> None:
    """The committed log that a member of the ISR, listed before its leader, knows is of the history that it is
    about to join, that of the leader's ``log``; or it is the member that has a foreign register.

    Raises: CorruptionError; the leader is to blame. SourceChangedError when a register is gone.
    """
    try:
        known = follower.lineage(listing)
    except CorruptionError:
        return  # an unreadable register tells nothing, and the one that is joined makes up for it
    if _foreign((leader, log.listing, log.lineage), (follower, listing, known)) is leader:
        raise _foreign_register(leader, log.joined_epoch, follower)


_Told = tuple[Replica, Listing, Lineage]
"""A member of the ISR, its files, and the history that they tell."""


def _foreign(one: _Told, other: _Told) -> Replica | None:
    """The one whose latest register is foreign, if the two histories part below an offset that either knows to be
    committed. A member is judged by its own files alone: nothing in another root makes a sound one look wrong.
    """
    if not (one[2].entries and other[2].entries):
        return None  # it has lost its registers, or never had any
    committed = max(
        claimed_high_watermark_of(listing, lineage)
        for _, listing, _ in (one, other)
        for _, _, lineage in (one, other)
    )
    if one[2].below(committed) == other[2].below(committed):
        return None
    wrong = [replica for replica, listing, lineage in (one, other) if _gives_up(replica, listing, lineage)]
    return wrong[0] if len(wrong) == 1 else None


def _gives_up(replica: Replica, listing: Listing, lineage: Lineage) -> bool:
    """Whether a lineage gives up records that were committed by an earlier register of the replica and its high
    watermarks. (One that follows an unclean election does too: without a member that disagrees it is no proof.)
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
        f"{replica} has the register {EpochName(epoch)}, which gives up committed records that {member} knows: "
        "stratalog did not write it; let another lead",
        broker_id=replica.broker_id,
    )


def check_begun(leader: Replica, log: ReplicaLog) -> None:
    """A leader that has taken over holds what it held then.

    Raises: LogGapError; the leader is to blame.
    """
    start = log.lineage.entries[-1].start_offset
    if start > log.log_end:
        raise LogGapError(
            f"{leader}: leader epoch {log.joined_epoch} began at offset {start}, but the log ends at "
            f"{log.log_end}: its storage has lost records, or stratalog did not write that register; heal it",
            broker_id=leader.broker_id,
        )


def check_claimed_high_watermark(follower: Replica, mine: ReplicaLog, leader: Replica, log: ReplicaLog) -> None:
    """A follower's log ``mine``, under its leader's lineage, promises nothing that the leader's ``log``, listed
    later, does not hold; and it knows no high watermark of the leader's epoch that the leader, who writes it down
    first, does not know.

    Raises: LogGapError; the leader is to blame.
    """
    if mine.claimed_high_watermark > log.log_end:
        raise _lost_committed(leader, log, follower, mine.claimed_high_watermark)
    marks = (mark.offset for mark in mine.listing.watermarks if mark.epoch == log.joined_epoch)
    if (known := max(marks, default=0)) > log.high_watermark:
        raise LogGapError(
            f"{leader}: its high watermark is {log.high_watermark}, but {follower} knows that it reached "
            f"{known} under leader epoch {log.joined_epoch}: the leader's storage has lost files",
            broker_id=leader.broker_id,
        )


def check_starts(follower: Replica, mine: ReplicaLog, leader: Replica, log: ReplicaLog) -> None:
    """The local starts of a leader and of a member of its ISR lie in the log that both hold: all records below
    one were committed. A register of another start is foreign; nobody follows it, and drops its log.

    Raises: CorruptionError with whom to blame.
    """
    if mine.local_start > log.log_end:
        raise _foreign_start(follower, mine, log.log_end)
    if (mine.chain or mine.claimed_high_watermark) and mine.log_end < log.local_start > log.claimed_high_watermark:
        raise _foreign_start(leader, log, mine.log_end)


def _foreign_start(replica: Replica, log: ReplicaLog, end: int) -> CorruptionError:
    return CorruptionError(
        f"{replica} has the register {LocalStartName(log.local_start)}, and the log of a replica that is in sync "
        f"with it ends at {end}: stratalog did not write it; delete it, or reassign the replica away and back",
        broker_id=replica.broker_id,
    )


def _lost_committed(leader: Replica, log: ReplicaLog, member: Replica, claimed_high_watermark: int) -> LogGapError:
    return LogGapError(
        f"{leader}: the log ends at offset {log.log_end}, but {member} knows that the high watermark "
        f"reached {claimed_high_watermark}: the leader's storage has lost committed records",
        broker_id=leader.broker_id,
    )


def first_lost(mine: ReplicaLog, log: ReplicaLog, missing: Sequence[Link]) -> int | None:
    """The first offset that a member of the ISR with the log ``mine`` must have lost, for it lies below the
    high watermark of its leader's ``log``; None when it has lost nothing. ``missing`` are the leader's files
    that it lacks: of a merged one it may hold the appends.
    """
    if mine.log_end < log.high_watermark or mine.stranded:
        return mine.log_end
    return next((link.start for link in missing if not link.name.merged and link.end <= log.high_watermark), None)

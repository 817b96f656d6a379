"""Reads the leader's log, or takes it over, which is the first step of a new leader epoch (protocol section 2)."""

from __future__ import annotations

from stratalog.engine.replication.damage import check_begun, check_members, check_same_history, check_whole
from stratalog.engine.replication.lost_log import check_not_lost, is_lost, lost_log, with_remote_asked
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import (
    DivergentRemoteError,
    begin_at_remote_end,
    check_reaches_remote,
)
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    RemoteNotReadyError,
    RetriableError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import Listing, ReplicaLog
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.producers import encode
from stratalog.partitions.register import REGISTER_BYTES
from stratalog.partitions.replica import LookMark, Replica
from stratalog.partitions.transactions import FooterOf

_ATTEMPTS = 5


def leader_log(replicas: PartitionReplicas) -> ReplicaLog:
    """Return the leader's log under the view's epoch. If no driver has taken over that epoch, this call does.

    Raises: LeaderNotAvailableError; FencedLeaderEpochError when the leader has joined a later epoch;
        CorruptionError, LogGapError when the leader's storage has lost data, LogLostError when it has lost all
        data; LogBehindRemoteError, DivergentRemoteError when the leader's log contradicts the remote log; see
        ``Replica.log``.
    """
    leader = replicas.leader
    for _ in range(_ATTEMPTS):
        log = _own_log(replicas)
        if _begins_later(replicas, log):
            leader.store.create(leader.path(LocalStartName(replicas.view.log_start_offset)), encode({}))
            continue
        if log.joined_epoch == replicas.epoch:
            check_not_lost(replicas, log)
            return log
        # List the members, and read the remote log, first: the leader, listed after them, must hold everything
        # that they promise.
        members = _members(replicas)
        asked = with_remote_asked(replicas)
        log = _own_log(replicas)
        if log.joined_epoch == replicas.epoch:
            continue
        check_members(leader, log, members, replicas.epoch)
        lineage = _continued(asked, log)
        leader.store.create(leader.path(EpochName(replicas.epoch)), lineage.to_json())
    raise RetriableError(f"{leader}: epoch {replicas.epoch} was created, but listings do not show it")


def _continued(replicas: PartitionReplicas, log: ReplicaLog) -> Lineage:
    """The lineage of the leader's log with the view's epoch. The log was listed after that epoch was committed,
    because the view contains the epoch.

    Raises: see ``check_reaches_remote``; LogLostError; RemoteNotReadyError when the epoch begins at the end of the
        remote log, and that end is unknown.
    """
    tail = replicas.remote_tail
    if replicas.view.remote_epoch == replicas.epoch:
        if tail is None or tail.last is None:
            raise RemoteNotReadyError(
                f"{replicas}: leader epoch {replicas.epoch} begins where the remote log ends, but the remote log "
                "cannot be read; try again when the remote tier answers"
            )
        return begin_at_remote_end(replicas.leader, log, replicas.epoch, tail)
    if tail is not None:
        check_reaches_remote(replicas.view, replicas.leader, log, tail)
    if is_lost(replicas.view, log):
        raise lost_log(replicas)
    return log.lineage.continued_by(replicas.epoch, log.log_end)


def _begins_later(replicas: PartitionReplicas, log: ReplicaLog) -> bool:
    """Whether the log never had a record, and was created to begin above 0. All drivers use the same offset,
    because a log start only moves to committed offsets. So no record of another driver is hidden.
    """
    listing, view = log.listing, replicas.view
    has_nothing = not listing.data and not listing.watermarks and not is_lost(view, log)
    return has_nothing and log.log_end < view.log_start_offset


def look_at_leader(
    replicas: PartitionReplicas, footer_of: FooterOf | None = None, *, since: LookMark | None = None
) -> ReplicaLog:
    """Read the current log of the leader, without taking it over. ``footer_of`` reads the footers of the leader's
    files from a different source than the leader. ``since``: see ``Replica.log``.

    Raises: see ``leader_log``; FencedLeaderEpochError, after which the caller reads the metadata again and
    retries.
    """
    log = _listed(replicas, footer_of, since)
    check_not_lost(replicas, log)
    return with_known_watermark(replicas, log)


def _listed(
    replicas: PartitionReplicas, footer_of: FooterOf | None = None, since: LookMark | None = None
) -> ReplicaLog:
    leader = replicas.leader
    log = leader.log(footer_of, since=since)
    check_not_fenced(leader, log.listing, replicas.epoch)
    if log.listing.epochs or not is_lost(replicas.view, log):  # the lost folder may hold a late append
        check_whole(leader, log)
    return log


def _own_log(replicas: PartitionReplicas) -> ReplicaLog:
    log = _listed(replicas)
    if log.joined_epoch == replicas.epoch:
        check_begun(replicas.leader, log)
    return log


def _members(replicas: PartitionReplicas) -> list[tuple[Replica, ReplicaLog]]:
    """The logs of the other members of the ISR that can be listed."""
    found: list[tuple[Replica, ReplicaLog]] = []
    for broker_id in sorted({*replicas.view.isr} - {replicas.view.leader}):
        try:
            member = replicas.replica(broker_id)
            log = member.log()
        except StratalogError:
            continue  # no error of a member proves anything about the leader
        check_not_fenced(member, log.listing, replicas.epoch)
        found.append((member, log))
    return found


def join(follower: Replica, leader: Replica, epoch: int, log: ReplicaLog) -> None:
    """Make the follower join ``epoch`` with the leader's lineage, which ``log`` has.

    Raises: CorruptionError, which blames the follower, if the follower has joined with another lineage.
    """
    name = follower.path(EpochName(epoch))
    content = log.lineage.to_json()
    if follower.store.create(name, content):
        return
    try:
        held = read_bounded(follower.store, name, REGISTER_BYTES)
    except FileNotFoundError as error:  # the follower's root was lost meanwhile
        raise SourceChangedError(f"{follower}: {EpochName(epoch)} has disappeared; list it again") from error
    if held != content:
        raise _joined_otherwise(follower, leader, epoch)


def check_joined(follower: Replica, listing: Listing, leader: Replica, log: ReplicaLog) -> None:
    """Check that a follower listed with its leader's epoch has joined with its leader's lineage, which ``log``
    has. The check is skipped if the follower has a high watermark of that epoch, because then an earlier check has
    passed.

    Raises: CorruptionError; the follower is to blame.
    """
    epoch = log.joined_epoch
    if any(mark.epoch == epoch for mark in listing.watermarks):
        return
    if follower.lineage(listing) != log.lineage:
        raise _joined_otherwise(follower, leader, epoch)


def check_agreed(replicas: PartitionReplicas, log: ReplicaLog) -> None:
    """Check that the committed logs of all other members of the ISR belong to the history of the leader's ``log``.
    Call this before records are dropped because of the leader's register.

    Raises: see ``check_same_history``; errors from listing a member.
    """
    for broker_id in sorted({*replicas.view.isr} - {replicas.view.leader}):
        member = replicas.replica(broker_id)
        check_same_history(member, member.list(), replicas.leader, log)


def compare_with_remote(replicas: PartitionReplicas, log: ReplicaLog) -> None:
    """Compare the leader's log with the remote log (``PartitionReplicas.check_remote_end``). If their histories
    differ, call ``check_agreed`` first, because the leader's register may be foreign.

    Raises: LogBehindRemoteError, DivergentRemoteError; see ``check_agreed``.
    """
    try:
        replicas.check_remote_end(log)
    except DivergentRemoteError:
        check_agreed(replicas, log)
        raise


def _joined_otherwise(follower: Replica, leader: Replica, epoch: int) -> CorruptionError:
    """The error for a follower that has joined an epoch with a different lineage than its leader."""
    return CorruptionError(
        f"{follower} has joined epoch {epoch} with a different lineage than its leader, broker "
        f"{leader.broker_id}: {follower.store.uri_of(follower.path(EpochName(epoch)))}; run heal",
        broker_id=follower.broker_id,
    )


def check_not_fenced(replica: Replica, listing: Listing, epoch: int) -> None:
    """Raises: FencedLeaderEpochError when the replica has joined an epoch above ``epoch``."""
    if listing.joined_epoch > epoch:
        raise FencedLeaderEpochError(
            f"{replica} has joined leader epoch {listing.joined_epoch}, but this view has {epoch}: read the "
            "metadata again"
        )

"""Elections: preferred, by hand, away from a damaged leader, unclean, from the remote log, after the loss of all
records (protocol section 4, "Elect").
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.partition_changes import first_candidate
from stratalog.engine.metadata.partition_commands import PartitionAnswer, decide_each, name_of
from stratalog.engine.metadata.records import EPOCH_GAP, PartitionChangeRecord
from stratalog.partitions.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidCallError,
    InvalidUpdateVersionError,
    PreferredLeaderNotAvailableError,
)
from stratalog.partitions.identity import TopicIdPartition


@dataclass(frozen=True, slots=True)
class Election:
    """The requested leader of one partition, and the kind of election. ``unclean``, ``resign``, ``remote_epoch``
    and ``lost`` exclude each other.
    """

    topic_id: str
    partition: int
    leader: int | None = None
    """The new leader. None selects the preferred replica, which is the first replica. If the leader resigns, None
    selects the first member of the ISR that can lead; in an unclean election, the first unfenced replica.
    """
    unclean: bool = False
    """Also elect from outside an ISR in which no member can lead: records that only the ISR had are lost."""
    resign: bool = False
    """The storage of the current leader is damaged: the same record removes that leader from the ISR. Requires the
    partition epoch, because the leader may have changed.
    """
    partition_epoch: int | None = None
    """The partition epoch of the view on which the election is based; None: the current partition epoch."""
    remote_epoch: int | None = None
    """The latest leader epoch of a remote log whose end the members of the ISR lack. The leader keeps the
    partition, or ``leader`` takes over from within the ISR. The leader of the new epoch continues from the remote
    end, as the only member of the ISR, under a later epoch. Requires the partition epoch.
    """
    remote_end: int = 0
    """With ``remote_epoch``: the end of the remote log. The bound of a removal rule must not be above this end."""
    lost: bool = False
    """No replica has any of the known records. The leader remains the leader, as the only member of the ISR, and
    the log begins again at the last known offset. All replicas get new folders, so that late writes to the old
    folders have no effect. Requires the partition epoch.
    """


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """Elect leaders. One answer per election, in order: ``Altered``, even if the leader already led (then nothing
    is committed); or ``Refused`` with UNKNOWN_TOPIC_OR_PARTITION, INVALID_UPDATE_VERSION,
    PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, ELECTION_NOT_NEEDED or INVALID_REQUEST.
    """

    elections: tuple[Election, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Never raises; refusals are answers."""
        return decide_each(image, self.elections, _elect)


def _elect(image: ClusterImage, present: PartitionImage, election: Election) -> PartitionChangeRecord | None:
    what = name_of(image, election)
    if election.partition_epoch is not None and election.partition_epoch != present.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{what}: the election is for partition epoch {election.partition_epoch}, but the current partition "
            f"epoch is {present.partition_epoch}; read the metadata again"
        )
    if election.unclean + election.resign + (election.remote_epoch is not None) + election.lost > 1:
        raise InvalidCallError(
            f"{what}: an election can be unclean, make the leader resign, continue from the remote log, or let "
            "the log begin again: choose only one of these"
        )
    if election.unclean or election.lost or election.remote_epoch is not None:
        _check_not_compacted(image, election, what)
    if election.lost:
        return _begin_again(image, present, election, what)
    if election.remote_epoch is not None:
        return _from_remote(image, present, election, election.remote_epoch, what)
    isr: tuple[int, ...] | UnsetType = UNSET
    if election.unclean:
        leader = _unclean(image, present, election, what)
        isr = (leader,)
    elif election.resign:
        leader = _successor(image, present, election, what)
        isr = tuple(member for member in present.isr if member != present.leader)
    else:
        leader = _clean(image, present, election, what)
        if leader == present.leader:
            return None
    return PartitionChangeRecord(
        topic_id=election.topic_id, partition=election.partition, isr=isr, leader=leader, unclean=election.unclean
    )


def _check_not_compacted(image: ClusterImage, election: Election, what: str) -> None:
    """Check that the partition has no removal rule. An election that loses records could lose the last record of a
    key, after some replicas have already removed the key's earlier records; or it could assign the offsets of an
    erasure to new records. A remote log that extends to the bound of the rule has the last record of each key.

    Raises: InvalidCallError.
    """
    key = TopicIdPartition(election.topic_id, election.partition)
    if any(one.offsets for one in image.erasures_of(key)):
        raise InvalidCallError(
            f"{what}: not every replica has applied an erasure yet, and an election that loses records could "
            "make erased records return: bring back a broker that was in the ISR, or reassign the replicas on "
            "unreachable brokers, then run `stratalog erase` again without keys"
        )
    rules = image.rules_of(key)
    if rules and (election.remote_epoch is None or rules[-1].rule.bound > election.remote_end):
        raise InvalidCallError(
            f"{what}: cleanup.policy = compact has removed records from this partition, so an election must not "
            "lose more records: bring back a broker that was in the ISR, or delete the topic and create it again"
        )


def _from_remote(
    image: ClusterImage, present: PartitionImage, election: Election, remote_epoch: int, what: str
) -> PartitionChangeRecord:
    leader = present.leader if election.leader is None else election.leader
    wanted = () if leader is None else (leader,)
    if first_candidate(wanted, present.isr, image.brokers) is None:
        raise EligibleLeadersNotAvailableError(
            f"{what}: broker {leader} is fenced or not in the ISR {present.isr}: it cannot "
            "continue from the remote log"
        )
    ahead = remote_epoch > present.leader_epoch  # the metadata was also restored to an older state
    return PartitionChangeRecord(
        topic_id=election.topic_id,
        partition=election.partition,
        isr=wanted,
        leader=leader,
        from_remote=True,
        least_leader_epoch=remote_epoch + EPOCH_GAP if ahead else 0,
    )


def _begin_again(
    image: ClusterImage, present: PartitionImage, election: Election, what: str
) -> PartitionChangeRecord:
    leader = present.leader
    if leader is None or image.brokers[leader].fenced:
        raise EligibleLeadersNotAvailableError(f"{what} has no leader that can begin its log again")
    if not present.written_to:
        raise ElectionNotNeededError(
            f"{what}: the metadata shows no records of the partition, so its log does not begin again"
        )
    return PartitionChangeRecord(
        topic_id=election.topic_id,
        partition=election.partition,
        isr=(leader,),
        leader=leader,
        log_start_offset=max(present.log_start_offset, present.written_to),
        begins_again=True,
    )


def _clean(image: ClusterImage, present: PartitionImage, election: Election, what: str) -> int:
    leader = present.replicas[0] if election.leader is None else election.leader
    if first_candidate((leader,), present.isr, image.brokers) is None:
        if election.leader is None:
            raise PreferredLeaderNotAvailableError(
                f"{what}: its preferred replica, broker {leader}, is fenced or not in the ISR {present.isr}"
            )
        raise EligibleLeadersNotAvailableError(
            f"{what}: broker {leader} is fenced or not in the ISR {present.isr}; only an unclean election could "
            "make it the leader"
        )
    return leader


def _successor(image: ClusterImage, present: PartitionImage, election: Election, what: str) -> int:
    others = [broker for broker in present.replicas if broker != present.leader]
    wanted = others if election.leader is None else [broker for broker in others if broker == election.leader]
    leader = first_candidate(wanted, present.isr, image.brokers)
    if leader is None:
        why = (
            f"no replica other than the leader {present.leader} is unfenced and in the ISR {present.isr}"
            if election.leader is None
            else f"broker {election.leader} cannot take over from the leader {present.leader}: a successor must "
            f"be another member of the ISR {present.isr}, and unfenced"
        )
        raise EligibleLeadersNotAvailableError(f"{what}: {why}; the last member cannot resign")
    return leader


def _unclean(image: ClusterImage, present: PartitionImage, election: Election, what: str) -> int:
    candidate = first_candidate(present.replicas, present.isr, image.brokers)
    if candidate is not None:
        raise ElectionNotNeededError(
            f"{what}: broker {candidate} is in the ISR {present.isr} and can lead without loss"
        )
    wanted = [b for b in present.replicas if election.leader in (None, b)]
    leader = first_candidate(wanted, present.replicas, image.brokers)
    if leader is None:
        whom = "no replica" if election.leader is None else f"broker {election.leader} is not a replica that"
        raise EligibleLeadersNotAvailableError(f"{what}: {whom} is unfenced; the replicas are {present.replicas}")
    return leader

"""ElectLeaders (protocol section 4, "Elect"): preferred, by hand, away from a damaged leader, unclean."""

from __future__ import annotations

import pytest

from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.partition_commands import Altered
from stratalog.engine.metadata.records import PartitionChangeRecord
from stratalog.partitions.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidCallError,
    InvalidUpdateVersionError,
    LeaderNotAvailableError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from tests.unit.metadata_harness import Metadata, an_id, refusal, with_newcomer

# ---------------------------------------------------------------------------------- clean


def test_the_preferred_leader_is_elected_where_it_does_not_lead() -> None:
    metadata = Metadata()
    metadata.elect(2)
    assert metadata.elect() == Altered(an_id(99), 0, 2)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (1, 3, (1, 2, 3))


@pytest.mark.parametrize("leader", [None, 1])
def test_the_present_leader_is_not_elected_again(leader: int | None) -> None:
    metadata = Metadata()
    decision = ElectLeaders((Election(an_id(99), 0, leader),)).decide(metadata.image)
    assert (decision.records, decision.answer) == ((), (Altered(an_id(99), 0, 0),))


def test_a_leader_may_be_named() -> None:
    metadata = Metadata()
    assert metadata.elect(3) == Altered(an_id(99), 0, 1)
    assert (metadata.t.leader, metadata.t.leader_epoch) == (3, 2)


def test_an_election_drops_replicas_that_are_being_added() -> None:
    """Section 4, "Expand": every change of the leader drops *adding*."""
    metadata = with_newcomer()
    metadata.elect(2)
    assert (metadata.t.leader, metadata.t.adding) == (2, ())


def test_a_preferred_leader_outside_the_isr_is_not_elected() -> None:
    metadata = Metadata()
    metadata.fence(1)
    metadata.register(1)
    error = refusal(metadata.elect())
    assert isinstance(error, PreferredLeaderNotAvailableError)
    assert "broker 1, is fenced or not in the ISR (2, 3)" in str(error)
    assert metadata.t.leader == 2


@pytest.mark.parametrize("leader", [1, 4, 9])
def test_a_clean_election_takes_an_unfenced_member_of_the_isr_only(leader: int) -> None:
    metadata = Metadata()
    metadata.register(4)
    metadata.fence(1)
    before = metadata.t
    error = refusal(metadata.elect(leader))
    assert isinstance(error, EligibleLeadersNotAvailableError)
    assert isinstance(error, LeaderNotAvailableError)
    assert f"broker {leader} is fenced or not in the ISR (2, 3)" in str(error)
    assert metadata.t == before


def test_a_fenced_last_member_cannot_be_elected() -> None:
    metadata = Metadata()
    metadata.fence(1, 2, 3)
    assert metadata.t.isr == (3,)
    assert isinstance(refusal(metadata.elect(3)), EligibleLeadersNotAvailableError)


def test_a_replica_that_is_only_being_added_is_not_elected() -> None:
    """Section 4, "Expand": an election never picks a replica that is only being added."""
    metadata = with_newcomer()
    assert isinstance(refusal(metadata.elect(3)), EligibleLeadersNotAvailableError)


def test_an_election_for_another_partition_epoch_is_refused() -> None:
    metadata = Metadata()
    assert isinstance(refusal(metadata.elect(2, partition_epoch=7)), InvalidUpdateVersionError)
    assert isinstance(metadata.elect(2, partition_epoch=0), Altered)


def test_one_refused_election_does_not_stop_the_batch() -> None:
    metadata = Metadata()
    command = ElectLeaders((Election(an_id(5), 0), Election(an_id(99), 0, 2), Election(an_id(99), 0, 3)))
    missing, first, second = metadata.do(command)
    assert isinstance(refusal(missing), UnknownTopicOrPartitionError)
    assert first == Altered(an_id(99), 0, 1)
    assert isinstance(refusal(second), InvalidUpdateVersionError)
    assert metadata.t.leader == 2


def test_a_damaged_leader_leaves_the_isr_in_the_record_that_replaces_it() -> None:
    metadata = Metadata()
    decision = ElectLeaders((Election(an_id(99), 0, resign=True),)).decide(metadata.image)
    assert decision.records == (PartitionChangeRecord(topic_id=an_id(99), partition=0, isr=(2, 3), leader=2),)
    metadata.elect(resign=True)
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (2, 2, (2, 3))


def test_a_successor_may_be_named() -> None:
    metadata = Metadata()
    metadata.elect(3, resign=True)
    assert (metadata.t.leader, metadata.t.isr) == (3, (2, 3))


@pytest.mark.parametrize("leader", [None, 1, 2])
def test_the_last_member_never_resigns(leader: int | None) -> None:
    metadata = Metadata()
    metadata.propose([1])
    error = refusal(metadata.elect(leader, resign=True))
    assert isinstance(error, EligibleLeadersNotAvailableError)
    assert "the last member cannot resign" in str(error)
    assert (metadata.t.leader, metadata.t.isr) == (1, (1,))


def test_two_drivers_that_see_the_same_damage_make_one_leader_resign() -> None:
    metadata = Metadata()
    seen = metadata.t.partition_epoch
    assert isinstance(metadata.elect(resign=True, partition_epoch=seen), Altered)
    assert isinstance(refusal(metadata.elect(resign=True, partition_epoch=seen)), InvalidUpdateVersionError)
    assert metadata.t.isr == (2, 3)


# -------------------------------------------------------------------------------- unclean


def test_an_unclean_election_makes_the_named_replica_the_whole_isr() -> None:
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    metadata.unfence(3)
    assert isinstance(metadata.elect(3, unclean=True), Altered)
    assert (metadata.t.leader, metadata.t.isr, metadata.t.leader_epoch) == (3, (3,), 3)


def test_an_unclean_election_without_a_name_takes_the_first_replica_that_is_there() -> None:
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    metadata.unfence(3)
    metadata.unfence(2)
    metadata.elect(unclean=True)
    assert (metadata.t.leader, metadata.t.isr) == (2, (2,))


def test_nothing_is_lost_while_a_member_of_the_isr_can_lead() -> None:
    metadata = Metadata()
    metadata.fence(2, 3)
    metadata.unfence(2)
    error = refusal(metadata.elect(2, unclean=True))
    assert isinstance(error, ElectionNotNeededError)
    assert "broker 1 is in the ISR (1,) and can lead" in str(error)
    assert metadata.t.leader == 1


@pytest.mark.parametrize("leader", [None, 3, 4, 9])
def test_an_unclean_election_takes_an_unfenced_replica(leader: int | None) -> None:
    metadata = Metadata()
    metadata.register(4)
    metadata.fence(1, 2, 3)
    before = metadata.t
    assert isinstance(refusal(metadata.elect(leader, unclean=True)), EligibleLeadersNotAvailableError)
    assert metadata.t == before


def test_an_empty_isr_ends_with_an_unclean_election() -> None:
    """Section 4, "Register": no leader until the old storage comes back or an unclean election; after that the
    old storage is a replica like any other."""
    metadata = Metadata()
    metadata.propose([1])
    metadata.register(1, incarnation=1)
    assert (metadata.t.leader, metadata.t.isr) == (None, ())
    metadata.elect(2, unclean=True)
    assert (metadata.t.leader, metadata.t.isr, metadata.t.lost) == (2, (2,), ())
    metadata.register(1)
    assert (metadata.t.leader, metadata.t.isr) == (2, (2,))


def test_nobody_resigns_by_an_unclean_election() -> None:
    assert isinstance(refusal(Metadata().elect(unclean=True, resign=True)), InvalidCallError)

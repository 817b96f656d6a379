"""AlterPartitionReassignments: begin, complete, replace, cancel, force; and concurrent changes (KIP-455)."""

from __future__ import annotations

import pytest

from stratalog.engine.metadata.partition_commands import Altered
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.partitions.errors import (
    InvalidReplicaAssignmentError,
    InvalidUpdateVersionError,
    NoReassignmentInProgressError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.metadata_harness import Metadata, an_id, refusal


def with_spares() -> Metadata:
    """Topic ``t`` on brokers 1, 2, 3; brokers 4 and 5 have nothing."""
    metadata = Metadata()
    metadata.register(4)
    metadata.register(5)
    return metadata


# ----------------------------------------------------------------------- begin and complete


def test_newcomers_join_next_to_the_original_replicas() -> None:
    metadata = with_spares()
    offset = metadata.image.next_offset
    assert metadata.reassign(4, 2, 5) == Altered(an_id(99), 0, 1)
    t = metadata.t
    assert (t.replicas, t.original, t.joining, t.target) == ((1, 2, 3, 4, 5), (1, 2, 3), (4, 5), (4, 2, 5))
    assert t.assignments[3:] == (offset, offset)
    assert (t.leader, t.leader_epoch, t.isr) == (1, 1, (1, 2, 3))


def test_a_view_shows_the_reassignment() -> None:
    metadata = with_spares()
    metadata.reassign(1, 4)
    view = metadata.image.view(an_id(99), 0)
    assert (view.target, view.joining) == ((1, 4), (4,))


def test_the_proposal_that_takes_the_last_newcomer_in_completes() -> None:
    metadata = with_spares()
    metadata.reassign(4, 2, 5)
    metadata.expand(4)
    assert metadata.t.target == (4, 2, 5)
    placed = dict(zip(metadata.t.replicas, metadata.t.assignments, strict=True))
    metadata.propose([1, 2, 3, 4], adding=[5])
    metadata.propose([1, 2, 3, 4, 5])
    t = metadata.t
    assert (t.replicas, t.joining, t.target) == ((4, 2, 5), (), ())
    assert t.isr == (4, 2, 5)
    assert t.assignments == (placed[4], placed[2], placed[5])
    assert (t.leader, t.leader_epoch) == (4, 2), "the leader was not in the target: one of the target's leads"


def test_a_leader_that_stays_leads_on_in_its_epoch() -> None:
    metadata = with_spares()
    metadata.reassign(4, 1)
    metadata.expand(4)
    assert (metadata.t.replicas, metadata.t.isr) == ((4, 1), (4, 1))
    assert (metadata.t.leader, metadata.t.leader_epoch) == (1, 1)


def test_a_replica_that_is_being_added_and_stays_is_still_being_added() -> None:
    metadata = with_spares()
    metadata.propose([1, 2])
    metadata.reassign(1, 3, 4)
    metadata.propose([1, 2], adding=[3, 4])
    metadata.propose([1, 2, 4], adding=[3])
    assert (metadata.t.replicas, metadata.t.isr, metadata.t.adding) == ((1, 3, 4), (1, 4), (3,))


def test_a_removal_is_done_at_once() -> None:
    metadata = with_spares()
    metadata.reassign(2, 3)
    t = metadata.t
    assert (t.replicas, t.isr, t.target) == ((2, 3), (2, 3), ())
    assert (t.leader, t.leader_epoch, t.partition_epoch) == (2, 2, 1)


def test_another_order_is_taken_at_once_and_elects_nobody() -> None:
    metadata = with_spares()
    metadata.reassign(3, 1, 2)
    assert (metadata.t.replicas, metadata.t.isr) == ((3, 1, 2), (3, 1, 2))
    assert (metadata.t.leader, metadata.t.leader_epoch) == (1, 1)
    metadata.elect()
    assert metadata.t.leader == 3


@pytest.mark.parametrize("target", [(1, 2, 3), (1, 4)])
def test_a_reassignment_to_the_current_target_commits_nothing(target: tuple[int, ...]) -> None:
    metadata = with_spares()
    metadata.reassign(*target)
    command = AlterPartitionReassignments((Reassignment(an_id(99), 0, target),))
    decision = command.decide(metadata.image)
    assert (decision.records, decision.answer) == ((), (Altered(an_id(99), 0, metadata.t.partition_epoch),))


def test_a_broker_that_left_and_returns_gets_a_new_folder() -> None:
    """Section 1: zombies that knew a removed replica write to abandoned folders."""
    metadata = with_spares()
    before = metadata.t.assignments[2]
    metadata.reassign(1, 2)
    metadata.reassign(1, 2, 3)
    assert metadata.t.replicas == (1, 2, 3)
    assert metadata.t.assignments[2] > before


# ---------------------------------------------------------------------------------- refuse


@pytest.mark.parametrize("target", [(), (1, 1), (1, 4, 4)])
def test_a_target_has_replicas_and_none_twice(target: tuple[int, ...]) -> None:
    metadata = with_spares()
    assert isinstance(refusal(metadata.reassign(*target)), InvalidReplicaAssignmentError)
    assert metadata.t == with_spares().t


def test_newcomers_are_registered_and_not_fenced() -> None:
    metadata = with_spares()
    metadata.fence(4)
    assert isinstance(refusal(metadata.reassign(1, 9)), UnknownBrokerError)
    error = refusal(metadata.reassign(1, 4))
    assert isinstance(error, InvalidReplicaAssignmentError)
    assert "broker 4 is fenced" in str(error)
    assert metadata.t == with_spares().t


def test_a_replica_that_is_fenced_may_stay() -> None:
    metadata = with_spares()
    metadata.fence(3)
    metadata.reassign(1, 3)
    assert (metadata.t.replicas, metadata.t.isr) == ((1, 3), (1,))


def test_one_refused_reassignment_does_not_stop_the_batch() -> None:
    metadata = with_spares()
    wanted = (
        Reassignment(an_id(5), 0, (1,)),
        Reassignment(an_id(99), 0, (1, 2)),
        Reassignment(an_id(99), 0, (1, 3)),
    )
    missing, first, second = metadata.do(AlterPartitionReassignments(wanted))
    assert isinstance(refusal(missing), UnknownTopicOrPartitionError)
    assert first == Altered(an_id(99), 0, 1)
    assert isinstance(refusal(second), InvalidUpdateVersionError)
    assert metadata.t.replicas == (1, 2)


# ----------------------------------------------------------------------- the last in sync


def test_the_last_in_sync_replica_is_removed_by_force_only() -> None:
    metadata = with_spares()
    metadata.propose([1])
    before = metadata.t
    error = refusal(metadata.reassign(2, 3))
    assert isinstance(error, InvalidReplicaAssignmentError)
    assert "removing [1] would leave no in-sync replica (ISR (1,))" in str(error)
    assert metadata.t == before
    assert isinstance(metadata.reassign(2, 3, force=True), Altered)
    t = metadata.t
    assert (t.replicas, t.isr, t.leader, t.leader_epoch, t.lost) == ((2, 3), (), None, 2, ())
    metadata.elect(2, unclean=True)
    assert (metadata.t.leader, metadata.t.isr) == (2, (2,))


def test_force_changes_nothing_if_another_replica_is_in_sync() -> None:
    metadata = with_spares()
    metadata.reassign(1, 4, force=True)
    assert (metadata.t.replicas, metadata.t.joining) == ((1, 2, 3, 4), (4,))


def test_a_replica_that_was_removed_by_force_does_not_come_back() -> None:
    """The replica's next folder there is another one, and empty."""
    metadata = with_spares()
    metadata.propose([1])
    metadata.register(1, incarnation=1)
    metadata.reassign(2, 3, force=True)
    assert metadata.t.lost == ()
    metadata.reassign(2, 3, 1)
    metadata.register(1)
    assert (metadata.t.leader, metadata.t.isr) == (None, ())


def test_a_lost_storage_whose_replica_stays_still_comes_back() -> None:
    metadata = with_spares()
    metadata.propose([1])
    metadata.register(1, incarnation=1)
    metadata.reassign(1, 4, 5)
    metadata.cancel(force=True)
    assert metadata.t.replicas == (1, 2, 3)
    metadata.register(1)
    assert (metadata.t.leader, metadata.t.isr) == (1, (1,))


# ------------------------------------------------------------------------- cancel, replace


def test_cancelling_leaves_the_partition_as_it_would_be_without() -> None:
    metadata = with_spares()
    before = metadata.t
    metadata.reassign(4, 5)
    metadata.expand(4)
    metadata.propose([1, 2, 3, 4], adding=[5])
    assert isinstance(metadata.cancel(), Altered)
    t = metadata.t
    assert (t.replicas, t.assignments) == (before.replicas, before.assignments)
    assert (t.isr, t.adding, t.joining, t.target) == ((1, 2, 3), (), (), ())
    assert (t.leader, t.leader_epoch) == (1, 1)


def test_cancelling_replaces_a_leader_that_was_joining() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.expand(4)
    metadata.elect(4)
    metadata.cancel()
    assert (metadata.t.leader, metadata.t.leader_epoch, metadata.t.isr) == (1, 3, (1, 2, 3))


def test_only_what_is_in_progress_can_be_cancelled() -> None:
    metadata = with_spares()
    assert isinstance(refusal(metadata.cancel()), NoReassignmentInProgressError)
    metadata.reassign(1, 4)
    metadata.expand(4)
    assert isinstance(refusal(metadata.cancel()), NoReassignmentInProgressError)


def test_cancelling_does_not_remove_the_last_in_sync_replica() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.expand(4)
    metadata.fence(1, 2, 3)
    assert (metadata.t.leader, metadata.t.isr) == (4, (4,))
    assert isinstance(refusal(metadata.cancel()), InvalidReplicaAssignmentError)
    metadata.cancel(force=True)
    assert (metadata.t.replicas, metadata.t.isr, metadata.t.leader) == ((1, 2, 3), (), None)


def test_another_target_replaces_the_one_in_progress_and_the_original_stays() -> None:
    metadata = with_spares()
    metadata.reassign(4, 1)
    metadata.expand(2)  # Nothing changes, because 2 is already a member.
    kept = metadata.t.assignments[3]
    metadata.reassign(5, 4)
    t = metadata.t
    assert (t.replicas, t.original, t.joining, t.target) == ((1, 2, 3, 5, 4), (1, 2, 3), (5, 4), (5, 4))
    assert t.assignments[4] == kept, "a replica that is already joining continues with what it has"
    metadata.reassign(5, 2)
    assert (metadata.t.replicas, metadata.t.target) == ((1, 2, 3, 5), (5, 2))


def test_the_original_as_the_new_target_is_a_cancellation() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.reassign(1, 2, 3)
    assert (metadata.t.replicas, metadata.t.target, metadata.t.joining) == ((1, 2, 3), (), ())


def test_a_new_target_whose_newcomers_are_in_sync_is_done_at_once() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.expand(4)
    metadata.reassign(4, 1)
    assert (metadata.t.replicas, metadata.t.isr, metadata.t.target) == ((4, 1), (4, 1), ())
    assert (metadata.t.leader, metadata.t.leader_epoch) == (1, 1)


# ---------------------------------------------------------------- what crosses a reassignment


def test_a_reassignment_in_progress_survives_whatever_happens_to_the_brokers() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.expand(4)
    crossing = [
        lambda: metadata.fence(4),
        lambda: metadata.unfence(4),
        lambda: metadata.register(4, incarnation=1),
        lambda: metadata.register(5),
        lambda: metadata.elect(2),
        lambda: metadata.propose([2, 3]),
        lambda: metadata.fence(2, 3),
        lambda: metadata.elect(5, unclean=True),
        lambda: metadata.register(5, incarnation=1),
        lambda: metadata.register(5),
    ]
    for cross in crossing:
        cross()
        t = metadata.t
        assert (t.replicas, t.joining, t.target) == ((1, 2, 3, 4, 5), (4, 5), (4, 5))
    assert (metadata.t.leader, metadata.t.isr) == (5, (5,))


def test_a_newcomer_that_is_fenced_after_it_joined_has_to_join_again() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.expand(4)
    metadata.fence(4)
    metadata.unfence(4)
    metadata.expand(5)
    assert metadata.t.target == (4, 5), "4 is not in the ISR"
    metadata.expand(4)
    assert (metadata.t.replicas, metadata.t.isr, metadata.t.leader) == ((4, 5), (4, 5), 4)


def test_shrinking_away_a_newcomer_does_not_end_the_reassignment() -> None:
    metadata = with_spares()
    metadata.reassign(4, 5)
    metadata.expand(4)
    metadata.propose([1, 2, 3])
    assert (metadata.t.isr, metadata.t.joining) == ((1, 2, 3), (4, 5))


def test_an_unclean_election_of_the_newcomer_does_not_drop_the_original_replicas_by_itself() -> None:
    """The original replicas may have more records than the newcomer; a proposal, or the same reassignment again,
    completes.
    """
    for finish in (lambda m: m.propose([4]), lambda m: m.reassign(4)):
        metadata = with_spares()
        metadata.reassign(4)
        metadata.fence(1, 2, 3)
        metadata.elect(4, unclean=True)
        assert (metadata.t.replicas, metadata.t.isr) == ((1, 2, 3, 4), (4,))
        finish(metadata)
        assert (metadata.t.replicas, metadata.t.isr, metadata.t.leader) == ((4,), (4,), 4)
        assert metadata.t.leader_epoch == 5, "it led already"

"""AlterPartition and AdvanceLogStart (protocol section 4; KIP-497, KIP-903)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest

from stratalog.engine.metadata.dump import dump, load
from stratalog.engine.metadata.partition_commands import (
    AddRules,
    AdvanceLogStart,
    Altered,
    AlterPartition,
    LogStart,
    PartitionAnswer,
    RefusedPartition,
    WantedRule,
)
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidCallError,
    InvalidUpdateVersionError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.removal import CommittedRule, Rule
from tests.unit.metadata_harness import Metadata, an_id, refusal, with_newcomer

# ------------------------------------------------------------------------ alter partition


def test_the_isr_shrinks_in_one_commit() -> None:
    """Section 4, "Shrink": commit the new ISR (partition_epoch + 1)."""
    metadata = Metadata()
    assert metadata.propose([1, 3]) == Altered(an_id(99), 0, 1)
    assert (metadata.t.isr, metadata.t.partition_epoch, metadata.t.leader_epoch) == ((1, 3), 1, 1)


def test_the_isr_expands_in_two_commits() -> None:
    """Section 4, "Expand" (!)."""
    metadata = Metadata()
    metadata.propose([1, 2])
    assert metadata.propose([1, 2], adding=[3]) == Altered(an_id(99), 0, 2)
    assert (metadata.t.isr, metadata.t.adding) == ((1, 2), (3,))
    assert metadata.propose([3, 1, 2]) == Altered(an_id(99), 0, 3)
    assert (metadata.t.isr, metadata.t.adding) == ((1, 2, 3), ())


def test_nobody_joins_the_isr_in_one_commit() -> None:
    metadata = Metadata()
    metadata.propose([1, 2])
    assert isinstance(refusal(metadata.propose([1, 2, 3])), InvalidCallError)
    assert metadata.t.isr == (1, 2)


def test_any_driver_may_drop_an_adding_whose_proposer_died() -> None:
    """Section 4, "Shrink": or without an *adding* whose proposer died."""
    metadata = with_newcomer()
    assert isinstance(metadata.propose([1, 2]), Altered)
    assert metadata.t.adding == ()


def test_a_stale_partition_epoch_is_refused() -> None:
    metadata = Metadata()
    stale = metadata.proposal([1, 2])
    metadata.propose([1, 3])
    (answer,) = metadata.do(AlterPartition((stale,)))
    assert isinstance(refusal(answer), InvalidUpdateVersionError)
    assert metadata.t.isr == (1, 3)


@pytest.mark.parametrize("leader_epoch", [0, 2])
def test_another_leader_epoch_is_refused(leader_epoch: int) -> None:
    metadata = Metadata()
    assert isinstance(refusal(metadata.propose([1, 2], leader_epoch=leader_epoch)), FencedLeaderEpochError)


def test_a_fenced_member_is_ineligible() -> None:
    """KIP-903: INELIGIBLE_REPLICA when the broker is fenced."""
    metadata = Metadata()
    metadata.fence(3)
    answer = metadata.propose([1, 2], adding=[3])
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert "broker 3" in str(refusal(answer))


def test_kip_903_a_member_seen_under_an_older_registration_is_ineligible() -> None:
    """KIP-903, the race: F is being added; it loses its disk and registers again; the delayed proposal, which
    relies on the old storage, must not make the empty one a member."""
    metadata = Metadata()
    metadata.propose([1, 2])
    seen = metadata.member(3)
    metadata.register(3, incarnation=1)
    proposal = metadata.proposal([1, 2], adding=[3])
    assert proposal.adding != (seen,)
    (answer,) = metadata.do(AlterPartition((replace(proposal, adding=(seen,)),)))
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert metadata.t.adding == ()


def test_kip_903_the_second_commit_checks_the_epochs_as_well() -> None:
    metadata = with_newcomer()
    second = metadata.proposal([1, 2, 3])
    metadata.register(3)  # the root is the same, so adding stays, and so does the partition epoch
    assert metadata.t.partition_epoch == second.partition_epoch
    (answer,) = metadata.do(AlterPartition((second,)))
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert metadata.t.isr == (1, 2)


def test_a_proposal_keeps_the_leader_and_names_replicas_once() -> None:
    metadata = Metadata()
    metadata.register(4)
    for isr, adding in (([2, 3], []), ([], []), ([1, 1], []), ([1, 2, 4], []), ([1, 2], [2])):
        assert isinstance(refusal(metadata.propose(isr, adding)), InvalidCallError)
    assert metadata.t == Metadata().t


def test_a_partition_without_a_leader_takes_no_proposal() -> None:
    metadata = Metadata()
    metadata.fence(2, 3, 1)
    assert isinstance(refusal(metadata.propose([1])), InvalidCallError)


def test_a_proposal_of_what_is_there_commits_nothing() -> None:
    metadata = Metadata()
    command = AlterPartition((metadata.proposal([1, 2, 3]),))
    decision = command.decide(metadata.image)
    assert (decision.records, decision.answer) == ((), (Altered(an_id(99), 0, 0),))


def test_one_refusal_does_not_stop_the_batch() -> None:
    metadata = Metadata()
    unknown = metadata.proposal([1], partition=7)
    command = AlterPartition((unknown, metadata.proposal([1, 2]), metadata.proposal([1, 3])))
    missing, first, second = metadata.do(command)
    assert isinstance(refusal(missing), UnknownTopicOrPartitionError)
    assert first == Altered(an_id(99), 0, 1)
    assert isinstance(refusal(second), InvalidUpdateVersionError)


def test_a_shrink_names_no_leader_and_starts_no_epoch() -> None:
    """Section 4, "Shrink": also in the middle of an expansion, which continues."""
    metadata = with_newcomer()
    metadata.propose([1], adding=[3])
    assert (metadata.t.leader, metadata.t.leader_epoch) == (1, 1)
    assert (metadata.t.isr, metadata.t.adding) == ((1,), (3,))


def test_an_expansion_that_a_change_of_the_leader_crossed_starts_again() -> None:
    """Section 4, "Expand": a replica added under the old leader has not shown its log to the new one."""
    metadata = with_newcomer()
    second = metadata.proposal([1, 2, 3])
    metadata.elect(2)
    (answer,) = metadata.do(AlterPartition((second,)))
    assert isinstance(refusal(answer), FencedLeaderEpochError)
    assert isinstance(refusal(metadata.propose([1, 2, 3])), InvalidCallError)
    assert metadata.t.isr == (1, 2)


# -------------------------------------------------------------------------------- KIP-903

Step = Callable[[Metadata], PartitionAnswer | int | None]


def proposed(isr: list[int], adding: list[int]) -> Step:
    """A proposal of a leader that saw only the first registrations, and knows everything else: only the broker
    epochs can stop it.
    """

    def step(metadata: Metadata) -> PartitionAnswer:
        wanted = metadata.proposal(isr, adding)

        def as_seen(member: int) -> int:
            return member - 1  # Brokers 1 to 3 were registered by the records at offsets 0 to 2.

        seen = replace(
            wanted,
            isr=tuple(replace(m, broker_epoch=as_seen(m.broker_id)) for m in wanted.isr),
            adding=tuple(replace(m, broker_epoch=as_seen(m.broker_id)) for m in wanted.adding),
        )
        (answer,) = metadata.do(AlterPartition((seen,)))
        return answer

    return step


KIP_903: dict[str, Step] = {
    "adding": proposed([1, 2], [3]),
    "member": proposed([1, 2, 3], []),
    "fenced": lambda metadata: metadata.fence(3),
    "replaced": lambda metadata: metadata.register(3, incarnation=1),
}


@pytest.mark.parametrize("order", list(permutations(KIP_903)), ids=" ".join)
def test_kip_903_a_replaced_disk_never_is_in_the_isr_whatever_the_order(order: tuple[str, ...]) -> None:
    """KIP-903, "Motivation": the broker catches up, is proposed, fails, is fenced, gets an empty disk and
    registers; the proposals arrive at any time. From its registration on it is neither a member nor added.
    """
    metadata = Metadata()
    metadata.propose([1, 2])
    was_replaced = False
    for name in order:
        before = metadata.t
        answer = KIP_903[name](metadata)
        was_replaced |= name == "replaced"
        if was_replaced:
            assert 3 not in (*metadata.t.isr, *metadata.t.adding)
        if was_replaced and name in ("adding", "member"):
            assert isinstance(answer, RefusedPartition)
            assert isinstance(answer.error, IneligibleReplicaError | InvalidCallError)
            assert metadata.t == before


@pytest.mark.parametrize("order", list(permutations(["adding", "member", "restarted"])), ids=" ".join)
def test_kip_903_a_broker_that_restarts_with_its_disk_needs_new_proposals(order: tuple[str, ...]) -> None:
    """Committed changes from before the registration stay; a change that was only proposed is refused."""
    steps = {**KIP_903, "restarted": lambda metadata: metadata.register(3)}
    metadata = Metadata()
    metadata.propose([1, 2])
    for name in order:
        steps[name](metadata)
    before = order[: order.index("restarted")]
    assert metadata.t.isr == ((1, 2, 3) if before == ("adding", "member") else (1, 2))
    assert metadata.t.adding == ((3,) if "adding" in before and "member" not in before[1:] else ())


def test_kip_903_every_member_that_is_proposed_is_checked() -> None:
    """Current members are checked, too: a broker that registered since may have lost its records."""
    metadata = Metadata()
    stale = metadata.proposal([1, 2])
    metadata.register(2)
    assert metadata.t.partition_epoch == stale.partition_epoch
    (answer,) = metadata.do(AlterPartition((stale,)))
    assert isinstance(refusal(answer), IneligibleReplicaError)
    assert "broker 2 was seen under broker epoch 1" in str(refusal(answer))
    assert metadata.t.isr == (1, 2, 3)


# ------------------------------------------------------------------------------ log starts


def test_log_starts_only_grow() -> None:
    metadata = Metadata()
    (answer,) = metadata.do(AdvanceLogStart((LogStart(an_id(99), 0, 10),)))
    assert answer == Altered(an_id(99), 0, 1)
    (answer,) = metadata.do(AdvanceLogStart((LogStart(an_id(99), 0, 4),)))
    assert answer == Altered(an_id(99), 0, 1)
    assert metadata.t.log_start_offset == 10


def test_the_greater_of_two_log_starts_in_a_batch_counts() -> None:
    metadata = Metadata()
    answers = metadata.do(AdvanceLogStart((LogStart(an_id(99), 0, 9), LogStart(an_id(99), 0, 3))))
    assert answers == (Altered(an_id(99), 0, 1),) * 2
    assert (metadata.t.log_start_offset, metadata.t.partition_epoch) == (9, 1)


def test_the_log_start_of_an_unknown_partition_is_refused_by_itself() -> None:
    metadata = Metadata()
    missing, fine = metadata.do(AdvanceLogStart((LogStart(an_id(5), 0, 9), LogStart(an_id(99), 0, 9))))
    assert isinstance(refusal(missing), UnknownTopicOrPartitionError)
    assert isinstance(fine, Altered)


# ------------------------------------------------------------------------------ rules of removal


def compacted() -> Metadata:
    metadata = Metadata()
    metadata.do(AlterConfigs("t", {"cleanup.policy": "compact"}))
    return metadata


def wanted_rule(
    metadata: Metadata, bound: int, after: int, now_ms: int = 0, epoch: int | None = None, behind: int = 0
) -> WantedRule:
    return WantedRule(
        topic_id=an_id(99),
        partition=0,
        bound=bound,
        after=after,
        leader_epoch=metadata.t.leader_epoch if epoch is None else epoch,
        now_ms=now_ms,
        committed_ms=now_ms + 1,
        delete_retention_ms=100,
        partition_epoch=metadata.t.partition_epoch - behind,
    )


def rules(metadata: Metadata) -> tuple[CommittedRule, ...]:
    return metadata.image.rules_of(TopicIdPartition(an_id(99), 0))


def add_rule(metadata: Metadata, *given: int, **more: int) -> PartitionAnswer:
    (answer,) = metadata.do(AddRules((wanted_rule(metadata, *given, **more),)))
    return answer


def test_rules_are_numbered_and_kept_while_the_next_one_needs_them() -> None:
    metadata = compacted()
    assert add_rule(metadata, 10, 0, now_ms=0) == Altered(an_id(99), 0, 1)
    assert add_rule(metadata, 20, 1, now_ms=50) == Altered(an_id(99), 0, 2), "earlier views are outdated"
    assert rules(metadata) == (CommittedRule(Rule(1, 10), 1), CommittedRule(Rule(2, 20), 51))
    add_rule(metadata, 20, 2, now_ms=151)
    assert rules(metadata) == (CommittedRule(Rule(2, 20), 51), CommittedRule(Rule(3, 20, 10), 152))
    assert metadata.image.view(an_id(99), 0).generation == 3
    assert load(dump(metadata.image), metadata.image.next_offset) == metadata.image


@pytest.mark.parametrize(
    ("bound", "after", "epoch", "behind"),
    [(30, 0, 1, 0), (30, 2, 1, 0), (9, 1, 1, 0), (30, 1, 2, 0), (30, 1, 1, 1)],
)
def test_a_rule_that_others_have_overtaken_is_refused(bound: int, after: int, epoch: int, behind: int) -> None:
    metadata = compacted()
    add_rule(metadata, 10, 0)
    error = refusal(add_rule(metadata, bound, after, epoch=epoch, behind=behind))
    assert isinstance(error, FencedLeaderEpochError if epoch == 2 else InvalidUpdateVersionError)
    assert rules(metadata) == (CommittedRule(Rule(1, 10), 1),)


@pytest.mark.parametrize("policy", ["delete", "snapshot", None])
def test_a_topic_that_is_not_compacted_any_more_gets_no_rule(policy: str | None) -> None:
    """The topic's configs are changed between the look at its logs and the commit."""
    metadata = compacted()
    metadata.do(AlterConfigs("t", {"cleanup.policy": policy}))
    error = refusal(add_rule(metadata, 10, 0))
    assert isinstance(error, InvalidUpdateVersionError)
    assert f"cleanup.policy is now {policy or 'delete'}" in str(error)
    assert not rules(metadata)
    metadata.do(AlterConfigs(None, {"cleanup.policy": "compact,delete"}))
    assert isinstance(add_rule(metadata, 10, 0), RefusedPartition if policy else Altered)


def test_a_partition_gets_one_rule_per_commit() -> None:
    metadata = compacted()
    wanted = wanted_rule(metadata, 10, 0)
    fine, twice = metadata.do(AddRules((wanted, wanted)))
    assert isinstance(fine, Altered)
    assert isinstance(refusal(twice), InvalidUpdateVersionError)


def test_a_partition_with_a_rule_has_no_election_that_gives_up_records() -> None:
    """The later record of a key, for which an earlier one was removed, may be lost."""
    metadata = compacted()
    add_rule(metadata, 10, 0)
    metadata.elect(2)
    assert rules(metadata)[-1].rule == Rule(1, 10), "a clean election loses nothing"
    metadata.fence(1, 2)
    metadata.fence(3)
    metadata.unfence(1)
    assert "cleanup.policy = compact" in str(refusal(metadata.elect(1, unclean=True)))

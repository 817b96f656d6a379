"""Commands on the metadata log: decided, committed once, or refused (protocol section 5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.engine.metadata.commands import FenceBroker, RegisterBroker
from stratalog.engine.metadata.topic_commands import AlterConfigs, CreateTopic
from stratalog.partitions.errors import (
    NoMajorityError,
    OutcomeUnknownError,
    TopicAlreadyExistsError,
    UnknownBrokerError,
)
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import IMPATIENT, Quorum, add, config, data, once, unreachable

# ----------------------------------------------------------------------------------- submit


def test_commands_are_decided_on_what_others_have_committed() -> None:
    quorum = Quorum()
    one, two = quorum.client(1), quorum.client(2)
    assert one.submit(RegisterBroker(1, an_id(1), "a", "x")) == 1
    two.submit(CreateTopic(name="t", topic_id=an_id(5)))
    with pytest.raises(TopicAlreadyExistsError):
        one.submit(CreateTopic(name="t", topic_id=an_id(6)))
    one.submit(AlterConfigs("t", {"segment.bytes": "1"}))
    assert two.image().topic("t").configs == {"segment.bytes": "1"}


def test_a_refused_command_changes_nothing_and_claims_nothing() -> None:
    quorum = Quorum()
    before = quorum.names(1)
    with pytest.raises(UnknownBrokerError):
        quorum.client().submit(FenceBroker(9))
    assert quorum.names(1) == before


def test_a_command_with_nothing_to_change_writes_nothing() -> None:
    quorum = Quorum()
    client = quorum.client()
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    before = quorum.names(1)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert quorum.names(1) == before


def test_a_driver_that_holds_its_claim_commits_without_a_read() -> None:
    """The commit shows whether the state that the decision used was the latest."""
    quorum = Quorum(3)
    client = quorum.client()
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    before = [store.counts.snapshot() for store in quorum.stores.values()]
    client.submit(AlterConfigs(None, {"segment.bytes": "2"}))
    for store, was in zip(quorum.stores.values(), before, strict=True):
        spent = store.counts - was
        assert (spent.creates, spent.lists, spent.reads) == (1, 1, 1)


def test_an_old_claim_refuses_nothing_and_leaves_nothing_as_it_is() -> None:
    """A refusal, and an answer that changes nothing, rest on a linearizable read."""
    quorum = Quorum(3)
    client, other = quorum.client(1), quorum.client(2)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    other.submit(AlterConfigs(None, {"segment.bytes": "2"}))
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert quorum.log().read().configs == {"segment.bytes": "1"}
    other.submit(RegisterBroker(1, an_id(1), "a", "x"))
    client.submit(FenceBroker(1))
    assert quorum.log().read().brokers[1].fenced


def test_a_batch_that_landed_though_its_claimant_was_fenced_is_recognised() -> None:
    """ "After an unknown outcome the caller reads before it retries ... so that a retry is recognised": the
    registration's answer is its first epoch, and there is no second one."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    other = quorum.log()

    def fenced_after(call: Callable[[], object]) -> object:
        created = call()
        other.claim()  # the driver sees the batch, and continues from it
        return created

    once(store, "create", data, fenced_after)
    answer = quorum.client(through=through).submit(RegisterBroker(1, an_id(1), "a", "x"))
    assert answer == 1
    assert quorum.log().read().brokers[1].broker_epoch == 1


def test_a_batch_that_was_cut_off_is_decided_again() -> None:
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    other = quorum.log()

    def cut_off(call: Callable[[], object]) -> object:
        other.claim()
        other.commit(config(1))
        return call()

    once(store, "create", data, cut_off)
    answer = quorum.client(through=through).submit(RegisterBroker(1, an_id(1), "a", "x"))
    assert answer == 2
    assert quorum.log().read().brokers[1].broker_epoch == 2


def test_a_refusal_that_rests_on_what_a_claim_found_is_committed_first() -> None:
    """Otherwise the command might be refused because of a topic that never existed."""
    quorum = Quorum(3)
    quorum.client().submit(RegisterBroker(1, an_id(1), "a", "x"))
    through = quorum.hooked()
    cut = quorum.hooked()
    rival = quorum.log(through=cut, patience=IMPATIENT)

    def rival_reaches_one_voter(call: Callable[[], object]) -> object:
        image = rival.claim()
        cut[1].hook = cut[2].hook = unreachable
        with pytest.raises(OutcomeUnknownError):
            rival.commit(CreateTopic(name="t", topic_id=an_id(5)).decide(image).records)
        return call()

    once(through[0], "create", lambda name: name.endswith(".claim"), rival_reaches_one_voter)
    with pytest.raises(TopicAlreadyExistsError):
        quorum.client(through=through).submit(CreateTopic(name="t", topic_id=an_id(6)))
    without = quorum.hooked()
    without[0].hook = unreachable
    assert quorum.log(through=without).read().topic("t").topic_id == an_id(5)


def test_a_lost_majority_after_an_attempt_leaves_the_outcome_unknown() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    client = quorum.client(through=through)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))

    def then_nothing(call: Callable[[], object]) -> object:
        created = call()
        for store in through[1:]:
            store.hook = unreachable
        return created

    once(through[0], "create", data, then_nothing)
    with pytest.raises(OutcomeUnknownError, match="AlterConfigs may have been committed"):
        client.submit(AlterConfigs(None, {"segment.bytes": "2"}))


def test_a_change_of_voters_after_an_attempt_leaves_the_outcome_unknown() -> None:
    """Another driver completes the batch, and then adds a voter that the file of this driver does not name."""
    quorum = Quorum(3, others=1)
    client = quorum.client(through=(through := quorum.hooked()[:3]))

    def another_driver(call: Callable[[], object]) -> object:
        created = call()
        add(quorum, 4)
        return created

    once(through[0], "create", data, another_driver)
    with pytest.raises(OutcomeUnknownError, match=r"does not name it.*; AlterConfigs may have been committed"):
        client.submit(AlterConfigs(None, {"segment.bytes": "2"}))
    assert quorum.log().read().configs == {"segment.bytes": "2"}


def test_a_lost_majority_before_any_attempt_is_one_clear_error() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[0].hook = through[1].hook = unreachable
    with pytest.raises(NoMajorityError, match="1 of 3"):
        quorum.client(through=through).submit(AlterConfigs(None, {"segment.bytes": "2"}))


def test_a_driver_that_has_seen_no_majority_writes_nothing_before_there_is_one() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    client = quorum.client(through=through)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    through[1].hook = through[2].hook = unreachable
    with pytest.raises(NoMajorityError):
        client.image()
    before = quorum.names(1)
    with pytest.raises(NoMajorityError, match="1 of 3"):
        client.submit(AlterConfigs(None, {"segment.bytes": "2"}))
    assert quorum.names(1) == before


def test_the_same_seed_makes_the_same_calls() -> None:
    def trace(seed: int) -> list[tuple[str, str]]:
        quorum = Quorum(3)
        through = quorum.hooked()
        calls: list[tuple[str, str]] = []
        for store in through:
            store.hook = lambda what, name, call: (calls.append((what, name)), call())[1]
        quorum.log().claim()
        quorum.client(seed, through).submit(AlterConfigs(None, {"segment.bytes": "1"}))
        return calls

    assert trace(1) == trace(1)

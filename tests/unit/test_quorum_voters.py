"""Voters of the metadata log that come and go, one at a time (protocol section 5; Raft's single-server change)."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from engine.metadata.commands import RegisterBroker, UnregisterBroker
from engine.metadata.image import ClusterImage
from engine.metadata.records import VoterId, VotersRecord
from engine.metadata.topic_commands import AlterConfigs
from engine.metadata.voter_commands import AddVoter, RemoveVoter
from engine.quorum.bootstrap import find_log
from engine.quorum.log import MetadataLog, Patience
from engine.quorum.upkeep import keep_up
from engine.quorum.voter import Voter
from partitions.errors import (
    InvalidCallError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    RetriableError,
    StaleBrokerError,
    StorageError,
    UnknownBrokerError,
)
from tests.unit.quorum_harness import CLUSTER, HookedStore, Quorum, config

IMPATIENT = Patience(attempts=3, courtesy=1)


def unreachable(what: str, name: str, call: Callable[[], object]) -> object:
    raise StorageError("no such mount")


def registered(quorum: Quorum, broker: int) -> VoterId:
    """The root of a broker as it is now, registered."""
    found = quorum.root(broker)
    quorum.client(broker).submit(RegisterBroker(broker, found.directory_id, None, "x"))
    return found.id


def add(quorum: Quorum, broker: int) -> tuple[VoterId, ...]:
    voters = quorum.client().change_voters(AddVoter(registered(quorum, broker)))
    quorum.look()
    return voters


def remove(quorum: Quorum, broker: int) -> tuple[VoterId, ...]:
    voters = quorum.client().change_voters(RemoveVoter(broker))
    quorum.look()
    return voters


def brokers(image: ClusterImage) -> list[int]:
    return sorted(voter.broker_id for voter in image.voters)


def cut(quorum: Quorum, *away: int) -> list[HookedStore]:
    """The stores, some of them out of reach."""
    through = quorum.hooked()
    for broker in away:
        through[broker - 1].hook = unreachable
    return through


# ------------------------------------------------------------------------------- one at a time


def test_a_voter_is_added_and_has_the_whole_log() -> None:
    quorum = Quorum(3, others=1)
    assert [voter.broker_id for voter in add(quorum, 4)] == [1, 2, 3, 4]
    image = quorum.log().read()
    assert image.voters[-1] == quorum.root(4).id
    assert set(quorum.root(4).list().files) == set(quorum.voters[0].list().files)


def test_a_voter_is_removed_and_counts_no_more() -> None:
    quorum = Quorum(3)
    assert [voter.broker_id for voter in remove(quorum, 2)] == [1, 3]
    before = quorum.names(2)
    client = quorum.client(5)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    client.submit(AlterConfigs(None, {"segment.bytes": "2"}))
    assert [name for name in quorum.names(2) if name not in before] == []
    with pytest.raises(NoMajorityError, match="1 of 2 metadata voters"):
        quorum.log(through=cut(quorum, 1)).read()


def test_a_change_of_voters_is_safe_to_repeat() -> None:
    quorum = Quorum(3, others=1)
    registered(quorum, 2)
    add(quorum, 4)
    end = quorum.log().read().next_offset
    client = quorum.client()
    assert client.change_voters(AddVoter(quorum.root(4).id)) == quorum.log().read().voters
    client.change_voters(RemoveVoter(2))
    image = quorum.log().read()
    assert client.change_voters(RemoveVoter(2)) == image.voters
    assert (image.next_offset, quorum.log().read()) == (end + 2, image)


def test_two_changes_in_one_batch_are_refused() -> None:
    """ "change one at a time": majorities of the voters before and after would not have to meet."""
    quorum = Quorum(3, others=2)
    four, five = registered(quorum, 4), registered(quorum, 5)
    log = quorum.log()
    log.claim()
    image = log.commit(config(1))
    wanted = VotersRecord(cluster_id=CLUSTER, voters=(*image.voters[1:], four))
    names = quorum.names(1)
    with pytest.raises(InvalidCallError, match="they change one at a time"):
        log.commit([wanted])
    assert quorum.names(1) == names
    log.claim()
    log.commit(config(2))
    with pytest.raises(InvalidCallError, match="they change one at a time"):
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=(*image.voters, four, five))])


def test_voters_change_only_on_top_of_what_is_committed() -> None:
    """The flaw of the single-server change as it was first published: what the claimant found may hold a change
    that is not committed, and two changes on top of each other make majorities that do not meet."""
    quorum = Quorum(3, others=1)
    four = registered(quorum, 4)
    log = quorum.log()
    image = log.claim()
    with pytest.raises(InvalidCallError, match="only after something else was committed"):
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=(*image.voters, four))])


def test_a_change_counts_on_a_majority_of_the_voters_before_and_after() -> None:
    quorum = Quorum(1, others=1)
    four = registered(quorum, 2)
    through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()
    image = log.commit(config(1))
    through[1].hook = lambda what, name, call: unreachable(what, name, call) if what == "create" else call()
    with pytest.raises(OutcomeUnknownError):  # voter 1 alone has it: a majority of one, and half of two
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=(*image.voters, four))])
    with pytest.raises(NoMajorityError):
        quorum.log(through=cut(quorum, 2)).read()  # in force where it stands, though not committed
    assert brokers(quorum.log().read()) == [1, 2]  # and helped


def test_a_new_voter_that_cannot_be_written_changes_nothing() -> None:
    quorum = Quorum(3, others=1)
    four = registered(quorum, 4)
    through = quorum.hooked()
    through[3].hook = lambda what, name, call: unreachable(what, name, call) if what == "create" else call()
    before = quorum.log().read()
    with pytest.raises(StorageError):
        quorum.client(through=through).change_voters(AddVoter(four))
    assert quorum.log().read() == before


# -------------------------------------------------------------------------------- bad changes


def test_the_last_voter_stays() -> None:
    quorum = Quorum(1)
    with pytest.raises(InvalidCallError, match="broker 1 is the only metadata voter"):
        remove(quorum, 1)


def test_a_voter_is_a_registered_broker_with_its_registered_root() -> None:
    quorum = Quorum(3, others=1)
    with pytest.raises(UnknownBrokerError, match="broker 4 is not registered"):
        quorum.client().change_voters(AddVoter(quorum.root(4).id))
    registered(quorum, 4)
    quorum.wipe(4)
    with pytest.raises(StaleBrokerError, match="bootstrap or register the broker first"):
        quorum.client().change_voters(AddVoter(quorum.root(4).id))
    with pytest.raises(UnknownBrokerError, match="broker 9 is neither a metadata voter nor registered"):
        remove(quorum, 9)


def test_a_wiped_voter_is_removed_before_it_is_added() -> None:
    quorum = Quorum(3)
    quorum.wipe(2)
    with pytest.raises(InvalidCallError, match="broker 2 is a metadata voter with other storage"):
        add(quorum, 2)


def test_a_broker_that_is_a_voter_is_not_unregistered() -> None:
    quorum = Quorum(3, others=1)
    add(quorum, 4)
    with pytest.raises(InvalidCallError, match="metadata voter"):
        quorum.client().submit(UnregisterBroker(4))
    remove(quorum, 4)
    quorum.client().submit(UnregisterBroker(4))


# ------------------------------------------------------------------- a wiped voter comes back


def replace(quorum: Quorum, broker: int) -> None:
    """What jobs.quorum does: remove the incarnation that is lost, add the one that is there."""
    there = registered(quorum, broker)
    client = quorum.client()
    client.change_voters(RemoveVoter(broker, returning=True))
    client.change_voters(AddVoter(there))
    quorum.look()


@pytest.mark.parametrize("snapshots", [0, 3])
def test_a_wiped_voter_comes_back_with_snapshot_and_log(snapshots: int) -> None:
    """Section 5: "a wiped voter is no voter until it is added again, one change at a time"; KIP-630, "Fetching
    Snapshots": where the log no longer starts at 0, it gets the snapshot first."""
    quorum = Quorum(3)
    client = quorum.client()
    for value in range(1, snapshots + 1):
        client.submit(AlterConfigs(None, {"segment.bytes": str(value)}))
        keep_up(quorum.log(), quorum.clock, lag_ms=10**12)
    quorum.wipe(2)
    replace(quorum, 2)
    image = quorum.log().read()
    assert (brokers(image), image.awaited) == ([1, 2, 3], ())
    for away in (1, 3):  # it is a majority with either of the others
        assert quorum.log(through=cut(quorum, away)).read() == image
    back = quorum.root(2).list()
    assert bool(back.checkpoints) == (snapshots > 0)
    assert all(name in quorum.voters[0].list().files for name in back.files)


def test_every_voter_may_be_wiped_and_come_back_in_turn() -> None:
    """In the end nothing is where it was written first, and everything is there."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "7"}))
    sleeper = quorum.log(9)
    sleeper.read()
    for broker in (1, 2, 3, 1):
        quorum.wipe(broker)
        replace(quorum, broker)
    assert quorum.log().read().configs == {"segment.bytes": "7"}
    found = find_log(CLUSTER, [1, 2, 3], quorum.stores)
    log = MetadataLog(
        CLUSTER,
        found.voters,
        clock=quorum.clock,
        rng=random.Random(1),
        new_id=quorum.new_id,
        stores=quorum.stores,
        hint=found.state,
    )
    assert log.read().configs == {"segment.bytes": "7"}
    with pytest.raises(NoMajorityError, match="wiped"):
        sleeper.read()  # all voters that it knew are gone; whoever opens the cluster anew finds the others


def test_a_wiped_voter_does_not_vote_before_it_is_added() -> None:
    quorum = Quorum(3)
    quorum.wipe(2)
    registered(quorum, 2)
    with pytest.raises(NoMajorityError, match="wiped"):
        quorum.log(through=cut(quorum, 1)).read()


def test_claims_that_were_made_on_a_wiped_voter_are_in_nobodys_way() -> None:
    """A root that was wiped can be written, and what is claimed there cannot be seen: it is not asked."""
    quorum = Quorum(3)
    quorum.wipe(1)
    assert quorum.voters[0].claim(2, "somebody else")
    log = quorum.log()
    log.claim()
    assert log.commit(config(1)) == quorum.log().read()


# ---------------------------------------------------------------------- drivers that slept


def test_a_driver_that_slept_through_changes_follows_them_one_by_one() -> None:
    """Voters 1, 2, 3 become 3, 4, 5: majorities of then and now do not meet."""
    quorum = Quorum(3, others=2)
    sleeper = quorum.log(8)
    sleeper.read()
    add(quorum, 4)
    remove(quorum, 1)
    add(quorum, 5)
    remove(quorum, 2)
    quorum.client(7).submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert (brokers(image := sleeper.read()), image.configs) == ([3, 4, 5], {"segment.bytes": "1"})


@pytest.mark.parametrize("away", [(), (3,), (3, 4, 5)])
def test_voters_of_old_do_not_show_an_old_log_as_the_present_one(away: tuple[int, ...]) -> None:
    """A majority of the voters that the driver knows holds an old log, unchallenged: its readers learn that
    others decide now, or that they cannot tell."""
    quorum = Quorum(3, others=2)
    through = quorum.hooked()
    sleeper = quorum.log(8, through=through, patience=IMPATIENT)
    sleeper.read()
    add(quorum, 4)
    remove(quorum, 1)
    add(quorum, 5)
    remove(quorum, 2)
    image = quorum.log().read()
    for broker in away:
        through[broker - 1].hook = unreachable
    if len(away) < 2:
        assert sleeper.read() == image
    else:
        with pytest.raises(NoMajorityError):
            sleeper.read()


def test_a_claimant_of_old_commits_nothing() -> None:
    """A zombie with a claim of the voters of old, which a majority of the present ones has never seen."""
    quorum = Quorum(3, others=2)
    zombie = quorum.log(8, patience=IMPATIENT)
    zombie.claim()
    add(quorum, 4)
    remove(quorum, 1)
    add(quorum, 5)
    remove(quorum, 2)
    image = quorum.log().read()
    with pytest.raises(NotControllerError):
        zombie.commit(config(9))
    assert quorum.log().read() == image
    zombie.claim()
    assert zombie.commit(config(9)) == quorum.log().read()


def test_a_claim_under_voters_of_old_is_made_again_under_the_present_ones() -> None:
    quorum = Quorum(3, others=1)
    sleeper = quorum.log(8)
    add(quorum, 4)
    remove(quorum, 1)
    before = quorum.voters[0].list().claims
    sleeper.claim()
    assert max(quorum.root(4).list().claims) > max(before)
    assert sleeper.commit(config(1)) == quorum.log().read()


# ------------------------------------------------------------------------- finding the voters


def found(quorum: Quorum, named: list[int], *, as_logged: bool = False) -> list[int]:
    return [voter.broker_id for voter in find_log(CLUSTER, named, quorum.stores, as_logged=as_logged).voters]


def test_the_present_voters_are_found() -> None:
    quorum = Quorum(3, others=1)
    add(quorum, 4)
    remove(quorum, 2)
    assert found(quorum, [1, 3, 4]) == [1, 3, 4]
    with pytest.raises(
        InvalidCallError, match=r"names brokers \[1, 2, 3\] as voters, the metadata log \[1, 3, 4\]"
    ):
        found(quorum, [1, 2, 3])
    assert found(quorum, [1, 2, 3], as_logged=True) == [1, 3, 4]


def test_voters_that_the_file_does_not_name_at_all_are_found() -> None:
    """All voters of the file have been removed since, and wiped."""
    quorum = Quorum(1, others=1)
    add(quorum, 2)
    remove(quorum, 1)
    quorum.wipe(1)
    assert found(quorum, [1], as_logged=True) == [2]
    with pytest.raises(InvalidCallError, match=r"names brokers \[1\] as voters, the metadata log \[2\]"):
        found(quorum, [1])


def test_a_voter_without_an_entry_in_the_file_is_named() -> None:
    quorum = Quorum(1, others=1)
    two = registered(quorum, 2)
    log = quorum.log()
    quorum.client().change_voters(AddVoter(two))
    with pytest.raises(InvalidCallError, match=r"brokers \[2\] are metadata voters"):
        find_log(CLUSTER, [1], {1: quorum.stores[1]}, as_logged=True)
    del quorum.stores[2]
    with pytest.raises(InvalidCallError, match="broker 2 is a metadata voter"):
        log.read()


def test_a_cluster_can_be_opened_in_the_middle_of_a_replacement() -> None:
    """I7: whoever replaced the voter died between the two changes; the file is right."""
    quorum = Quorum(3)
    quorum.wipe(2)
    quorum.client().change_voters(RemoveVoter(2, returning=True))
    assert found(quorum, [1, 2, 3]) == [1, 3]
    add(quorum, 2)
    assert found(quorum, [1, 2, 3]) == [1, 3, 2]


# --------------------------------------------------------------------------------- every crash


class CrashError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("effect", ["before", "after"])
@pytest.mark.parametrize("fault", [CrashError, StorageError])
def test_a_replacement_goes_on_after_a_fault_at_any_store_call(effect: str, fault: type[BaseException]) -> None:
    """I7, for the changes of a voter: nothing committed is lost, and the replacement can be repeated."""
    for nth in range(1, 1000):
        quorum = Quorum(3)
        quorum.client().submit(AlterConfigs(None, {"segment.bytes": "7"}))
        keep_up(quorum.log(), quorum.clock, lag_ms=0)
        quorum.wipe(2)
        there = registered(quorum, 2)
        through = quorum.hooked()
        calls = failing_at(through, nth, fault, effect)
        with suppress(CrashError, RetriableError, OutcomeUnknownError, NotControllerError):
            client = quorum.client(5, through)
            client.change_voters(RemoveVoter(2, returning=True))
            client.change_voters(AddVoter(there))
        image = quorum.log().read()
        assert image.configs == {"segment.bytes": "7"}
        assert found(quorum, [1, 2, 3])
        if there not in image.voters:
            replace(quorum, 2)
        quorum.look()
        final = quorum.log().read()
        assert brokers(final) == [1, 2, 3]
        for away in (1, 3):
            assert quorum.log(through=cut(quorum, away)).read() == final
        if calls[0] < nth:
            return
    raise AssertionError("it never came to an end")


def failing_at(stores: list[HookedStore], nth: int, fault: type[BaseException], effect: str) -> list[int]:
    """Raise at the nth call, before or after it takes effect; what is returned counts the calls."""
    calls = [0]

    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        calls[0] += 1
        if calls[0] != nth:
            return call()
        if effect == "after":
            call()
            if fault is not CrashError and what in ("create", "commit"):
                raise OutcomeUnknownError("no answer")
        raise fault("failed")

    for store in stores:
        store.hook = hook
    return calls


def test_a_voter_says_which_incarnation_it_is() -> None:
    quorum = Quorum(1)
    voter: Voter = quorum.root(1)
    assert voter.id == VoterId(1, voter.directory_id) == quorum.log().read().voters[0]

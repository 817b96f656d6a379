"""Voters of the metadata log that are added and removed, one at a time (protocol section 5; Raft's single-server
change)."""

from __future__ import annotations

import random

import pytest

from stratalog.engine.metadata.commands import UnregisterBroker
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import VoterId, VotersRecord
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.metadata.voter_commands import AddVoter, RemoveVoter
from stratalog.engine.quorum.bootstrap import find_log
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.errors import (
    InvalidCallError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    StaleBrokerError,
    StorageError,
    UnknownBrokerError,
)
from stratalog.partitions.paths import CheckpointName, ChunkName, ClaimName, DataName
from tests.unit.quorum_harness import (
    CLUSTER,
    IMPATIENT,
    HookedStore,
    Quorum,
    add,
    config,
    registered,
    remove,
    unreachable,
)


def brokers(image: ClusterImage) -> list[int]:
    return sorted(voter.broker_id for voter in image.voters)


def cut(quorum: Quorum, *away: int) -> list[HookedStore]:
    """The stores, some of them unreachable."""
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
    with pytest.raises(InvalidCallError, match="change one voter at a time"):
        log.commit([wanted])
    assert quorum.names(1) == names
    log.claim()
    log.commit(config(2))
    with pytest.raises(InvalidCallError, match="change one voter at a time"):
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=(*image.voters, four, five))])


def test_voters_change_only_on_top_of_what_is_committed() -> None:
    """The flaw of the single-server change as first published: the claimant may find an uncommitted change, and
    two changes on top of each other make majorities that do not meet."""
    quorum = Quorum(3, others=1)
    four = registered(quorum, 4)
    log = quorum.log()
    image = log.claim()
    with pytest.raises(InvalidCallError, match="only after another record has been committed"):
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=(*image.voters, four))])


def test_a_change_counts_on_a_majority_of_the_voters_before_and_after() -> None:
    quorum = Quorum(1, others=1)
    four = registered(quorum, 2)
    through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()
    image = log.commit(config(1))
    through[1].hook = lambda what, name, call: unreachable(what, name, call) if what == "create" else call()
    with pytest.raises(OutcomeUnknownError):  # only voter 1 has it: a majority of one, and half of two
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=(*image.voters, four))])
    with pytest.raises(NoMajorityError):
        # The change is in force because of its place, although it is not committed.
        quorum.log(through=cut(quorum, 2)).read()
    assert brokers(quorum.log().read()) == [1, 2]  # the read completes the commit


def test_a_removal_that_only_the_removed_voter_has_is_finished() -> None:
    """I7: the driver of the change died when only that voter had the record, and the remaining voter has later
    claims: a claimant on that voter continues from the other voter's log.
    """
    quorum = Quorum(2)
    through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()
    image = log.commit(config(1))
    through[1].hook = lambda what, name, call: unreachable(what, name, call) if what == "create" else call()
    with pytest.raises(OutcomeUnknownError):
        log.commit([VotersRecord(cluster_id=CLUSTER, voters=image.voters[1:])])
    assert quorum.voters[1].claim(9, "somebody who died")
    assert brokers(quorum.log().read()) == [2]
    assert quorum.client().submit(AlterConfigs(None, {"segment.bytes": "2"})) == {"segment.bytes": "2"}


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
    with pytest.raises(InvalidCallError, match="broker 2 is a metadata voter with different storage"):
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
    """Replace like stratalog quorum: remove the lost incarnation, add the present one."""
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
    assert (brokers(image), image.replaced) == ([1, 2, 3], ())
    for away in (1, 3):  # this voter is a majority with either of the others
        assert quorum.log(through=cut(quorum, away)).read() == image
    back = quorum.root(2).list()
    assert bool(back.checkpoints) == (snapshots > 0)
    assert all(name in quorum.voters[0].list().files for name in back.files)


@pytest.mark.slow
def test_every_voter_may_be_wiped_and_come_back_in_turn() -> None:
    """In the end no file is in its original place, and all files exist."""
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
    assert sleeper.read() == log.read()  # all voters that this driver knew are gone


def test_a_wiped_voter_does_not_vote_before_it_is_added() -> None:
    quorum = Quorum(3)
    quorum.wipe(2)
    registered(quorum, 2)
    with pytest.raises(NoMajorityError, match="wiped"):
        quorum.log(through=cut(quorum, 1)).read()


def test_claims_that_were_made_on_a_wiped_voter_are_in_nobodys_way() -> None:
    """A wiped root accepts writes, but claims there cannot be seen, so it is not used."""
    quorum = Quorum(3)
    quorum.wipe(1)
    assert quorum.voters[0].claim(2, "somebody else")
    log = quorum.log()
    log.claim()
    assert log.commit(config(1)) == quorum.log().read()


# ---------------------------------------------------------------------- drivers that slept


@pytest.mark.slow
@pytest.mark.parametrize("knows", ["the log", "a hint", "nothing"])
def test_a_driver_that_slept_while_all_voters_were_replaced_finds_the_log(knows: str) -> None:
    """Open like a driver that opens the cluster now, on the current roots."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "7"}))
    hint = quorum.log().committed_log().state if knows == "a hint" else LogState()
    sleeper = quorum.log(9, hint=hint)
    if knows == "the log":
        sleeper.read()
    for broker in (1, 2, 3):
        quorum.wipe(broker)
        replace(quorum, broker)
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "8"}))
    assert sleeper.read() == quorum.log().read()
    sleeper.claim()
    assert sleeper.commit(config(9)) == quorum.log().read()


def test_damage_on_former_voters_keeps_no_driver_from_the_log_of_the_present_ones() -> None:
    """The only voter that the driver knows has been removed, and an attacker writes there."""
    quorum = Quorum(1, others=1)
    sleeper = quorum.log(9)
    sleeper.read()
    add(quorum, 2)
    old = quorum.voters[0]
    remove(quorum, 1)
    quorum.look()
    state = quorum.log().committed_log().state
    old.store.create(old.path(DataName(state.end, None, state.epoch)), b"not a batch")
    assert sleeper.read() == quorum.log().read()
    sleeper.claim()
    assert sleeper.commit(config(9)) == quorum.log().read()


def test_a_log_that_is_found_counts_only_if_a_majority_of_its_voters_confirms_it() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    sleeper = quorum.log(9, through, patience=IMPATIENT)
    sleeper.read()
    for broker in (1, 2, 3):
        quorum.wipe(broker)
        replace(quorum, broker)
    through[0].hook = through[1].hook = unreachable
    with pytest.raises(NoMajorityError, match="wiped"):
        sleeper.read()


def test_an_older_log_that_is_found_is_not_taken_for_the_present_one() -> None:
    """The voters that this driver knows are unreachable; old roots hold a log that this driver has left."""
    quorum = Quorum(3, others=2)
    through = quorum.hooked()
    log = quorum.log(8, through=through, patience=IMPATIENT)
    for there in (4, 5):
        add(quorum, there)
    for away in (1, 2):
        remove(quorum, away)
    log.read()
    for store in through[2:]:
        store.hook = unreachable
    with pytest.raises(NoMajorityError, match="0 of 3 metadata voters can be reached"):
        log.read()


def test_a_driver_that_slept_through_changes_follows_them_one_by_one() -> None:
    """Voters 1, 2, 3 become 3, 4, 5: old and new majorities do not meet."""
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
def test_former_voters_do_not_show_an_old_log_as_the_present_one(away: tuple[int, ...]) -> None:
    """A majority of the voters that the driver knows holds an old log, unchallenged: its readers learn that other
    voters decide now, or that the answer is unknown.
    """
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


def test_a_former_claimant_commits_nothing() -> None:
    """A zombie with a claim of the old voters, which a majority of the current ones has never seen."""
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


def test_a_claim_under_former_voters_is_repeated_under_the_present_ones() -> None:
    quorum = Quorum(3, others=1)
    sleeper = quorum.log(8)
    add(quorum, 4)
    remove(quorum, 1)
    before = quorum.voters[0].list().claims
    sleeper.claim()
    assert max(quorum.root(4).list().claims) > max(before)
    assert sleeper.commit(config(1)) == quorum.log().read()


def test_a_listing_from_before_a_change_of_voters_permits_no_claim() -> None:
    """The next claim may use a look that showed nothing settled, but not after the driver has learned more: a
    majority of the old voters need not have the current commits.
    """
    quorum = Quorum(3)
    log = quorum.log(8)
    quorum.log(9).claim()
    assert log.read_at_once() is None
    for away in (1, 2):
        registered(quorum, away)
        remove(quorum, away)
    quorum.client(7).submit(AlterConfigs(None, {"segment.bytes": "1"}))
    log.committed_log()
    log.claim()
    assert log.commit(config(2)) == quorum.log().read()


# -------------------------------------------------------------------------------- one voter


def test_a_copy_inside_a_voters_folder_is_no_file_of_the_voter() -> None:
    quorum = Quorum(1)
    voter: Voter = quorum.root(1)
    before = voter.look(), voter.list()
    names = (ClaimName(9), DataName(99, None, 9), CheckpointName(99, 9), ChunkName(99, 9, 0))
    for name in names:
        voter.store.create(f"{voter.folder}/saved/{name}", b"x")
    assert (voter.look(), voter.list()) == before


def test_a_voter_says_which_incarnation_it_is() -> None:
    quorum = Quorum(1)
    voter: Voter = quorum.root(1)
    assert voter.id == VoterId(1, voter.directory_id) == quorum.log().read().voters[0]

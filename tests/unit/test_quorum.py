"""The metadata log: claim and commit (protocol section 5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.engine.metadata.records import NoOpRecord, TopicRecord
from stratalog.engine.quorum.patience import ClaimBackoff, Patience
from stratalog.engine.quorum.voter import Voter, VoterLook
from stratalog.partitions.errors import (
    CorruptionError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    StorageError,
)
from stratalog.partitions.paths import DataName
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import IMPATIENT, HookedStore, Quorum, config, data, once, unreachable

# ------------------------------------------------------------------------------------ claim


def test_a_claim_is_the_greatest_claim_seen_and_one() -> None:
    """ "e = the greatest claim seen + 1; create `<e>.claim` on the voters"."""
    quorum = Quorum(3)
    quorum.log().claim()
    for voter in (1, 2, 3):
        assert [n for n in quorum.names(voter) if not data(n)] == ["0000000001.claim", "0000000002.claim"]


def test_a_driver_keeps_its_epoch_while_it_can() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.claim()
    for value in range(5):
        log.commit(config(value))
        log.claim()
    assert [n for n in quorum.names(1) if not data(n)][-1] == "0000000002.claim"


def test_a_claim_that_reported_failure_and_took_effect_is_mine() -> None:
    """ "it exists with my UUID: mine"."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()

    def took_effect(call: Callable[[], object]) -> object:
        call()
        raise OutcomeUnknownError("timed out")

    once(store, "create", lambda name: name.endswith(".claim"), took_effect)
    quorum.log(through=through).claim()
    assert [n for n in quorum.names(1) if not data(n)] == ["0000000001.claim", "0000000002.claim"]


def test_an_epoch_that_too_few_voters_take_is_claimed_on_and_leaves_one_file() -> None:
    """Two disks of three are full, and readers retry for a while. Each of their attempts would leave a claim."""
    quorum = Quorum(3)
    stores = quorum.hooked()
    for store in stores[1:]:
        store.hook = full
    log = quorum.log(through=stores, patience=Patience(attempts=5))
    for _ in range(3):
        with pytest.raises(NoMajorityError):
            log.claim()
    assert claims(quorum, 1) == ["0000000001.claim", "0000000002.claim"]
    for store in stores[1:]:
        store.hook = lambda what, name, call: call()
    log.claim()
    log.commit(config(1))
    assert [claims(quorum, broker) for broker in (1, 2, 3)] == [["0000000001.claim", "0000000002.claim"]] * 3


def test_an_epoch_that_was_claimed_on_too_few_voters_is_given_up_to_a_rival() -> None:
    quorum = Quorum(3)
    stores = quorum.hooked()
    for store in stores[1:]:
        store.hook = full
    log = quorum.log(through=stores, patience=Patience(attempts=2))
    with pytest.raises(NoMajorityError):
        log.claim()
    rival = quorum.log(1)
    rival.claim()
    image = rival.commit(config(7))
    for store in stores[1:]:
        store.hook = lambda what, name, call: call()
    assert log.claim() == image
    log.commit(config(8))
    assert quorum.log().read() == log.read()


@pytest.mark.parametrize("broker", [1, 2, 3])
def test_no_claim_is_written_below_the_mount_point_of_an_unmounted_volume(broker: int) -> None:
    """Two looks are a majority, so the third voter is claimed without a look."""
    stores = [MemoryStore("c") for _ in range(3)]
    quorum = Quorum(3, stores)
    mount_point = MemoryStore("c")
    quorum.log(through=[*stores[: broker - 1], mount_point, *stores[broker:]]).claim()
    assert not list(mount_point.list(""))


def claims(quorum: Quorum, broker: int) -> list[str]:
    return [name for name in quorum.names(broker) if name.endswith(".claim")]


def full(what: str, name: str, call: Callable[[], object]) -> object:
    """A hook: the disk is full."""
    if what == "create":
        raise StorageError("no space left on device")
    return call()


def test_two_claimants_of_one_epoch_do_not_both_win() -> None:
    quorum = Quorum(3)
    one, two = quorum.log(), quorum.log()
    through = quorum.hooked()
    two = quorum.log(through=through)
    once(through[0], "create", lambda name: name.endswith(".claim"), lambda call: (one.claim(), call())[1])
    two.claim()
    assert [n for n in quorum.names(1) if not data(n)][-1] == "0000000003.claim"
    with pytest.raises(NotControllerError):
        one.commit(config(1))


def test_the_claimed_majority_is_listed_after_the_claim() -> None:
    """ "*Then* (!) list the claimed majority": a commit between the first listing and the claim is not lost."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    other = quorum.log()
    other.claim()
    once(store, "create", lambda name: name.endswith(".claim"), lambda call: (other.commit(config(7)), call())[1])
    image = quorum.log(through=through).claim()
    assert image.configs == {"segment.bytes": "7"}


def only_voter_1_takes(stores: list[HookedStore]) -> None:
    """Creates on the other voters fail."""
    for store in stores[1:]:
        store.hook = lambda what, name, call: unreachable(what, name, call) if what == "create" else call()


def test_a_claim_continues_from_the_greatest_epoch_of_the_last_file_not_from_the_longest_log() -> None:
    """ "The log with the greatest (epoch of the last file, LEO) (!)": V8 of the attack."""
    quorum = Quorum(3)
    for value in (1, 2):  # voter 1 alone gets two batches, of epochs 2 and 3
        lost = quorum.log(through=(cut := quorum.hooked()), patience=IMPATIENT)
        lost.claim()
        only_voter_1_takes(cut)
        with pytest.raises(OutcomeUnknownError):
            lost.commit(config(value))
    through = quorum.hooked()
    through[0].hook = unreachable
    other = quorum.log(through=through)
    other.claim()
    other.commit(config(4))  # epoch 4, on voters 2 and 3
    image = quorum.log().claim()
    assert (image.configs, image.next_offset) == ({"segment.bytes": "4"}, 2)


def test_a_claimant_that_has_not_committed_yet_is_given_time() -> None:
    quorum = Quorum()
    quorum.log().claim()
    before = quorum.clock.monotonic_s()
    quorum.log().claim()
    assert quorum.clock.monotonic_s() > before


def look(claimed: int, last: DataName | None) -> VoterLook:
    claims = tuple(range(1, claimed + 1))
    return VoterLook(Voter(1, MemoryStore("memory://1"), an_id(1)), claims, {last} if last else set(), set(), last)


def test_each_claimant_that_is_about_to_commit_is_left_so_many_attempts() -> None:
    claimant_attempts = ClaimBackoff(Patience(claimant_attempts=2))
    one = look(3, DataName(5, None, 2))
    assert [claimant_attempts.asks_to_wait([one]) for _ in range(4)] == [True, True, False, False]
    assert claimant_attempts.asks_to_wait([look(4, DataName(5, None, 2))]), "another one"


def test_a_claimant_that_has_committed_is_waited_for_only_if_it_continues() -> None:
    claimant_attempts = ClaimBackoff(Patience(claimant_attempts=2, busy_claimant_attempts=3))
    assert not claimant_attempts.asks_to_wait([look(3, DataName(5, None, 3))]), "it may have rested for days"
    assert [claimant_attempts.asks_to_wait([look(3, DataName(5 + n, None, 3))]) for n in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    claimant_attempts = ClaimBackoff(Patience())
    assert claimant_attempts.asks_to_wait([look(3, DataName(5, None, 2))])
    assert claimant_attempts.asks_to_wait([look(3, DataName(6, None, 3))])
    assert not claimant_attempts.asks_to_wait([look(3, DataName(6, None, 3))]), "it rests"


def test_a_waiting_driver_looks_at_one_voter() -> None:
    quorum = Quorum(3)
    quorum.log().claim()
    waiting = quorum.log(patience=Patience(attempts=4, claimant_attempts=99))
    before = [store.counts.lists for store in quorum.stores.values()]
    with pytest.raises(NotControllerError, match="other drivers were faster"):
        waiting.claim()
    spent = [store.counts.lists - was for store, was in zip(quorum.stores.values(), before, strict=True)]
    assert spent == [1 + 3, 1, 0]  # a majority is claimed once


def test_a_driver_that_was_fenced_does_not_claim_back_at_once() -> None:
    quorum = Quorum()
    one, other = quorum.log(), quorum.log()
    one.claim()
    other.claim()
    other.commit(config(1))
    with pytest.raises(NotControllerError):
        one.commit(config(2))
    other.commit(config(3))
    before = quorum.clock.monotonic_s()
    one.claim()
    assert quorum.clock.monotonic_s() > before


# ----------------------------------------------------------------------------------- commit


def test_other_drivers_read_a_commit() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    log.claim()
    image = log.commit(config(1))
    assert quorum.log().read() == image
    assert quorum.names(1) == quorum.names(2) == quorum.names(3)


def test_a_commit_needs_a_claim() -> None:
    with pytest.raises(NotControllerError, match="no metadata epoch is claimed"):
        Quorum().log().commit(config(1))


def test_a_zombie_is_fenced_and_its_batch_is_no_history() -> None:
    quorum = Quorum()
    zombie, log = quorum.log(), quorum.log()
    zombie.claim()
    log.claim()
    log.commit(config(1))
    with pytest.raises(NotControllerError, match="another driver has claimed an epoch above 2"):
        zombie.commit(config(2))
    assert quorum.log().read().configs == {"segment.bytes": "1"}


def test_a_batch_counts_only_when_a_listing_after_it_shows_no_claim_above() -> None:
    """ "then list it again (!)": a claim between the create's start and its end fences the driver."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    slow, other = quorum.log(through=through), quorum.log()
    slow.claim()
    once(store, "create", data, lambda call: (other.claim(), call())[1])
    with pytest.raises(NotControllerError):
        slow.commit(config(1))
    other.commit(config(2))
    assert quorum.log().read().configs == {"segment.bytes": "2"}


def test_a_commit_continues_with_the_same_batch_until_a_majority_has_it() -> None:
    """ "else go on with *the same batch* until it is one or the other"."""
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through)
    log.claim()

    def fails(call: Callable[[], object]) -> object:
        raise StorageError("disk full")

    once(through[1], "create", data, fails)
    once(through[2], "create", data, fails)
    image = log.commit(config(1))
    assert quorum.log().read() == image


def test_a_create_that_reported_failure_and_took_effect_is_committed_once() -> None:
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    log = quorum.log(through=through)
    log.claim()

    def took_effect(call: Callable[[], object]) -> object:
        call()
        raise OutcomeUnknownError("timed out")

    once(store, "create", data, took_effect)
    image = log.commit(config(1))
    assert (image.next_offset, quorum.log().read()) == (2, image)


def test_a_commit_that_wrote_nowhere_says_so() -> None:
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()
    store.hook = lambda what, name, call: unreachable(what, name, call) if what == "create" else call()
    with pytest.raises(NoMajorityError, match="no such mount"):
        log.commit(config(1))


def test_a_commit_whose_creates_get_no_answer_says_why() -> None:
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()

    def lost(what: str, name: str, call: Callable[[], object]) -> object:
        if what == "create":
            raise OutcomeUnknownError("timed out")
        return call()

    store.hook = lost
    with pytest.raises(OutcomeUnknownError, match=r"read the metadata before you retry \(timed out\)"):
        log.commit(config(1))


def test_a_commit_that_reached_a_minority_has_an_unknown_outcome() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()
    through[1].hook = through[2].hook = unreachable
    with pytest.raises(OutcomeUnknownError, match="read the metadata before you retry"):
        log.commit(config(1))
    with pytest.raises(NotControllerError):
        log.commit(config(2))  # a commit never writes another batch at that offset in that epoch


def test_a_voter_that_was_away_gets_what_it_lacks_oldest_first() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through)
    log.claim()
    through[2].hook = unreachable
    for value in range(3):
        log.commit(config(value))
    created: list[str] = []

    def watch(what: str, name: str, call: Callable[[], object]) -> object:
        if what == "create":
            created.append(name)
        return call()

    through[2].hook = watch
    log.commit(config(3))
    assert len(created) == 4
    assert created == sorted(created)
    assert quorum.names(3) == quorum.names(1)


def test_a_file_deleted_by_hand_is_copied_back_by_the_next_commit() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    log.claim()
    log.commit(config(1))
    first = next(name for name in quorum.names(3) if data(name))
    quorum.stores[3].delete([f"{quorum.voters[2].directory_id}/__cluster_metadata/{first}"])
    other = quorum.log()
    other.claim()
    other.commit(config(2))
    assert quorum.names(3) == quorum.names(1)


def test_a_voter_with_a_hole_does_not_count_until_it_is_filled() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    log.claim()
    log.commit(config(1))
    whole = quorum.names(3)
    first = next(name for name in whole if data(name))
    quorum.stores[3].delete([f"{quorum.voters[2].directory_id}/__cluster_metadata/{first}"])
    through = quorum.hooked()
    through[0].hook = unreachable
    quorum.log(through=through).read()
    assert quorum.names(3) == whole


def test_records_that_do_not_fit_are_written_nowhere() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.claim()
    before = quorum.names(1)
    with pytest.raises(CorruptionError):
        log.commit([NoOpRecord(), TopicRecord(name="t", topic_id="a"), TopicRecord(name="t", topic_id="b")])
    assert quorum.names(1) == before

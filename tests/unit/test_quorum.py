"""The metadata log: claim, commit, linearizable read (protocol section 5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.metadata.commands import FenceBroker, RegisterBroker
from engine.metadata.image import ClusterImage
from engine.metadata.records import NoOpRecord, TopicRecord
from engine.metadata.topic_commands import AlterConfigs, CreateTopic
from engine.quorum.batch import decode_batch, encode_batch
from engine.quorum.patience import Courtesy, Patience
from engine.quorum.state import LogState
from engine.quorum.upkeep import keep_up
from engine.quorum.voter import Voter, VoterLook
from partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    LogGapError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownBrokerError,
)
from partitions.lineage import Lineage
from partitions.paths import DataName
from partitions.replica import format_root
from partitions.store.memory import MemoryStore
from tests.unit.metadata_harness import an_id
from tests.unit.quorum_harness import CLUSTER, HookedStore, Quorum, config

IMPATIENT = Patience(attempts=3, courtesy=1)


def data(name: str) -> bool:
    return name.endswith(".parquet")


def once(
    store: HookedStore, what: str, when: Callable[[str], bool], instead: Callable[[Callable[[], object]], object]
) -> None:
    """At the first such call on ``store`` do ``instead(call)``."""
    done = False

    def hook(asked: str, name: str, call: Callable[[], object]) -> object:
        nonlocal done
        if asked == what and when(name) and not done:
            done = True
            return instead(call)
        return call()

    store.hook = hook


def unreachable(what: str, name: str, call: Callable[[], object]) -> object:
    raise StorageError("no such mount")


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
    """ "*Then* (!) list the claimed majority": what was committed between the first listing and the claim is
    not lost."""
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


def test_a_claim_goes_on_from_the_greatest_epoch_of_the_last_file_not_from_the_longest_log() -> None:
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
    courtesy = Courtesy(Patience(courtesy=2))
    one = look(3, DataName(5, None, 2))
    assert [courtesy.asks_to_wait([one]) for _ in range(4)] == [True, True, False, False]
    assert courtesy.asks_to_wait([look(4, DataName(5, None, 2))]), "another one"


def test_a_claimant_that_has_committed_is_not_waited_for_unless_it_goes_on() -> None:
    courtesy = Courtesy(Patience(courtesy=2, indulgence=3))
    assert not courtesy.asks_to_wait([look(3, DataName(5, None, 3))]), "it may have rested for days"
    assert [courtesy.asks_to_wait([look(3, DataName(5 + n, None, 3))]) for n in (1, 2, 3, 4)] == [
        True,
        True,
        False,
        False,
    ]
    courtesy = Courtesy(Patience())
    assert courtesy.asks_to_wait([look(3, DataName(5, None, 2))])
    assert courtesy.asks_to_wait([look(3, DataName(6, None, 3))])
    assert not courtesy.asks_to_wait([look(3, DataName(6, None, 3))]), "it rests"


def test_whoever_waits_looks_at_one_voter() -> None:
    quorum = Quorum(3)
    quorum.log().claim()
    waiting = quorum.log(patience=Patience(attempts=4, courtesy=99))
    before = [store.counts.lists for store in quorum.stores.values()]
    with pytest.raises(NotControllerError, match="others are faster"):
        waiting.claim()
    spent = [store.counts.lists - was for store, was in zip(quorum.stores.values(), before, strict=True)]
    assert spent == [1 + 3, 1, 0]  # a majority once


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


def test_what_is_committed_is_read_by_others() -> None:
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
    """ "then list it again (!)": a claim between the create's start and its end fences."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    slow, other = quorum.log(through=through), quorum.log()
    slow.claim()
    once(store, "create", data, lambda call: (other.claim(), call())[1])
    with pytest.raises(NotControllerError):
        slow.commit(config(1))
    other.commit(config(2))
    assert quorum.log().read().configs == {"segment.bytes": "2"}


def test_a_commit_goes_on_with_the_same_batch_until_a_majority_has_it() -> None:
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


def test_a_commit_that_reached_a_minority_has_an_unknown_outcome() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    log = quorum.log(through=through, patience=IMPATIENT)
    log.claim()
    through[1].hook = through[2].hook = unreachable
    with pytest.raises(OutcomeUnknownError, match="read before you retry"):
        log.commit(config(1))
    with pytest.raises(NotControllerError):
        log.commit(config(2))  # never another batch at that offset in that epoch


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


# ------------------------------------------------------------------------------------- read


def test_a_read_helps_a_batch_that_only_a_minority_has() -> None:
    """ "Else copy the tail on and list again"."""
    quorum = Quorum(3)
    cut = quorum.hooked()
    log = quorum.log(through=cut, patience=IMPATIENT)
    log.claim()
    cut[1].hook = cut[2].hook = unreachable
    with pytest.raises(OutcomeUnknownError):
        log.commit(config(1))
    assert quorum.log().read().configs == {"segment.bytes": "1"}
    assert quorum.log().read().configs == {"segment.bytes": "1"}


def test_a_read_does_not_return_what_a_later_claimant_may_not_know() -> None:
    """V7a of the attack: claims above the tail's epoch are in the way; whoever reads on waits, and at last
    claims an epoch and commits an empty batch."""
    quorum = Quorum(3)
    cut = quorum.hooked()
    log = quorum.log(through=cut, patience=IMPATIENT)
    log.claim()
    cut[1].hook = cut[2].hook = unreachable
    with pytest.raises(OutcomeUnknownError):
        log.commit(config(1))  # on voter 1 alone
    away = quorum.hooked()
    away[0].hook = unreachable
    later = quorum.log(through=away)
    later.claim()  # on voters 2 and 3: it does not know of the batch
    image = quorum.log().read()
    with pytest.raises(NotControllerError):
        later.commit(config(2))  # were it not fenced by now, the read above would have been wrong
    assert quorum.log().read().configs == image.configs


def test_a_dead_claimant_does_not_stop_reads() -> None:
    """Attack C1."""
    quorum = Quorum()
    quorum.log().claim()
    log = quorum.log()
    assert log.read().next_offset == 2  # its own empty batch
    assert log.read().next_offset == 2


def test_an_idle_read_costs_one_listing_and_one_look_at_the_root() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.read()
    before = quorum.stores[1].counts.snapshot()
    log.read()
    spent = quorum.stores[1].counts - before
    assert (spent.lists, spent.reads, spent.creates) == (1, 1, 0)


def test_a_read_after_others_costs_the_tail() -> None:
    quorum = Quorum()
    log, other = quorum.log(), quorum.log()
    log.read()
    other.claim()
    for value in range(3):
        other.commit(config(value))
    before = quorum.stores[1].counts.snapshot()
    log.read()
    spent = quorum.stores[1].counts - before
    assert (spent.lists, spent.reads, spent.creates) == (1, 1 + 3, 0)


def test_a_commit_costs_one_create_and_one_listing_a_voter() -> None:
    quorum = Quorum(3)
    log = quorum.log()
    log.claim()
    before = [store.counts.snapshot() for store in quorum.stores.values()]
    log.commit(config(1))
    for store, was in zip(quorum.stores.values(), before, strict=True):
        spent = store.counts - was
        assert (spent.creates, spent.lists, spent.reads) == (1, 1, 1)


def test_a_read_looks_at_a_majority() -> None:
    quorum = Quorum(3)
    before = [store.counts.lists for store in quorum.stores.values()]
    quorum.log().read()
    spent = [store.counts.lists - was for store, was in zip(quorum.stores.values(), before, strict=True)]
    assert spent == [1, 1, 0]


# ------------------------------------------------------------------------- a lineage that ends


def after_snapshots(quorum: Quorum, commits: int) -> None:
    """So many claims, with a snapshot after each, and what lies below it deleted."""
    for value in range(commits):
        log = quorum.log(value)
        log.claim()
        log.commit(config(value + 1))
        keep_up(log, quorum.clock, lag_ms=0)


def test_a_lineage_forgets_what_lies_below_the_log_start() -> None:
    """Kafka truncates the leader epoch cache when the log start moves. Else every batch would hold an entry for
    every claim that there ever was."""
    quorum = Quorum(3)
    sleeper = quorum.log()
    sleeper.read()
    after_snapshots(quorum, 10)
    log = quorum.log()
    image = log.read()
    assert len(log.last_known.lineage.entries) <= 4
    assert sleeper.read() == image, "also for one that knows only what is forgotten"
    hint = LogState(ClusterImage(next_offset=1), Lineage([(1, 0)]), 1)
    assert quorum.log(hint=hint).read() == image, "what nobody can tell is not believed"


def test_an_outcome_that_the_lineage_no_longer_tells_stays_unknown() -> None:
    """The driver must not decide its command again: the batch may have been committed."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()

    def much_happens(call: Callable[[], object]) -> object:
        created = call()
        after_snapshots(quorum, 10)
        return created

    once(store, "create", data, much_happens)
    with pytest.raises(OutcomeUnknownError, match=r"whether .* was committed is not known"):
        quorum.client(through=through).submit(RegisterBroker(1, an_id(1), "a", "x"))
    assert quorum.log().read().brokers[1].broker_epoch == 1


# --------------------------------------------------------------------------- lost and damaged


def test_without_a_majority_the_error_names_the_voters() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[0].hook = through[2].hook = unreachable
    with pytest.raises(NoMajorityError, match=r"1 of 3 metadata voters can be reached.*no such mount"):
        quorum.log(through=through).read()


def test_a_minority_of_unreachable_voters_stops_nothing() -> None:
    quorum = Quorum(3)
    through = quorum.hooked()
    through[0].hook = unreachable
    client = quorum.client(through=through)
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert client.image().configs == {"segment.bytes": "1"}


@pytest.mark.parametrize("formatted_anew", [False, True])
def test_a_wiped_voter_does_not_count(formatted_anew: bool) -> None:
    """Section 5: a wiped voter is no voter until it is added again (V9 of the attack)."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "1"}))
    for broker in (1, 2):
        wiped = MemoryStore(f"memory://wiped-{broker}", quorum.clock)
        if formatted_anew:
            format_root(wiped, CLUSTER, broker, quorum.new_id)
        quorum.stores[broker] = wiped
    with pytest.raises(NoMajorityError, match="wiped" if formatted_anew else "no broker.json"):
        quorum.log(through=list(quorum.stores.values())).read()
    quorum.stores[1] = quorum.voters[0].store  # one of them comes back
    assert quorum.log(through=list(quorum.stores.values())).read().configs == {"segment.bytes": "1"}


def damage(quorum: Quorum, broker: int, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes of the last data file of a voter."""
    store = quorum.stores[broker]
    name = [n for n in quorum.names(broker) if data(n)][-1]
    path = f"{quorum.voters[broker - 1].directory_id}/__cluster_metadata/{name}"
    content = change(store.read(path))
    store.delete([path])
    store.create(path, content)


def flipped(content: bytes) -> bytes:
    """With one bit of the lineage in the footer flipped."""
    position = content.index(b'"lineage":[[') + len(b'"lineage":[[')
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


@pytest.mark.parametrize("change", [flipped, lambda c: c[:-9], lambda c: b"", lambda c: b"foreign"])
def test_a_damaged_batch_is_named_and_read_from_another_voter(change: Callable[[bytes], bytes]) -> None:
    alone = Quorum(1)
    alone.client().submit(AlterConfigs(None, {"segment.bytes": "1"}))
    damage(alone, 1, change)
    with pytest.raises(CorruptSegmentError, match=r"voter 1.*00000000000000000001\.0000000002\.parquet"):
        alone.log().read()
    three = Quorum(3)
    three.client().submit(AlterConfigs(None, {"segment.bytes": "1"}))
    damage(three, 1, change)
    assert three.log().read().configs == {"segment.bytes": "1"}


def test_a_bit_flipped_anywhere_is_found_or_does_no_harm() -> None:
    name = DataName(2, None, 3)
    lineage = Lineage([(1, 0), (3, 2)])
    content = encode_batch("c", name, lineage, config(1), 0)
    good = decode_batch("c", name, content, "here")
    found = 0
    for position in range(len(content)):
        bad = content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :]
        try:
            assert decode_batch("c", name, bad, "here") == good
        except (CorruptSegmentError, InconsistentClusterIdError):
            found += 1
    assert found > 500


def test_a_batch_of_another_cluster_is_refused() -> None:
    name = DataName(0, None, 1)
    content = encode_batch("other", name, Lineage([(1, 0)]), [NoOpRecord()], 0)
    with pytest.raises(InconsistentClusterIdError, match="belongs to cluster 'other', not 'c'"):
        decode_batch("c", name, content, "here")
    with pytest.raises(CorruptSegmentError, match="from offset 0 on"):
        decode_batch("other", DataName(1, None, 1), content, "here")
    assert decode_batch("other", name, content, "here").records == (NoOpRecord(),)


def delete_file(quorum: Quorum, index: int) -> None:
    name = [n for n in quorum.names(1) if data(n)][index]
    quorum.stores[1].delete([f"{quorum.voters[0].directory_id}/__cluster_metadata/{name}"])


def test_a_gap_is_named() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.claim()
    for value in range(3):
        log.commit(config(value))
    delete_file(quorum, 1)
    with pytest.raises(LogGapError, match="gap at offset 1"):
        quorum.log().read()


def test_history_that_was_read_and_is_gone_is_corruption() -> None:
    quorum = Quorum()
    log = quorum.log()
    log.claim()
    log.commit(config(1))
    delete_file(quorum, -1)
    with pytest.raises(CorruptionError, match="lacks what was committed"):
        log.read()


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
    """The commit shows whether the state that it was decided on was the latest."""
    quorum = Quorum(3)
    client = quorum.client()
    client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    before = [store.counts.snapshot() for store in quorum.stores.values()]
    client.submit(AlterConfigs(None, {"segment.bytes": "2"}))
    for store, was in zip(quorum.stores.values(), before, strict=True):
        spent = store.counts - was
        assert (spent.creates, spent.lists, spent.reads) == (1, 1, 1)


def test_a_claim_of_old_refuses_nothing_and_leaves_nothing_as_it_is() -> None:
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
    registration's answer is the epoch that it got the first time, and there is no second one."""
    quorum = Quorum()
    (store,) = through = quorum.hooked()
    other = quorum.log()

    def fenced_after(call: Callable[[], object]) -> object:
        created = call()
        other.claim()  # sees the batch, and goes on from it
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
    """Were it not, the topic that it was refused for might never have existed."""
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

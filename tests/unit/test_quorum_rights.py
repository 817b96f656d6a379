"""The metadata log for drivers that may read, and not write: a timely answer, or an error that names the missing
right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.inspection import inspect
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.partitions.errors import (
    CorruptionError,
    NoMajorityError,
    NotControllerError,
    OutcomeUnknownError,
    StorageAuthorizationError,
)
from stratalog.partitions.paths import CheckpointName, ClaimName, DataName, parse_name
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.unit.quorum_harness import (
    IMPATIENT,
    HookedStore,
    Quorum,
    commit_on_voter_1,
    config,
    data,
    once,
    unreachable,
)
from tests.unit.quorum_snapshots import LAG_MS, takes_no_snapshot

CHANGES = {"create", "stage_writer", "stage_copy", "commit", "replace", "delete"}


BEFORE = {"segment.bytes": "5"}


def refusing(store: HookedStore) -> Callable[[str, str, Callable[[], object]], object]:
    """A hook: the driver may only read."""

    def hook(what: str, name: str, call: Callable[[], object]) -> object:
        if what in CHANGES:
            raise StorageAuthorizationError(f"cannot create {name}: refused", "create", store.uri_of(name))
        return call()

    return hook


def read_only(quorum: Quorum, *brokers: int) -> list[HookedStore]:
    """The stores of a driver that may not write to these voters (by default to none)."""
    stores = quorum.hooked()
    for broker, store in enumerate(stores, start=1):
        if broker in brokers or not brokers:
            store.hook = refusing(store)
    return stores


def spent(quorum: Quorum, work: Callable[[], object]) -> int:
    """The number of requests."""
    before = sum(store.counts.requests for store in quorum.stores.values())
    work()
    return sum(store.counts.requests for store in quorum.stores.values()) - before


def reader(quorum: Quorum) -> MetadataLog:
    return quorum.log(1, through=read_only(quorum))


# ----------------------------------------------------------------------- a batch that is not finished


def test_a_batch_on_one_of_three_that_all_answer_is_not_committed_yet() -> None:
    """A driver died during a commit. The reader neither finishes its batch nor waits for it."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    commit_on_voter_1(quorum)
    log, files = reader(quorum), quorum.names(2)
    assert log.read().configs == BEFORE
    assert spent(quorum, log.read) <= 25, "and knows at once the next time"
    assert quorum.names(2) == files
    assert inspect(log).incomplete is None
    quorum.log().read()  # any driver with the right to write finishes the batch
    assert log.read().configs == {"segment.bytes": "1"}


def test_a_snapshot_that_one_voter_has_proves_nothing() -> None:
    """An attacker with access to that voter gives a file the name of the next snapshot."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    commit_on_voter_1(quorum)
    name = max(filter(None, map(parse_name, filter(data, quorum.names(1)))), key=str)
    assert isinstance(name, DataName)
    forged = CheckpointName(name.base_offset + 1, name.epoch)
    assert quorum.stores[1].create(f"{quorum.voters[0].folder}/{forged}", b"x")
    assert reader(quorum).read().configs == BEFORE


def begun_with_the_snapshot_of_voter_1(quorum: Quorum) -> tuple[MetadataLog, list[HookedStore]]:
    """A reader of three voters, and its stores. The snapshot has not reached the other voters yet."""
    quorum.client().submit(AlterConfigs(None, BEFORE))
    through = quorum.hooked()
    for store in through[1:]:
        store.hook = takes_no_snapshot
    keep_up(quorum.log(through=through), quorum.clock, lag_ms=LAG_MS)
    stores = read_only(quorum)
    log = quorum.log(1, through=stores)
    assert log.read().configs == BEFORE
    return log, stores


def test_a_reader_that_began_with_the_snapshot_of_one_voter_continues_without_that_voter() -> None:
    """The other voters have the files that the snapshot replaces."""
    quorum = Quorum(3)
    log, stores = begun_with_the_snapshot_of_voter_1(quorum)
    stores[0].hook = unreachable
    assert log.read().configs == BEFORE
    quorum.client().submit(AlterConfigs(None, {"segment.bytes": "6"}))
    assert log.read().configs == {"segment.bytes": "6"}


@pytest.mark.parametrize("lost", [0, 1])
def test_voters_that_lost_a_file_below_that_snapshot_have_lost_what_was_committed(lost: int) -> None:
    quorum = Quorum(3)
    log, stores = begun_with_the_snapshot_of_voter_1(quorum)
    stores[0].hook = unreachable
    for broker in (2, 3):
        (name,) = (name for name in quorum.names(broker) if name.startswith(f"{lost:020d}.") and data(name))
        quorum.stores[broker].delete([f"{quorum.voters[broker - 1].folder}/{name}"])
    with pytest.raises(CorruptionError, match=r"lacks committed records|gap at offset"):
        log.read()


def test_a_batch_that_a_majority_has_is_committed_whatever_the_third_voter_has() -> None:
    """The voters in any order."""
    for broker in (1, 2, 3):
        quorum = Quorum(3)
        quorum.client().submit(AlterConfigs(None, BEFORE))
        stray = quorum.hooked()
        log = quorum.log(through=stray, patience=IMPATIENT)
        log.claim()
        for other, store in enumerate(stray, start=1):
            if other != broker:
                store.hook = unreachable
        with pytest.raises(OutcomeUnknownError):
            log.commit(config(1))
        assert reader(quorum).read().configs == BEFORE


@pytest.mark.slow
def test_with_an_unreachable_voter_the_answer_is_unknown_and_the_error_says_why_in_time() -> None:
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    commit_on_voter_1(quorum)
    stores = read_only(quorum)
    stores[2].hook = unreachable
    began_s = quorum.clock.monotonic_s()
    text = r"is on voter 1 \(.*1 of 3 voters cannot be read.*read again after another driver has written.*refused"
    with pytest.raises(StorageAuthorizationError, match=text) as refused:
        quorum.log(through=stores).read()
    assert (refused.value.right, "__cluster_metadata" in str(refused.value.path)) == ("create", True)
    assert quorum.clock.monotonic_s() - began_s < 15
    stores[1].hook = unreachable
    stores[2].hook = refusing(stores[2])
    with pytest.raises(StorageAuthorizationError):
        quorum.log(through=stores).read()


def test_if_a_claimant_died_before_it_wrote_only_a_driver_that_knows_the_log_can_answer() -> None:
    """Such a claimant may have continued from a log without the last batch. A reader that has seen the last batch
    committed can answer, because nothing came after it.
    """
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    knowing = reader(quorum)
    knowing.read()
    quorum.log().claim()
    began_s = quorum.clock.monotonic_s()
    assert knowing.read().configs == BEFORE
    with pytest.raises(StorageAuthorizationError, match=r"the driver that claimed epoch 3 has not appended to it"):
        reader(quorum).read()
    assert quorum.clock.monotonic_s() - began_s < 15


@pytest.mark.slow
def test_an_epoch_that_is_not_accounted_for_may_have_left_the_last_batch_out() -> None:
    """A batch of epoch 2 was written after epoch 3, whose claim is deleted, had begun; epoch 4 continues from it,
    on one voter. Epoch 3 may still overrule it: no reader may consider it committed."""
    quorum = Quorum(3)
    late = quorum.log(through=(stores := quorum.hooked()), patience=IMPATIENT)
    late.claim()
    quick = quorum.log(7)

    def meanwhile(call: Callable[[], object]) -> object:
        quick.claim()
        return call()

    once(stores[0], "create", data, meanwhile)
    with pytest.raises(NotControllerError):
        late.commit(config(1))
    commit_on_voter_1(quorum)
    for voter in quorum.voters:
        assert {ClaimName(3), DataName(1, None, 2)} <= {*map(ClaimName, voter.look().claims), *voter.look().files}
        voter.store.delete([voter.path(ClaimName(3))])
    with pytest.raises(StorageAuthorizationError, match="the driver that claimed epoch 4"):
        reader(quorum).read()


# ------------------------------------------------------------------------------------------ commands


def test_a_command_where_the_voters_take_no_writes_is_refused_at_once() -> None:
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    stores = quorum.hooked()

    def full(what: str, name: str, call: Callable[[], object]) -> object:
        if what in CHANGES:
            raise UnwritableStorageError(f"cannot create {name}: no space. Free some", name, full=True)
        return call()

    for store in stores:
        store.hook = full
    client, began_s = quorum.client(through=stores), quorum.clock.monotonic_s()
    with pytest.raises(
        UnwritableStorageError, match=r"metadata epoch \d cannot be claimed: .* no space\. Free some"
    ):
        client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert quorum.clock.monotonic_s() == began_s, "it has waited for nobody"
    assert client.image().configs == BEFORE, "reads go on"


def test_a_command_of_a_caller_who_may_not_write_is_refused_at_once() -> None:
    """The refusal does not wait for twenty retries of races that did not take place."""
    quorum = Quorum(3)
    client, began_s = quorum.client(through=read_only(quorum)), quorum.clock.monotonic_s()
    with pytest.raises(
        StorageAuthorizationError, match="metadata epoch 2 cannot be claimed: cannot create"
    ) as refused:
        client.submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert refused.value.right == "create"
    assert quorum.clock.monotonic_s() == began_s, "it has waited for nobody"
    assert [name for name in quorum.names(1) if name.endswith("2.claim")] == []


def test_a_voter_that_refuses_is_named_and_a_majority_continues() -> None:
    quorum = Quorum(3)
    client = quorum.client(through=read_only(quorum, 1))
    for value in ("6", "7"):
        client.submit(AlterConfigs(None, {"segment.bytes": value}))
        assert client.image().configs == {"segment.bytes": value}
    assert quorum.log().read().configs == {"segment.bytes": "7"}
    assert len(quorum.notes) == 1
    assert "voter 1 (memory://1) denies this driver write access: cannot create" in quorum.notes[0]


def test_a_driver_that_may_claim_but_not_commit_learns_it_at_once() -> None:
    """A policy may allow one name, and not the other."""
    quorum = Quorum(3)
    stores = quorum.hooked()
    for store in stores:
        refuse = refusing(store)

        def hook(
            what: str,
            name: str,
            call: Callable[[], object],
            refuse: Callable[[str, str, Callable[[], object]], object] = refuse,
        ) -> object:
            return refuse(what, name, call) if data(name) else call()

        store.hook = hook
    began_s = quorum.clock.monotonic_s()
    with pytest.raises(StorageAuthorizationError, match="metadata offset 1 could not be written on a majority"):
        quorum.client(through=stores).submit(AlterConfigs(None, {"segment.bytes": "1"}))
    assert quorum.clock.monotonic_s() - began_s < 1


def test_voters_that_may_not_be_read_are_no_missing_majority() -> None:
    quorum = Quorum(3)
    stores = quorum.hooked()

    def unreadable(what: str, name: str, call: Callable[[], object]) -> object:
        raise StorageAuthorizationError(f"cannot {what} {name}: refused", "list", "memory://x")

    for store in stores[1:]:
        store.hook = unreadable
    with pytest.raises(
        StorageAuthorizationError, match="1 of 3 metadata voters allow this driver to read"
    ) as refused:
        quorum.log(through=stores).read()
    assert refused.value.right == "list"


# ------------------------------------------------------ one voter refuses while another does not answer


def full_and_away(quorum: Quorum) -> list[HookedStore]:
    """The stores of a driver: voter 2 is full, and voter 3 does not answer."""
    stores = quorum.hooked()

    def full(what: str, name: str, call: Callable[[], object]) -> object:
        if what in CHANGES:
            raise UnwritableStorageError(f"cannot write {name}: No space left on device", name, full=True)
        return call()

    stores[1].hook, stores[2].hook = full, unreachable
    return stores


def test_no_other_driver_is_blamed_when_one_voter_is_full_and_another_is_away() -> None:
    """The error names the full voter, after a few attempts."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    began = quorum.clock.now_ms()
    with pytest.raises(UnwritableStorageError, match=r"could be claimed on a majority of .*No space left"):
        quorum.log(through=full_and_away(quorum)).claim()
    with pytest.raises(UnwritableStorageError, match="No space left"):
        quorum.client(through=full_and_away(quorum)).submit(AlterConfigs(None, {"segment.bytes": "6"}))
    assert quorum.clock.now_ms() - began < 10_000


def test_a_read_ends_when_one_voter_is_full_and_another_is_away() -> None:
    """Voter 1 has a batch that may or may not be committed; only a write could decide."""
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    commit_on_voter_1(quorum)
    began = quorum.clock.now_ms()
    with pytest.raises(UnwritableStorageError, match="No space left"):
        quorum.log(through=full_and_away(quorum)).read()
    assert quorum.clock.now_ms() - began < 20_000


def test_no_other_driver_is_blamed_when_too_few_voters_take_a_claim() -> None:
    quorum = Quorum(3)
    quorum.client().submit(AlterConfigs(None, BEFORE))
    stores = quorum.hooked()

    def no_create(what: str, name: str, call: Callable[[], object]) -> object:
        return unreachable(what, name, call) if what in CHANGES else call()

    stores[1].hook = stores[2].hook = no_create
    with pytest.raises(NoMajorityError, match="could be claimed on a majority of"):
        quorum.log(through=stores).claim()

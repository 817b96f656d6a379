"""Transactions while storage fails, drivers die and other drivers interfere: always all or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Cluster, OperationFailedError
from stratalog.engine.records.coordinator import TransactionCoordinator
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from stratalog.engine.state.transaction_state import State
from stratalog.partitions.errors import (
    InvalidTopicError,
    InvalidTxnStateError,
    OutcomeUnknownError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from tests.depth import at_depth
from tests.ports import ports_of, with_ports
from tests.unit.at_calls import raising
from tests.unit.faulty_store import Faults
from tests.unit.restore_harness import partly_tiered, restored
from tests.unit.seen import seen
from tests.unit.transact_harness import EVERYTHING, NOTHING, UNCOMMITTED, VALUES, Ledger, put, rows


@pytest.fixture
def live(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path).begin()


@pytest.mark.slow
def test_an_append_that_failed_cannot_be_committed(tmp_path: Path) -> None:
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap).begin()

    t = live.cluster.transactions.begin("x")
    put(t, {"t-0": "a"})
    faults.refuse(StorageError("no space left"), "stage", of="/u-")
    with pytest.raises(OperationFailedError, match="no space left"):
        put(t, {"u-0": "b"})
    faults.none()
    with pytest.raises(InvalidTxnStateError, match="one of its operations failed"):
        put(t, {"t-1": "c"})
    with pytest.raises(InvalidTxnStateError, match=r"it was aborted: .*no space left"):
        t.commit()
    assert (live.seen(), live.state()) == (NOTHING, State.COMPLETE_ABORT)


def test_a_wrong_call_changes_nothing_and_the_session_continues(live: Ledger) -> None:
    with live.cluster.transactions.begin("x") as t:
        put(t, {"t-0": "a"})
        with pytest.raises(UnknownTopicOrPartitionError):
            put(t, {"v-0": "b"})
        with pytest.raises(UnknownTopicOrPartitionError):
            put(t, {"t-7": "b"})
        with pytest.raises(InvalidTopicError):
            t.append_batches(OFFSETS_TOPIC, {0: rows("b")})
    assert live.seen()["t-0"] == ["a"]


def test_a_transaction_that_is_over_refuses_every_call(live: Ledger) -> None:
    t = live.cluster.transactions.begin("x")
    put(t, VALUES)
    t.commit()
    for again in (t.commit, t.abort, lambda: put(t, VALUES)):
        with pytest.raises(InvalidTxnStateError, match=r"is over \(committed\)"):
            again()
    assert live.seen() == EVERYTHING


def test_a_marker_that_cannot_be_written_is_written_by_the_next_caller(tmp_path: Path) -> None:
    """The transaction is decided nevertheless: the commit does not fail."""
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap).begin()
    t = live.cluster.transactions.begin("x")
    put(t, VALUES)

    faults.refuse(StorageError("no space left"), "stage", of="/u-")
    report = t.commit()
    faults.none()
    assert ([f.item for f in report.failures], report.totals["outcome"]) == (["u-0"], "committed")
    assert (live.seen()["u-0"], live.state()) == ([], State.PREPARE_COMMIT)
    with live.driver().transactions.begin("x"):
        pass  # the next producer of the id completes the transaction
    assert live.seen() == EVERYTHING


@pytest.mark.parametrize("lost", ["the append", "the answer"])
def test_a_decision_of_unknown_outcome_is_read_until_it_is_one_or_the_other(tmp_path: Path, lost: str) -> None:
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap).begin()
    t = live.cluster.transactions.begin("x")
    put(t, VALUES)

    no_answer = raising(OutcomeUnknownError("no answer"))
    faults.once(no_answer, "commit", of=TRANSACTIONS_TOPIC, after=lost == "the answer")
    assert t.commit().totals["outcome"] == "committed"
    assert (live.seen(), live.state()) == (EVERYTHING, State.COMPLETE_COMMIT)


def test_a_beginning_of_unknown_outcome_is_aborted(tmp_path: Path) -> None:
    """The beginning may have counted; then the transaction would be open until its timeout."""
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap).begin()
    t = live.cluster.transactions.begin("x")

    def no_answer() -> None:
        faults.refuse(StorageError("unreachable"))
        raise OutcomeUnknownError("no answer")

    faults.once(no_answer, "commit", of=TRANSACTIONS_TOPIC, after=True)
    with pytest.raises(OutcomeUnknownError):
        put(t, {"t-0": "a"})
    faults.none()
    # The record of the second transaction comes after it, and both are committed.
    live.driver().transactions.begin("y")
    assert live.state() == State.ONGOING
    with pytest.raises(InvalidTxnStateError, match="it was aborted"):
        t.commit()
    assert (live.seen(), live.state()) == (NOTHING, State.COMPLETE_ABORT)


@pytest.mark.slow
def test_nothing_hangs_in_a_restored_log(tmp_path: Path) -> None:
    """Tiered records are decided, even if a marker after the end of the remote log was lost."""
    live = partly_tiered(tmp_path)
    live.cluster.topics.alter_configs(None, {"transaction.state.log.num.partitions": "1"})
    x, y = live.cluster.transactions.begin("x"), live.cluster.transactions.begin("y")
    put(x, {"t-0": "a"})
    live.append(["n"])
    put(y, {"t-0": "open"})
    x.commit()
    live.cluster.tier().raise_for_failures()
    assert live.log(live.leader()).log_end == 12
    live = restored(live)
    assert live.log(live.leader()).log_end == 10
    live.append(["last"]).raise_for_failures()
    assert live.cluster.transactions.find_hanging().rows == []
    assert seen(live.replica(live.leader())) == ["last"]


def test_a_topic_that_is_created_again_meanwhile_is_not_part_of_the_transaction(tmp_path: Path) -> None:
    """Otherwise the new topic's records would wait for a marker that no driver writes."""
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap).begin()
    t = live.cluster.transactions.begin("x")

    def create_anew() -> None:
        other = live.driver()
        other.topics.delete("u")
        other.topics.create("u", partitions=1, replication_factor=3)

    faults.once(create_anew, "stage", of=TRANSACTIONS_TOPIC)
    with pytest.raises(OperationFailedError):
        put(t, {"u-0": "c"})
    t.abort()
    assert live.driver().transactions.find_hanging().rows == []
    assert live.seen(UNCOMMITTED) == NOTHING


@pytest.mark.slow
def test_a_driver_decides_again_if_another_driver_has_changed_the_state(live: Ledger) -> None:
    """Drivers decide on the last state that they saw, so neither a refusal nor a record that is based on an old
    state is the final answer.
    """
    one, other = live.driver(), live.driver()
    for value, driver in (("a", one), ("b", other), ("c", one), ("d", other)):
        with driver.transactions.begin("x") as t:
            put(t, {"t-0": value})
    t = one.transactions.begin("x")
    put(t, {"t-0": "e"})
    other.transactions.abort("x").raise_for_failures()
    with one.transactions.begin("x") as t:
        put(t, {"t-0": "f"})
    t = other.transactions.begin("x")
    put(t, {"t-0": "g"})
    with_ports(TransactionCoordinator, ports_of(one))().end(t._producer, commit=True)
    t.commit()
    assert live.seen()["t-0"] == ["a", "b", "c", "d", "f", "g"]


def crash_points(live: Ledger, faults: Faults) -> list[str]:
    """The changes that a transaction makes, in order."""
    made: list[str] = []
    faults.after = lambda uri, what, name: made.append(what) if what in ("create", "commit") else None
    run(live, live.driver())
    faults.none()
    return made


def run(live: Ledger, driver: Cluster) -> None:
    """A whole transaction."""
    with driver.transactions.begin("x") as t:
        put(t, VALUES)
        t.commit_offsets("g", {("u", 0): 0})


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_whichever_change_is_the_drivers_last_it_is_all_or_nothing(tmp_path: Path, late: bool) -> None:
    """Protocol section 6, I7: the driver dies at each of its changes; the next driver of the id ends the open
    transaction."""
    faults = Faults()
    (tmp_path / "0").mkdir()
    points = len(crash_points(Ledger(tmp_path / "0", through=faults.wrap).begin(), faults))
    outcomes = set()
    for point in range(1, points + 1, at_depth(test=12, nightly=1)):
        folder = tmp_path / str(point)
        folder.mkdir()
        live = Ledger(folder, through=faults.wrap).begin()
        left = point

        def die(uri: str, what: str, name: str) -> None:
            nonlocal left
            left -= what in ("create", "commit")
            if left <= 0:
                raise KeyboardInterrupt

        if late:
            faults.after = die
        else:
            faults.before = die
        with pytest.raises(KeyboardInterrupt):
            run(live, live.driver())
        faults.none()
        now = live.seen()
        assert all(found in ([], EVERYTHING[where]) for where, found in now.items())
        with live.driver().transactions.begin("x"):
            pass
        live.cluster.replicate().raise_for_failures()
        live.cluster.verify().raise_for_failures()
        after = live.seen()
        assert after in (NOTHING, EVERYTHING), f"{point} of {points}"
        assert all(found == after[where] for where, found in now.items() if found), "nothing that was seen is lost"
        offsets = live.driver().groups.committed("g", require_stable=True)
        assert bool(offsets) == (after == EVERYTHING)
        outcomes.add(after == EVERYTHING)
    assert outcomes == {True, False}


def test_two_drivers_may_finish_the_same_transaction_at_once(tmp_path: Path) -> None:
    faults = Faults()
    live = Ledger(tmp_path, through=faults.wrap).begin()
    t = live.cluster.transactions.begin("x")
    put(t, VALUES)
    other = live.driver()
    passed = 0

    def overtake(uri: str, what: str, name: str) -> None:
        nonlocal passed
        if what == "stage" and "/u-" in name:  # some markers exist, and this one is missing
            faults.none()
            passed += 1
            other.transactions.finish().raise_for_failures()

    faults.before = overtake
    assert t.commit().ok
    assert (passed, live.seen(), live.state()) == (1, EVERYTHING, State.COMPLETE_COMMIT)
    assert live.log(live.leader("u"), "u").log_end == 2


def test_a_leader_may_change_between_records_and_marker(live: Ledger) -> None:
    with live.cluster.transactions.begin("x") as t:
        put(t, VALUES)
        live.cluster.elect("t", leader=live.followers("t", 0)[0]).raise_for_failures()
    assert live.seen() == EVERYTHING

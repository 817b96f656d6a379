"""``__transaction_state`` as a fold, and the decisions of a coordinator (KIP-98; KIP-630 for the laws)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stratalog.engine.state import transaction_state
from stratalog.engine.state import transaction_steps as steps
from stratalog.engine.state.keyed import TRANSACTIONS
from stratalog.engine.state.transaction_state import (
    VALID_PREVIOUS,
    State,
    Transaction,
    TransactionRecord,
    TransactionStates,
    TransactionTombstone,
    follows,
)
from stratalog.partitions.errors import (
    ConcurrentTransactionsError,
    CorruptionError,
    InvalidCallError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from stratalog.snapshots.state_machine import Codec
from tests.unit.state_machine_laws import Subject, check_laws

SUBJECT = Subject(
    TransactionStates(), TransactionStates.load, Codec(transaction_state.encode, transaction_state.decode)
)
NOW = 1000


def transaction(state: State = State.EMPTY, epoch: int = 0, at: int | None = 7, **changes: object) -> Transaction:
    made = Transaction(
        transactional_id="x",
        producer_id="p",
        producer_epoch=epoch,
        state=state,
        timeout_ms=100,
        update_ms=NOW,
        start_ms=NOW if state is State.ONGOING else None,
        at=at,
    )
    return replace(made, **changes)


RECORDS: st.SearchStrategy[TransactionRecord] = st.one_of(
    st.builds(
        Transaction,
        transactional_id=st.sampled_from(["x", "y"]),
        producer_id=st.sampled_from(["p", "q"]),
        producer_epoch=st.integers(0, 2),
        state=st.sampled_from(list(State)),
        timeout_ms=st.just(100),
        update_ms=st.integers(0, 5),
        rests_on=st.none() | st.integers(0, 12),
    ),
    st.builds(TransactionTombstone, st.sampled_from(["x", "y"])),
)


@pytest.mark.slow
@given(st.lists(RECORDS, max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_a_snapshot_may_be_anywhere(log: list[TransactionRecord], cuts: list[int]) -> None:
    """KIP-630, "Loading Snapshots"."""
    check_laws(SUBJECT, log, cuts)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
def test_only_legal_steps_count(before: State, after: State) -> None:
    """Kafka's table of valid previous states."""
    legal = {
        (State.EMPTY, State.EMPTY),
        (State.EMPTY, State.ONGOING),
        (State.EMPTY, State.DEAD),
        (State.ONGOING, State.ONGOING),
        (State.ONGOING, State.PREPARE_COMMIT),
        (State.ONGOING, State.PREPARE_ABORT),
        (State.ONGOING, State.PREPARE_EPOCH_FENCE),
        (State.PREPARE_EPOCH_FENCE, State.PREPARE_ABORT),
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (State.PREPARE_ABORT, State.COMPLETE_ABORT),
        *((state, State.EMPTY) for state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
        *((state, State.ONGOING) for state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
        *((state, State.DEAD) for state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)),
    }
    assert (before in VALID_PREVIOUS[after]) == ((before, after) in legal)
    assert follows(transaction(after, rests_on=7), transaction(before)) == ((before, after) in legal)


def test_the_first_in_the_log_of_two_decisions_on_one_state_counts() -> None:
    """Write, then check: the second record is ignored whoever wrote it, and its driver sees that."""
    state = TransactionStates().apply(0, [transaction(at=None)])
    begun = steps.add_partitions(state.transactions["x"], "x", "p", 0, [("t", 0)], NOW)
    taken = steps.init_producer(
        state.transactions["x"], "x", producer_id="new", timeout_ms=1, max_timeout_ms=1, now_ms=NOW
    )
    assert begun is not None
    after = state.apply(1, [taken, begun])
    assert (after.transactions["x"].producer_epoch, after.transactions["x"].state) == (1, State.EMPTY)
    assert after.transactions["x"].at == 1
    assert after.next_offset == 3


def test_the_first_record_of_an_id_begins_it() -> None:
    assert TransactionStates().apply(0, [transaction(State.ONGOING, at=None)]).transactions == {}
    assert TransactionStates().apply(0, [transaction(at=None, rests_on=3)]).transactions == {}


def test_a_dead_id_is_gone() -> None:
    state = TransactionStates().apply(0, [transaction(at=None)])
    dead = steps.forget(state.transactions["x"], NOW + 50, 50)
    assert dead is not None
    assert state.apply(1, [dead]).transactions == {}
    assert steps.forget(state.transactions["x"], NOW + 49, 50) is None


# --------------------------------------------------------------------------------- the decisions


def init(present: Transaction | None, timeout_ms: int = 100) -> Transaction:
    return steps.init_producer(
        present, "x", producer_id="new", timeout_ms=timeout_ms, max_timeout_ms=1000, now_ms=NOW
    )


def test_a_new_id_gets_a_fresh_producer() -> None:
    assert init(None) == transaction(at=None, producer_id="new")


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_a_driver_that_takes_an_id_over_has_the_next_epoch(state: State) -> None:
    """KIP-98: zombies of earlier epochs are fenced from then on."""
    after = init(transaction(state, 4))
    assert (after.producer_id, after.producer_epoch, after.state, after.rests_on) == ("p", 5, State.EMPTY, 7)


def test_when_the_epochs_are_used_up_there_is_a_new_producer_id() -> None:
    after = init(transaction(State.COMPLETE_COMMIT, steps.LAST_EPOCH))
    assert (after.producer_id, after.producer_epoch) == ("new", 0)
    assert follows(after, transaction(State.COMPLETE_COMMIT, steps.LAST_EPOCH))


def test_an_open_transaction_is_fenced_and_aborted_before_its_id_is_taken_over() -> None:
    """KIP-98, InitProducerId: abort the predecessor's transaction, then increment the epoch."""
    open_one = transaction(State.ONGOING, 1, partitions=(("t", 0),))
    fenced = init(open_one)
    assert (fenced.state, fenced.producer_epoch) == (State.PREPARE_EPOCH_FENCE, 2)
    with pytest.raises(ProducerFencedError):
        steps.end(fenced, "x", "p", 2, commit=True, now_ms=NOW)
    aborted = steps.abort_fenced(replace(fenced, at=8), NOW)
    with pytest.raises(ConcurrentTransactionsError, match="PrepareAbort"):
        init(replace(aborted, at=9))
    done = steps.complete(replace(aborted, at=9), NOW)
    assert (done.state, done.partitions, done.start_ms) == (State.COMPLETE_ABORT, (), None)
    with pytest.raises(InvalidTxnStateError, match="not fenced"):
        steps.abort_fenced(open_one, NOW)


@pytest.mark.parametrize("timeout_ms", [0, -1, 1001])
def test_timeouts_have_bounds(timeout_ms: int) -> None:
    """transaction.max.timeout.ms."""
    with pytest.raises(InvalidTransactionTimeoutError, match=r"1 to 1000 \(transaction.max.timeout.ms\)"):
        init(None, timeout_ms)


def test_partitions_are_added_once() -> None:
    first = steps.add_partitions(transaction(), "x", "p", 0, [("u", 1), ("t", 0)], NOW)
    assert first is not None
    assert (first.state, first.partitions, first.start_ms) == (State.ONGOING, (("t", 0), ("u", 1)), NOW)
    assert steps.add_partitions(first, "x", "p", 0, [("t", 0)], NOW + 5) is None
    more = steps.add_partitions(first, "x", "p", 0, [("t", 3)], NOW + 5)
    assert more is not None
    assert (more.start_ms, len(more.partitions)) == (NOW, 3)


@pytest.mark.parametrize("commit", [True, False])
def test_ending_twice_the_same_way_is_no_error(commit: bool) -> None:
    """KIP-98, EndTxn: a retry is answered; KIP-890: even though the first try raised the epoch."""
    ended = steps.end(transaction(State.ONGOING), "x", "p", 0, commit=commit, now_ms=NOW)
    assert ended is not None
    assert ended.producer_epoch == 1
    done = steps.complete(replace(ended, at=8), NOW)
    other_way = ProducerFencedError if not commit else InvalidTxnStateError
    for present in (replace(ended, at=8), replace(done, at=9)):
        assert steps.end(present, "x", "p", 0, commit=commit, now_ms=NOW) is None
        with pytest.raises(other_way):
            steps.end(present, "x", "p", 0, commit=not commit, now_ms=NOW)


def test_the_next_transaction_of_a_producer_has_the_raised_epoch() -> None:
    """KIP-890; the previous epoch is fenced, and the last possible epoch requires another producer id."""
    done = transaction(State.COMPLETE_COMMIT, epoch=1)
    begun = steps.add_partitions(done, "x", "p", 1, [("t", 0)], NOW)
    assert begun is not None
    assert (begun.state, begun.producer_epoch) == (State.ONGOING, 1)
    with pytest.raises(ProducerFencedError):
        steps.end(replace(begun, at=9), "x", "p", 0, commit=True, now_ms=NOW)
    used_up = transaction(State.COMPLETE_COMMIT, epoch=steps.LAST_EPOCH + 1)
    with pytest.raises(InvalidProducerIdMappingError, match="used up its epochs"):
        steps.add_partitions(used_up, "x", "p", steps.LAST_EPOCH + 1, [("t", 0)], NOW)


@pytest.mark.parametrize(
    "state", sorted(set(State) - {State.ONGOING, State.COMPLETE_COMMIT, State.PREPARE_COMMIT})
)
def test_a_transaction_that_is_not_open_cannot_be_committed(state: State) -> None:
    with pytest.raises((InvalidTxnStateError, ProducerFencedError)):
        steps.end(transaction(state), "x", "p", 0, commit=True, now_ms=NOW)


@pytest.mark.parametrize("epoch", [0, 2])
def test_producers_of_other_epochs_are_fenced(epoch: int) -> None:
    with pytest.raises(ProducerFencedError, match="has producer epoch 1"):
        steps.add_partitions(transaction(epoch=1), "x", "p", epoch, [], NOW)


@pytest.mark.parametrize("present", [None, transaction(producer_id="other")])
def test_an_id_belongs_to_one_producer(present: Transaction | None) -> None:
    with pytest.raises(InvalidProducerIdMappingError, match="initialize the producer first"):
        steps.end(present, "x", "p", 0, commit=True, now_ms=NOW)


def test_an_overdue_transaction_is_aborted_and_its_producer_fenced() -> None:
    """KIP-98: the transaction's timeout."""
    late = steps.abort_overdue(transaction(State.ONGOING), NOW + 100)
    assert late is not None
    assert (late.state, late.producer_epoch) == (State.PREPARE_ABORT, 1)
    assert steps.abort_overdue(transaction(State.ONGOING), NOW + 99) is None
    assert steps.abort_overdue(transaction(), NOW + 1000) is None


@pytest.mark.parametrize(("key", "value"), [(b"", None), (b"y", b"{}"), (None, None), (b"\xff", None)])
def test_an_invalid_record_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptionError, match="not a record of a transaction"):
        transaction_state.decode(key, value)


def test_a_record_names_its_own_key() -> None:
    _, value = transaction_state.encode(transaction())
    with pytest.raises(CorruptionError, match="names another key"):
        transaction_state.decode(b"y", value)


@pytest.mark.parametrize("timeout_ms", [30 * 1e3, True, "100"], ids=repr)
def test_a_record_that_nobody_could_read_is_not_written(timeout_ms: Any) -> None:
    """Such a record would make every id of its partition unreadable."""
    wrong = replace(transaction(), timeout_ms=timeout_ms)
    with pytest.raises(InvalidCallError, match=f"timeout_ms={timeout_ms!r}.* cannot be a record of __transaction"):
        TRANSACTIONS.to_batch([transaction(), wrong], now_ms=0)
    assert TRANSACTIONS.to_batch([transaction(), TransactionTombstone("x")], now_ms=0).num_rows == 2

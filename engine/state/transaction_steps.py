"""The decisions of a transaction coordinator: current state + request -> next state, or an error. Pure.

Kafka's rules (KIP-98, KIP-360). None means that the state is already as requested.

Each transaction has its own producer epoch (KIP-890). The decision to end a transaction (by its producer, a newer
producer, or the timeout) raises the epoch by one. The markers have the raised epoch, and so do the producer's
later appends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from msgspec.structs import replace

from stratalog.engine.state.transaction_state import ENDING, VALID_PREVIOUS, State, Transaction
from stratalog.partitions.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
)
from stratalog.partitions.identity import TopicIdPartition

LAST_EPOCH = 32_766
"""The last epoch of a producer id; the next producer of the transactional id gets a new producer id."""

_COMMITTED = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
_ABORTED = (State.PREPARE_ABORT, State.COMPLETE_ABORT)


def init_producer(
    present: Transaction | None,
    transactional_id: str,
    *,
    producer_id: str,
    timeout_ms: int,
    max_timeout_ms: int,
    now_ms: int,
) -> Transaction:
    """Let a producer take the transactional id over, with an epoch above all earlier epochs. For a new
    transactional id, the producer gets the new ``producer_id``, with epoch 0. If the previous producer has an open
    transaction, the next state is PrepareEpochFence: abort the transaction, then call again.

    Raises: InvalidTransactionTimeoutError; ConcurrentTransactionsError while a transaction is being ended.
    """
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTransactionTimeoutError(
            f"transactional id {transactional_id!r}: timeout {timeout_ms} ms: give 1 to {max_timeout_ms} "
            "(transaction.max.timeout.ms)"
        )
    if present is None:
        return Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=0,
            state=State.EMPTY,
            timeout_ms=timeout_ms,
            update_ms=now_ms,
        )
    if present.state in (*ENDING, State.PREPARE_EPOCH_FENCE):
        raise _busy(present)
    if present.state is State.ONGOING:
        return _step(
            present,
            State.PREPARE_EPOCH_FENCE,
            now_ms,
            producer_epoch=present.producer_epoch + 1,
        )
    used_up = present.producer_epoch >= LAST_EPOCH  # the end of the transaction needs one more epoch
    return _step(
        present,
        State.EMPTY,
        now_ms,
        producer_id=producer_id if used_up else present.producer_id,
        producer_epoch=0 if used_up else present.producer_epoch + 1,
        timeout_ms=timeout_ms,
        partitions=(),
        start_ms=None,
    )


def may_continue(present: Transaction | None, last: Transaction, timeout_ms: int) -> bool:
    """Whether the producer whose last known state is ``last`` may begin the next transaction without taking the
    transactional id over again. It may if no other producer has taken the id over, and no transaction is being
    ended (KIP-890: a producer continues with the epoch that the end of its transaction has raised).
    """
    return (
        present is not None
        and present.state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
        and (present.producer_id, present.producer_epoch) == (last.producer_id, last.producer_epoch)
        and present.producer_epoch <= LAST_EPOCH
        and present.timeout_ms == timeout_ms
    )


def add_partitions(
    present: Transaction | None,
    transactional_id: str,
    producer_id: str,
    producer_epoch: int,
    partitions: Iterable[TopicIdPartition],
    now_ms: int,
) -> Transaction | None:
    """Add partitions to the transaction; the first partitions begin it.

    Raises: InvalidProducerIdMappingError, also when the producer id has no epochs left; ProducerFencedError,
        ConcurrentTransactionsError.
    """
    present = _of_producer(present, transactional_id, producer_id, producer_epoch)
    if present.state in ENDING:
        raise _busy(present)
    if present.producer_epoch > LAST_EPOCH:
        raise InvalidProducerIdMappingError(
            f"transactional id {transactional_id!r}: producer id {producer_id} has used up its epochs: "
            "initialize the producer again, which gives it a new id"
        )
    wanted = {*present.partitions, *partitions}
    if present.state is State.ONGOING and wanted == set(present.partitions):
        return None
    start_ms = present.start_ms if present.state is State.ONGOING else now_ms
    return _step(present, State.ONGOING, now_ms, partitions=tuple(sorted(wanted)), start_ms=start_ms)


def end(
    present: Transaction | None,
    transactional_id: str,
    producer_id: str,
    producer_epoch: int,
    *,
    commit: bool,
    now_ms: int,
    partitions: Container[TopicIdPartition] | None = None,
) -> Transaction | None:
    """Decide to commit or abort the transaction (PrepareCommit, PrepareAbort). None: the same decision was already
    made. ``partitions`` are all partitions that the transaction tried to write to, so no other partition needs a
    marker.

    Raises: InvalidProducerIdMappingError; ProducerFencedError, also when another driver has aborted the
    transaction; InvalidTxnStateError if no transaction is open, or for an abort after the commit.
    """
    if present is not None and (present.producer_id, present.producer_epoch) == (producer_id, producer_epoch + 1):
        if present.state in (_COMMITTED if commit else _ABORTED):
            return None
        if present.state in _COMMITTED:
            raise InvalidTxnStateError(f"transactional id {transactional_id!r}: the transaction was committed")
    present = _of_producer(present, transactional_id, producer_id, producer_epoch)
    wanted = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    due = tuple(key for key in present.partitions if partitions is None or key in partitions)
    return _step(present, wanted, now_ms, producer_epoch=present.producer_epoch + 1, partitions=due)


def complete(present: Transaction, now_ms: int) -> Transaction:
    """Complete a transaction, because every partition has its marker. Raises: InvalidTxnStateError."""
    committed = present.state is State.PREPARE_COMMIT
    wanted = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
    return _step(present, wanted, now_ms, partitions=(), start_ms=None)


def abort_fenced(present: Transaction, now_ms: int) -> Transaction:
    """Abort a transaction that a newer producer has fenced. Raises: InvalidTxnStateError."""
    if present.state is not State.PREPARE_EPOCH_FENCE:
        raise InvalidTxnStateError(f"transactional id {present.transactional_id!r} is {present.state}, not fenced")
    return _step(present, State.PREPARE_ABORT, now_ms)


def abort_overdue(present: Transaction, now_ms: int) -> Transaction | None:
    """Abort a transaction that exceeded its timeout; its producer is fenced. None: not due."""
    if present.state is not State.ONGOING or now_ms - (present.start_ms or 0) < present.timeout_ms:
        return None
    return _step(present, State.PREPARE_ABORT, now_ms, producer_epoch=present.producer_epoch + 1)


def forget(present: Transaction, now_ms: int, expiration_ms: int) -> Transaction | None:
    """Delete a transactional id that has not been used for ``expiration_ms``. None: not due."""
    if present.state not in VALID_PREVIOUS[State.DEAD] or now_ms - present.update_ms < expiration_ms:
        return None
    return _step(present, State.DEAD, now_ms)


def overdue(present: Transaction, now_ms: int | None, expiration_ms: int, stamp_ms: int) -> Transaction | None:
    """The effect of time on a transactional id: an overdue or fenced transaction is aborted; an unused id is
    deleted. None: no effect. If ``now_ms`` is None, the time is unknown, and only a fenced transaction is aborted.
    """
    if present.state is State.PREPARE_EPOCH_FENCE:  # a driver died while the id was in this state
        return abort_fenced(present, stamp_ms)
    if now_ms is None:
        return None
    return abort_overdue(present, now_ms) or forget(present, now_ms, expiration_ms)


def next_ms(present: Transaction, expiration_ms: int) -> int:
    """The time of the next work on a transactional id while its producer is idle: the time when ``overdue`` has an
    effect, or 0 if the end of a transaction is decided but not complete.
    """
    if present.state in (State.PREPARE_EPOCH_FENCE, *ENDING):
        return 0
    if present.state is State.ONGOING:
        return (present.start_ms or 0) + present.timeout_ms
    return present.update_ms + expiration_ms


def _step(present: Transaction, state: State, now_ms: int, **changes: object) -> Transaction:
    """The next state, based on the current one. Raises: InvalidTxnStateError for an illegal transition."""
    if present.state not in VALID_PREVIOUS[state]:
        raise InvalidTxnStateError(
            f"transactional id {present.transactional_id!r} is {present.state}: it cannot become {state}"
        )
    return replace(present, state=state, update_ms=now_ms, rests_on=present.at, at=None, **changes)


def _of_producer(
    present: Transaction | None, transactional_id: str, producer_id: str, producer_epoch: int
) -> Transaction:
    what = f"transactional id {transactional_id!r}"
    if present is None or present.producer_id != producer_id:
        held = "has no producer" if present is None else f"belongs to producer id {present.producer_id}"
        raise InvalidProducerIdMappingError(f"{what} {held}, not to {producer_id}: initialize the producer first")
    if present.producer_epoch != producer_epoch or present.state is State.PREPARE_EPOCH_FENCE:
        raise ProducerFencedError(
            f"{what} has producer epoch {present.producer_epoch}, but this producer has epoch {producer_epoch}: a "
            "newer producer has taken over, or the transaction exceeded its timeout; stop this producer"
        )
    return present


def _busy(present: Transaction) -> ConcurrentTransactionsError:
    return ConcurrentTransactionsError(
        f"transactional id {present.transactional_id!r} is {present.state}: wait until the transaction has ended"
    )

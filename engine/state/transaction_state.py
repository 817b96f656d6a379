"""``__transaction_state``: transactional ids and the states of their transactions (KIP-98), as a fold. Pure.

A record is the complete state of its transactional id, and names the earlier log record on which it is based. The
record takes effect if that earlier record is still the id's current state, and the transition is legal. So if two
drivers base a decision on the same state, the first decision in the log takes effect.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit -> Ongoing, Empty, Dead
                     -> PrepareAbort  -> CompleteAbort  -> Ongoing, Empty, Dead
                     -> PrepareEpochFence -> PrepareAbort       (another producer of the id has taken over)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.identity import TopicIdPartition


class State(StrEnum):
    """Kafka's states of a transactional id."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


ENDING = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
"""The states in which the end of the transaction has been decided, and markers are due in all its partitions."""

VALID_PREVIOUS: Mapping[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.ONGOING: frozenset({State.ONGOING, State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    State.PREPARE_ABORT: frozenset({State.ONGOING, State.PREPARE_EPOCH_FENCE}),
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}),
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}
"""The states that may precede each state. A new id begins as Empty."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The state of one transactional id, as a record of the log and of a snapshot. ``partitions`` are distinct and
    sorted; they are empty except in Ongoing and the states Prepare*.
    """

    transactional_id: str
    producer_id: str
    producer_epoch: int
    """The producer epoch. It grows by one with every producer that takes the id over, and with each decision to
    end a transaction. In the states Prepare* it is the epoch of the markers.
    """
    state: State
    partitions: tuple[TopicIdPartition, ...] = ()
    timeout_ms: int
    start_ms: int | None = None
    """The start of the transaction in progress; None if there is none."""
    update_ms: int
    rests_on: int | None = None
    """The log offset of the record that this decision was based on; None for the first."""
    at: int | None = None
    """The log offset of this record; set when it is read, and in snapshots."""


@dataclass(frozen=True, slots=True)
class TransactionTombstone:
    """Deletes the transactional id: a null value in the log."""

    transactional_id: str


TransactionRecord = Transaction | TransactionTombstone


@dataclass(frozen=True, slots=True)
class TransactionStates:
    """The transactional ids of one partition of ``__transaction_state`` at ``next_offset``."""

    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    """The states, by transactional id; none is Dead."""
    next_offset: int = 0

    def apply(self, offset: int, records: Iterable[TransactionRecord]) -> TransactionStates:
        """The state after these records, the first of which is at ``offset``."""
        after = dict(self.transactions)
        for record in records:
            match record:
                case TransactionTombstone(name):
                    after.pop(name, None)
                case Transaction(transactional_id=name) if not follows(record, after.get(name)):
                    pass  # an outdated state, or an illegal transition: the record is ignored
                case Transaction(transactional_id=name, state=State.DEAD):
                    after.pop(name, None)
                case Transaction(transactional_id=name):
                    after[name] = msgspec.structs.replace(record, at=offset)
            offset += 1
        return TransactionStates(after, offset)

    def dump(self) -> Iterator[TransactionRecord]:
        """The records of a snapshot, in an order that depends only on the state."""
        for _, transaction in sorted(self.transactions.items()):
            yield transaction

    @classmethod
    def load(cls, records: Iterable[TransactionRecord], offset: int) -> TransactionStates:
        """The state at ``offset`` from its dumped ``records``."""
        transactions: dict[str, Transaction] = {}
        for record in records:
            if not isinstance(record, Transaction) or record.at is None:
                raise CorruptionError(f"a snapshot of transactions holds {record}, which is not a state")
            transactions[record.transactional_id] = record
        return cls(transactions, offset)


def follows(record: Transaction, present: Transaction | None) -> bool:
    """Whether a record of the log takes effect if ``present`` is the current state of its transactional id."""
    if present is None:
        return record.rests_on is None and record.state is State.EMPTY
    return (
        record.rests_on == present.at
        and present.state in VALID_PREVIOUS[record.state]
        and (
            record.producer_epoch >= present.producer_epoch
            if record.producer_id == present.producer_id
            else record.state is State.EMPTY  # a new producer id, because the old one has no epochs left
        )
    )


# ------------------------------------------------------------------------------------- as bytes

_encoder = msgspec.json.Encoder()


def encode(record: TransactionRecord) -> tuple[bytes, bytes | None]:
    """Key and value in the log; the key is the transactional id."""
    value = _encoder.encode(record) if isinstance(record, Transaction) else None
    return record.transactional_id.encode(), value


def decode(key: bytes | None, value: bytes | None) -> TransactionRecord:
    """The record of a key and a value.

    Raises: CorruptionError for a key and value that are not such a record, or are of a later version.
    """
    try:
        name = (key or b"").decode()
        record = TransactionTombstone(name) if value is None else parse_json(value, Transaction)
    except ValueError as error:
        raise CorruptionError(f"not a record of a transaction: {key!r}: {value!r} ({error})") from error
    if not name or record.transactional_id != name:
        raise CorruptionError(f"not a record of a transaction: {key!r}: {value!r} (it names another key)")
    return record

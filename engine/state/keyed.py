"""State machines whose records are keys and values, with their conversion to batches of a log. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from stratalog.engine.state import consumer_offsets, transaction_state
from stratalog.engine.state.consumer_offsets import ConsumerOffsets, OffsetsRecord
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from stratalog.engine.state.transaction_state import TransactionRecord, TransactionStates
from stratalog.partitions.columns import binaries, constant
from stratalog.partitions.errors import CorruptionError, InvalidCallError
from stratalog.partitions.records import HEADERS, TIMESTAMP
from stratalog.snapshots.state_machine import Codec, Load, StateMachine

R = TypeVar("R")
M = TypeVar("M", bound="KeyedMachine[Any]")
T = TypeVar("T")


class KeyedMachine(StateMachine[T, T], Protocol[T]):
    """A state machine whose snapshots hold the same kind of records as its log."""


@dataclass(frozen=True, slots=True)
class StateFormat(Generic[M, R]):
    """An internal topic: its state machine, and its records as keys and values."""

    topic: str
    empty: M
    load: Load[R, M]
    codec: Codec[R]

    def apply_batches(self, machine: M, offset: int, batches: Iterable[pa.RecordBatch]) -> M:
        """The machine after the records of these batches (columns ``key`` and ``value``), the first of which is at
        ``offset``. Raises: CorruptionError for unknown records.
        """
        # Apply all records in one call. Each call costs time in proportion to the size of the machine, and a log
        # may have one batch per record.
        return machine.apply(offset, (record for batch in batches for record in self._records(batch)))

    def _records(self, batch: pa.RecordBatch) -> Iterator[R]:
        keys, contents = (batch.column(name).to_pylist() for name in ("key", "value"))
        return map(self.codec.decode, keys, contents)

    def to_batch(self, records: Iterable[R], now_ms: int) -> pa.RecordBatch:
        """The records as a batch of the record columns, with one timestamp.

        Raises: InvalidCallError for a record that would be read back as a different record, because such a record
        would make its partition unreadable.
        """
        rows = [self._row(record) for record in records]
        return pa.RecordBatch.from_arrays(
            [
                constant(now_ms * 1000, TIMESTAMP, len(rows)),
                binaries([key for key, _ in rows]),
                binaries([value for _, value in rows]),
                pa.nulls(len(rows), HEADERS),
            ],
            ["timestamp", "key", "value", "headers"],
        )

    def _row(self, record: R) -> tuple[bytes | None, bytes | None]:
        try:
            row = self.codec.encode(record)
            if self.codec.decode(*row) == record:
                return row
            why = "it would be read back as a different record"
        except (CorruptionError, TypeError, ValueError) as error:
            why = str(error)
        raise InvalidCallError(f"{record} cannot be a record of {self.topic}: {why}; nothing was changed")


OFFSETS: StateFormat[ConsumerOffsets, OffsetsRecord] = StateFormat(
    OFFSETS_TOPIC, ConsumerOffsets(), ConsumerOffsets.load, Codec(consumer_offsets.encode, consumer_offsets.decode)
)
TRANSACTIONS: StateFormat[TransactionStates, TransactionRecord] = StateFormat(
    TRANSACTIONS_TOPIC,
    TransactionStates(),
    TransactionStates.load,
    Codec(transaction_state.encode, transaction_state.decode),
)
FORMATS: dict[str, StateFormat[Any, Any]] = {OFFSETS.topic: OFFSETS, TRANSACTIONS.topic: TRANSACTIONS}

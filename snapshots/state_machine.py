"""States that may be snapshotted: folds over a log (KIP-630, "Type of State Machines and Operations").

Tests check these laws for every machine:

    a fold in one go equals a fold in steps       s.apply(0, a + b) == s.apply(0, a).apply(len(a), b)
    a snapshot may be taken at any offset         load(s.dump(), s.next_offset) == s, before and after more records
    a state alone decides what it dumps           s == t: list(s.dump()) == list(t.dump())
    records survive being written                 decode(encode(r)) == r

Records of a snapshot need not be those of the log (KIP-630, "Snapshot Format"). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

LogRecord_contra = TypeVar("LogRecord_contra", contravariant=True)
SnapshotRecord_co = TypeVar("SnapshotRecord_co", covariant=True)

Record = TypeVar("Record")
Machine = TypeVar("Machine")

RECORDS_AT_ONCE = 4096


class StateMachine(Protocol[LogRecord_contra, SnapshotRecord_co]):
    """The state after the records ``[0, next_offset)`` of a log; immutable, compared by value."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        ...

    def apply(self, offset: int, records: Iterable[LogRecord_contra]) -> Self:
        """The state after also applying these records, which start at ``offset``, the state's next offset.

        Raises: CorruptionError for records that the log cannot contain at that offset.
        """
        ...

    def dump(self) -> Iterator[SnapshotRecord_co]:
        """The records of a snapshot of the state, in an order that depends only on the state."""
        ...


Load = Callable[[Iterable[Record], int], Machine]
"""``load(records, offset)``: the state at ``offset`` that was dumped as ``records``; reads the records once.

Raises: CorruptionError for records that no state dumps to.
"""


@dataclass(frozen=True, slots=True)
class Codec(Generic[Record]):
    """Converts records of a snapshot to rows of its file: key and value, each of which may be None."""

    encode: Callable[[Record], tuple[bytes | None, bytes | None]]
    decode: Callable[[bytes | None, bytes | None], Record]
    """Raises: CorruptionError for bytes that are not a record, or a record of a later version."""


class Rows(Protocol):
    """The receiver of rows: ``stratalog.snapshots.writer.SnapshotWriter``."""

    def append_rows(self, rows: list[tuple[bytes | None, bytes | None]]) -> None:
        """Add these rows."""
        ...


def write_dump(records: Iterable[Record], codec: Codec[Record], target: Rows) -> int:
    """Write the dump of a state machine, with a few thousand records in memory at a time. Returns their number."""
    encoded = map(codec.encode, records)
    count = 0
    while rows := list(islice(encoded, RECORDS_AT_ONCE)):
        target.append_rows(rows)
        count += len(rows)
    return count


def load_dump(
    rows: Iterable[tuple[bytes | None, bytes | None]],
    offset: int,
    codec: Codec[Record],
    load: Load[Record, Machine],
) -> Machine:
    """The state at ``offset`` from a snapshot's rows. Raises: CorruptionError."""
    return load((codec.decode(key, value) for key, value in rows), offset)

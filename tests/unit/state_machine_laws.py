"""Laws of every state machine (``stratalog.snapshots.state_machine``); tests call them with examples of each
machine.

KIP-630, "Loading Snapshots": "After loading the snapshot, the Kafka Controller and Metadata Cache can apply
operations in the replicated log with an offset greater than or equal the snapshot's end offset". So it must not
matter where in the log a snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from stratalog.partitions.store.memory import MemoryStore
from stratalog.snapshots.state_machine import Codec, Load, load_dump, write_dump
from tests.unit.snapshot_files import read, writer

Machine = TypeVar("Machine")


@dataclass(frozen=True)
class Subject(Generic[Machine]):
    empty: Machine
    """The state of an empty log."""
    load: Load[Any, Machine]
    codec: Codec[Any] | None = None
    """The codec of its snapshot records; None if these are not rows of binary keys and values."""
    seen: Callable[[Machine], Any] = lambda machine: machine
    """The comparable part of a machine."""


def check_laws(subject: Subject[Any], log: Sequence[Any], cuts: Sequence[int]) -> None:
    """Check all laws, for one log and snapshots after ``cuts`` of its records."""
    check_steps(subject, log, cuts)
    check_snapshots_between(subject, log, cuts)
    check_dump(subject, log)
    if subject.codec is not None:
        check_records(subject, log)


def check_steps(subject: Subject[Any], log: Sequence[Any], cuts: Sequence[int]) -> None:
    """A fold of all records at once equals a fold in steps."""
    machine = subject.empty
    for start, end in _spans(log, cuts):
        assert machine.next_offset == start
        machine = machine.apply(start, log[start:end])
    assert subject.seen(machine) == subject.seen(_whole(subject, log))
    assert machine.next_offset == len(log)


def check_snapshots_between(subject: Subject[Any], log: Sequence[Any], cuts: Sequence[int]) -> None:
    """A fold of all records at once equals a fold with snapshots anywhere in between, and a dump does not change
    the state.
    """
    machine = subject.empty
    for start, end in _spans(log, cuts):
        dumped = list(machine.dump())
        loaded = subject.load(iter(dumped), start)
        assert subject.seen(loaded) == subject.seen(machine)
        assert loaded.next_offset == start
        machine = loaded.apply(start, log[start:end])
    assert subject.seen(machine) == subject.seen(_whole(subject, log))


def check_dump(subject: Subject[Any], log: Sequence[Any]) -> None:
    """A dump depends on the state alone, even if the state went through a snapshot."""
    machine = _whole(subject, log)
    dumped = list(machine.dump())
    assert list(machine.dump()) == dumped
    assert list(subject.load(iter(dumped), len(log)).dump()) == dumped


def check_records(subject: Subject[Any], log: Sequence[Any]) -> None:
    """A snapshot's file is the state: written, frozen, verified, read, loaded."""
    assert subject.codec is not None
    machine = _whole(subject, log)
    store = MemoryStore()
    with writer(store) as target:
        count = write_dump(machine.dump(), subject.codec, target)
        assert target.freeze()
    snapshot = read(store)
    assert snapshot.records == count
    loaded = load_dump(snapshot.rows(), len(log), subject.codec, subject.load)
    assert subject.seen(loaded) == subject.seen(machine)


def _whole(subject: Subject[Any], log: Sequence[Any]) -> Any:
    return subject.empty.apply(0, log)


def _spans(log: Sequence[Any], cuts: Sequence[int]) -> list[tuple[int, int]]:
    edges = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    return list(pairwise(edges))

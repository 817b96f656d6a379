"""All orders in which drivers can take the steps of a commit to one remote table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deltalake import DeltaTable
from greenlet import getcurrent, greenlet

from stratalog.partitions.store import Store
from stratalog.tiering.delta_table import DeltaTopicTable
from tests.unit.tiering_harness import table_in

Step = Callable[[], Any]


class SteppedTable(DeltaTopicTable):
    """A table that lets other drivers run before it is read, and before each put."""

    def _open(self) -> DeltaTable | None:
        pause()
        return super()._open()

    def _put(self, *change: Any) -> None:
        pause()
        super()._put(*change)


def stepped_table(remote: Store, seed: int) -> DeltaTopicTable:
    """One driver's access to topic ``t``'s table."""
    made = SteppedTable.__new__(SteppedTable)
    made.__dict__.update(table_in(remote, seed=seed).__dict__)
    return made


def pause() -> None:
    """Let the schedule choose the next driver. Outside of ``run`` this does nothing."""
    parent = getcurrent().parent
    if parent is not None:
        parent.switch()


def run(drivers: Sequence[Step], choices: Sequence[int]) -> list[int]:
    """Run the drivers to their ends, step by step: ``choices`` selects among the unfinished drivers, then always
    the first. Returns the number of unfinished drivers at each step.
    """
    running = [greenlet(driver) for driver in drivers]
    left: list[int] = []
    while running:
        choice = choices[len(left)] if len(left) < len(choices) else 0
        left.append(len(running))
        running[choice].switch()
        running = [one for one in running if not one.dead]
    return left


def schedules(attempt: Callable[[Sequence[int]], list[int]]) -> Iterator[tuple[int, ...]]:
    """All schedules: ``attempt`` runs one and returns the result of ``run``."""
    choices: list[int] = []
    while True:
        left = attempt(choices)
        yield tuple(choices)
        choices += [0] * (len(left) - len(choices))
        while choices and choices[-1] + 1 >= left[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1

"""Shrinks a failing run: fewer drivers, operations, events and faults, and fewer changes of driver.

Delta debugging over the parts of the run, then over the list of its decisions; bounded in replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from tests.simulation.configuration import Plan
from tests.simulation.running import Result, replay, run_configuration
from tests.simulation.scheduler import Decision, Verdict

T = TypeVar("T")

MOST_RUNS = 400


class Shrinker:
    """Looks for a smaller run that violates the same invariant."""

    def __init__(
        self,
        result: Result,
        most_runs: int = MOST_RUNS,
        run: Callable[..., Result] = run_configuration,
        replay: Callable[..., Result] = replay,
    ) -> None:
        assert result.violation is not None
        self._run = run
        self._replay = replay
        self._kind = result.violation.split(":")[0]
        self._rest = most_runs
        self.result = result

    def shrink(self) -> Result:
        """The smallest failing run that was found."""
        self._shrink_configuration()
        self._shrink_decisions()
        return self.result

    def _fails(self, run: Callable[[], Result]) -> bool:
        if self._rest <= 0:
            return False
        self._rest -= 1
        result = run()
        if result.violation is None or result.violation.split(":")[0] != self._kind:
            return False
        self.result = result
        return True

    def _shrink_configuration(self) -> None:
        def with_operations(slots: Iterable[Iterable[int]]) -> Plan:
            known = self.result.configuration
            kept = (tuple(known.operations[slot][i] for i in some) for slot, some in enumerate(slots))
            return replace(known, operations=tuple(kept))

        changed = True
        while changed and self._rest > 0:
            changed = False
            known = self.result.configuration
            candidates = [replace(known, events=_without(known.events, i)) for i in range(len(known.events))]
            candidates += [replace(known, fault_rate=0.0, crashes=0)] if known.fault_rate else []
            candidates += [replace(known, late_write_rate=0.0)] if known.late_write_rate else []
            candidates += [replace(known, page=0)] if known.page else []
            counts = [range(len(slot)) for slot in known.operations]
            for slot, operations in enumerate(known.operations):
                for index in range(len(operations)):
                    kept = [list(some) for some in counts]
                    kept[slot].remove(index)
                    candidates.append(with_operations(kept))
            for candidate in candidates:
                if self._fails(lambda candidate=candidate: self._run(candidate)):  # type: ignore[misc]
                    changed = True
                    break

    def _shrink_decisions(self) -> None:
        configuration = self.result.configuration
        size = max(len(_segments(self.result.decisions)) // 2, 1)
        while size and self._rest > 0:
            at = 0
            while at < len(_segments(self.result.decisions)) and self._rest > 0:
                segments = _segments(self.result.decisions)
                fewer = [decision for part in (*segments[:at], *segments[at + size :]) for decision in part]
                if not self._fails(lambda fewer=fewer: self._replay(configuration, fewer)):  # type: ignore[misc]
                    at += size
            size //= 2
        for index, decision in enumerate(self.result.decisions):
            if decision.verdict is not Verdict.GO:
                calm = [*self.result.decisions]
                calm[index] = replace(decision, verdict=Verdict.GO)
                self._fails(lambda calm=calm: self._replay(configuration, calm))  # type: ignore[misc]


def _without(items: Sequence[T], index: int) -> tuple[T, ...]:
    return (*items[:index], *items[index + 1 :])


def _segments(decisions: Sequence[Decision]) -> list[list[Decision]]:
    """Runs of decisions about one driver."""
    return [list(part) for _, part in groupby(decisions, key=lambda decision: (decision.driver, decision.event))]

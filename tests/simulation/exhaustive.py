"""Every interleaving of small configurations: depth-first search by replay, with known states skipped.

A state consists of the stores and of all answers to each driver so far: drivers are deterministic, so two runs
with the same answers are at the same place. Each request of the metadata log is one step; nothing fails. The
invariants are checked after every step, and the lone driver runs at the end of every run. ``preemptions`` bounds
how often a driver is interrupted that could continue; None: every interleaving.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.configuration import Configuration, small
from tests.simulation.running import Result, Run, replay
from tests.simulation.scheduler import Decision, Driver
from tests.simulation.trace import text_of_trace


@dataclass(slots=True)
class Explored:
    """The result of a search."""

    states: int = 0
    runs: int = 0
    complete: bool = True
    violation: str | None = None
    decisions: list[Decision] | None = None
    """The decisions of the failed run."""


class _Search:
    """One run of the search: follows a prefix, then continues the running driver, and records the choices."""

    def __init__(self, run: Run, prefix: Sequence[str], seen: set[int], preemptions: int | None) -> None:
        self._run = run
        self._prefix = prefix
        self._seen = seen
        self._preemptions = preemptions
        self._last: str | None = None
        self._used = 0
        self.taken: list[str] = []
        self.others: list[list[str]] = []
        """The alternatives at each step after the prefix."""
        self.known = False

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        names = [driver.name for driver in drivers]
        going = self._last if self._last in names else None
        if len(self.taken) < len(self._prefix):
            chosen = self._prefix[len(self.taken)]
        else:
            state = hash((self._run.state(), going, self._used if self._preemptions is not None else 0))
            if state in self._seen:
                self.known = True
                return None
            self._seen.add(state)
            chosen = going or names[0]
            free = going is None or self._preemptions is None or self._used < self._preemptions
            self.others.append([name for name in names if name != chosen] if free else [])
        self._used += going is not None and chosen != going
        self._last = chosen
        self.taken.append(chosen)
        return Decision(chosen)


def explore(configuration: Configuration, preemptions: int | None = None, most_runs: int = 10**9) -> Explored:
    """Search until every interleaving was seen, a run failed, or ``most_runs`` were made."""
    explored = Explored()
    seen: set[int] = set()
    ends: set[int] = set()
    """The final states of the stores and the drivers: the lone driver runs once from each."""
    waiting: list[list[str]] = [[]]
    while waiting:
        if explored.runs >= most_runs:
            explored.complete = False
            break
        prefix = waiting.pop()
        run = Run(configuration, exhaustive=True)
        search = _Search(run, prefix, seen, preemptions)

        def enough(search: _Search = search, run: Run = run) -> bool:
            end = run.state()
            if search.known or end in ends:
                return True
            ends.add(end)
            return False

        result = run.run(search, enough)
        explored.runs += 1
        for index, others in enumerate(search.others, len(prefix)):
            waiting += [[*search.taken[:index], other] for other in others]
        if result.violation is not None:
            explored.violation, explored.decisions = result.violation, result.decisions
            break
    explored.states = len(seen)
    return explored


SCENARIOS: dict[str, tuple[Configuration, int | None]] = {
    "append, append": (small("append p0 0 0 1", "append p1 0 0 1"), None),
    "append, election": (small("append p0 0 0 1", "elect 1; elect 2"), None),
    "append, expansion": (small("append p0 0 0 1", "shrink 1 0; replicate"), None),
    "append twice, election": (small("append p0 0 0 1; append p0 1 0 1", "elect 1; elect 2"), 3),
    "the same append twice, election": (small("append p0 0 0 1", "append p0 0 0 1", "elect 1; elect 2"), 2),
    "two appends, election": (small("append p0 0 0 1", "append p1 0 0 1", "elect 1; elect 2"), 2),
    "two appends, expansion": (
        small("append p0 0 0 1", "append p1 0 0 1", "shrink 1 0; shrink 2 0; replicate"),
        2,
    ),
}


def main() -> int:
    """``python -m tests.simulation.exhaustive [--runs n] [part of a name]``"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--runs", type=int, default=10**9)
    arguments = parser.parse_args()
    failed = 0
    for name, (configuration, preemptions) in SCENARIOS.items():
        if arguments.name not in name:
            continue
        began = time.monotonic()
        explored = explore(configuration, preemptions, arguments.runs)
        bound = "every interleaving" if preemptions is None else f"at most {preemptions} preemptions"
        end = "complete" if explored.complete else "cut short"
        print(
            f"{name} ({bound}): {explored.states} states, {explored.runs} runs, {end}, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        if explored.violation is not None:
            failed += 1
            result: Result = replay(configuration, explored.decisions or [])
            print("\n".join(text_of_trace(result)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

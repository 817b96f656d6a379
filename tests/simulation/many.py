"""Runs many seeds in several processes, and counts their coverage."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from tests.simulation.running import run_seed

_CHUNK = 25


class Outcome(Protocol):
    """The result of one run."""

    violation: str | None
    counts: Counter[str]


@dataclass(slots=True)
class Summary:
    """The results of many runs."""

    seeds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Add the results of other runs."""
        self.seeds += other.seeds
        self.counts.update(other.counts)
        self.failures += other.failures


def run_some(seeds: range, run: Callable[[int], Outcome] = run_seed) -> Summary:
    """Run these seeds in this process."""
    summary = Summary()
    for seed in seeds:
        result = run(seed)
        summary.seeds += 1
        summary.counts.update(result.counts)
        if result.violation is not None:
            summary.failures.append((seed, result.violation))
    return summary


def run_many(first: int, seeds: int, processes: int, run: Callable[[int], Outcome] = run_seed) -> Summary:
    """Run seeds ``[first, first + seeds)``, and print each failure as soon as its chunk ends."""
    began = time.monotonic()
    summary = Summary()
    chunks = [range(at, min(at + _CHUNK, first + seeds)) for at in range(first, first + seeds, _CHUNK)]
    if processes > 1:
        # The product's caches keep their content: after thousands of seeds a process would take gigabytes.
        with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=20) as pool:
            for part in pool.imap(partial(run_some, run=run), chunks):
                _take(summary, part)
    else:
        for chunk in chunks:
            _take(summary, run_some(chunk, run))
    summary.seconds = time.monotonic() - began
    return summary


def _take(summary: Summary, part: Summary) -> None:
    summary.add(part)
    for seed, violation in part.failures:
        print(_line(seed, violation), flush=True)


def _line(seed: int, violation: str) -> str:
    return f"seed {seed}: {violation[:300]}"


def report_on(summary: Summary) -> Iterator[str]:
    """The final lines for the user."""
    rate = summary.seeds / summary.seconds if summary.seconds else 0.0
    yield f"{summary.seeds} seeds in {summary.seconds:.1f} s: {rate:.1f} a second"
    yield "; ".join(f"{what} {count}" for what, count in sorted(summary.counts.items()))
    for seed, violation in summary.failures[:20]:
        yield _line(seed, violation)
    yield f"{len(summary.failures)} seeds failed"

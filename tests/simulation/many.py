"""Many seeds, on several processes, and what they covered."""

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
    """What became of one run."""

    violation: str | None
    counts: Counter[str]


@dataclass(slots=True)
class Summary:
    """Of many runs."""

    seeds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Summary) -> None:
        """Take in what others have done."""
        self.seeds += other.seeds
        self.counts.update(other.counts)
        self.failures += other.failures


def run_some(seeds: range, run: Callable[[int], Outcome] = run_seed) -> Summary:
    """These seeds, here."""
    summary = Summary()
    for seed in seeds:
        result = run(seed)
        summary.seeds += 1
        summary.counts.update(result.counts)
        if result.violation is not None:
            summary.failures.append((seed, result.violation))
    return summary


def run_many(first: int, seeds: int, processes: int, run: Callable[[int], Outcome] = run_seed) -> Summary:
    """Seeds ``[first, first + seeds)``; the failures in order."""
    began = time.monotonic()
    summary = Summary()
    chunks = [range(at, min(at + _CHUNK, first + seeds)) for at in range(first, first + seeds, _CHUNK)]
    if processes > 1:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            for part in pool.imap(partial(run_some, run=run), chunks):
                summary.add(part)
    else:
        for chunk in chunks:
            summary.add(run_some(chunk, run))
    summary.seconds = time.monotonic() - began
    return summary


def report_on(summary: Summary) -> Iterator[str]:
    """For people."""
    rate = summary.seeds / summary.seconds if summary.seconds else 0.0
    yield f"{summary.seeds} seeds in {summary.seconds:.1f} s: {rate:.1f} a second"
    yield "; ".join(f"{what} {count}" for what, count in sorted(summary.counts.items()))
    for seed, violation in summary.failures[:20]:
        yield f"seed {seed}: {violation[:300]}"
    yield f"{len(summary.failures)} seeds failed"

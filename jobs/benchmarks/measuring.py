"""Turns and clocks."""

from __future__ import annotations

import time
from collections.abc import Callable

TURNS = 2

Timed = Callable[[], float]
"""Prepares, does its work, and says how many seconds the work took."""


def in_turn(*works: Timed) -> list[float]:
    """The best time of each, in seconds. Ours, the peer, ours, the peer: what slows the machine for a while
    slows both.
    """
    rounds = [[work() for work in works] for _ in range(TURNS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def seconds_of(work: Callable[[], object]) -> float:
    """How long one piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

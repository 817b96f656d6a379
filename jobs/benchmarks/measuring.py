"""Turns and clocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

TURNS = 2

Timed = Callable[[], float]
"""Prepares, does its work, and says how many seconds the work took."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The best of all turns, in seconds."""

    ours_s: float
    peer_s: float


def in_turn(ours: Timed, peer: Timed, turns: int = TURNS) -> Pair:
    """Ours, the peer, ours, the peer: what slows the machine for a while slows both."""
    taken = [(ours(), peer()) for _ in range(turns)]
    return Pair(min(pair[0] for pair in taken), min(pair[1] for pair in taken))


def seconds_of(work: Callable[[], object]) -> float:
    """How long one piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

"""Turns and clocks."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

TURNS = 2

P = ParamSpec("P")
T = TypeVar("T")

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


def in_child(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work``, a function of a module, comes to in a process of its own: what others have left in the memory
    of this one neither helps nor slows it.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args, kwargs)

"""Turns and clocks. Of several turns, the median and the range are reported."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

TURNS = 5
"""The least number of turns, so that one slow turn is recognized."""

P = ParamSpec("P")
T = TypeVar("T")

Timed = Callable[[], float]
"""Prepares, does its work, and says how many seconds the work took."""


class Spread(float):
    """What several turns gave: the median as a number, and the range as text. Two spreads are divided turn by
    turn: a ratio is of what was measured side by side.
    """

    turns: tuple[float, ...]

    def __new__(cls, turns: Iterable[float]) -> Self:
        values = tuple(turns)
        self = super().__new__(cls, statistics.median(values))
        self.turns = values
        return self

    def __getnewargs__(self) -> tuple[tuple[float, ...]]:  # type: ignore[override]  # a float's are one number
        return (self.turns,)

    def __truediv__(self, other: float, /) -> Spread:
        if isinstance(other, Spread):
            return Spread(ours / theirs for ours, theirs in zip(self.turns, other.turns, strict=True))
        return Spread(turn / other for turn in self.turns)

    def __mul__(self, factor: float, /) -> Spread:
        return Spread(turn * factor for turn in self.turns)

    def __format__(self, spec: str) -> str:
        median, low, high = (format(value, spec) for value in (float(self), min(self.turns), max(self.turns)))
        return f"{median} ({low} to {high})"


def in_turn(*works: Timed) -> list[Spread]:
    """The seconds of each. Ours, the peer, ours, the peer: what slows the machine for a while slows both."""
    rounds = [[work() for work in works] for _ in range(TURNS)]
    return [Spread(times) for times in zip(*rounds, strict=True)]


def seconds_of(work: Callable[[], object]) -> float:
    """How long one piece of work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def thread_seconds_of(work: Callable[[], object]) -> float:
    """What a piece of work uses of a core in the calling thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def cpu_seconds_of(work: Callable[[], object], besides: str = "") -> float:
    """What a piece of work uses of the cores, here and in all processes below this one, the session's JVM and its
    workers among them; apart from those whose program is ``besides``, a server that is measured against. What ends
    before the work does is not counted: of several times the longest is the right one.
    """
    before = _ticks(besides)
    work()
    after = _ticks(besides)
    return sum(ticks - before.get(process, 0) for process, ticks in after.items()) / os.sysconf("SC_CLK_TCK")


def _ticks(besides: str) -> dict[int, int]:
    """Of each process of this family."""
    own: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            program, fields = stat.read_text().split(" (", 1)[1].rsplit(") ", 1)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if program != besides:
            _, parent, *rest = fields.split()
            own[int(stat.parent.name)] = int(rest[9]) + int(rest[10])  # utime, stime
            children[int(parent)].append(int(stat.parent.name))
    family = [os.getpid()]
    for process in family:
        family += children[process]
    return {process: own[process] for process in family if process in own}


def in_child(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work``, a function of a module, comes to in a process of its own: what others have left in the memory
    of this one neither helps nor slows it.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args, kwargs)

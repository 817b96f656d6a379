"""Turns and clocks. Several turns give their median and range."""

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
"""The number of turns of each work: enough that one slow turn is recognized."""

P = ParamSpec("P")
T = TypeVar("T")

Timed = Callable[[], float]
"""A function that prepares and does its work, and returns the seconds of the work."""


class Spread(float):
    """The result of several turns: the median as a number, and the range as text. Two spreads are divided turn by
    turn, so that a ratio compares adjacent measurements.
    """

    turns: tuple[float, ...]

    def __new__(cls, turns: Iterable[float]) -> Self:
        values = tuple(turns)
        self = super().__new__(cls, statistics.median(values))
        self.turns = values
        return self

    def __getnewargs__(self) -> tuple[tuple[float, ...]]:  # type: ignore[override]  # float's own returns one number
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
    """The seconds of our work and of the peer's, measured alternately: ours, the peer, ours, the peer. A slow
    phase of the machine affects both.
    """
    rounds = [[work() for work in works] for _ in range(TURNS)]
    return [Spread(times) for times in zip(*rounds, strict=True)]


def written_by_process() -> int:
    """The bytes that this process has passed to write calls so far, in all of its threads (Linux)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """The seconds that a piece of work takes, and its result."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def seconds_of(work: Callable[[], object]) -> float:
    """The seconds that a piece of work takes."""
    return timed(work)[0]


def thread_seconds_of(work: Callable[[], object]) -> float:
    """The processor seconds that a piece of work uses in the calling thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def cpu_timed(work: Callable[[], T], besides: str = "") -> tuple[float, T]:
    """The processor seconds that a piece of work uses in this process and all its descendants, and its result. The
    session's JVM and its workers are included; processes of the program ``besides``, such as a server, are not.
    Processes that end before the work does are not counted, so the longest of several measurements is right.
    """
    before = _ticks(besides)
    result = work()
    after = _ticks(besides)
    ticks = sum(ticks - before.get(process, 0) for process, ticks in after.items())
    return ticks / os.sysconf("SC_CLK_TCK"), result


def cpu_seconds_of(work: Callable[[], object]) -> float:
    """The processor seconds of ``cpu_timed``."""
    return cpu_timed(work)[0]


def _ticks(besides: str) -> dict[int, int]:
    """The processor ticks of this process and of each descendant."""
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
    """The result of ``work``, a function of a module, in a separate process, so that the memory of this process
    does not affect the work.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args, kwargs)

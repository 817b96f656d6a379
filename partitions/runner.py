"""How independent pieces of work are run: one after the other, in threads, or (in ``engine``) by Spark."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from partitions.errors import StratalogError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """The work on ``item`` gave ``value``."""

    item: T
    value: R


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """The work on ``item`` ended with one of our errors."""

    item: T
    error: StratalogError


Outcome = Done[T, R] | Failed[T]

_LATE_S = 0.005
_QUICK_ITEMS = 5
"""As many items done in that time need no help."""


def _one(_: object) -> int:
    return 1


class Runner(Protocol):
    """Runs a function over items."""

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        """One outcome per item, in any order, as they come. An error of ours (``StratalogError``) is
        the outcome of its item and stops no other; anything else is a bug and is raised. ``weigh``
        tells how much work an item is, for those who pack items together.
        """
        ...


def attempt(function: Callable[[T], R], item: T) -> Outcome[T, R]:
    """The outcome of one item."""
    try:
        return Done(item, function(item))
    except StratalogError as error:
        return Failed(item, error)


class SerialRunner:
    """One after the other, in order: deterministic, for tests and small work."""

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        """See ``Runner.run``."""
        for item in items:
            yield attempt(function, item)


class ThreadRunner:
    """In up to ``threads`` threads, of which the caller's is one.

    The others wait in a pool for as long as the runner lives: a run of a few small items costs no new threads.
    Because the caller works, too, an item may itself run others on the same runner, however many threads are
    busy. A pickled runner begins with a pool of its own where it arrives.

    With ``late`` the others set in only where the caller makes slow progress. Where items are done in a fraction
    of a millisecond, two threads are slower than one: they hand Python's lock to each other all the time.
    """

    def __init__(self, threads: int, *, late: bool = False) -> None:
        self._threads = threads
        self._late = late
        self._helpers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[int, bool], ThreadRunner], tuple[int, bool]]:
        return _thread_runner, (self._threads, self._late)

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        """See ``Runner.run``."""
        waiting = deque(items)
        helpers = min(self._threads, len(waiting)) - 1
        if helpers <= 0:
            yield from SerialRunner().run(function, waiting)
            return
        done: SimpleQueue[Outcome[T, R] | BaseException] = SimpleQueue()
        over = threading.Event()

        def work() -> None:
            left = len(waiting) + _QUICK_ITEMS
            while self._late and left - len(waiting) >= _QUICK_ITEMS:
                left = len(waiting)
                if over.wait(_LATE_S):
                    return
            with suppress(IndexError):  # nothing is waiting any more
                while True:
                    item = waiting.popleft()
                    try:
                        done.put(attempt(function, item))
                    except BaseException as error:  # a bug: the caller's to raise
                        waiting.clear()
                        done.put(error)

        expected = len(waiting)
        running = [self._pool().submit(work) for _ in range(helpers)]
        try:
            for _ in range(expected):
                own: list[T] = []
                if done.empty():
                    with suppress(IndexError):
                        own = [waiting.popleft()]
                outcome = attempt(function, own[0]) if own else done.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:  # after a bug, or when nobody wants the rest: what has not begun is not begun
            waiting.clear()
            over.set()
            # One that has not started yet may have to wait for the threads of the very runs that wait here.
            wait([helper for helper in running if not helper.cancel()])

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._helpers is None:
                self._helpers = ThreadPoolExecutor(self._threads, thread_name_prefix="runner")
            return self._helpers


def _thread_runner(threads: int, late: bool) -> ThreadRunner:
    return ThreadRunner(threads, late=late)


def values(outcomes: Iterable[Outcome[T, R]]) -> list[R]:
    """All values; the first failure is raised once everything has ended."""
    done: list[R] = []
    failure: StratalogError | None = None
    for outcome in outcomes:
        match outcome:
            case Done(_, value):
                done.append(value)
            case Failed(_, error):
                failure = failure or error
    if failure is not None:
        raise failure
    return done

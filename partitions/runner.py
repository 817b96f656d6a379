"""Runners of independent pieces of work: one after the other, in threads, or (in ``engine``) on Spark."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from stratalog.partitions.errors import StratalogError

T = TypeVar("T")
R = TypeVar("R")

QUICK_S = 0.001
"""Storage behind a network never answers within this time, and few disks make a file durable in it."""
QUICK_RUNS = 10
"""The number of runs in a row that must be quick. (A disk answers some calls that fast, but not all calls of ten
runs in a row during appends.)
"""


SPARK, THREADS = "spark", "threads"
RUNNERS = (SPARK, THREADS)
"""Values of ``runner``: the executors of the Spark session, if there is one; or only threads of this process, for
executors that cannot reach the storage. In the second case an append fetches all rows to the driver."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """The work on ``item`` gave ``value``."""

    item: T
    value: R


@dataclass(frozen=True, slots=True)
class Failed(Generic[T]):
    """The work on ``item`` ended with a StratalogError."""

    item: T
    error: StratalogError


Outcome = Done[T, R] | Failed[T]


def _one(_: object) -> int:
    return 1


class Runner(Protocol):
    """Runs a function over items."""

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        """Yields one outcome per item, in the order in which they finish. A ``StratalogError`` is the outcome of
        its item and does not stop other items; any other exception is a bug and is raised. ``weigh`` gives the
        amount of work of an item, for runners that pack items together.
        """
        ...


def attempt(function: Callable[[T], R], item: T) -> Outcome[T, R]:
    """The outcome of one item."""
    try:
        return Done(item, function(item))
    except StratalogError as error:
        return Failed(item, error)


def side_by_side(runner: Runner, *works: Callable[[], object]) -> None:
    """Run all calls side by side, and wait for all of them. Raises: the error of the first failed call, in the
    order given.
    """
    outcomes = list(runner.run(lambda number: works[number](), range(len(works))))
    for failed in sorted((one for one in outcomes if isinstance(one, Failed)), key=lambda one: one.item):
        raise failed.error


class SerialRunner:
    """Runs items one after the other, in order: deterministic, for tests and small work."""

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        for item in items:
            yield attempt(function, item)


class ThreadRunner:
    """Runs items in up to ``threads`` threads, including the caller's.

    The other threads wait in a pool as long as the runner lives, so a run of a few small items needs no new
    threads. Because the caller also works, an item may itself run other items on the same runner, however many
    threads are busy. An unpickled runner has a new pool.

    Small items of a file system in memory end before another thread has begun, and threads that take turns cost
    more CPU time than the items. So the caller runs the items alone if each item of the latest ``QUICK_RUNS`` runs
    ended within ``QUICK_S``, until an item takes longer.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._quick_runs = 0
        """The number of latest runs whose items ended within ``QUICK_S`` each."""
        self._helpers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ThreadRunner], tuple[int]]:
        return ThreadRunner, (self._threads,)

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        waiting = deque(items)
        while self._quick_runs >= QUICK_RUNS and len(waiting) > 1:
            began_s = time.perf_counter()
            outcome = attempt(function, waiting.popleft())
            if time.perf_counter() - began_s > QUICK_S:
                self._quick_runs = 0
            yield outcome
        helpers = min(self._threads, len(waiting)) - 1
        if helpers <= 0:
            yield from SerialRunner().run(function, waiting)
            return
        expected = len(waiting)
        run = _Run(function, waiting)
        run.call(self._pool(), helpers)
        try:
            for _ in range(expected):
                yield run.next_outcome()
        finally:  # after a bug, or when the caller stops iterating, start no more items
            run.end()
        self._quick_runs = self._quick_runs + 1 if run.longest_s <= QUICK_S else 0

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._helpers is None:
                self._helpers = ThreadPoolExecutor(self._threads, thread_name_prefix="runner")
            return self._helpers


class _Run(Generic[T, R]):
    """One run of a ``ThreadRunner``: its items, and the threads that work on them."""

    def __init__(self, function: Callable[[T], R], waiting: deque[T]) -> None:
        self._function = function
        self._waiting = waiting
        self._called: list[Future[None]] = []
        self._done: SimpleQueue[Outcome[T, R] | BaseException] = SimpleQueue()
        self.longest_s = 0.0
        """The longest time that an item has taken so far."""

    def call(self, pool: ThreadPoolExecutor, helpers: int) -> None:
        """Start work in ``helpers`` idle threads as well."""
        self._called += (pool.submit(self._help) for _ in range(helpers))

    def next_outcome(self) -> Outcome[T, R]:
        """The next outcome, from the caller or another thread."""
        own: list[T] = []
        if self._done.empty():
            with suppress(IndexError):
                own = [self._waiting.popleft()]
        outcome = self._attempt(own[0]) if own else self._done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _attempt(self, item: T) -> Outcome[T, R]:
        began_s = time.perf_counter()
        outcome = attempt(self._function, item)
        self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
        return outcome

    def end(self) -> None:
        """Start no more items, and wait for the items that have started."""
        self._waiting.clear()
        # Wait only for helpers that have started: a helper in the queue may be behind runs that themselves wait
        # here.
        wait([helper for helper in self._called if not helper.cancel()])

    def _help(self) -> None:
        with suppress(IndexError):  # no item is waiting
            while True:
                item = self._waiting.popleft()
                try:
                    self._done.put(self._attempt(item))
                except BaseException as error:  # a bug, for the caller to raise
                    self._waiting.clear()
                    self._done.put(error)


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

"""How independent pieces of work are run: one after the other, in threads, or (in ``engine``) by Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from partitions.errors import StratalogError

_QUEUED_PER_THREAD = 4

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
    """In ``threads`` threads of this process."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def run(
        self, function: Callable[[T], R], items: Iterable[T], weigh: Callable[[T], int] = _one
    ) -> Iterator[Outcome[T, R]]:
        """See ``Runner.run``."""
        listed = list(items)
        if len(listed) <= 1:
            yield from SerialRunner().run(function, listed)
            return
        waiting = iter(listed)
        running: set[Future[Outcome[T, R]]] = set()
        pool = ThreadPoolExecutor(min(self._threads, len(listed)))
        try:
            while True:
                upcoming = islice(waiting, self._threads * _QUEUED_PER_THREAD - len(running))
                running |= {pool.submit(attempt, function, item) for item in upcoming}
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        finally:  # after a bug, or when nobody wants the rest: what has not begun is not begun
            pool.shutdown(wait=True, cancel_futures=True)


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

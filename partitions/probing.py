"""Makes many small calls at the same time, without waiting for calls that do not return.

A call into a file system whose server is gone does not return, and cannot be cancelled. So calls run in daemon
threads, which are abandoned after a deadline.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from stratalog.partitions.errors import StoreTimeoutError
from stratalog.partitions.runner import QUICK_S, Failed, Outcome, attempt

T = TypeVar("T", bound=Hashable)
R = TypeVar("R")


class NoAnswerError(StoreTimeoutError):
    """The outcome of an item that did not answer before the deadline."""


class Prober(Protocol):
    """Calls a function for each of many items."""

    def probe(self, question: Callable[[T], R], items: Sequence[T], deadline_s: float) -> list[Outcome[T, R]]:
        """One outcome per item, in order; ``Failed`` with StoreTimeoutError for an item that did not answer within
        ``deadline_s`` seconds. A StratalogError is an outcome; any other exception is a bug and is raised.
        """
        ...


class SerialProber:
    """Calls one item after the other, without a deadline: deterministic, for stores that always answer."""

    def probe(self, question: Callable[[T], R], items: Sequence[T], deadline_s: float) -> list[Outcome[T, R]]:
        return [attempt(question, item) for item in items]


Wait = Callable[[threading.Condition, Callable[[], int], float], object]
"""Waits on a held condition until all items have answered, or the given seconds have passed."""


def until_all_have_answered(answered: threading.Condition, missing: Callable[[], int], deadline_s: float) -> None:
    """The usual ``Wait``."""
    answered.wait_for(lambda: missing() == 0, min(deadline_s, threading.TIMEOUT_MAX))


class ThreadProber:
    """One thread per item. An item whose abandoned thread still hangs is not called again. So a driver that probes
    for weeks has one abandoned thread per dead item, not one per probe. An unpickled prober starts without such
    items.

    While all items answer quickly, one thread calls them all, because threads that take turns cost more CPU time
    than the answers. The other threads start if the first thread has not ended after ``QUICK_S``.
    """

    def __init__(self, wait: Wait = until_all_have_answered) -> None:
        self._wait = wait
        self._abandoned: dict[Hashable, threading.Thread] = {}
        self._quick = False
        """Whether the items of the latest probe answered within ``QUICK_S`` each."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[ThreadProber], tuple[Wait]]:
        return ThreadProber, (self._wait,)

    def probe(self, question: Callable[[T], R], items: Sequence[T], deadline_s: float) -> list[Outcome[T, R]]:
        outcomes: dict[T, Outcome[T, R] | BaseException] = {}
        answered = threading.Condition()
        with self._lock:
            hanging = {item for item in items if item in self._abandoned and self._abandoned[item].is_alive()}
        waiting = deque(item for item in items if item not in hanging)
        asked, threads = len(waiting), dict[T, threading.Thread]()

        def ask() -> None:
            with suppress(IndexError):  # the other threads call the other items
                while True:
                    with answered:
                        item = waiting.popleft()
                        threads[item] = threading.current_thread()
                    outcome: Outcome[T, R] | BaseException
                    try:
                        outcome = attempt(question, item)
                    except BaseException as bug:  # raised below, in the caller's thread
                        outcome = bug
                    with answered:
                        outcomes[item] = outcome
                        answered.notify()

        def begin(most: int) -> None:
            for item in list(waiting)[:most]:
                threading.Thread(target=ask, name=f"probe {item}", daemon=True).start()

        def missing() -> int:
            return asked - len(outcomes)

        began_s = time.perf_counter()
        begin(1 if self._quick else asked)
        if self._quick:
            with answered:
                answered.wait_for(lambda: missing() == 0, QUICK_S)
            begin(asked)
        with answered:
            self._wait(answered, missing, deadline_s)
            waiting.clear()
            seen, begun = dict(outcomes), dict(threads)
        self._quick = time.perf_counter() - began_s < QUICK_S * asked
        with self._lock:
            self._abandoned.update({item: thread for item, thread in begun.items() if item not in seen})
        found: list[Outcome[T, R]] = []
        for item in items:
            outcome = seen.get(item)
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(
                Failed(item, NoAnswerError(f"no answer within {deadline_s:g} s")) if outcome is None else outcome
            )
        return found

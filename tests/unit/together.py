"""Runs actions concurrently, for tests of racing drivers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def together(*actions: Callable[[], T]) -> list[T]:
    """Run these concurrently, each in its own thread; returns their results in order.

    Raises: the error of the first one that failed, after all have ended.
    """
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        start.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))

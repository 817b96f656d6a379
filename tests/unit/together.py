"""Actions at once, for tests of drivers that race."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def together(*actions: Callable[[], T]) -> list[T]:
    """Run these at once, each in a thread of its own; what they return, in their order.

    Raises: what the first of them that failed has raised, when all have ended.
    """
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T:
        start.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))

"""Runs the tasks of an operation, one per partition, here or on executors, and reports their progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from stratalog.partitions.runner import Outcome, ThreadRunner
from stratalog.partitions.store import Store, StoreCounts


class Progress(Protocol):
    """A listener to an operation's progress: a known number of items, and the bytes of each. The total number of
    bytes is unknown, because only the tasks list the logs."""

    def start(self, operation: str, items: int, unit: str) -> None:
        """Work on ``items`` items begins; ``unit`` is their plural."""
        ...

    def advance(self, size_bytes: int = 0) -> None:
        """One more item is done, with ``size_bytes`` bytes."""
        ...

    def finish(self) -> None:
        """The work has ended."""
        ...


class Silent:
    """Discards progress."""

    def start(self, operation: str, items: int, unit: str) -> None: ...

    def advance(self, size_bytes: int = 0) -> None: ...

    def finish(self) -> None: ...


class Work(Protocol):
    """A task: an item that can be pickled to an executor and names the stores that it uses there."""

    def stores_used(self) -> Iterable[Store]:
        """The stores whose requests are counted for the item."""
        ...


W = TypeVar("W", bound=Work)
R = TypeVar("R")


def _one(_: object) -> int:
    return 1


class TaskRunner(Protocol):
    """Runs tasks keyed by partition, here or in other processes, and counts the storage requests made there."""

    counts: StoreCounts

    @property
    def processes(self) -> int:
        """The number of processes that run tasks concurrently. The processes share a limit equally."""
        ...

    def run(
        self, function: Callable[[W], R], items: Iterable[W], weigh: Callable[[W], int] = _one
    ) -> Iterator[Outcome[W, R]]: ...


class LocalTasks(ThreadRunner):
    """Runs tasks in threads of this process. The stores of this process count the requests of these tasks."""

    processes = 1

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.counts = StoreCounts()

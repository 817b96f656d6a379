"""Clocks that a test moves: the storage's clock, which follows the test's, and wrong clocks of drivers."""

from __future__ import annotations

from typing import Any

from stratalog.partitions.clock import Clock
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.local import LocalStore


class WrongClock:
    """A clock that is a number of milliseconds ahead of ``right``, or behind it."""

    def __init__(self, right: Clock, ahead_ms: int) -> None:
        self._right, self._ahead_ms = right, ahead_ms

    def now_ms(self) -> int:
        return self._right.now_ms() + self._ahead_ms

    def monotonic_s(self) -> float:
        return self._right.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self._right.sleep(seconds)


class FolderByClock(LocalStore):
    """A folder of a file system whose clock is ``time``, or else the clock of the driver. Its files still have the
    times of the machine, so such a clock must start with the machine's time."""

    def __init__(self, root: str, clock: Clock, new_id: NewId = random_id, time: Clock | None = None) -> None:
        super().__init__(root, clock, new_id)
        self._by = clock if time is None else time

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderByClock, (self.root, self._clock, self._new_id, self._by)

    def now_ms(self) -> int:
        return self._by.now_ms()


def open_by_clock(uri: str, options: StoreOptions, clock: Clock) -> Store:
    """Like ``open_store``, but with the driver's clock as the storage's clock."""
    store = open_store(uri, options, clock)
    if isinstance(store, LocalStore):
        return FolderByClock(store.root, clock)
    if uri.startswith("s3"):
        store.now_ms = clock.now_ms  # type: ignore[method-assign]
    return store

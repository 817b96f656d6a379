"""Storage that keeps the time that a test says: where its clock moves, that of the storage moves along."""

from __future__ import annotations

from typing import Any

from stratalog.partitions.clock import Clock
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.local import LocalStore


class FolderByClock(LocalStore):
    """A folder at which it is as late as by the clock it is opened with. Its files still have the times of the
    machine, so such a clock begins there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return FolderByClock, (self.root, self._clock, self._new_id)

    def now_ms(self) -> int:
        return self._clock.now_ms()


def open_by_clock(uri: str, options: StoreOptions, clock: Clock) -> Store:
    """As ``open_store``, by that clock."""
    store = open_store(uri, options, clock)
    if isinstance(store, LocalStore):
        return FolderByClock(store.root, clock)
    if uri.startswith("s3"):
        store.now_ms = clock.now_ms  # type: ignore[method-assign]
    return store

"""A cache of the most recently used entries, up to a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The most recently used values, whose total weight is at most ``most``. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    @property
    def weight(self) -> int:
        """The total weight of the cached values."""
        return self._weight

    def get(self, key: K) -> V | None:
        """The cached value of the key, or None."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def take(self, key: K) -> V | None:
        """The cached value of the key, or None; the value is removed from the cache."""
        with self._lock:
            return self._forget(key)

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Cache a value, and evict the least recently used ones. A value heavier than the whole cache is not
        cached."""
        with self._lock:
            self._forget(key)
            if weight > self._most:
                return
            self._values[key] = value, weight
            self._weight += weight
            while self._weight > self._most:
                self._forget(next(iter(self._values)))

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()
            self._weight = 0

    def _forget(self, key: K) -> V | None:
        found = self._values.pop(key, None)
        if found is None:
            return None
        self._weight -= found[1]
        return found[0]


class Room:
    """A memory budget in bytes that threads share. Thread-safe."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size_bytes: int) -> Iterator[None]:
        """Wait for ``size_bytes`` bytes of the budget and hold them inside the block; a request larger than the
        budget takes all of it. A thread that holds part of the budget must not request more.
        """
        wanted = min(size_bytes, self._size_bytes)
        with self._changed:
            self._changed.wait_for(lambda: self._taken + wanted <= self._size_bytes)
            self._taken += wanted
        try:
            yield
        finally:
            with self._changed:
                self._taken -= wanted
                self._changed.notify_all()

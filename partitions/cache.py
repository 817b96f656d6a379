"""A cache of the most recently used entries, up to a bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The values that were used last, as many as together weigh at most ``most``. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    @property
    def weight(self) -> int:
        """Of all values that are kept."""
        return self._weight

    def get(self, key: K) -> V | None:
        """The value that was kept for the key; None when it was not, or has been forgotten."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def take(self, key: K) -> V | None:
        """As ``get``; it is not kept any longer."""
        with self._lock:
            return self._forget(key)

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep a value; those that were used longest ago are forgotten for it. One that is heavier than all the
        cache is not kept.
        """
        with self._lock:
            self._forget(key)
            if weight > self._most:
                return
            self._values[key] = value, weight
            self._weight += weight
            while self._weight > self._most:
                self._forget(next(iter(self._values)))

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._values.clear()
            self._weight = 0

    def _forget(self, key: K) -> V | None:
        found = self._values.pop(key, None)
        if found is None:
            return None
        self._weight -= found[1]
        return found[0]

"""Memory that threads share: together they hold at most a given number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Room:
    """A number of bytes, of which each caller takes some for as long as it needs them. Thread-safe."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size_bytes: int) -> Iterator[None]:
        """Wait for ``size_bytes`` bytes, and hold them inside; a request for more than the whole waits for the
        whole. A thread that holds some must not ask for more."""
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

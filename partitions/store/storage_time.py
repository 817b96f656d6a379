"""The time at a storage: what it was told to be last, and how long ago that is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime

from stratalog.partitions.clock import SystemClock

_FRESH_S = 60.0
"""How long a time that was told goes on by this machine's monotonic clock, which a sleeping machine may stop. A
storage that was asked, and told none, is not asked again for as long."""

_MACHINE = SystemClock()


class StorageTime:
    """The time at one storage, which goes on without this machine's wall clock. Thread-safe."""

    def __init__(self) -> None:
        self._told: tuple[int, float] | None = None
        self._asked_s: float | None = None
        self._asking = threading.Lock()

    def told(self, now_ms: int) -> None:
        """The storage has said just now what time it is."""
        self._told = now_ms, _MACHINE.monotonic_s()

    def answered(self, headers: Mapping[str, str]) -> None:
        """The storage has answered a request just now, with these headers. A cache's answer is as old as it is."""
        date = headers.get("Date")
        if date is not None and "Age" not in headers:
            with suppress(ValueError):
                self.told(round(parsedate_to_datetime(date).timestamp() * 1000))

    def now_ms(self, ask: Callable[[], object]) -> int | None:
        """The time there; None where it is not known. ``ask`` is called where nothing was ``told`` lately, and has
        the storage tell."""
        now_ms = self._going_on()
        if now_ms is None:
            with self._asking:
                asked_s = _MACHINE.monotonic_s()
                if self._going_on() is None and (self._asked_s is None or asked_s > self._asked_s + _FRESH_S):
                    self._asked_s = asked_s
                    ask()
            now_ms = self._going_on()
        return now_ms

    def _going_on(self) -> int | None:
        if self._told is None:
            return None
        (told_ms, at_s), now_s = self._told, _MACHINE.monotonic_s()
        return told_ms + round(1000 * (now_s - at_s)) if now_s <= at_s + _FRESH_S else None

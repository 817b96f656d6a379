"""The time of a storage: its latest answer, plus the time since then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime

from stratalog.partitions.clock import SystemClock

_FRESH_S = 60.0
"""How long a reported time is continued by this machine's monotonic clock. (That clock may stop while the machine
sleeps.) A storage that has reported no time is not asked again for the same time.
"""

_MACHINE = SystemClock()


class StorageTime:
    """The time of one storage, continued without this machine's wall clock. Thread-safe."""

    def __init__(self) -> None:
        self._told: tuple[int, float] | None = None
        self._asked_s: float | None = None
        self._asking = threading.Lock()

    def told(self, now_ms: int) -> None:
        """Record the time that the storage has just reported."""
        self._told = now_ms, _MACHINE.monotonic_s()

    def answered(self, headers: Mapping[str, str]) -> None:
        """Record the time in the headers of an answer that has just arrived. For an answer from a cache, its age
        is added.
        """
        date = headers.get("Date")
        if date is not None and "Age" not in headers:
            with suppress(ValueError):
                self.told(round(parsedate_to_datetime(date).timestamp() * 1000))

    def now_ms(self, ask: Callable[[], object]) -> int | None:
        """The storage's time; None if unknown. If no time was ``told`` recently, ``ask`` is called, which makes
        the storage report one.
        """
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

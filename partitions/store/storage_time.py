"""The time of a storage: its latest answer, plus the time since then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime

from stratalog.partitions.clock import SystemClock

_FRESH_S = 60.0
"""The number of seconds for which this machine's monotonic clock continues a reported time. (That clock may stop
while the machine sleeps.) A storage that has reported no time is not asked again before this number of seconds has
passed.
"""

_MACHINE = SystemClock()


class StorageTime:
    """The time of one storage, continued without this machine's wall clock. Thread-safe."""

    def __init__(self) -> None:
        self._reported: tuple[int, float] | None = None
        self._asked_s: float | None = None
        self._asking = threading.Lock()

    def update(self, now_ms: int) -> None:
        """Record the time that the storage has just reported."""
        self._reported = now_ms, _MACHINE.monotonic_s()

    def answered(self, headers: Mapping[str, str]) -> None:
        """Record the time in the headers of an answer that has just arrived. An answer from a cache (``Age``) is
        ignored.
        """
        date = headers.get("Date")
        if date is not None and "Age" not in headers:
            with suppress(ValueError):
                self.update(round(parsedate_to_datetime(date).timestamp() * 1000))

    def now_ms(self, ask: Callable[[], object]) -> int | None:
        """The storage's time; None if unknown. If the storage reported none recently, ``ask`` is called, which
        makes it report one.
        """
        now_ms = self._continued()
        if now_ms is None:
            with self._asking:
                asked_s = _MACHINE.monotonic_s()
                if self._continued() is None and (self._asked_s is None or asked_s > self._asked_s + _FRESH_S):
                    self._asked_s = asked_s
                    ask()
            now_ms = self._continued()
        return now_ms

    def _continued(self) -> int | None:
        if self._reported is None:
            return None
        (reported_ms, at_s), now_s = self._reported, _MACHINE.monotonic_s()
        return reported_ms + round(1000 * (now_s - at_s)) if now_s <= at_s + _FRESH_S else None

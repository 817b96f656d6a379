"""The operation that a thread runs: its name for Spark's pages, and its heartbeat in the log."""

from __future__ import annotations

import logging
import threading
from contextvars import ContextVar

from stratalog.engine.driver.tasks import Progress
from stratalog.partitions.clock import Clock

OPERATION: ContextVar[str | None] = ContextVar("stratalog_operation", default=None)
"""The operation that the caller requested; None outside of any operation."""

HEARTBEAT_S = 30.0
"""The minimum time between two lines of a heartbeat."""

_log = logging.getLogger("stratalog.engine.operations")


class Heartbeat:
    """Passes progress on, and logs a line about long work every ``HEARTBEAT_S``. Thread-safe."""

    def __init__(self, to: Progress, clock: Clock) -> None:
        self._to, self._clock = to, clock
        self._lock = threading.Lock()
        self._what, self._unit = "", ""
        self._items = self._done = self._bytes = 0
        self._began_s = self._logged_s = 0.0

    def start(self, operation: str, items: int, unit: str) -> None:
        """See ``Progress``."""
        with self._lock:
            self._what, self._items, self._unit = operation, items, unit
            self._done = self._bytes = 0
            self._began_s = self._logged_s = self._clock.monotonic_s()
        self._to.start(operation, items, unit)

    def advance(self, size_bytes: int = 0) -> None:
        """See ``Progress``."""
        with self._lock:
            self._done += 1
            self._bytes += size_bytes
            now_s = self._clock.monotonic_s()
            due = now_s - self._logged_s >= HEARTBEAT_S
            if due:
                self._logged_s = now_s
            line = (
                f"{self._done} of {self._items} {self._unit}, {self._bytes} bytes, {now_s - self._began_s:.0f} s"
            )
        if due:
            _log.info("%s: %s", self._what, line)
        self._to.advance(size_bytes)

    def finish(self) -> None:
        """See ``Progress``."""
        self._to.finish()

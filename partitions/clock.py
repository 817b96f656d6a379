"""Time as a parameter: no other module of the product reads a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

FOREVER_MS = 2**63 - 1
"""A time that never comes."""


def time_text(time_ms: int) -> str:
    """A time as readable text in UTC; a number of milliseconds if it is beyond the calendar."""
    try:
        return f"{datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms):%F %T}Z"
    except OverflowError:
        return f"{time_ms} ms after 1970"


class Clock(Protocol):
    """The engine's source of time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch, UTC."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never moves backward."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251 - the one place

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that moves only by ``advance_ms`` and ``sleep``, which returns immediately."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.advance_ms(round(seconds * 1000))

    def advance_ms(self, milliseconds: int) -> None:
        """Advance the clock by a number of milliseconds."""
        self._now_ms += milliseconds

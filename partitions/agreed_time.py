"""The time for deletion by time. Two clocks must agree on it: the driver's and the storage's.

Any notebook may be a driver, and nobody maintains its clock. A clock that is days ahead would expire fresh
records, producers and groups. A clock that is days behind would date new work days back, and the next driver would
expire that work. A storage has its own time (``Store.now_ms``). If the driver's time and the storage's differ by
more than ``MOST_APART_MS``, one of them is wrong, and nothing is deleted by time.

A driver deletes by the earlier of the two times, and records the later time for other drivers. So whichever clock
is wrong, the only effect is that data is kept longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stratalog.partitions.clock import Clock

MOST_APART_MS = 5 * 60 * 1000
"""The allowed difference between the clocks of driver and storage. A machine with NTP is within a second."""


class HasTime(Protocol):
    """A storage that reports its time."""

    def now_ms(self) -> int | None:
        """See ``Store.now_ms``."""
        ...


def agree(driver_ms: int, storage_ms: int | None) -> bool:
    """Whether two clocks, read at the same moment, are close. A storage that reports no time agrees with no
    driver.
    """
    return storage_ms is not None and abs(driver_ms - storage_ms) <= MOST_APART_MS


def agreed_by_most(driver_ms: int, storages_ms: Iterable[int | None]) -> int | None:
    """The time for all deletion by time, given the times of several roots: the earliest of the driver's time and
    the root times that agree with it. None unless more than half of the known root times agree, so that one root
    with a wrong clock does not stop the others.
    """
    known = [storage_ms for storage_ms in storages_ms if storage_ms is not None]
    agreeing = [storage_ms for storage_ms in known if agree(driver_ms, storage_ms)]
    return min(driver_ms, *agreeing) if 2 * len(agreeing) > len(known) else None


def agreed_ms(clock: Clock, store: HasTime) -> int | None:
    """The time for all deletion by time from a storage: the earlier of the driver's time and the storage's. None
    if they disagree, or the storage reports no time. In both cases, nothing may be deleted by time.
    """
    return agreed_by_most(clock.now_ms(), [store.now_ms()])


def stamp_ms(clock: Clock, store: HasTime) -> int:
    """The time to record for an event that happens now: the later of the driver's time and the storage's. Others
    will expire the event by this time.
    """
    driver_ms, storage_ms = clock.now_ms(), store.now_ms()
    return driver_ms if storage_ms is None else max(driver_ms, storage_ms)


def earlier_ms(clock: Clock, store: HasTime) -> int:
    """The time to record for an event that happens now: the earlier of the driver's time and the storage's. Others
    will expire earlier events by this time.
    """
    driver_ms, storage_ms = clock.now_ms(), store.now_ms()
    return driver_ms if storage_ms is None else min(driver_ms, storage_ms)

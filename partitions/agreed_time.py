"""The time by which things are removed: two clocks have to agree on it, the driver's and that of the storage.

Every notebook is a driver, and nobody looks after its clock. One that is days ahead would let records, producers
and groups expire that are fresh; one that is days behind would write down that what it does now was done days ago,
and the next driver would let that expire. A storage tells its time by itself (``Store.now_ms``). Where the two are
apart by more than ``MOST_APART_MS``, one of them is wrong, and nothing is removed by time.

A driver removes by the earlier of the two times, and writes the later one down for others: a clock that is
wrong keeps things for longer, whichever it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stratalog.partitions.clock import Clock

MOST_APART_MS = 5 * 60 * 1000
"""How far a driver's clock may be from its storage's. A machine that asks a time server is within a second."""


class TellsTime(Protocol):
    """A storage, as far as it is asked for its time."""

    def now_ms(self) -> int | None:
        """As ``Store.now_ms``."""
        ...


def agree(driver_ms: int, storage_ms: int | None) -> bool:
    """Whether two clocks, asked at once, are near each other; a storage that tells no time agrees with nobody."""
    return storage_ms is not None and abs(driver_ms - storage_ms) <= MOST_APART_MS


def agreed_by_most(driver_ms: int, told: Iterable[int | None]) -> int | None:
    """The time for everything that is removed by time, where several roots have ``told`` theirs: the earliest
    of those that agree with the driver. None unless these are more than half of those that tell: a root whose
    own clock is wrong does not stop the others."""
    known = [storage_ms for storage_ms in told if storage_ms is not None]
    agreeing = [storage_ms for storage_ms in known if agree(driver_ms, storage_ms)]
    return min(driver_ms, *agreeing) if 2 * len(agreeing) > len(known) else None


def agreed_ms(clock: Clock, store: TellsTime) -> int | None:
    """The time for everything that is removed by time from a storage: the earlier of the driver's and its
    own. None where they do not agree, or it does not tell: nothing is to be removed by time."""
    return agreed_by_most(clock.now_ms(), [store.now_ms()])


def stamp_ms(clock: Clock, store: TellsTime) -> int:
    """The time to write down for what happens now, where others remove by it: the later of the driver's and the
    storage's."""
    driver_ms, storage_ms = clock.now_ms(), store.now_ms()
    return driver_ms if storage_ms is None else max(driver_ms, storage_ms)


def earlier_ms(clock: Clock, store: TellsTime) -> int:
    """The time to write down for what happens now, where others remove by it what came before: the earlier of the
    driver's and the storage's."""
    driver_ms, storage_ms = clock.now_ms(), store.now_ms()
    return driver_ms if storage_ms is None else min(driver_ms, storage_ms)

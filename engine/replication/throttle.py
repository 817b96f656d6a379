"""Limits on the bytes per second that copies move: a token bucket on the injected clock (``Throttle``), and the
throttle of reassignments (``follower.replication.throttled.rate``), shared by all drivers (``SharedThrottle``).

A copy spends its bytes first, then waits until they are paid for. The bucket holds the bytes of one second, and is
full at the beginning. A copy (of a group of files) may spend more than the bucket holds, and waits for the rest.
All threads of a process share a bucket. A pickled bucket starts full in its process, so tasks in other processes
each get a share (``shared_by``).

In Kafka the copying broker holds the token bucket of a reassignment. Here any number of drivers copy to a broker
at the same time, so that bucket is a file in the broker's root. The file contains the time, by that storage's
clock, at which all booked copies are paid for. A driver books by creating the next version exclusively, and waits
until its copy is paid for. If two drivers compete, one driver creates the version, and the other driver books
after it. A driver that dies wastes only its booking. If the files cannot be read or written, each process limits
itself to its own share of the rate.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import Store

BURST_S = 1.0
_MOST_BYTES = 8 * 1024**3
"""The greatest plausible booking; a larger booking was made by a foreign writer."""
_MOST_DIGITS = 20
_TOO_LONG = -1.0
_KEPT = 8
"""The number of versions to keep, so that a driver with a recent listing does not create an old version again."""


class Throttle:
    """Limits the average rate to ``bytes_per_s`` bytes per second, after an initial burst of one second."""

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        """Raises: InvalidCallError for a rate that is not above 0."""
        self.bytes_per_s = checked_rate(bytes_per_s)
        self._clock = clock
        self._turn = threading.Lock()
        self._paid_until = clock.monotonic_s() - BURST_S
        """The time at which all spending so far is paid for."""

    def __repr__(self) -> str:
        return f"Throttle({self.bytes_per_s:g} bytes/s)"

    def __reduce__(self) -> tuple[type[Throttle], tuple[float, Clock]]:
        return Throttle, (self.bytes_per_s, self._clock)

    def spend(self, size_bytes: int) -> None:
        """Wait until ``size_bytes`` bytes may be moved. Threads are served in the order of their calls."""
        with self._turn:
            now = self._clock.monotonic_s()
            self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self.bytes_per_s
            wait = self._paid_until - now
        if wait > 0:
            self._clock.sleep(wait)

    def borrow(self, size_bytes: int, within_s: float) -> bool:
        """Wait until earlier spending is paid for, then spend. ``size_bytes`` bytes may then move immediately, and
        the next caller waits until they are paid for. Returns False, without waiting or spending, if the wait
        would be longer than ``within_s`` seconds.
        """
        with self._turn:
            now = self._clock.monotonic_s()
            wait = self._paid_until - now
            if wait > within_s:
                return False
            self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self.bytes_per_s
        if wait > 0:
            self._clock.sleep(wait)
        return True

    def shared_by(self, processes: int) -> Throttle:
        """A bucket with the share of one of ``processes`` concurrent processes; for one process, this bucket
        itself.
        """
        return self if processes <= 1 else Throttle(self.bytes_per_s / processes, self._clock)


def checked_rate(bytes_per_s: float) -> float:
    """Return the rate. Raises: InvalidCallError for a rate that is not above 0."""
    if not bytes_per_s > 0:
        raise InvalidCallError(
            f"a throttle of {bytes_per_s:g} bytes per second would copy nothing: give more than 0"
        )
    return bytes_per_s


class SharedThrottle:
    """Limits the rate at which all drivers together copy to one broker to ``bytes_per_s``, after a burst of one
    second. Picklable: each unpickled copy waits as long as this object.
    """

    def __init__(self, bytes_per_s: float, clock: Clock, processes: int = 1, most_s: float | None = None) -> None:
        """``processes``: the number of processes of this driver that copy at the same time. ``most_s``: the
        longest total wait in seconds; None: no limit.
        """
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._processes = processes
        self._own = Throttle(bytes_per_s, clock).shared_by(processes)
        self._left_s = self._most_s = most_s
        self._waiting = threading.Lock()

    def __reduce__(self) -> tuple[type[SharedThrottle], tuple[float, Clock, int, float | None]]:
        return SharedThrottle, (self.bytes_per_s, self._clock, self._processes, self._most_s)

    def spend(self, follower: Replica, size_bytes: int) -> bool:
        """Wait until ``size_bytes`` bytes may be copied to the follower's broker. Returns False, with nothing
        booked, if the wait would exceed the limit.
        """
        store, home = follower.store, follower.incarnation_folder or follower.directory_id
        try:
            wait_s = None
            while wait_s is None:
                wait_s = self._book(store, home, size_bytes)
        except StratalogError:
            if self._left_s is not None:
                return self._own.borrow(size_bytes, self._left_s)
            self._own.spend(size_bytes)
            return True
        if wait_s == _TOO_LONG:
            return False
        if wait_s > 0:
            self._clock.sleep(wait_s)
        if self._left_s is not None:
            with self._waiting:
                self._left_s -= wait_s
        return True

    def _book(self, store: Store, home: str, size_bytes: int) -> float | None:
        """The seconds to wait before the copy; None if another driver booked first. A copy without a limit on its
        wait starts once its own booking is paid for. A copy with such a limit starts once all earlier bookings are
        paid for, and later copies wait until its booking is paid for.

        Raises: StratalogError.
        """
        folder = paths.schedule_folder(home, paths.REPLICATION_THROTTLE)

        def path(version: int) -> str:
            return paths.schedule_path(home, paths.REPLICATION_THROTTLE, version)

        names = (paths.name_in(folder, stored.name) for stored in store.list(folder))
        versions = sorted(v for v in map(paths.parse_schedule_name, names) if v is not None)
        latest = versions[-1] if versions else 0
        now_ms = self._now_ms(store)
        paid_ms = _read(store, path(latest)) if latest else 0
        paid_ms = max(min(paid_ms, now_ms + self._ms(_MOST_BYTES)), now_ms - round(1000 * BURST_S))
        until_ms = paid_ms + self._ms(size_bytes)
        wait_s = max(0, (until_ms if self._left_s is None else paid_ms) - now_ms) / 1000
        if self._left_s is not None and wait_s > self._left_s:
            return _TOO_LONG
        if not store.create(path(latest + 1), str(until_ms).encode()):
            return None
        if old := versions[:-_KEPT]:
            with suppress(StratalogError):
                store.delete([path(version) for version in old])
        return wait_s

    def _ms(self, size_bytes: int) -> int:
        return round(1000 * size_bytes / self.bytes_per_s)

    def _now_ms(self, store: Store) -> int:
        now_ms = store.now_ms()
        return self._clock.now_ms() if now_ms is None else now_ms


def _read(store: Store, name: str) -> int:
    """The time at which all bookings are paid for; 0 if the file is gone or unreadable."""
    try:
        text = read_bounded(store, name, _MOST_DIGITS)
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0

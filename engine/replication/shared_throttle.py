"""The throttle of reassignments (``follower.replication.throttled.rate``), as all drivers share it.

In Kafka the broker that copies holds the bucket. Here any number of drivers copy to it at once, so the bucket lies
in its root: a file that says until when all that is booked is paid for, by the time of that storage. A driver
that is to copy creates the next version exclusively, and waits until that is paid for. Of two drivers one gets the
version, and the other books behind it. A driver that died has spent what it has booked, and no more.

The files are hints: where they cannot be read or written, each process keeps to its share of the rate by itself.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from stratalog.engine.replication.throttle import BURST_S, Throttle
from stratalog.partitions import paths
from stratalog.partitions.bounded import read_bounded
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import Store

_MOST_BYTES = 8 * 1024**3
"""A bucket in which more is to be paid for was written by a stranger."""
_MOST_DIGITS = 20
_TOO_LONG = -1.0
_KEPT = 8
"""Versions that stay: a driver that has listed them a moment ago does not create an old one again."""


class SharedThrottle:
    """At most ``bytes_per_s`` to one broker by all drivers together, after a first second's worth at once.
    Picklable: each copy waits as long as this one."""

    def __init__(self, bytes_per_s: float, clock: Clock, processes: int = 1, most_s: float | None = None) -> None:
        """``processes``: how many of this driver copy at once. ``most_s``: how many seconds it waits, in all;
        None: as long as it takes."""
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._processes = processes
        self._own = Throttle(bytes_per_s, clock).shared_by(processes)
        self._left_s = self._most_s = most_s
        self._waiting = threading.Lock()

    def __reduce__(self) -> tuple[type[SharedThrottle], tuple[float, Clock, int, float | None]]:
        return SharedThrottle, (self.bytes_per_s, self._clock, self._processes, self._most_s)

    def spend(self, follower: Replica, size_bytes: int) -> bool:
        """Wait until ``size_bytes`` bytes may be copied to the follower's broker. False, with nothing booked,
        where that would be longer than this throttle waits."""
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
        """How many seconds to wait before the copy; None where another driver was faster. A copy waits until it is
        paid for itself. One that must not wait for long goes when all before it is paid for, and others wait for
        it.

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
    """Until when it is paid for; 0 where the file says nothing, or is gone."""
    try:
        text = read_bounded(store, name, _MOST_DIGITS)
    except FileNotFoundError:
        return 0
    return int(text) if text.isdigit() else 0

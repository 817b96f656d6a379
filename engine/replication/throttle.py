"""A limit on the bytes per second that copies move: a token bucket on the injected clock.

A copy spends its bytes first, then waits until they are paid for. The bucket holds the bytes of one second, and is
full at the beginning. A copy (of a group of files) may spend more than the bucket holds, and waits for the rest.
All threads of a process share a bucket. A pickled bucket starts full in its process, so tasks in other processes
each get a share (``shared_by``).
"""

from __future__ import annotations

import threading

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError

BURST_S = 1.0


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

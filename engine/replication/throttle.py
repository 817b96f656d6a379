"""A limit on the bytes a second that copies move: a token bucket on the injected clock.

A copy spends its bytes first, and is held up until they are paid for. The bucket holds one second's worth and is
full at the beginning. One spending (a group of files) may be more than it holds, and waits for the rest. One
bucket serves all threads of a process; a pickled one begins anew where it arrives, so tasks in other processes get
a share each: ``shared_by``.
"""

from __future__ import annotations

import threading

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError

BURST_S = 1.0


class Throttle:
    """At most ``bytes_per_s`` on average, after a first second's worth at once."""

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        """Raises: InvalidCallError for a rate that is not above 0."""
        self.bytes_per_s = checked_rate(bytes_per_s)
        self._clock = clock
        self._turn = threading.Lock()
        self._paid_until = clock.monotonic_s() - BURST_S
        """When everything spent so far is paid for."""

    def __repr__(self) -> str:
        return f"Throttle({self.bytes_per_s:g} bytes/s)"

    def __reduce__(self) -> tuple[type[Throttle], tuple[float, Clock]]:
        return Throttle, (self.bytes_per_s, self._clock)

    def spend(self, size_bytes: int) -> None:
        """Wait until ``size_bytes`` bytes may be moved. Threads are served in the order in which they ask."""
        with self._turn:
            now = self._clock.monotonic_s()
            self._paid_until = max(self._paid_until, now - BURST_S) + size_bytes / self.bytes_per_s
            wait = self._paid_until - now
        if wait > 0:
            self._clock.sleep(wait)

    def borrow(self, size_bytes: int, within_s: float) -> bool:
        """Wait until earlier spending is paid for, and spend: ``size_bytes`` bytes may then be moved at once, and
        the next caller waits for them. False, without waiting or spending, where it would take longer than
        ``within_s`` seconds.
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
        """A bucket with the share of one of ``processes`` that copy at once; this one for 1."""
        return self if processes <= 1 else Throttle(self.bytes_per_s / processes, self._clock)


def checked_rate(bytes_per_s: float) -> float:
    """The rate. Raises: InvalidCallError for one that is not above 0."""
    if not bytes_per_s > 0:
        raise InvalidCallError(f"a throttle of {bytes_per_s:g} bytes a second would never end: give more than 0")
    return bytes_per_s

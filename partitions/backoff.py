"""Waits between attempts: longer each time, and not in step with those of others (KIP-580).

Pure: the wait itself is the caller's, by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The longest wait doubles with each failure; the wait is a random part of it."""

    first_s: float
    """The longest wait after one failure."""
    longest_s: float
    """The longest wait after any number of failures."""
    least: float = 0.0
    """The smallest part of the longest wait that is waited: 1 for waits that nobody else shares."""

    def pause_s(self, failures: int, draw: float = 0.0) -> float:
        """The wait after the ``failures``-th failure in a row (from 1 on), in seconds; ``draw`` is from [0, 1)."""
        longest = min(self.first_s * 2.0 ** min(failures - 1, 62), self.longest_s)
        return longest * (self.least + (1 - self.least) * draw)

"""Waits between attempts, which grow and are randomized, so that clients do not retry in step (KIP-580).

Pure: the caller waits, by its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: the limit doubles with each failure, and the wait is a random part of the limit."""

    first_s: float
    """The longest wait after one failure."""
    longest_s: float
    """The longest wait after any number of failures."""
    least: float = 0.0
    """The smallest fraction of the limit to wait; 1 if no other client retries at the same time."""

    def pause_s(self, failures: int, draw: float = 0.0) -> float:
        """The wait in seconds after the ``failures``-th failure in a row (from 1); ``draw`` is in [0, 1)."""
        longest = min(self.first_s * 2.0 ** min(failures - 1, 62), self.longest_s)
        return longest * (self.least + (1 - self.least) * draw)

"""How long drivers wait for each other. It only affects time. Pure, except for the waiting."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from stratalog.engine.quorum.voter import Position, VoterLook, position_of
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.clock import Clock


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of attempts. The longest wait is only twice the first: under a higher limit, a driver that has
    waited long would check rarely, while newer drivers take turns.
    """

    attempts: int = 60
    backoff: Backoff = Backoff(first_s=0.08, longest_s=0.16)  # noqa: RUF009 - it is frozen
    claimant_attempts: int = 10
    """The number of attempts to wait for a claimant that has not committed yet, before claiming above it."""
    busy_claimant_attempts: int = 2
    """The number of attempts to wait for a claimant that keeps committing."""

    def attempt(self, clock: Clock, rng: random.Random) -> Iterator[int]:
        """Yields 0, 1, ..., with a random wait before each number after the first."""
        for attempt in range(self.attempts):
            if attempt > 0:
                clock.sleep(self.backoff.pause_s(attempt, rng.random()))
            yield attempt


class ClaimBackoff:
    """Decides how long a driver that wants to claim waits for the current claimant.

    A claimant that has not committed yet is about to commit. A claimant that has committed may have more to
    commit, and a new claim would make its next commit fail. Attempts are counted per claimant, so a claimant that
    has died, or never pauses, delays others only for that many attempts.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._claimed = 0
        self._last: Position | None = None
        self._waited = 0

    def asks_to_wait(self, looks: Collection[VoterLook]) -> bool:
        """Whether to wait for the claimant of the greatest epoch seen."""
        claimed = max(look.epoch for look in looks)
        last = max((position_of(look.last) for look in looks if look.last is not None), default=None)
        busy = self._claimed > 0 and last != self._last
        if claimed != self._claimed:
            self._claimed, self._waited = claimed, 0
        self._last = last
        self._waited += 1
        about_to_commit = claimed > max(look.last_epoch for look in looks)
        limit = (
            self._patience.claimant_attempts
            if about_to_commit
            else self._patience.busy_claimant_attempts
            if busy
            else 0
        )
        return self._waited <= limit

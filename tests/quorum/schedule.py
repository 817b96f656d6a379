"""The seeded choice of the next process: like the schedules of the whole simulation, with zombies, slow voters and
late effects."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.quorum.configuration import Configuration
from tests.simulation.names import name_in_short
from tests.simulation.scheduler import Decision, Driver, InTurn, Verdict
from tests.simulation.stores import CHANGES
from tests.simulation.strategies import Seeded


class QuorumSchedule(Seeded):
    """The schedule of a configuration. ``claims``: the number of claimed epochs so far; ``waits``: whether a
    driver waits for another thread of its process."""

    def __init__(
        self, configuration: Configuration, claims: Callable[[], int], waits: Callable[[Driver], bool]
    ) -> None:
        super().__init__(configuration)
        self._own = random.Random(f"zombies {configuration.seed}")
        self._zombie_rate = configuration.zombie_rate
        self._late_rate = configuration.late_rate
        self._slow = str(configuration.slow)
        self._claims = claims
        self._waits = waits
        self._zombies: dict[str, int] = {}
        """The number of claims for which each zombie waits."""
        self._asked: set[tuple[str, str, str, str]] = set()

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        free = [driver for driver in drivers if not self._waits(driver)]
        ready = [driver for driver in free if not self._is_zombie(driver)]
        if not ready:
            self._zombies.clear()
            ready = free
        if len(ready) > 1 and self._slow != "0" and self._own.random() < 0.9:
            ready = [driver for driver in ready if driver.place != self._slow] or ready
        return super().decide(step, ready)

    def _is_zombie(self, driver: Driver) -> bool:
        """Whether the driver is stopped now."""
        until = self._zombies.get(driver.name)
        if until is not None:
            return self._claims() < until
        if self._zombie_rate and driver.what in CHANGES:
            call = (driver.name, driver.what, driver.place, driver.object)
            if call not in self._asked:
                self._asked.add(call)
                if self._own.random() < self._zombie_rate:
                    self._zombies[driver.name] = self._claims() + 2
                    return True
        return False

    def _verdict(self, driver: Driver) -> Verdict:
        verdict = super()._verdict(driver)
        if driver.name.startswith("late") or driver.what == "wait":
            return Verdict.GO
        if verdict is Verdict.LOSE_ANSWER and self._own.random() < self._late_rate:
            return Verdict.LATE
        return verdict


class Script:
    """A hand-written schedule: a driver runs until it is about to make a call, ``("d0", "create 3.3 b2")``, or is
    done, ``("d0", "")``; its next call is refused, ``("d0", "refused")``; or an event happens, ``("", "cut 1")``.
    """

    def __init__(self, *steps: tuple[str, str]) -> None:
        self._steps = list(steps)

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        while self._steps:
            name, what = self._steps[0]
            if not name:
                self._steps.pop(0)
                event, _, target = what.partition(" ")
                return Decision("", event=(event, int(target)))
            driver = next((driver for driver in drivers if driver.name == name), None)
            if driver is not None and what == "refused":
                self._steps.pop(0)
                return Decision(name, Verdict.REFUSE)
            if driver is not None and not (what and _is_about_to(driver, *what.split())):
                return Decision(name)
            self._steps.pop(0)
        return None


def _is_about_to(driver: Driver, what: str, name: str, place: str) -> bool:
    about = f"{driver.what} b{driver.place}" == f"{what} {place}"
    return about and name_in_short(driver.object).endswith(f" {name}")


class InTurnButWaiting(InTurn):
    """All drivers in turn, except those that wait for another thread of their process."""

    def __init__(self, now_ms: Callable[[], int], waits: Callable[[Driver], bool]) -> None:
        super().__init__(now_ms)
        self._waits = waits

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        return super().decide(step, [driver for driver in drivers if not self._waits(driver)] or drivers)

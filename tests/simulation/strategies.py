"""Seeded choices of the next driver: uniform, priorities with a few change points (PCT), bursts; with arbitrary
pauses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.simulation.configuration import Event, Plan
from tests.simulation.names import name_in_short
from tests.simulation.scheduler import Decision, Driver, Verdict
from tests.simulation.stores import CHANGES

Pick = Callable[[int, Sequence[Driver]], Driver]

_LONG_SLEEPS = (15, 60, 200, 600)
_LATE = (Verdict.LATE, Verdict.LATE, Verdict.ECHO)
"""The effect of a create without an answer; a delete is always late."""
_ON_ITS_WAY = (0, 5, *_LONG_SLEEPS)
"""The number of steps for which a late call is in flight ..."""
_NEVER_ARRIVES = 0.2
"""... and the rate of late calls that never take effect."""


class Seeded:
    """The random part of a run: schedule, pauses, faults of calls, late effects; and the events of its
    configuration."""

    def __init__(self, configuration: Plan) -> None:
        self._configuration = configuration
        self._rng = random.Random(f"schedule {configuration.seed}")
        self._pick = _PICKS[configuration.schedule](self._rng, configuration.horizon)
        self._events = list(configuration.events)
        self._crashes = configuration.crashes
        self._late = random.Random(f"late {configuration.seed}")

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        if self._events and self._events[0][0] <= step:
            return _of_event(self._events.pop(0))
        rng, configuration = self._rng, self._configuration
        awake = [driver for driver in drivers if driver.wakes_at <= step]
        if not awake:
            first = min(drivers, key=lambda driver: driver.wakes_at)
            first.wakes_at = 0
            return self._go_on(first, step)
        driver = self._pick(step, awake)
        stalls = (
            configuration.stall_rate if driver.what in configuration.stalls_at else configuration.stall_rate / 10
        )
        if stalls and len(awake) > 1 and rng.random() < stalls:
            driver.wakes_at = step + rng.choice(_LONG_SLEEPS)
            awake.remove(driver)
            driver = self._pick(step, awake)
        return self._go_on(driver, step)

    def _go_on(self, driver: Driver, step: int) -> Decision:
        if not driver.on_its_way:
            return Decision(driver.name, self._verdict(driver))
        if driver.what == "start":
            driver.wakes_at = step + self._late.choice(_ON_ITS_WAY)
            return Decision(driver.name)
        lost = self._late.random() < _NEVER_ARRIVES
        return Decision(driver.name, Verdict.REFUSE if lost else Verdict.GO)

    def _verdict(self, driver: Driver) -> Verdict:
        late = self._configuration.late_write_rate
        if late and driver.what in CHANGES and self._late.random() < late:
            return Verdict.LATE if driver.what in ("delete", "replace") else self._late.choice(_LATE)
        rate = self._configuration.fault_rate
        if not rate or driver.what in ("start", "sleep") or self._rng.random() >= rate:
            return Verdict.GO
        choices = [Verdict.REFUSE]
        if driver.what in CHANGES:
            choices += [Verdict.LOSE_ANSWER] * 2
        if self._crashes:
            choices += [Verdict.DIE_BEFORE, Verdict.DIE_AFTER]
        verdict = self._rng.choice(choices)
        if verdict in (Verdict.DIE_BEFORE, Verdict.DIE_AFTER):
            self._crashes -= 1
            self._events.append((0, "restart", driver.slot))
            self._events.sort(key=lambda event: event[0])
        return verdict


class Script:
    """A hand-written schedule: a driver runs until it is about to make a call, ``("d0", "commit 1.1 b3")``: the
    call, the end of the name in the protocol's notation, the broker; or, without a call, until it is done.
    ``("flip", "0")`` is the event of that name and number.
    """

    def __init__(self, *steps: tuple[str, str]) -> None:
        self._steps = list(steps)

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        while self._steps:
            name, until = self._steps[0]
            if name == "flip":
                self._steps.pop(0)
                return Decision("", event=(name, int(until)))
            driver = next((driver for driver in drivers if driver.name == name), None)
            what, suffix, place = (*until.split(), "", "", "")[:3]
            there = driver is not None and driver.what == what and driver.place == place.lstrip("b")
            there = there and driver is not None and f" {name_in_short(driver.object)}".endswith(f" {suffix}")
            if driver is not None and not (until and there):
                return Decision(name)
            self._steps.pop(0)
        return None


def _of_event(event: Event) -> Decision:
    return Decision("", event=(event[1], event[2]))


def _uniform(rng: random.Random, horizon: int) -> Pick:
    return lambda step, drivers: drivers[int(rng.random() * len(drivers))]


def _bursts(rng: random.Random, horizon: int) -> Pick:
    stay = rng.choice((0.7, 0.9, 0.97))
    last: list[Driver] = []

    def pick(step: int, drivers: Sequence[Driver]) -> Driver:
        if not last or last[0] not in drivers or rng.random() >= stay:
            last[:] = [drivers[int(rng.random() * len(drivers))]]
        return last[0]

    return pick


def _priorities(rng: random.Random, horizon: int) -> Pick:
    """The driver with the highest priority runs; at a few steps its priority becomes the lowest."""
    changes = sorted(rng.randrange(horizon) for _ in range(rng.randint(1, 8)))
    priorities: dict[str, float] = {}
    lowest = 0.0

    def pick(step: int, drivers: Sequence[Driver]) -> Driver:
        nonlocal lowest
        for driver in drivers:
            if driver.name not in priorities:
                priorities[driver.name] = 1.0 + rng.random()
        chosen = max(drivers, key=lambda driver: priorities[driver.name])
        while changes and changes[0] <= step:
            changes.pop(0)
            lowest -= 1
            priorities[chosen.name] = lowest
            if rng.random() < 0.3:
                other = drivers[int(rng.random() * len(drivers))]
                priorities[other.name] = 3.0 + step
            chosen = max(drivers, key=lambda driver: priorities[driver.name])
        return chosen

    return pick


_PICKS: dict[str, Callable[[random.Random, int], Pick]] = {
    "uniform": _uniform,
    "bursts": _bursts,
    "priorities": _priorities,
}

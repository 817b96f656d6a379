"""Drivers as greenlets. Each call of a store comes here before it takes effect; the scheduler selects the next
driver and the effect of the call. A driver's computation between two calls is one step with the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from greenlet import getcurrent, greenlet


class Violation(BaseException):
    """An invariant does not hold. The product does not catch it."""


class Killed(BaseException):
    """The process of a driver has ended. The product does not catch it."""


class Verdict(StrEnum):
    """The effect of a call. ``LATE`` and ``ECHO`` are for mutating calls: one takes effect when the scheduler says
    so, long after its error or never; the other has created its object, and gets the answer that the name is
    taken, like a store that repeats a request whose answer was lost.
    """

    GO = "go"
    REFUSE = "refused"
    LOSE_ANSWER = "answer lost"
    LATE = "answer lost, takes effect later"
    ECHO = "answer lost, tried again, told that the name is taken"
    DIE_BEFORE = "died before"
    DIE_AFTER = "died after"


@dataclass(frozen=True, slots=True)
class Decision:
    """One step: ``driver`` makes its call with that verdict, or (no driver) the world changes."""

    driver: str
    verdict: Verdict = Verdict.GO
    event: tuple[str, int] | None = None

    def __str__(self) -> str:
        return self.driver if self.event is None else f"{self.event[0]} {self.event[1]}"


class Driver:
    """One process. ``point`` is called on its own greenlet, everything else by the scheduler."""

    def __init__(
        self, name: str, slot: int, main: Callable[[Driver], None], parent: greenlet | None = None
    ) -> None:
        self.name = name
        self.slot = slot
        self.what, self.place, self.object = "start", "", ""
        """The call that it is about to make."""
        self.operation = ""
        self.quiet = 0
        """While above 0, calls are no points of interleaving."""
        self.dead = False
        self.wakes_at = 0
        """The step at which the schedule's own pause ends."""
        self.sleeps_until_ms = 0
        """The time when its own sleep ends."""
        self.sent = 0
        """The number of its calls that take effect later."""
        self.on_its_way = False
        """Whether this is no process, but a call in flight."""
        self.told = 0
        """A digest of all answers so far: with the truth, the whole state of a deterministic driver."""
        self._parent = parent or getcurrent()
        self._greenlet = greenlet(lambda: main(self), self._parent)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to run."""
        return bool(self._greenlet.dead)

    def point(self, what: str, place: str, name: str) -> Verdict:
        """Wait until the call may be made."""
        if self.dead:
            raise Killed
        if self.quiet:
            return Verdict.GO
        self.what, self.place, self.object = what, place, name
        verdict: Verdict = self._parent.switch()
        if verdict is Verdict.DIE_BEFORE:
            self.die()
        return verdict

    def die(self) -> None:
        """The process ends here. Raises: Killed."""
        self.dead = True
        raise Killed

    def run(self, verdict: Verdict) -> None:
        """Make the call, and run to the next one. Raises: Violation, and bugs."""
        try:
            self._greenlet.switch(verdict) if self._greenlet else self._greenlet.switch()
        except Killed:
            assert self.dead

    def kill(self) -> None:
        """End the process at its current call."""
        self.dead = True
        if self._greenlet and not self._greenlet.dead:
            with suppress(Killed):
                self._greenlet.throw(Killed)


class Strategy(Protocol):
    """Decides the steps."""

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        """The next step; None if the strategy has ended. ``drivers`` are the unfinished ones."""
        ...


@dataclass(slots=True)
class Scheduler:
    """Runs drivers until all are done."""

    apply_event: Callable[[str, int], None]
    after_step: Callable[[], None]
    drivers: dict[str, Driver] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    """All decisions, for a replay."""
    step: int = 0
    _greenlet: greenlet = field(default_factory=getcurrent)
    """The greenlet on which it runs: each step ends there, also that of a driver that another one has spawned."""

    def spawn(self, name: str, slot: int, main: Callable[[Driver], None]) -> Driver:
        """Add a driver, which starts with its first step."""
        driver = self.drivers[name] = Driver(name, slot, main, self._greenlet)
        return driver

    def send(self, sender: Driver, land: Callable[[Driver], None]) -> Driver:
        """A call of ``sender`` is in flight: ``land`` is its effect, independent of the sender."""
        sender.sent += 1
        call = self.spawn(f"{sender.name}~{sender.sent}", sender.slot, land)
        call.operation, call.on_its_way = sender.operation, True
        return call

    def living(self) -> list[Driver]:
        """The unfinished drivers, in the order of their creation."""
        return [driver for driver in self.drivers.values() if not driver.done]

    def run(self, strategy: Strategy, most_steps: int) -> bool:
        """Follow a strategy; returns whether all drivers are done. Raises: Violation, and bugs of the product."""
        for _ in range(most_steps):
            drivers = self.living()
            if not drivers:
                return True
            decision = strategy.decide(self.step, drivers)
            if decision is None:
                return False
            self.take(decision)
        return not self.living()

    def take(self, decision: Decision) -> None:
        """Take one step. A decision about a driver that is done, or never existed, is skipped."""
        if decision.event is not None:
            self.step += 1
            self.decisions.append(decision)
            self.apply_event(*decision.event)
        else:
            driver = self.drivers.get(decision.driver)
            if driver is None or driver.done:
                return
            self.step += 1
            self.decisions.append(decision)
            driver.run(decision.verdict)
        self.after_step()

    def forget(self) -> None:
        """The steps so far were preparation: steps are counted, and decisions kept, from here on."""
        self.drivers.clear()
        self.decisions.clear()
        self.step = 0

    def kill_all(self) -> None:
        """End all processes; none of their calls reaches a store any more."""
        for driver in self.drivers.values():
            driver.kill()


@dataclass(slots=True)
class Replay:
    """Takes recorded decisions, in order."""

    rest: Iterator[Decision]

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        return next(self.rest, None)


@dataclass(slots=True)
class InTurn:
    """All drivers in turn, a few calls each; nothing fails, and sleeping drivers are left to sleep."""

    now_ms: Callable[[], int]

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        now_ms = self.now_ms()
        awake = [driver for driver in drivers if driver.what != "sleep" or driver.sleeps_until_ms <= now_ms]
        if not awake:
            return Decision(min(drivers, key=lambda driver: driver.sleeps_until_ms).name)
        return Decision(awake[(step // 7) % len(awake)].name)

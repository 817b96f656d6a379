"""One seed: the faulty part, the serial part, the lone driver."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stratalog.partitions import replica
from stratalog.partitions.segments import reader as segment
from tests.simulation.actions import perform
from tests.simulation.actor import Actor
from tests.simulation.configuration import Configuration, Plan, configuration_of
from tests.simulation.content import remembered
from tests.simulation.ending import LoneDriver
from tests.simulation.scheduler import Decision, Driver, InTurn, Replay, Strategy, Violation
from tests.simulation.strategies import Seeded
from tests.simulation.world import World

Line = tuple[int, str, str, str, str, str, object]
"""Step, driver, operation, call, place, name, outcome."""


@dataclass(slots=True)
class Result:
    configuration: Plan
    violation: str | None = None
    lines: list[Line] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    stored: str = ""
    """A digest of all names and bytes on storage at the end."""

    def note(self, step: int, driver: Driver, what: str, place: str, name: str, outcome: object) -> None:
        """Add one line; bytes and lists are shown by their length, objects by their version."""
        shown: Any = outcome
        if isinstance(outcome, bytes | list | tuple):
            shown = len(outcome)
        elif outcome is not None and not isinstance(outcome, bool | str):
            shown = getattr(outcome, "version", "")
        self.lines.append((step, driver.name, driver.operation, what, place, name, shown))

    def note_event(self, step: int, what: str) -> None:
        """Add one line about the world."""
        self.lines.append((step, "", "", what, "", "", None))

    def digest(self) -> str:
        """A digest of the whole trace, of the decisions, and of all bytes on storage at the end."""
        digest = hashlib.blake2b(digest_size=16)
        for line in self.lines:
            digest.update(repr(line).encode())
        digest.update(repr((self.violation, self.decisions, sorted(self.counts.items()), self.stored)).encode())
        return digest.hexdigest()


class Run:
    def __init__(self, configuration: Configuration, *, exhaustive: bool = False) -> None:
        self.configuration = configuration
        self.exhaustive = exhaustive
        self.result = Result(configuration)
        self.world = World(configuration, self._note, self._note_event)
        self.world.events.restart = self._start
        self._next = [0] * len(configuration.operations)
        """The next operation, keyed by slot."""
        self._owner: list[str] = [""] * len(configuration.operations)
        self._started: Counter[int] = Counter()

    def run(self, strategy: Strategy, enough: Callable[[], bool] = lambda: False) -> Result:
        """Run to the end, to the first violation, or until the strategy has ended if that is ``enough``."""
        scheduler = self.world.scheduler
        try:
            with remembered():
                if self.configuration.setup:
                    scheduler.spawn("setup", -1, self._set_up)
                    scheduler.run(InTurn(self.world.now_ms), 1000)
                    scheduler.forget()
                for slot in range(len(self.configuration.operations)):
                    self._start(slot)
                scheduler.run(strategy, self.configuration.most_steps)
                if enough():
                    return self.result
                self._note_event("the faults are over")
                self.world.events.mend_all()
                if not scheduler.run(InTurn(self.world.now_ms), 100_000):
                    raise Violation("I7: drivers do not come to an end, though nothing fails")
                lone = LoneDriver(self.world)
                scheduler.spawn("lone", -1, lone.main)
                if not scheduler.run(InTurn(self.world.now_ms), 100_000):
                    raise Violation("I7: the lone driver does not come to an end")
                lone.check()
        except Violation as violation:
            self.result.violation = str(violation)
        except Exception as bug:
            self.result.violation = f"bug: {type(bug).__name__}: {bug}"
            self.result.counts["bugs"] += 1
        finally:
            scheduler.kill_all()
            forget()
        self._count()
        self.result.stored = self._stored()
        return self.result

    def state(self) -> int:
        """A digest of everything that the rest of the run depends on."""
        stored = tuple(
            hash(tuple((name, entry[0].version, entry[1]) for name, entry in sorted(entries.items())))
            for root in (*self.world.roots.values(), self.world.remote)
            for _, entries in sorted(root.folders.items())
        )
        told = tuple((driver.name, driver.told, driver.done) for driver in self.world.scheduler.drivers.values())
        return hash((stored, told))

    def _stored(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for root in (*self.world.roots.values(), self.world.remote):
            for name, data in sorted(root.snapshot().items()):
                digest.update(repr((root.place, name, len(data))).encode())
                digest.update(data)
        return digest.hexdigest()

    # --------------------------------------------------------------------------------- drivers

    def _start(self, slot: int) -> None:
        if self._next[slot] >= len(self.configuration.operations[slot]):
            return
        self._started[slot] += 1
        name = f"d{slot}" + (f".{self._started[slot]}" if self._started[slot] > 1 else "")
        self._owner[slot] = name
        self.world.scheduler.spawn(name, slot, self._work)

    def _set_up(self, driver: Driver) -> None:
        actor = Actor(self.world, driver, self.world.ports(driver))
        driver.quiet = 1
        for operation in self.configuration.setup:
            driver.operation = str(operation)
            self._note(driver, "ends", "", "", perform(actor, operation))

    def _work(self, driver: Driver) -> None:
        """The job of a slot, from its next operation on. A restarted job continues, and the former one ends after
        its current operation.
        """
        slot = driver.slot
        operations = self.configuration.operations[slot]
        actor = Actor(self.world, driver, self.world.ports(driver))
        while self._owner[slot] == driver.name and self._next[slot] < len(operations):
            operation = operations[self._next[slot]]
            driver.operation = str(operation)
            outcome = perform(actor, operation)
            self._note(driver, "ends", "", "", outcome)
            self.result.counts[operation.action] += 1
            if self._owner[slot] == driver.name:
                self._next[slot] += 1

    # ----------------------------------------------------------------------------------- trace

    def _note(self, driver: Driver, what: str, place: str, name: str, outcome: object) -> None:
        self.result.note(self.world.scheduler.step, driver, what, place, name, outcome)
        if self.exhaustive:
            driver.told = hash((driver.told, what, place, name, _answer(outcome)))

    def _note_event(self, what: str) -> None:
        self.result.note_event(self.world.scheduler.step, what)

    def _count(self) -> None:
        counts, world = self.result.counts, self.world
        counts.update(world.ledger.counts)
        counts.update(world.oracle.counts)
        counts["steps"] += world.scheduler.step
        counts["calls"] += len(self.result.lines)
        counts["tiered segments"] += sum(len(table.live) + len(table.removed) for table in world.tables.values())
        counts["drivers"] += sum(not driver.on_its_way for driver in world.scheduler.drivers.values())
        for decision in world.scheduler.decisions:
            if decision.verdict != "go":
                counts[f"fault: {decision.verdict}"] += 1
        self.result.decisions = world.scheduler.decisions


def _answer(outcome: object) -> object:
    return (
        tuple((stored.name, stored.version) for stored in outcome)
        if isinstance(outcome, list | tuple)
        else outcome
    )


def forget() -> None:
    """Clear the product's caches, which hold the stores of drivers."""
    segment.forget()
    replica.remembered_lineages.clear()


def run_seed(seed: int) -> Result:
    return run_configuration(configuration_of(seed))


def run_configuration(configuration: Configuration) -> Result:
    """The run of a configuration, with the schedule of its seed."""
    return Run(configuration).run(Seeded(configuration))


def replay(configuration: Configuration, decisions: list[Decision]) -> Result:
    """The run of a configuration with these decisions."""
    return Run(configuration).run(Replay(iter(decisions)))

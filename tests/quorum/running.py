"""One seed: the faulty part, the serial part, and the operator who repairs everything."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stratalog.engine.quorum.patience import Patience
from stratalog.engine.quorum.upkeep import keep_up
from stratalog.partitions.errors import StorageAuthorizationError, StratalogError
from tests.quorum import actions
from tests.quorum.actions import Actor
from tests.quorum.configuration import FOR_EVER, Configuration, configuration_of
from tests.quorum.remembering import remembered
from tests.quorum.schedule import InTurnButWaiting, QuorumSchedule
from tests.quorum.world import READER, World
from tests.simulation.running import Result
from tests.simulation.scheduler import Decision, Driver, Replay, Strategy, Violation

_MOST_STEPS = 30_000


class Run:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.result = Result(configuration)
        self.world = World(configuration, self._note, self._note_event)
        self.world.events.restart = self._start
        self._next = [0] * len(configuration.operations)
        """The next operation, keyed by slot."""
        self._owner = [""] * len(configuration.operations)
        self._started: Counter[int] = Counter()

    def seeded(self) -> Result:
        """A run with the schedule of its seed."""
        return self.run(QuorumSchedule(self.configuration, lambda: self.world.claims, self.world.waits))

    def run(self, strategy: Strategy) -> Result:
        """Run to the end, or to the first violation."""
        scheduler, world, configuration = self.world.scheduler, self.world, self.configuration
        try:
            with remembered(real_files=configuration.real_files, chunk_bytes=configuration.chunk_bytes):
                for slot in range(len(configuration.operations)):
                    self._start(slot)
                scheduler.run(strategy, configuration.most_steps)
                self._note_event("the faults are over")
                world.events.calm()
                self._finish("a process")
                if configuration.refused:
                    self._alone("a reader", self._look_on, READER)
                self._alone("one alone", self._go_on)
                world.events.repair_everything()
                self._alone("the operator", self._bring_in_order)
                world.history.check_refusals()
        except Violation as violation:
            self.result.violation = str(violation)
        except Exception as bug:
            self.result.violation = f"bug: {type(bug).__name__}: {bug}"
        finally:
            scheduler.kill_all()
        counts = self.result.counts
        counts.update(world.counts)
        counts.update(steps=scheduler.step, drivers=len(scheduler.drivers), epochs=world.claims)
        counts.update(f"fault: {one.verdict}" for one in scheduler.decisions if one.verdict != "go")
        self.result.decisions = scheduler.decisions
        return self.result

    # ------------------------------------------------------------------------------- processes

    def _start(self, slot: int) -> None:
        if slot < 0 or self._next[slot] >= len(self.configuration.operations[slot]):
            return
        self._started[slot] += 1
        name = f"d{slot}" + (f".{self._started[slot]}" if self._started[slot] > 1 else "")
        self._owner[slot] = name
        self.world.scheduler.spawn(name, slot, self._work)

    def _work(self, driver: Driver) -> None:
        """The job of a slot, from its next operation on."""
        slot, operations = driver.slot, self.configuration.operations[driver.slot]
        actor = Actor(driver, self.world.process(driver))
        if self._started[slot] > 1:
            try:
                actions.open_again(actor, actor.process.rng.randrange(6))
            except StratalogError as error:
                self._note(driver, "cannot open", "", "", str(error))
        while self._owner[slot] == driver.name and self._next[slot] < len(operations):
            operation = operations[self._next[slot]]
            driver.operation = str(operation)
            self._note(driver, "ends", "", "", actions.perform(actor, operation))
            if self._owner[slot] == driver.name:
                self._next[slot] += 1

    # ------------------------------------------------------------------------------ the ending

    def _finish(self, who: str) -> None:
        in_turn = InTurnButWaiting(self.world.now_ms, self.world.waits)
        if not self.world.scheduler.run(in_turn, _MOST_STEPS):
            raise Violation(f"I7: {who} does not come to an end, though nothing fails")

    def _alone(self, name: str, work: Any, slot: int = -1) -> None:
        def main(driver: Driver) -> None:
            actor = Actor(driver, self.world.process(driver))
            driver.operation = name
            try:
                work(actor)
            except StratalogError as error:
                raise Violation(f"I7: {name}, though nothing fails: {type(error).__name__}: {error}") from error

        self.world.scheduler.spawn(name, slot, main)
        self._finish(name)

    def _look_on(self, actor: Actor) -> None:
        """Check that a process that may only read gets an answer, or an error that names the missing right."""
        try:
            actor.process.open(self.world.remembered[0])
            actions.read(actor)
        except StorageAuthorizationError:
            self.world.counts["readers who cannot tell"] += 1
        else:
            self.world.counts["readers who can tell"] += 1

    def _go_on(self, actor: Actor) -> None:
        """Check progress. A minority may be permanently away. The files of an attacker there cost claimants a few
        more rounds, for which an operator waits."""
        world = self.world
        if self.configuration.tags & {"strangers", "key"}:
            actor.process.attempts = Patience().attempts
        actor.process.open(world.remembered[0])
        actions.read(actor)
        actions.commit(actor)
        if self.configuration.seed % 3 == 0:
            actions.snapshot(actor)

    def _bring_in_order(self, actor: Actor) -> None:
        """Replace all lost voters; then every voter has the whole log, and all agree."""
        world, process = self.world, actor.process
        process.open(world.remembered[0])
        process.client.with_log(lambda log: keep_up(log, process.clock, lag_ms=FOR_EVER))
        for _ in range(3):
            if actions.replace(actor) == "nothing to replace":
                break
        process.client.with_log(lambda log: keep_up(log, process.clock, lag_ms=0))
        actions.commit(actor)
        image = process.client.image()
        for voter in image.voters:
            if not world.history.serves(world.whole_names(voter.broker_id, voter.directory_id)):
                raise Violation(f"I7: voter {voter.broker_id} lacks what is committed when all is in order")
        if len(image.voters) != len(world.events.electorates()[0]):
            raise Violation("I7: the voters are not those that were committed")

    # ----------------------------------------------------------------------------------- trace

    def _note(self, driver: Driver, what: str, place: str, name: str, outcome: object) -> None:
        self.result.note(self.world.scheduler.step, driver, what, place, name, outcome)

    def _note_event(self, what: str) -> None:
        self.result.note_event(self.world.scheduler.step, what)


def run_seed(seed: int) -> Result:
    return run_configuration(configuration_of(seed))


def run_configuration(configuration: Configuration) -> Result:
    """The run of a configuration, with the schedule of its seed."""
    return Run(configuration).seeded()


def replay(configuration: Configuration, decisions: list[Decision]) -> Result:
    """The run of a configuration with these decisions."""
    return Run(configuration).run(Replay(iter(decisions)))

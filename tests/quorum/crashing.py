"""One fault at every storage call of an operation, in turn (protocol section 6, I7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.quorum.configuration import Configuration, directed
from tests.quorum.running import Run
from tests.simulation.running import Result
from tests.simulation.scheduler import Decision, Driver, Verdict
from tests.simulation.stores import CHANGES

SETUP, FAULTY, AGAIN = "d0", "d1", "d2"


@dataclass(frozen=True, slots=True)
class Scenario:
    """An operation, and the state of the quorum before it."""

    name: str
    operation: str
    setup: str = "commit"
    """The operations of another process before it."""
    left_at: str = ""
    """The last call of that process, at which it died, such as ``create b2``; empty if it finished."""
    voters: int = 3
    lost: int = 0
    """The broker that has lost its storage since that call."""
    real_files: bool = False
    chunk_bytes: int = 0
    most_batches: int = 50

    @property
    def configuration(self) -> Configuration:
        """The setup, the operation, and the operation once more by another process."""
        return directed(
            self.setup,
            self.operation,
            self.operation,
            voters=self.voters,
            others=1,
            constant_roots=False,
            real_files=self.real_files,
            chunk_bytes=self.chunk_bytes,
            most_batches=self.most_batches,
            tick_ms=1,
        )


SCENARIOS: Sequence[Scenario] = (
    Scenario("claim and commit", "commit"),
    Scenario("claim and commit, one voter", "commit", voters=1),
    Scenario("commit over what another left", "commit", setup="commit; commit", left_at="create b2"),
    Scenario("commit that snapshots", "commit", setup="commit; commit; commit", most_batches=1),
    Scenario("commit that snapshots, one voter", "commit", setup="commit; commit", voters=1, most_batches=2),
    Scenario("commits of three threads", "together 3"),
    Scenario("read", "read"),
    Scenario("read what another left", "read", setup="commit", left_at="create b2"),
    Scenario("read over a claim", "read", setup="commit", left_at="create b1"),
    Scenario("open", "open 0", setup="commit; snapshot; commit"),
    Scenario("snapshot and freeze", "snapshot"),
    Scenario("snapshot and freeze, real files", "snapshot", real_files=True),
    Scenario("log start and deletion", "snapshot", setup="commit; snapshot; commit; snapshot; commit"),
    Scenario("log start and deletion, one voter", "snapshot", setup="commit; snapshot; commit", voters=1),
    Scenario("a voter more", "change 4", setup="commit; snapshot; commit"),
    Scenario("a voter less", "change 2"),
    Scenario("transfer to a wiped voter", "replace", setup="commit; snapshot; commit", lost=2),
    Scenario(
        "transfer to a wiped voter, in chunks",
        "replace",
        setup="commit; snapshot",
        lost=2,
        real_files=True,
        chunk_bytes=3000,
    ),
)


@dataclass(slots=True)
class OneFault:
    """Runs the setup to its end, the operation with one fault at its ``nth`` call, and the operation again."""

    scenario: Scenario
    nth: int
    verdict: Verdict
    calls: int = 0
    """The number of calls of the operation so far."""
    hit: bool = False
    """Whether the operation made such a call."""
    _lost: bool = field(default=False)

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        for name in (SETUP, FAULTY, AGAIN):
            for driver in drivers:
                if driver.name.split("/")[0] == name and not (driver.what == "wait" and len(drivers) > 2):
                    return self._decide(name, driver)
        return None

    def _decide(self, name: str, driver: Driver) -> Decision:
        if name == SETUP:
            return Decision(driver.name, self._of_setup(driver))
        if self.scenario.lost and not self._lost:
            self._lost = True
            return Decision("", event=("wipe", self.scenario.lost))
        if name == FAULTY and driver.what not in ("start", "sleep", "wait"):
            self.calls += 1
            if self.calls == self.nth and (driver.what in CHANGES or self.verdict not in _OF_CHANGES):
                self.hit = True
                return Decision(driver.name, self.verdict)
        return Decision(driver.name)

    def _of_setup(self, driver: Driver) -> Verdict:
        what, _, place = self.scenario.left_at.partition(" ")
        last = driver.operation == self.scenario.setup.split("; ")[-1]
        about = driver.object.endswith(".parquet") and driver.what == what and driver.place == place.lstrip("b")
        return Verdict.DIE_BEFORE if last and about else Verdict.GO


_OF_CHANGES = frozenset({Verdict.LOSE_ANSWER, Verdict.LATE})
FAULTS: Sequence[Verdict] = (Verdict.DIE_BEFORE, Verdict.REFUSE, Verdict.LOSE_ANSWER, Verdict.LATE)
"""The faults. A process that dies after a call dies before its next call."""


def run_each(scenario: Scenario, verdict: Verdict) -> Iterator[tuple[int, Result]]:
    """Yield a run for each call of the operation, or (faults of changes) for each change."""
    for nth in range(1, 2000):
        fault = OneFault(scenario, nth, verdict)
        result = Run(scenario.configuration).run(fault)
        if fault.hit:
            yield nth, result
        elif fault.calls < nth:
            return
    raise AssertionError("it never comes to an end")


def outcomes_of(result: Result, driver: str) -> list[str]:
    """The outcomes of a driver's operations."""
    return [str(line[-1]) for line in result.lines if line[1] == driver and line[3] == "ends"]

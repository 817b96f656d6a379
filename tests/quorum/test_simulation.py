"""Some hundred seeds of the quorum's simulation: without violations, with enough work in them, and with the same
result in every run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from tests.quorum.configuration import configuration_of, directed
from tests.quorum.running import Run, replay, run_configuration, run_seed
from tests.simulation.hashing import outputs_by_order_of_hashes
from tests.simulation.many import Summary, run_some
from tests.simulation.scheduler import Decision, Driver, Verdict
from tests.simulation.trace import text_of_trace

SEEDS = 300
FIRST_PART = 20
"""The number of seeds that is quick enough for ``make check``."""

PART = 70


def check(summary: Summary) -> None:
    assert not summary.failures, f"python -m tests.quorum --seed {summary.failures[0][0]}: {summary.failures}"
    expected = {"commands acknowledged": 3, "read": 0.5, "snapshot files": 3, "files deleted": 5, "steps": 100}
    for what, for_each in expected.items():
        assert summary.counts[what] >= for_each * summary.seeds, f"{what}: {summary.counts}"


@pytest.mark.slow
def test_every_invariant_holds_after_every_step() -> None:
    """Protocol section 6, I6 and I7. The test also checks that the run has tested something."""
    check(run_some(range(1, 1 + FIRST_PART), run_seed))


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(1 + FIRST_PART, 1 + SEEDS, PART))
def test_every_invariant_holds_after_every_step_of_many_runs(first: int) -> None:
    summary = run_some(range(first, first + PART), run_seed)
    check(summary)
    for what in ("changes of voters", "voters wiped", "outcomes unknown", "late effects", "fault: died after"):
        assert summary.counts[what] > 0, f"{what}: {summary.counts}"


def test_all_kinds_of_runs_have_their_turn() -> None:
    configurations = [configuration_of(seed) for seed in range(1, SEEDS + 1)]
    themes = Counter(tag for configuration in configurations for tag in configuration.tags)
    assert set(themes) >= {"commits", "snapshots", "threads", "caches", "voters", "losses", "damage", "outage"}
    assert min(themes.values()) >= 10
    assert {configuration.voters for configuration in configurations} == {1, 3, 5}
    assert {len(configuration.operations) for configuration in configurations} == {2, 3, 4, 5, 6}
    events = Counter(what for configuration in configurations for _, what, _ in configuration.events)
    assert set(events) >= {"cut", "repair", "outage", "leave", "fill", "wipe", "damage", "damage_all", "double"}
    assert any(configuration.real_files for configuration in configurations)


@pytest.mark.parametrize("seed", [3, 20, 41])
def test_a_seed_gives_the_same_trace_every_time(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.lines == second.lines
    assert first.digest() == second.digest()
    assert replay(configuration_of(seed), first.decisions).digest() == first.digest()


@pytest.mark.nightly
def test_the_order_of_hashes_does_not_matter() -> None:
    program = "from tests.quorum.running import run_seed; print(*(run_seed(seed).digest() for seed in range(9)))"
    assert len(outputs_by_order_of_hashes(program)) == 1


def test_a_trace_can_be_read() -> None:
    text = "\n".join(text_of_trace(run_configuration(directed("commit"))))
    assert "-- d0: commit\n" in text
    assert re.search(r"d0 +create +b2 +metadata 1\.2 -> True\n", text)


# ------------------------------------------------------------------------- interrupted threads


class Interrupting:
    """Runs all threads in turn; at its ``nth`` call a certain thread is interrupted, and the others of its process
    continue."""

    def __init__(self, nth: int, is_the_one: Callable[[Driver], bool]) -> None:
        self.calls = 0
        self._nth = nth
        self._is_the_one = is_the_one

    def decide(self, step: int, drivers: Sequence[Driver]) -> Decision | None:
        driver = drivers[step % len(drivers)]
        if self._is_the_one(driver) and driver.what not in ("start", "wait", "sleep"):
            self.calls += 1
            if self.calls == self._nth:
                return Decision(driver.name, Verdict.DIE_AFTER)
        return Decision(driver.name)


@pytest.mark.slow
def test_an_interrupted_thread_takes_no_command_of_another_with_it() -> None:
    """A thread that commits for others is interrupted at any of its calls: each of their commands is committed
    once, even if its batch already exists."""
    for nth in range(1, 100):
        strategy = Interrupting(nth, lambda driver: "/" in driver.name)
        result = Run(directed("together 4", "commit")).run(strategy)
        assert result.violation is None, f"call {nth}: {result.violation}"
        if strategy.calls < nth:
            assert strategy.calls > 5
            return
    raise AssertionError("it never comes to an end")

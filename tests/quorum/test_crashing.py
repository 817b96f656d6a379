"""A fault at every storage call of claim, commit, read, snapshot, freeze, log start, deletion, transfer, and
change of voters (protocol section 6, I7): every operation continues from there, and no commit is lost.
"""

from __future__ import annotations

import pytest

from tests.quorum.crashing import AGAIN, FAULTS, FAULTY, SCENARIOS, Scenario, outcomes_of, run_each
from tests.simulation.scheduler import Verdict


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("scenario", "verdict"),
    [
        pytest.param(scenario, verdict, id=f"{scenario.name}: {verdict}")
        for scenario in SCENARIOS
        for verdict in FAULTS
    ],
)
@pytest.mark.slow
def test_everything_continues_after_a_fault_at_any_call(scenario: Scenario, verdict: Verdict) -> None:
    """Afterwards the same operation succeeds, one process alone reads, commits and takes a snapshot, and lost
    voters are replaced (see ``running.Run``)."""
    runs = 0
    for nth, result in run_each(scenario, verdict):
        assert result.violation is None, f"call {nth}: {result.violation}"
        (again,) = outcomes_of(result, AGAIN)
        assert "Error" not in again, f"call {nth}: {again}"
        runs += 1
    assert runs > 0 or (
        verdict in (Verdict.LOSE_ANSWER, Verdict.LATE) and scenario.operation in ("read", "open 0")
    )


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["commit", "read"])
def test_no_driver_fails_when_one_voter_of_three_fails_a_call(operation: str) -> None:
    """No driver gets an error, whichever call fails."""
    for nth, result in run_each(Scenario("", operation), Verdict.REFUSE):
        (outcome,) = outcomes_of(result, FAULTY)
        assert "Error" not in outcome, f"call {nth}: {outcome}"

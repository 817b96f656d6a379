"""The checker finds the histories of drivers under faults linearizable, and refuses each planted fault."""

from __future__ import annotations

from functools import cache

import pytest

from tests.linearizability.calls import Call
from tests.linearizability.judging import CHECKER, judge
from tests.linearizability.planted import PLANTED
from tests.linearizability.recording import record

pytestmark = [
    pytest.mark.skipif(not CHECKER.exists(), reason="no checker: make servers builds it with Go"),
    pytest.mark.slow,
]

SEEDS = (*range(1, 26), 20261128885)
"""In the last history, a leader is elected before it learns the high watermark."""
_LEAST = 3


@cache
def histories() -> dict[str, list[Call]]:
    return {str(seed): record(seed) for seed in SEEDS}


def test_histories_under_faults_are_linearizable() -> None:
    verdict = judge(histories())
    assert verdict.refused == ()
    assert verdict.summary.startswith(f"{len(SEEDS)} histories, ")
    calls = [call for made in histories().values() for call in made]
    assert {call.kind for call in calls} == {"append", "fetch", "commit", "committed"}
    assert any(call.returned is None for call in calls)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_refused(fault: str) -> None:
    planted = {name: made for name, calls in histories().items() if (made := PLANTED[fault](calls)) is not None}
    assert len(planted) >= _LEAST
    assert set(judge(planted).refused) == set(planted)


def test_the_same_seed_gives_the_same_history() -> None:
    assert record(7) == histories()["7"]

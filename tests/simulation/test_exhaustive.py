"""Every interleaving of the smallest configurations."""

from __future__ import annotations

import pytest

from tests.simulation.configuration import small
from tests.simulation.exhaustive import SCENARIOS, explore


@pytest.mark.nightly
def test_an_append_and_two_elections_in_every_interleaving() -> None:
    configuration, preemptions = SCENARIOS["append, election"]
    explored = explore(configuration, preemptions)
    assert explored.violation is None
    assert explored.complete
    assert explored.states > 500


@pytest.mark.slow
def test_an_append_and_an_expansion_with_one_preemption() -> None:
    explored = explore(small("append p0 0 0 1", "shrink 1 0; replicate"), preemptions=1)
    assert explored.violation is None
    assert explored.complete
    assert explored.states > 50

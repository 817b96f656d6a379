"""The simulation must find every omitted step of the quorum, one row each."""

from __future__ import annotations

import pytest

from tests.quorum.mutations import MUTATIONS, Mutation

QUICK = 60
"""A mutation that is found within this number of runs is quick enough for ``make check``."""
SEEDS = 20


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(mutation, id=mutation.name, marks=[pytest.mark.slow] if mutation.seeds > QUICK else [])
        for mutation in MUTATIONS
    ],
)
def test_the_simulation_finds_a_step_left_out(mutation: Mutation) -> None:
    with mutation.apply():
        for seed in range(mutation.first, mutation.first + mutation.seeds):
            violation = mutation.run(seed).violation
            if violation is not None:
                assert not violation.startswith("bug: "), "the variant does not fit the product"
                return
    pytest.fail(f"nobody misses it in {mutation.seeds} runs: {mutation.what}")


@pytest.mark.nightly
def test_directed_configurations_are_clean_without_a_mutation() -> None:
    for mutation in MUTATIONS:
        for seed in range(mutation.first, mutation.first + min(mutation.seeds, SEEDS)):
            assert mutation.run(seed).violation is None, (mutation.name, seed)

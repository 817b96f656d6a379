"""Every step of the protocol that is marked (!), left out: the simulation must find it. One row each."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_finds_a_step_left_out(mutation: Mutation) -> None:
    with mutation.apply():
        for seed in range(mutation.first, mutation.first + mutation.seeds):
            if mutation.run(seed).violation is not None:
                return
    pytest.fail(f"nobody misses it in {mutation.seeds} runs: {mutation.what}")


@pytest.mark.slow
def test_directed_configurations_are_clean_without_a_mutation() -> None:
    for mutation in MUTATIONS:
        if mutation.directed is not None:
            for seed in range(mutation.first, mutation.first + 10):
                assert mutation.run(seed).violation is None

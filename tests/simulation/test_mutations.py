"""Every omitted step of the protocol that is marked (!): the simulation must find it. One row each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.mutations_of_bytes import MUTATIONS_OF_BYTES
from tests.simulation.mutations_of_published import MUTATIONS_OF_PUBLISHED
from tests.simulation.mutations_of_removal import MUTATIONS_OF_REMOVAL
from tests.simulation.mutations_of_snapshots import MUTATIONS_OF_SNAPSHOTS
from tests.simulation.mutations_of_uploads import MUTATIONS_OF_UPLOADS

CLEAN = 10
"""Seeds of each directed configuration without an omitted step."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [
        *MUTATIONS,
        *MUTATIONS_OF_BYTES,
        *MUTATIONS_OF_REMOVAL,
        *MUTATIONS_OF_SNAPSHOTS,
        *MUTATIONS_OF_UPLOADS,
        *MUTATIONS_OF_PUBLISHED,
    ],
    ids=lambda mutation: mutation.name,
)
def test_the_simulation_finds_a_step_left_out(mutation: Mutation) -> None:
    with mutation.apply():
        for seed in range(mutation.first, mutation.first + mutation.seeds):
            violation = mutation.run(seed).violation
            if violation is not None:
                assert not violation.startswith("bug: "), f"the variant does not fit the product: {violation}"
                return
    pytest.fail(f"nobody misses it in {mutation.seeds} runs: {mutation.what}")


@pytest.mark.slow
def test_a_look_does_not_show_that_a_write_is_not_on_its_way() -> None:
    """Lost answers do not show it: only calls that take effect later, after the look, do."""
    (mutation,) = (mutation for mutation in MUTATIONS if mutation.name == "not there is not written")
    lost = replace(mutation, shaped=lambda c: replace(c, late_write_rate=0.0, fault_rate=0.2))
    with mutation.apply():
        assert all(lost.run(seed).violation is None for seed in range(1, 41))
        assert any(mutation.run(seed).violation is not None for seed in range(1, 41))


@pytest.mark.nightly
def test_directed_configurations_are_clean_without_a_mutation() -> None:
    for mutation in (*MUTATIONS, *MUTATIONS_OF_REMOVAL):
        if mutation.directed is not None:
            for seed in range(mutation.first, mutation.first + CLEAN):
                assert mutation.run(seed).violation is None

"""``python -m tests.simulation.first_seeds``: the seeds at which the simulation currently finds each mutation.

A change of the protocol or of the simulation moves them: then ``test_mutations`` runs seed after seed, from a
mutation's ``first`` on, and takes minutes. Each mutation that is not found at ``first`` has a row. Names of
mutations limit the search to these.
"""

from __future__ import annotations

import sys

from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.mutations_of_bytes import MUTATIONS_OF_BYTES
from tests.simulation.mutations_of_published import MUTATIONS_OF_PUBLISHED
from tests.simulation.mutations_of_removal import MUTATIONS_OF_REMOVAL
from tests.simulation.mutations_of_snapshots import MUTATIONS_OF_SNAPSHOTS
from tests.simulation.mutations_of_uploads import MUTATIONS_OF_UPLOADS


def found_at(mutation: Mutation) -> int | None:
    """The first seed, from ``first`` on, whose run violates something."""
    with mutation.apply():
        seeds = range(mutation.first, mutation.first + mutation.seeds)
        return next((seed for seed in seeds if mutation.run(seed).violation is not None), None)


if __name__ == "__main__":
    for mutation in [
        *MUTATIONS,
        *MUTATIONS_OF_BYTES,
        *MUTATIONS_OF_REMOVAL,
        *MUTATIONS_OF_SNAPSHOTS,
        *MUTATIONS_OF_UPLOADS,
        *MUTATIONS_OF_PUBLISHED,
    ]:
        if not sys.argv[1:] or mutation.name in sys.argv[1:]:
            seed = found_at(mutation)
            if seed != mutation.first:
                print(f"{mutation.name}: first is {mutation.first}, found at {seed}", flush=True)

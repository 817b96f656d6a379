"""``python -m tests.quorum --seeds 20000 --seed 1`` runs many seeds from one on; ``--seed 7`` alone runs one, with
its trace."""

from __future__ import annotations

import sys
from functools import partial

from tests.quorum.running import replay, run_configuration, run_seed
from tests.simulation.command_line import command_line
from tests.simulation.shrink import Shrinker

if __name__ == "__main__":
    sys.exit(
        command_line("tests.quorum", __doc__, run_seed, partial(Shrinker, run=run_configuration, replay=replay))
    )

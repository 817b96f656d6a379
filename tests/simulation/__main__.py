"""``python -m tests.simulation --seeds 1000 --seed 1`` runs many seeds from one on; a failed seed alone is shown
in full."""

from __future__ import annotations

import sys

from tests.simulation.command_line import command_line
from tests.simulation.running import run_seed

if __name__ == "__main__":
    sys.exit(command_line("tests.simulation", __doc__, run_seed))

"""``python -m tests.quorum --seeds 20000 --seed 1``: many seeds from one on; ``--seed 7`` alone: one, in full."""

from __future__ import annotations

import argparse
import sys

from tests.quorum.running import replay, run_configuration, run_seed
from tests.simulation.many import report_on, run_many
from tests.simulation.shrink import Shrinker
from tests.simulation.trace import text_of_trace


def main() -> int:
    """The command line; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(prog="python -m tests.quorum", description=__doc__)
    parser.add_argument("--seeds", type=int, default=0, help="so many seeds, from --seed on")
    parser.add_argument(
        "--seed", type=int, default=1, help="the first seed; without --seeds the only one, in full"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shrink", action="store_true", help="look for a smaller run with the same violation")
    arguments = parser.parse_args()
    if arguments.seeds:
        summary = run_many(arguments.seed, arguments.seeds, arguments.processes, run_seed)
        print("\n".join(report_on(summary)))
        for seed, _ in summary.failures[:20]:
            print(f"python -m tests.quorum --seed {seed} --shrink")
        return 1 if summary.failures else 0
    result = run_seed(arguments.seed)
    if arguments.shrink and result.violation is not None:
        result = Shrinker(result, run=run_configuration, replay=replay).shrink()
    print("\n".join(text_of_trace(result)))
    return 1 if result.violation else 0


if __name__ == "__main__":
    sys.exit(main())

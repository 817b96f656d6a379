"""The command line of a simulation: many seeds, or one in full."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tests.simulation.many import report_on, run_many
from tests.simulation.running import Result
from tests.simulation.shrink import Shrinker
from tests.simulation.trace import text_of_trace


def command_line(
    package: str,
    description: str | None,
    run_seed: Callable[[int], Result],
    shrinker: Callable[[Result], Shrinker] = Shrinker,
) -> int:
    """Run ``python -m`` of the package; the exit status says whether all invariants held."""
    command = f"python -m {package}"
    parser = argparse.ArgumentParser(prog=command, description=description)
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
            print(f"{command} --seed {seed} --shrink")
        return 1 if summary.failures else 0
    result = run_seed(arguments.seed)
    if arguments.shrink and result.violation is not None:
        result = shrinker(result).shrink()
    print("\n".join(text_of_trace(result)))
    return 1 if result.violation else 0

"""Record histories and check them: ``python -m tests.linearizability --histories 1000 --seed 1``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from tests.linearizability.calls import Call
from tests.linearizability.judging import CHECKER, judge
from tests.linearizability.recording import record


def _recorded(seed: int) -> tuple[str, list[Call]]:
    return str(seed), record(seed)


def main() -> int:
    """Returns exit status 1 if a history is refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.linearizability", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each gives one history")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if not CHECKER.exists():
        print(f"no {CHECKER}: make servers builds it", file=sys.stderr)
        return 2
    seeds = range(given.seed, given.seed + given.histories)
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        histories = dict(pool.imap(_recorded, seeds, chunksize=10))
    verdict = judge(histories)
    for seed in verdict.refused:
        print(f"seed {seed}: not linearizable")
    unknown = sum(call.returned is None for calls in histories.values() for call in calls)
    print(f"{verdict.summary}; {unknown} calls without an answer")
    return int(bool(verdict.refused))


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.fuzz --seconds 60 --seed 1``: mutations of stored bytes, from the seed's first one on;
``--only 1:25`` repeats one.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from functools import partial

from tests.fuzz.watch import Watch
from tests.fuzz.work import END_TO_END

_ENDLESS = 10**9


def main() -> int:
    """Run the mutations. The exit status says whether there were findings."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, help="stop after so long; 60 where nothing says how many")
    parser.add_argument("--mutations", type=int, help="so many mutations")
    parser.add_argument("--first", type=int, default=0, help="the index of the first")
    parser.add_argument("--whole", action="store_true", help="of the whole cluster alone, none of one function")
    parser.add_argument("--seed", type=int, default=None, help="fresh where it is left out")
    parser.add_argument("--only", help="SEED:INDEX, one mutation")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    seconds = given.seconds
    step = END_TO_END if given.whole else 1
    indexes = range(given.first, given.first + step * (given.mutations or _ENDLESS), step)
    if given.only is not None:
        seed, index = map(int, given.only.split(":"))
        indexes = range(index, index + 1)
    elif given.mutations is None and seconds is None:
        seconds = 60.0
    found = partial(print, flush=True)
    with Watch(seed, min(given.processes, len(indexes)), tell=found) as watch:
        watch.run(indexes, seconds)
        print("\n".join(watch.summary.lines()))
    return 1 if watch.summary.found else 0


if __name__ == "__main__":
    sys.exit(main())

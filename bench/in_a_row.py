"""Appends to one partition, one directly after the other, and measures the latest appends and the number of files.

    python -m bench.in_a_row                                  makes 10,000 appends
    python -m bench.in_a_row --appends 2000                   makes fewer
    python -m bench.in_a_row --file-delete-delay 10000        sets file.delete.delay.ms; all other configs are
                                                              defaults

One process appends with acks=all to three replicas, on a file system in memory if there is one, while nothing else
runs. The last line compares, in turns, the processor time of an append with that of an append to a new partition.
At the end, a deep ``verify`` checks everything. The benchmark needs no Spark, and is not part of ``make bench``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from bench.bench import TMPFS, TOPIC, Bench, BenchCluster
from bench.growth import REPLICAS, append
from bench.hour import middle
from bench.measuring import seconds_of
from bench.options import bench_options

LAST = 500
"""The number of appends in a median."""
FIRST, TURNS = 10, 200
"""The number of earlier appends to the compared partition, and the number of paired turns."""


def run(made: BenchCluster, appends: int, every: int) -> list[str]:
    """Print a line after each ``every`` appends."""
    lines: list[str] = []
    taken: list[float] = []
    began_s = time.monotonic()
    for number in range(1, appends + 1):
        taken.append(seconds_of(partial(append, made.cluster)))
        if number % every == 0 or number == appends:
            of_all = time.monotonic() - began_s
            lines.append(f"{number:>9,} {of_all:>7.0f} {middle(taken[-LAST:]) * 1000:>10.1f} {files(made):>7,}")
            print(lines[-1], flush=True)
    return lines


def compared(made: BenchCluster, turns: int) -> str:
    """The processor time of an append to the partition, compared with that of an append to a new partition."""
    for _ in range(FIRST):
        append(made.cluster, partition=1)
    used: list[list[float]] = [[], []]
    for _ in range(turns):
        for partition in (0, 1):
            began_s = time.process_time()
            append(made.cluster, partition=partition)
            used[partition].append(time.process_time() - began_s)
    long, short = (middle(each) for each in used)
    ratio = long / short if short else 1.0
    return f"processor time: {long * 1000:.2f} ms, to a new partition {short * 1000:.2f} ms, ratio {ratio:.2f}"


def files(made: BenchCluster) -> int:
    """The maximum number of files in the folder of a replica."""
    return max(len([*folder.iterdir()]) for folder in made.folder.glob(f"broker-*/*/{TOPIC}-*/*"))


def main() -> int:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.in_a_row", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--appends", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--file-delete-delay", type=int)
    given = parser.parse_args()
    configs = {} if given.file_delete_delay is None else {"file.delete.delay.ms": str(given.file_delete_delay)}
    with tempfile.TemporaryDirectory(prefix="stratalog-row-", dir=TMPFS if TMPFS.is_dir() else None) as folder:
        made = Bench(None, bench_options({}, Path(folder))).cluster("row", brokers=REPLICAS)
        made.cluster.topics.create(TOPIC, partitions=2, replication_factor=REPLICAS, configs=configs)
        print(f"{'appends':>9} {'seconds':>7} {'median ms':>10} {'files':>7}", flush=True)
        run(made, given.appends, given.every)
        print(compared(made, TURNS), flush=True)
        made.driver().verify(deep=True).raise_for_failures()
        made.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())

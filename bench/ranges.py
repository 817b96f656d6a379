"""Reads a small range of offsets, compared with all of them, and one hot partition on all cores, compared with
one."""

from __future__ import annotations

import os
from collections.abc import Callable

from bench.bench import TOPIC, Bench
from bench.measuring import in_turn, seconds_of
from bench.options import size_text
from bench.scanning import bytes_read, totals
from bench.table import Limit, Line, seconds_line

PART = 100
"""The inverse of the fraction of offsets that is read."""
COST = Limit(0.03, at_most=True)
CORES = os.cpu_count() or 1
HOT_AT_LEAST = Limit(1.6)
NOTE = "Bytes are the cost of a range; the time of a small scan is mostly Spark's planning and scheduling."
HOT_NOTE = "The next line shows how much a second core of this machine speeds up plain Spark."
_ONE_TASK = {"spark.sql.files.maxPartitionBytes": str(2**40), "spark.sql.files.minPartitionNum": "1"}


def ranges(bench: Bench) -> list[Line]:
    """Read a hundredth of each partition, from its middle."""
    made = bench.filled(bench.options.partitions)
    made.cluster.replicate().raise_for_failures()
    ends = {one.partition: one.end for one in made.cluster.plan_read(TOPIC).partitions}
    starts = {partition: end // 2 for partition, end in ends.items()}
    until = {partition: start + ends[partition] // PART for partition, start in starts.items()}
    bench.say("a range of offsets")

    def some() -> None:
        if totals(made.cluster.read(TOPIC, starts, until))[0] != sum(until.values()) - sum(starts.values()):
            raise AssertionError("a range of offsets has other records")

    def all_of_them() -> None:
        totals(made.cluster.read(TOPIC))

    part, full = in_turn(lambda: seconds_of(some), lambda: seconds_of(all_of_them))
    part_bytes, full_bytes = bytes_read(bench, some), bytes_read(bench, all_of_them)
    what = f"scan of one offset in {PART}, bytes read; of all"
    return [
        Line(what, size_text(part_bytes), size_text(full_bytes), part_bytes / full_bytes, COST, NOTE),
        Line("    seconds", f"{part:.2f} s", f"{full:.2f} s", part / full),
    ]


def hot_scan(bench: Bench) -> list[Line]:
    """Scan one hot partition. Spark splits its file at row groups; with one split, one task reads all of it."""
    made = bench.filled(1)
    made.cluster.replicate().raise_for_failures()
    bench.say("a scan of one hot partition")

    files = [part.uri for part in made.cluster.plan_read(TOPIC)]

    def ours() -> None:
        totals(made.cluster.read(TOPIC))

    def plain() -> None:
        totals(bench.spark.read.parquet(*files))

    def by_one(scan: Callable[[], None]) -> float:
        for key, value in _ONE_TASK.items():
            bench.spark.conf.set(key, value)
        try:
            return seconds_of(scan)
        finally:
            for key in _ONE_TASK:
                bench.spark.conf.unset(key)

    all_cores, one, plain_all, plain_one = in_turn(
        lambda: seconds_of(ours), lambda: by_one(ours), lambda: seconds_of(plain), lambda: by_one(plain)
    )
    what = f"scan of one hot partition: {CORES} cores; one task"
    return [
        seconds_line(what, all_cores, one, HOT_AT_LEAST, HOT_NOTE),
        seconds_line("    by spark.read.parquet", plain_all, plain_one),
    ]

"""Ten thousand partitions in which nothing happens: one replicate run, against a walk over the same folders."""

from __future__ import annotations

import os
from pathlib import Path

from engine.report import Report
from jobs.benchmarks.bench import Bench, in_memory
from jobs.benchmarks.calls import append_one
from jobs.benchmarks.measuring import in_turn, seconds_of
from jobs.benchmarks.table import Line

REPLICAS = 3
FOLDER_BYTES = 16 * 1024
"""What a replica's folder of three small files takes."""
AT_ONCE = 1000
NOTE = "By a driver that knows no partition yet. On folders a listing is two scans that agree, hence two calls."


def idle(bench: Bench) -> list[Line]:
    """On folders in memory, for a disk would be asked for nothing else than names."""
    partitions = bench.options.idle_partitions
    with in_memory(partitions * REPLICAS * FOLDER_BYTES) as folder:
        made = bench.cluster("idle", brokers=REPLICAS, within=folder)
        made.create_topic(partitions, replicas=REPLICAS)
        bench.say(f"idle, appending to {partitions:,} partitions")
        for start in range(0, partitions, AT_ONCE):
            some = range(start, min(start + AT_ONCE, partitions))
            append_one(made.cluster, some).raise_for_failures()
        bench.say("idle")
        reports: list[Report] = []

        def replicate_all() -> float:
            driver = made.driver(bench.spark)
            seconds = seconds_of(lambda: reports.append(driver.replicate()))
            if reports[-1].raise_for_failures().totals != {"partitions": partitions, "copied_bytes": 0}:
                raise AssertionError(f"an idle run moved something: {reports[-1].totals}")
            return seconds

        roots = [made.folder / f"broker-{broker}" for broker in range(1, REPLICAS + 1)]
        ours, walked = in_turn(replicate_all, lambda: seconds_of(lambda: [walk(root) for root in roots]))
    counts = reports[-1].counts
    return [
        Line(f"idle, {partitions:,} partitions: replicate; a plain walk", f"{ours:.2f} s", f"{walked:.2f} s"),
        Line(
            "    calls; of a partition",
            f"{counts.requests:,}",
            f"{counts.requests / partitions:.1f}",
            None,
            None,
            NOTE,
        ),
    ]


def walk(folder: Path) -> int:
    """Every file below a folder, its size and time asked for once. Returns how many there are."""
    files = 0
    waiting = [os.fspath(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    entry.stat(follow_symlinks=False)
                    files += 1
    return files

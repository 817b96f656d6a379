"""Ten thousand partitions in which nothing happens: one replicate run, one tier run and one run of everything
(maintain), against a walk over the folders that each looks at."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from bench.bench import TOPIC, Bench, BenchCluster, in_memory
from bench.calls import append_one
from bench.measuring import in_turn, seconds_of
from bench.table import Line
from stratalog.engine.driver.report import Report

REPLICAS = 3
FOLDER_BYTES = 16 * 1024
"""What a replica's folder of three small files takes."""
AT_ONCE = 1000
NOTE = "By a driver that knows no partition yet. On folders a listing is two scans that agree, hence two calls."
SPARED = (
    "By a driver that knows no partition yet, over all of them: one listing of each leader, which is two calls on "
    "folders and one in a bucket, and one load of the topic's table, which is not counted among the calls. With "
    "--due nothing is listed before its time."
)
SWEPT = (
    "By a driver that knows no partition yet, of partitions that an earlier run has seen: one look at a broker, "
    "which is a walk on folders, and in a bucket a request for each thousand names."
)
NAMES_A_PAGE = 1000
CHANGED = 100
_BY_THE_DAY = ("vacuum", "scrub")
REMOTE_BYTES = 8 * 1024
"""What a partition's one segment takes in the remote tier, with the folder that it lies in."""


def idle(bench: Bench) -> list[Line]:
    """On folders in memory, for a disk would be asked for nothing else than names."""
    partitions = bench.options.idle_partitions
    with in_memory(partitions * (REPLICAS * FOLDER_BYTES + REMOTE_BYTES)) as folder:
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
            totals = reports[-1].raise_for_failures().totals
            if (totals["partitions"], totals["copied_bytes"]) != (partitions, 0):
                raise AssertionError(f"an idle run moved something: {reports[-1].totals}")
            return seconds

        roots = [made.folder / f"broker-{broker}" for broker in range(1, REPLICAS + 1)]
        ours, walked = in_turn(replicate_all, lambda: seconds_of(lambda: [walk(root) for root in roots]))
        counts = reports[-1].counts
        tiering = _tier_lines(bench, made, partitions)
        maintaining = _maintain_lines(bench, made, partitions)
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
        *tiering,
        *maintaining,
    ]


def _tier_lines(bench: Bench, made: BenchCluster, partitions: int) -> list[Line]:
    """All that is sealed is in the remote tier: a run that finds nothing to do."""
    made.tiered()
    made.cluster.topics.alter_configs(TOPIC, {"segment.bytes": "1"})
    bench.say("idle, tiering everything")
    made.cluster.tier().raise_for_failures()
    made.cluster.tier().raise_for_failures()  # the list learns that nothing is due
    bench.say("idle tier")
    reports: list[Report] = []

    def tier_all() -> float:
        driver = made.driver(bench.spark)
        seconds = seconds_of(lambda: reports.append(driver.tier()))
        if reports[-1].raise_for_failures().totals["uploaded_files"] != 0:
            raise AssertionError(f"an idle run moved something: {reports[-1].totals}")
        return seconds

    leaders = made.replicas(leading=True)
    ours, walked = in_turn(tier_all, lambda: seconds_of(lambda: [walk(folder) for folder in leaders]))
    requests = reports[-1].counts.requests
    return [
        Line(f"idle, {partitions:,} partitions: tier; a plain walk", f"{ours:.2f} s", f"{walked:.2f} s"),
        Line("    calls; of a partition", f"{requests:,}", f"{requests / partitions:.1f}", None, None, SPARED),
    ]


def _maintain_lines(bench: Bench, made: BenchCluster, partitions: int) -> list[Line]:
    """Runs of everything but what reads and lists by the day: of partitions that a run before has seen."""
    bench.say("idle maintain, the first runs")
    for _ in range(2):
        made.cluster.maintain(leave_out=_BY_THE_DAY).raise_for_failures()
    bench.say("idle maintain")
    reports: list[Report] = []

    def maintain_all() -> float:
        driver = made.driver(bench.spark)
        seconds = seconds_of(lambda: reports.append(driver.maintain(leave_out=_BY_THE_DAY)))
        reports[-1].raise_for_failures()
        if any(row["items"] for row in reports[-1].rows):
            raise AssertionError(f"an idle run had something to do: {reports[-1]}")
        return seconds

    roots = [made.folder / f"broker-{broker}" for broker in range(1, REPLICAS + 1)]
    files = {root: walk(root) for root in roots}
    ours, walked = in_turn(maintain_all, lambda: seconds_of(lambda: [walk(root) for root in roots]))
    idle_requests = reports[-1].counts.requests
    pages = sum(files[root] // NAMES_A_PAGE for root in roots)
    changed = range(min(CHANGED, partitions))
    append_one(made.cluster, changed).raise_for_failures()
    after = made.driver(bench.spark).maintain(leave_out=_BY_THE_DAY).raise_for_failures().counts.requests
    of_changed = (after - idle_requests) / len(changed)
    return [
        Line(f"idle, {partitions:,} partitions: maintain; a plain walk", f"{ours:.2f} s", f"{walked:.2f} s"),
        Line(
            "    calls; requests in buckets", f"{idle_requests:,}", f"{idle_requests + pages:,}", None, None, SWEPT
        ),
        Line(f"    {len(changed):,} of them changed: calls; of each", f"{after:,}", f"{of_changed:.1f}"),
        Line("    memory of the process, peak", f"{_peak_mb():,.0f} MB", ""),
    ]


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


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

"""Bootstraps a broker with a thousand small partitions at once, to show the cost of a bootstrap apart from its
bytes.
"""

from __future__ import annotations

from bench.bench import TOPIC, Bench, BenchCluster, in_memory
from bench.calls import append_one
from bench.measuring import in_turn, timed
from bench.table import Line, seconds_line
from stratalog.engine.driver.report import Report

PARTITIONS = 1_000
REPLICAS = 2
LOST = 2
PARTITION_BYTES = 256 * 1024
"""The size of a partition, in files of a few kilobytes."""
NOTE = (
    "Everything except one append is tiered. On folders, a listing takes two scans that must agree, so it counts "
    "as two calls. From the remote tier, each partition reads the footer of its last segment, and the topic loads "
    "its table once."
)


def bootstrap_many(bench: Bench) -> list[Line]:
    """The seconds and calls of a bootstrap from the earliest pending upload offset, compared with copying
    everything."""
    with in_memory(PARTITIONS * PARTITION_BYTES) as folder:
        made = bench.cluster("bootstrap-many", brokers=REPLICAS, within=folder)
        made.create_topic(PARTITIONS, replicas=REPLICAS)
        made.cluster.topics.alter_configs(TOPIC, {"remote.storage.enable": "true", "segment.bytes": "1"})
        bench.say(f"bootstrap, appending to {PARTITIONS:,} partitions")
        append_one(made.cluster, range(PARTITIONS)).raise_for_failures()
        made.cluster.tier().raise_for_failures()
        append_one(made.cluster, range(PARTITIONS)).raise_for_failures()
        bench.say("bootstrap of all of them")
        reports: dict[bool, Report] = {}
        ours, full = in_turn(
            lambda: _bootstrap(bench, made, True, reports), lambda: _bootstrap(bench, made, False, reports)
        )
    avoided = int(reports[True].totals["avoided_bytes"] or 0)
    copied = {way: int(report.totals["copied_bytes"] or 0) for way, report in reports.items()}
    if copied[True] + avoided != copied[False] or not avoided:
        raise AssertionError(f"copied {copied}, avoided {avoided} bytes")
    counts = {way: report.counts.requests for way, report in reports.items()}
    return [
        seconds_line(f"bootstrap of {PARTITIONS:,} partitions at once; copying everything", ours, full),
        Line(
            "    calls of a partition",
            f"{counts[True] / PARTITIONS:.1f}",
            f"{counts[False] / PARTITIONS:.1f}",
            None,
            None,
            NOTE,
        ),
    ]


def _bootstrap(bench: Bench, made: BenchCluster, last_tiered: bool, reports: dict[bool, Report]) -> float:
    enable = str(last_tiered).lower()
    names = ("follower.fetch.last.tiered.offset.enable", "follower.fetch.last.tiered.offset.always.enable")
    made.cluster.topics.alter_configs(None, dict.fromkeys(names, enable))
    made.lose(LOST)
    driver = made.driver(bench.spark)
    seconds, reports[last_tiered] = timed(lambda: driver.bootstrap(LOST).raise_for_failures())
    if any(LOST not in view.isr for view in made.cluster.image.views(TOPIC)):
        raise AssertionError(f"broker {LOST} is not in every ISR after its bootstrap")
    return seconds

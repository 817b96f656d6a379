"""Bootstraps a broker that lost its disk, from the earliest pending upload offset (KIP-1023), compared with a full
copy. The tiered part of the log grows, and the rest stays the same."""

from __future__ import annotations

from functools import partial

from bench.bench import TOPIC, Bench, BenchCluster, data_files, size_of
from bench.measuring import in_turn, timed
from bench.options import size_text
from bench.table import Limit, Line, seconds_line

SCALES = (1, 4, 16)
"""The tiered data, in sixteenths of all records; the part that is not tiered is one sixteenth."""

BYTES_RATIO = Limit(1.0, at_most=True)
GROWTH = Limit(1.5, at_most=True)
"""The greatest allowed ratio of seconds for sixteen times as much data in the tier."""
LOST = 2


def bootstrap(bench: Bench) -> list[Line]:
    """The ratios of the bytes copied to the bytes that are not tiered yet, of the seconds to those of a full copy,
    and of the seconds at 16x to those at 1x.
    """
    made = bench.cluster("bootstrap", brokers=2)
    made.create_topic(bench.options.partitions, replicas=2)
    made.tiered()
    _drop_first_records(bench, made)
    lines = []
    taken: list[float] = []
    tiered = 0
    for scale in SCALES:
        bench.say(f"bootstrap, {scale}x tiered")
        # The tail at the smaller scale is now tiered, too.
        made.append(bench.records(range(tiered, scale)), acks="all")
        made.cluster.tier().raise_for_failures()
        made.append(bench.records([0]), acks="all")
        tiered = scale + 1
        everything = size_of(data_files(made.replicas(leading=True)))
        tail = size_of(max(data_files([folder])) for folder in made.replicas(leading=True))
        copied: dict[bool, int] = {}
        ours, full = in_turn(partial(_bootstrap, made, True, copied), partial(_bootstrap, made, False, copied))
        if copied[False] != everything:
            raise AssertionError(f"a full copy moved {copied[False]} of {everything} bytes")
        taken.append(ours)
        lines += [
            Line(
                f"bootstrap, {scale}x tiered: bytes; not tiered",
                size_text(copied[True]),
                size_text(tail),
                copied[True] / tail,
                BYTES_RATIO,
            ),
            seconds_line(f"    seconds; of a full copy, {size_text(everything)}", ours, full),
        ]
    made.remove()
    first, last = taken[0], taken[-1]
    lines.append(
        Line(
            f"bootstrap, seconds at {SCALES[-1]}x against {SCALES[0]}x",
            f"{last:.2f} s",
            f"{first:.2f} s",
            last / first,
            GROWTH,
        )
    )
    return lines


def _drop_first_records(bench: Bench, made: BenchCluster) -> None:
    """Move the first records of the log to the remote tier only: a follower that finds the whole log on its
    leader's disk does not need the tier (KIP-1023), and copies the log."""
    for _ in range(2):  # the last file of a log always stays
        made.append(bench.records([0]).limit(100 * bench.options.partitions), acks="all")
    made.cluster.tier().raise_for_failures()
    made.only_remote()
    made.cluster.topics.alter_configs(TOPIC, {"local.retention.bytes": "-1"})


def _bootstrap(made: BenchCluster, from_last_tiered: bool, copied: dict[bool, int]) -> float:
    made.cluster.topics.alter_configs(
        None, {"follower.fetch.last.tiered.offset.enable": str(from_last_tiered).lower()}
    )
    made.lose(LOST)
    seconds, report = timed(lambda: made.cluster.bootstrap(LOST).raise_for_failures())
    if any(LOST not in view.isr for view in made.cluster.image.views(TOPIC)):
        raise AssertionError(f"broker {LOST} is not in every ISR after its bootstrap")
    copied[from_last_tiered] = int(report.totals["copied_bytes"] or 0)
    return seconds

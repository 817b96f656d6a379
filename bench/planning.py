"""Plans a read of many files with empty caches: ten thousand partitions of ten files each, on folders. It reads no
record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from bench.bench import TOPIC, Bench, BenchCluster, record_batch, segment_of
from bench.measuring import in_turn, seconds_of
from bench.table import Limit, Line
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName, EpochName, WatermarkName

SEGMENTS = 9
"""The number of merged segments of each partition, before one append."""
RECORDS = 10
"""The number of records of each file."""
SECONDS = 10.0
NOTE = (
    "Each partition has nine merged segments and one append. A segment's end offset is in its name; an "
    "append's end offset is in its footer. The peer lists the same folders (os.walk)."
)


def planning(bench: Bench) -> list[Line]:
    """Plan without any cache: the metadata, a listing of every leader, and the footers of the last files."""
    made = _filled(bench, bench.options.idle_partitions)
    wanted = bench.options.idle_partitions * (SEGMENTS + 1)

    def plan() -> None:
        planned = len(made.driver(bench.spark).plan_read(TOPIC))
        if planned != wanted:
            raise AssertionError(f"{planned} of {wanted} files are planned")

    def walk() -> None:
        for folder, _, names in os.walk(made.folder / "broker-1"):
            for name in names:
                os.stat(os.path.join(folder, name))

    bench.say("planning")
    ours, peer = in_turn(lambda: seconds_of(plan), lambda: seconds_of(walk))
    made.remove()
    what = f"plan a read of {bench.options.idle_partitions:,} partitions, {wanted:,} files"
    return [Line(what, f"{ours:.2f} s", f"{peer:.2f} s", ours, Limit(SECONDS, at_most=True), NOTE)]


def _filled(bench: Bench, partitions: int) -> BenchCluster:
    """A topic whose partitions hold the same files, as links, which take no disk space."""
    made = bench.cluster("planning")
    made.create_topic(partitions)
    bench.say(f"laying out {partitions:,} partitions of {SEGMENTS + 1} files")
    folders = _folders(made)
    files = dict(_files())
    for name, data in files.items():
        (folders[0] / name).write_bytes(data)
    for folder in folders[1:]:
        folder.mkdir(parents=True)
        for name in files:
            os.link(folders[0] / name, folder / name)
    return made


def _folders(made: BenchCluster) -> list[Path]:
    root = made.folder / "broker-1"
    found = [
        root / PartitionReplicas(view, made.cluster.stores).leader.folder
        for view in made.cluster.image.views(TOPIC)
    ]
    found[0].mkdir(parents=True)
    return found


def _files() -> Iterator[tuple[str, bytes]]:
    ends = [number * RECORDS for number in range(SEGMENTS + 2)]
    records = record_batch(pa.array([b"x" * 100] * RECORDS, pa.binary()))
    for number, (start, end) in enumerate(pairwise(ends)):
        name = DataName(start, end if number < SEGMENTS else None, 1)
        yield str(name), segment_of(records, "0" * 32, 0, start, 1, 0)
    yield str(EpochName(1)), Lineage([(1, 0)]).to_json()
    yield str(WatermarkName(ends[-1], 1)), b""

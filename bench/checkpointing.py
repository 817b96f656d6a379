"""The time, bytes and memory of generating and of loading a snapshot of the metadata, at three sizes.

The peer of loading is the smallest amount of work: reading the file, decoding each record, and keeping it. Each
piece of work runs in a separate process per size, so that the peak memory of the process is the peak memory of the
work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bench.large_cluster import CLUSTER, example_records, folded, voter_in
from bench.measuring import TURNS, Spread, in_child, in_turn, seconds_of, timed
from bench.memory import own_peak
from bench.options import size_text
from bench.table import Limit, Line
from stratalog.engine.metadata.dump import SnapshotRecord, decode
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.records import VoterId, VotersRecord
from stratalog.engine.quorum.checkpoints import read_checkpoint, write_checkpoint
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.lineage import Lineage

if TYPE_CHECKING:
    from bench.bench import Bench

CODEC_TIMES = 3
SHAPE = Limit(1.25, at_most=True)
"""The greatest ratio of the time per partition to the time per partition for a tenth of the partitions. The ideal
ratio is 1, but machines vary from run to run.
"""
SHAPE_NOTE = (
    "The goal is for the time per partition, divided by that of the previous image, which is a tenth as large; "
    "1 is linear."
)

_EPOCH = 1
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True, slots=True)
class Taken:
    """The cost of a piece of work."""

    seconds: float
    peak_bytes: int | None
    """The peak memory of the whole process; None if the system does not report it."""
    size_bytes: int
    """The size of the snapshot."""


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The measurements of an image with this number of partitions."""

    partitions: int
    generated: Taken
    loaded: Taken
    codec_s: float


def checkpoints(bench: Bench) -> list[Line]:
    """Measure with a hundredth, a tenth, and all of the partitions."""
    largest = bench.options.metadata_partitions
    measured: list[Checkpointing] = []
    for partitions in (max(1, largest // 100), max(1, largest // 10), largest):
        bench.say(f"a snapshot of {partitions:,} partitions")
        folder = bench.folder / f"checkpoint-{partitions}"
        generated = in_child(generate, folder, partitions)
        loaded, codec_s = in_child(load, folder, partitions)
        measured.append(Checkpointing(partitions, generated, loaded, codec_s))
    return checkpoint_lines(measured)


def generate(folder: Path, partitions: int) -> Taken:
    """Take a snapshot in each turn; the first snapshot stays, and its peak memory is measured."""
    image = folded(_first(), example_records(partitions))
    state = LogState(image=image, lineage=Lineage(((_EPOCH, 0),)), epoch=_EPOCH)
    peaks: list[int | None] = []
    times: list[float] = []
    for turn in range(TURNS):
        voter = voter_in(folder / str(turn))
        with own_peak() as peak:
            times.append(seconds_of(partial(write_checkpoint, CLUSTER, voter, state, SystemClock())))
        peaks.append(peak.bytes)
    [stored] = voter_in(folder / "0").list().checkpoints.values()
    return Taken(Spread(times), peaks[0], stored.size_bytes)


def load(folder: Path, partitions: int) -> tuple[Taken, float]:
    """Load the snapshot, and decode the same bytes with the codec alone, in turn."""
    voter = voter_in(folder / "0")
    [(name, stored)] = voter.list().checkpoints.items()
    peaks: list[int | None] = []

    def ours() -> float:
        with own_peak() as peak:
            seconds, state = timed(lambda: read_checkpoint(CLUSTER, voter, name, stored))
        peaks.append(peak.bytes)
        held = sum(len(topic.partitions) for topic in state.image.topics.values())
        if held != partitions:
            raise AssertionError(f"a snapshot of {partitions} partitions was loaded as {held}")
        return seconds

    ours_s, codec_s = in_turn(ours, lambda: seconds_of(lambda: decode_all(voter, voter.path(name))))
    return Taken(ours_s, peaks[0], stored.size_bytes), codec_s


def decode_all(voter: Voter, name: str) -> list[SnapshotRecord]:
    """The records of the file, without any check."""
    file = pq.ParquetFile(pa.BufferReader(voter.store.read(name)))
    return [
        decode(value)
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=["value"])
        for value in batch.column(0).drop_null().to_pylist()
    ]


def checkpoint_lines(measured: Sequence[Checkpointing]) -> list[Line]:
    """The measurements as lines; the first size has no ratio."""
    lines: list[Line] = []
    before: Mapping[str, float] = {}
    for one in measured:
        each: dict[str, float] = {}
        for what, taken in (("generate", one.generated), ("load", one.loaded)):
            each[what] = taken.seconds / one.partitions
            shape = each[what] / before[what] if what in before else None
            peak = "" if taken.peak_bytes is None else f", peak memory {size_text(taken.peak_bytes)}"
            lines.append(
                Line(
                    f"{what} a snapshot, {one.partitions:,} partitions",
                    f"{taken.seconds:.2f} s, {size_text(taken.size_bytes)}{peak}",
                    "",
                    shape,
                    None if shape is None else SHAPE,
                    SHAPE_NOTE,
                )
            )
        lines.append(
            Line(
                "    load; decode alone",
                f"{one.loaded.seconds:.2f} s",
                f"{one.codec_s:.2f} s",
                one.loaded.seconds / one.codec_s,
                Limit(CODEC_TIMES, at_most=True),
            )
        )
        before = each
    return lines


def _first() -> ClusterImage:
    return apply(ClusterImage(), 0, [VotersRecord(cluster_id=CLUSTER, voters=(VoterId(1, "1"),))])

"""Append (acks=leader, one replica) against ``repartition + write.parquet`` with the same codec and level, the
peak memory of the Python worker that appends everything to one partition, and what it costs to digest the records,
as is done for a producer that was named."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from jobs.benchmarks.bench import Bench
from jobs.benchmarks.measuring import in_turn, seconds_of
from jobs.benchmarks.memory import Peak, worker_peak
from jobs.benchmarks.options import size_text
from jobs.benchmarks.table import Limit, Line, speed_line

AT_LEAST = 0.6
WORKER_BYTES = 1024**3
ZSTD_LEVEL = "1"
"""What our segments are written with; Parquet's Java writer would take 3."""


def append(bench: Bench) -> list[Line]:
    """To all partitions, then to one, whose worker is watched."""
    lines = []
    for partitions in dict.fromkeys((bench.options.partitions, 1)):
        what = "1 partition" if partitions == 1 else f"{partitions} partitions"
        bench.records()
        bench.say(f"append, {what}")
        peaks: list[Peak] = []

        def append_all(
            partitions: int = partitions, peaks: list[Peak] = peaks, producer: str | None = None
        ) -> float:
            made = bench.cluster("append")
            made.create_topic(partitions)
            sequence = None if producer is None else 0
            with worker_peak() as peak:
                seconds = seconds_of(lambda: made.append(bench.records(), producer=producer, sequence=sequence))
            made.remove()
            peaks.append(peak)
            return seconds

        def append_digested(append_all: Callable[..., float] = append_all) -> float:
            return append_all(producer="loader")

        def write_plain(partitions: int = partitions) -> float:
            target = bench.folder / "plain"
            frame = bench.records().repartition(partitions, "key")
            writer = frame.write.option("compression", "zstd")
            writer = writer.option("parquet.compression.codec.zstd.level", ZSTD_LEVEL)
            seconds = seconds_of(lambda: writer.parquet(str(target)))
            shutil.rmtree(target)
            return seconds

        ours, peer, digested = in_turn(append_all, write_plain, append_digested)
        lines.append(speed_line(f"append, {what}", bench.options.bytes, ours, peer, AT_LEAST))
        lines.append(speed_line(f"append, {what}, digested for a producer", bench.options.bytes, digested, ours))
        if partitions == 1:
            lines += _memory_line(peaks)
    return lines


def _memory_line(peaks: list[Peak]) -> list[Line]:
    seen = [peak.bytes for peak in peaks if peak.bytes is not None]
    if not seen:
        return []
    limit = Limit(1, at_most=True)
    ratio = max(seen) / WORKER_BYTES
    return [Line("append, 1 partition: peak of a worker", size_text(max(seen)), "1 GiB", ratio, limit)]

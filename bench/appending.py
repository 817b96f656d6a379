"""Appends (acks=leader, one replica), compared with ``repartition + write.parquet`` with the same codec and level,
and measures the peak memory of the Python worker that appends everything to one partition. Also measures the cost
of remembering the records of a named producer: an append with a name, compared with one without, and the share of
the digest in its processor time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial

import pyarrow.parquet as pq

from bench.bench import Bench
from bench.measuring import Spread, cpu_timed, in_turn, seconds_of, thread_seconds_of
from bench.memory import Peak, worker_peak
from bench.options import size_text
from bench.table import Limit, Line, speed_line
from stratalog.partitions.digest import RecordsDigest
from stratalog.partitions.records import physical_schema

AT_LEAST = 0.6
WORKER_BYTES = 1024**3
ZSTD_LEVEL = "1"
"""The zstd level of our segments; Parquet's Java writer would use 3."""


def append(bench: Bench) -> list[Line]:
    """Append to all partitions, then to one, with the memory of its worker."""
    lines = []
    for partitions in dict.fromkeys((bench.options.partitions, 1)):
        what = "1 partition" if partitions == 1 else f"{partitions} partitions"
        bench.records()
        bench.say(f"append, {what}")
        peaks: list[Peak] = []
        used: list[float] = []

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

        def append_digested(append_all: Callable[..., float] = append_all, used: list[float] = used) -> float:
            cpu_s, seconds = cpu_timed(lambda: append_all(producer="loader"))
            used.append(cpu_s)
            return seconds

        def write_plain(partitions: int = partitions) -> float:
            target = bench.folder / "plain"
            frame = bench.records().repartition(partitions, "key")
            writer = frame.write.option("compression", "zstd")
            writer = writer.option("parquet.compression.codec.zstd.level", ZSTD_LEVEL)
            seconds = seconds_of(lambda: writer.parquet(str(target)))
            shutil.rmtree(target)
            return seconds

        ours, peer, digested, digest = in_turn(append_all, write_plain, append_digested, lambda: _digest(bench))
        lines.append(speed_line(f"append, {what}", bench.options.bytes, ours, peer, AT_LEAST))
        lines.append(speed_line(f"append, {what}, digested for a producer", bench.options.bytes, digested, ours))
        share, digested_s = "    the digest, of the processor time of that", Spread(used)
        lines.append(Line(share, f"{digest:.2f} s", f"{digested_s:.2f} s", digest / digested_s))
        if partitions == 1:
            lines += _memory_line(peaks)
    return lines


def _digest(bench: Bench) -> float:
    """Processor seconds of the digest of all records, without reading the records."""
    bench.records()
    digest = RecordsDigest(physical_schema(), timestamps=True)
    seconds = 0.0
    for file in sorted((bench.folder / "source").glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(columns=["key", "value"]):
            seconds += thread_seconds_of(partial(digest.add, batch))
    return seconds


def _memory_line(peaks: list[Peak]) -> list[Line]:
    seen = [peak.bytes for peak in peaks if peak.bytes is not None]
    if not seen:
        return []
    limit = Limit(1, at_most=True)
    ratio = max(seen) / WORKER_BYTES
    return [Line("append, 1 partition: peak of a worker", size_text(max(seen)), "1 GiB", ratio, limit)]

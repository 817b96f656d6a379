"""Measures ingest and tiering per core, small appends, and the bytes written to storage per appended byte. Only
the first line needs Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from bench.bench import TOPIC, Bench, BenchCluster, in_memory, record_batch, slice_of_records
from bench.measuring import TURNS, Spread, cpu_seconds_of, written_by_process
from bench.options import size_text
from bench.table import Limit, Line
from stratalog.partitions.columns import binaries

INGEST_MB, TIER_MB, SMALL_RECORDS, WRITTEN = 60, 70, 5_000, 2.2
"""The targets: MB per second of a core, records per second, and bytes written per appended byte."""
MIB = 1024**2
SEGMENT_BYTES = 1024 * MIB
SMALL, SMALL_APPENDS, SMALL_REPLICAS = 10, 300, 3
WARM_UP = 20
"""Small appends before the measurement, because the first work of a process is not part of an append."""
ROUND, MOST_APPENDS = 64, 2_000
"""The number of appends between two rounds of upkeep, and the number after which the benchmark gives up."""
_ROOM = 8 * 1024 * MIB
BY_DEFAULT: dict[str, str] = {}
NOT_MERGED = {"segment.merge.min.files": "100000", "segment.merge.inline.bytes": "0"}
"""Topic configs that keep appends unmerged until the remote tier has them as one segment."""


def rates(bench: Bench) -> list[Line]:
    return [*_ingest_by_spark(bench), *_ingest(bench), *_tiering(bench), *_small(bench), *_written(bench)]


def _per_core(what: str, size_bytes: int, used: Sequence[float], least_mb: int) -> Line:
    """The rate per core; ``used`` are the processor seconds of each turn."""
    rate = Spread(size_bytes / seconds / 1e6 for seconds in used)
    return Line(what, f"{rate:.0f} MB/s", f"{least_mb} MB/s", rate / least_mb, Limit(1))


def _turns(work: Callable[[], float]) -> list[float]:
    return [work() for _ in range(TURNS)]


def _ingest_by_spark(bench: Bench) -> list[Line]:
    bench.records()
    bench.say("rates: append by Spark")

    def once() -> float:
        made = bench.cluster("rates")
        made.create_topic(bench.options.partitions)
        used = cpu_seconds_of(lambda: made.append(bench.records()))
        made.remove()
        return used

    once()  # the session's classes are loaded, and its code is compiled
    size = bench.options.bytes
    what = f"append by Spark, {bench.options.partitions} partitions, one replica, {size_text(size)}, per core"
    return [_per_core(what, size, _turns(once), INGEST_MB)]


def _ingest(bench: Bench) -> list[Line]:
    bench.say("rates: append without Spark")
    batches = [*slice_of_records(0, SEGMENT_BYTES // 16 // 1024, seed=1)]
    values = pa.Table.from_batches(batches)["value"].combine_chunks()
    size = sum(map(len, values.to_pylist()))
    batch = record_batch(values)

    def once() -> float:
        made = bench.cluster("rates")
        made.create_topic(1)
        began = time.process_time()
        made.cluster.append_batches(TOPIC, {0: [batch]}).raise_for_failures()
        used = time.process_time() - began
        made.remove()
        return used

    what = f"append of Arrow batches without Spark, one replica, {size_text(size)}, per core"
    return [_per_core(what, size, _turns(once), INGEST_MB)]


def _tiering(bench: Bench) -> list[Line]:
    made = bench.filled(bench.options.partitions)
    made.tiered()
    made.cluster.replicate().raise_for_failures()  # only what is below the high watermark is tiered
    bench.say("rates: tier")
    size = sum(file.stat().st_size for folder in made.replicas(leading=True) for file in folder.glob("*.parquet"))
    remote = made.folder / "remote"

    def once() -> float:
        used = cpu_seconds_of(lambda: made.driver().tier().raise_for_failures())
        shutil.rmtree(remote)
        remote.mkdir()
        return used

    return [_per_core(f"tier to a folder, {size_text(size)} of segments, per core", size, _turns(once), TIER_MB)]


def _small(bench: Bench) -> list[Line]:
    bench.say("rates: small appends")
    batch = record_batch(binaries([b"x" * 100] * SMALL))
    with in_memory(MIB * 256) as folder:
        made = bench.cluster("rates", brokers=SMALL_REPLICAS, within=folder)
        made.create_topic(1, replicas=SMALL_REPLICAS)

        def appends(number: int) -> float:
            began = time.perf_counter()
            for _ in range(number):
                made.cluster.append_batches(TOPIC, {0: [batch]}).raise_for_failures()
            return time.perf_counter() - began

        appends(WARM_UP)
        rate = Spread(SMALL * SMALL_APPENDS / seconds for seconds in _turns(lambda: appends(SMALL_APPENDS)))
        made.remove()
    what = f"appends of {SMALL} records one after the other, {SMALL_REPLICAS} replicas on tmpfs, one process"
    line = Line(what, f"{rate:,.0f} records/s", f"{SMALL_RECORDS:,} records/s", rate / SMALL_RECORDS, Limit(1))
    return [line]


def _written(bench: Bench) -> list[Line]:
    lines = []
    for what, configs in (("by default", BY_DEFAULT), ("not merged", NOT_MERGED)):
        bench.say(f"rates: bytes written, {what}")
        with in_memory(_ROOM) as folder:
            made = bench.cluster("rates", within=folder)
            try:
                ratio = _amplification(made, configs)
            finally:
                made.remove()
        lines.append(
            Line(
                f"bytes written per appended byte, appends of 1 MiB to a tiered segment of 1 GiB, {what}",
                f"{ratio:.2f}",
                "1",
                ratio,
                Limit(WRITTEN, at_most=True),
                ", ".join(f"{key}={value}" for key, value in configs.items()),
            )
        )
    return lines


def _amplification(made: BenchCluster, configs: dict[str, str]) -> float:
    """The bytes written to the broker and the remote tier per appended byte, until the first segment is tiered,
    including those of the driver's background merges."""
    cluster = made.cluster
    cluster.topics.create(
        TOPIC,
        partitions=1,
        replication_factor=1,
        configs={"segment.bytes": str(SEGMENT_BYTES), "remote.storage.enable": "true", **configs},
    )
    random = np.random.default_rng(1)
    batch = record_batch(binaries([random.bytes(1024) for _ in range(1024)]))
    appended = number = 0
    before = written_by_process()
    while not [*(made.folder / "remote").rglob("*.parquet")]:
        if number > MOST_APPENDS:
            raise AssertionError(f"{number:,} appends of 1 MiB made no tiered segment of 1 GiB")
        cluster.append_batches(TOPIC, {0: [batch]}).raise_for_failures()
        number += 1
        if number % ROUND == 0:
            for step in (cluster.replicate, cluster.merge, cluster.tier):
                step().raise_for_failures()
        appended += batch.get_total_buffer_size()
    return (written_by_process() - before) / appended

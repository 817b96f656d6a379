"""Compares typed rows with a lake table: one session appends the same rows to a topic and to a Delta table, and
scans both. The key of a row is a short text; its value has a city (one of 500 texts), a double and a time. There
are as many rows as records of 1 KiB in ``BYTES``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bench.bench import TOPIC, Bench, BenchCluster, stages_of
from bench.measuring import Spread, cpu_timed, in_turn, seconds_of, timed
from bench.table import Limit, Line, seconds_line
from stratalog.partitions.identity import random_id

FEW = 1000
VALUE = "city STRING, distance DOUBLE, at TIMESTAMP"
_WARM_UP = 5
"""The number of small appends before the measured ones, until the JVM has compiled the code."""
_FILES = 4
_UNIQUE = 6_000_000
"""The number of rows whose values hardly repeat: each has a number, a text with this number, and a
random double.
"""


def typed(bench: Bench) -> list[Line]:
    """Measure appends of few rows and of many, then scans of one column and of all."""
    return [
        *_few(bench, 1, Limit(1.0)),
        *_few(bench, 3, Limit(0.8)),
        *_many(bench),
        *_bytes(bench),
        *_one_partition(bench),
        *_scan(bench),
    ]


def _rows(bench: Bench, count: int) -> DataFrame:
    """The rows, read from plain Parquet without a codec, written at first use."""
    folder = bench.folder / f"typed-{count}"
    if not folder.exists():
        bench.say(f"writing {count:,} typed rows")
        number = F.xxhash64("id")
        rows = bench.spark.range(0, count, 1, 1 if count == FEW else _FILES).select(
            F.col("id").cast("string").alias("key"),
            F.concat(F.lit("city-"), F.pmod(number, F.lit(500)).cast("string")).alias("city"),
            (F.rand(7) * 1000).alias("distance"),
            F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 1000).alias("at"),
        )
        rows.write.option("compression", "none").parquet(str(folder))
    return bench.spark.read.parquet(str(folder))


def _made(bench: Bench, brokers: int, partitions: int) -> BenchCluster:
    made = bench.cluster(f"typed-{random_id()}", brokers=brokers)
    made.cluster.topics.create(TOPIC, partitions=partitions, replication_factor=brokers, key="STRING", value=VALUE)
    return made


def _append(made: BenchCluster, rows: DataFrame) -> float:
    return seconds_of(lambda: made.cluster.append(TOPIC, rows, key="key").raise_for_failures())


def _delta(bench: Bench, rows: DataFrame) -> float:
    writer = rows.write.format("delta").mode("append")
    return seconds_of(lambda: writer.save(str(bench.folder / "delta")))


def _few(bench: Bench, replicas: int, limit: Limit) -> list[Line]:
    made = _made(bench, replicas, bench.options.partitions)
    works: list[Callable[[], float]] = [
        lambda: _append(made, _rows(bench, FEW)),
        lambda: _delta(bench, _rows(bench, FEW)),
    ]
    for _ in range(_WARM_UP):
        for work in works:
            work()
    ours, peer = in_turn(*works)
    made.remove()
    shutil.rmtree(bench.folder / "delta")
    copies = "one replica" if replicas == 1 else f"{replicas} replicas"
    what = f"append {FEW:,} typed rows, {bench.options.partitions} partitions, {copies}, compared with Delta"
    return [seconds_line(what, ours, peer, limit)]


def _many(bench: Bench) -> list[Line]:
    """Measure appends of many rows, with the processor time too, because it does not depend on the machine's other
    work."""
    count, partitions = bench.options.records, bench.options.partitions
    used: dict[str, list[float]] = {"ours": [], "shuffled": []}

    def measured(who: str, work: Callable[[], float]) -> float:
        cpu_s, seconds = cpu_timed(work)
        used[who].append(cpu_s)
        return seconds

    def append() -> float:
        made = _made(bench, 1, partitions)
        seconds = measured("ours", lambda: _append(made, _rows(bench, count)))
        made.remove()
        return seconds

    def delta(shuffled: bool) -> float:
        rows = _rows(bench, count)
        rows = rows.repartition(partitions, "key") if shuffled else rows
        seconds = measured("shuffled", lambda: _delta(bench, rows)) if shuffled else _delta(bench, rows)
        shutil.rmtree(bench.folder / "delta")
        return seconds

    append(), delta(True)
    used = {who: [] for who in used}
    ours, shuffled, plain = in_turn(append, lambda: delta(True), lambda: delta(False))
    what = f"append {count:,} typed rows, {partitions} partitions, compared with Delta"
    return [
        seconds_line(f"{what} with the same shuffle", ours, shuffled, Limit(0.9)),
        seconds_line("    CPU time of both", Spread(used["ours"]), Spread(used["shuffled"])),
        seconds_line("    that append, compared with Delta without a shuffle", ours, plain),
    ]


def _bytes(bench: Bench) -> list[Line]:
    """The size of the files of rows whose values hardly repeat, in the same order and with the same codec."""
    number = F.col("id")
    rows = bench.spark.range(_UNIQUE).select(number, F.concat(F.lit("v"), number).alias("v"), F.rand(7).alias("r"))
    made = bench.cluster(f"typed-{random_id()}", brokers=1)
    made.cluster.topics.create(TOPIC, partitions=_FILES, key="BIGINT", value="v STRING, r DOUBLE")
    made.cluster.append(TOPIC, rows, key="id").raise_for_failures()
    ours = sum(file.stat().st_size for file in made.folder.rglob(f"broker-1/**/{TOPIC}-*/**/*.parquet"))
    made.remove()
    delta = bench.folder / "delta"
    rows.repartition(_FILES, "id").write.format("delta").option("compression", "zstd").save(str(delta))
    peer = sum(file.stat().st_size for file in delta.glob("*.parquet"))
    shutil.rmtree(delta)
    what = f"bytes of {_UNIQUE:,} typed rows, compared with Delta with the same shuffle and codec"
    return [Line(what, f"{ours / 1e6:.1f} MB", f"{peer / 1e6:.1f} MB", ours / peer, Limit(1.1, at_most=True))]


def _one_partition(bench: Bench) -> list[Line]:
    """The processor seconds that all cores spend on one partition per elapsed second, and the JVM's share, before
    and after the shuffle. The rest is Python's share.
    """
    count = bench.options.records
    times: list[float] = []
    tasks: list[tuple[float, float]] = []

    def append() -> float:
        made = _made(bench, 1, 1)
        rows = _rows(bench, count)
        with stages_of(bench.spark) as stages:
            cpu_s, seconds = cpu_timed(lambda: _append(made, rows))
        made.remove()
        times.append(seconds)
        *before, after = (stage.executorCpuTime() / 1e9 for stage in stages)
        tasks.append((sum(before), after))
        return cpu_s

    append()
    times.clear()
    tasks.clear()
    (used,) = in_turn(append)
    took = Spread(times)
    before, after = (Spread(of) for of in zip(*tasks, strict=True))
    what = f"append {count:,} typed rows, 1 partition: CPU time, elapsed time"
    return [
        Line(what, f"{used:.2f} s", f"{took:.2f} s", used / took),
        Line("    CPU time of the JVM's tasks before the shuffle, after it", f"{before:.2f} s", f"{after:.2f} s"),
    ]


def _scan(bench: Bench) -> list[Line]:
    count, partitions = bench.options.records, bench.options.partitions
    made = _made(bench, 1, partitions)
    _append(made, _rows(bench, count))
    _delta(bench, _rows(bench, count).repartition(partitions, "key"))

    def scanned(frame: Callable[[], DataFrame], *columns: Column) -> float:
        seconds, rows = timed(lambda: frame().agg(F.count("*"), *columns).collect())
        if rows[0][0] != count:
            raise AssertionError(f"a scan found {rows[0][0]} rows, not {count}")
        return seconds

    def ours() -> DataFrame:
        return made.cluster.read(TOPIC).select("key", "value.*")

    def peer() -> DataFrame:
        return bench.spark.read.format("delta").load(str(bench.folder / "delta"))

    distance = F.sum("distance")
    everything = (distance, F.sum(F.length("key")), F.sum(F.length("city")), F.max("at"))
    lines = []
    for what, columns in (("one column", (distance,)), ("all columns", everything)):
        for frame in (ours, peer):
            scanned(frame, *columns)
        one, other = in_turn(partial(scanned, ours, *columns), partial(scanned, peer, *columns))
        lines.append(
            seconds_line(f"scan {count:,} typed rows, {what}, compared with Delta", one, other, Limit(1.0))
        )
    made.remove()
    shutil.rmtree(bench.folder / "delta")
    return lines

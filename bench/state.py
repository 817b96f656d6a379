"""Measures replicated state: a snapshot of a large partition, compared with Spark's own aggregation of the same
files; commits of offsets by one thread and by eight; the lag of a group with a thousand partitions."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from bench.appending import ZSTD_LEVEL
from bench.bench import TOPIC, Bench, BenchCluster, data_files, size_of
from bench.measuring import in_turn, seconds_of
from bench.memory import Peak, worker_peak
from bench.options import size_text
from bench.table import Limit, Line, speed_line
from stratalog import Cluster

THREADS = 8
COMMITS = 200
LAG_PARTITIONS = 1000
AT_LEAST = 1.0
_ONE_WRITER = (
    "both read the files, aggregate by key and write Parquet; ours keeps the order of the log, and one task "
    "writes one file, with checksums"
)


def snapshot(bench: Bench) -> list[Line]:
    """Snapshot one partition, a tenth of whose keys are written twice."""
    made = bench.cluster("state", brokers=1)
    made.cluster.topics.create(
        TOPIC, partitions=1, replication_factor=1, configs={"cleanup.policy": "snapshot", "retention.ms": "-1"}
    )
    bench.say("state, appending to 1 partition")
    records = bench.records()
    made.append(records)
    made.append(records.sample(0.1, seed=630), acks="all")
    files = data_files(made.replicas(leading=True))
    peaks: list[Peak] = []
    bench.say("state, snapshot")
    ours, peer = in_turn(lambda: _make(made, peaks), lambda: _aggregate(bench, made))
    size = size_of(files)
    lines = [speed_line("snapshot by Spark; groupBy(key).agg(max_by)", size, ours, peer, AT_LEAST, _ONE_WRITER)]
    if known := [peak.bytes for peak in peaks if peak.bytes is not None]:
        lines.append(Line("    peak memory of a Python worker", size_text(min(known)), ""))
    made.remove()
    return lines


def _make(made: BenchCluster, peaks: list[Peak]) -> float:
    with worker_peak() as peak:
        seconds = seconds_of(
            lambda: made.cluster.snapshot(TOPIC, by_hand=True, memory_bytes=0).raise_for_failures()
        )
    peaks.append(peak)
    for folder in made.replicas(leading=True):
        for checkpoint in list(folder.glob("*.checkpoint")):
            checkpoint.unlink()
    return seconds


def _aggregate(bench: Bench, made: BenchCluster) -> float:
    files = [str(file) for file in data_files(made.replicas(leading=True))]
    target = bench.folder / "aggregated"
    latest = F.max_by(F.struct("timestamp", "value", "headers"), "offset")

    def run() -> None:
        rows = (
            bench.spark.read.parquet(*files).groupBy("key").agg(latest.alias("latest")).select("key", "latest.*")
        )
        writer = rows.write.option("compression", "zstd").option(
            "parquet.compression.codec.zstd.level", ZSTD_LEVEL
        )
        writer.parquet(str(target))

    seconds = seconds_of(run)
    shutil.rmtree(target)
    return seconds


def commits(bench: Bench) -> list[Line]:
    """Commit in several threads, each with its own group."""
    made = bench.cluster("commits", brokers=3)
    made.create_topic(1)
    bench.say("state, commits")
    groups = [f"group-{number}" for number in range(THREADS)]
    for group in groups:
        made.cluster.groups.commit(group, {(TOPIC, 0): 0})
    one, many = in_turn(lambda: _commit(made.cluster, groups[:1]), lambda: _commit(made.cluster, groups))
    made.remove()

    def rate_text(seconds: float) -> str:
        return f"{COMMITS / seconds:.0f} /s"

    what = f"commits of offsets, 3 replicas on disk: {THREADS} threads of a driver; one"
    return [Line(what, rate_text(many), rate_text(one), one / many, Limit(1))]


def _commit(cluster: Cluster, groups: list[str]) -> float:
    """Make ``COMMITS`` commits, divided among one thread per group."""

    def consume(group: str) -> None:
        for _ in range(COMMITS // len(groups)):
            cluster.groups.commit(group, {(TOPIC, 0): 0})

    def run() -> None:
        with ThreadPoolExecutor(len(groups)) as pool:
            for done in [pool.submit(consume, group) for group in groups]:
                done.result()

    return seconds_of(run)


def lag(bench: Bench) -> list[Line]:
    """Compute the lag of a group with a commit in every partition."""
    made = bench.cluster("lag", brokers=3)
    made.create_topic(LAG_PARTITIONS, replicas=3)
    made.cluster.groups.commit("group", {(TOPIC, partition): 0 for partition in range(LAG_PARTITIONS)})
    bench.say("state, lag")
    (seconds,) = in_turn(lambda: seconds_of(lambda: made.cluster.groups.lag("group").raise_for_failures()))
    made.remove()
    return [Line(f"lag of a group over {LAG_PARTITIONS} partitions", f"{1000 * seconds:.0f} ms", "")]

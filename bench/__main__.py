"""``make bench`` measures the speed of this log on this machine, compared with the simplest tools that move the
same bytes. It prints the figures, and replaces the earlier figures in docs/performance.md (for costs: in
docs/costs.md; for restore: in docs/operations.md).

Settings come from the environment (or ``make bench NAME=value``), here with their defaults:

    BYTES=2GB                    the bytes of the records' values, which are 1 KiB each: also 200MB, 1GiB
    PARTITIONS=8                 the partitions of a topic
    IDLE_PARTITIONS=10000        the partitions of the run over idle partitions
    RESTORE_PARTITIONS=10000     the partitions of the largest restored cluster
    METADATA_PARTITIONS=1000000  the partitions of the largest image of a cluster
    COMMITS=100000               small commits of metadata to replay
    GROWTH=1000                  the largest size for measuring how costs grow; the sizes are 10, 100 and so on
    BENCH_DIR=./bench-data       a folder that does not exist yet, on the disk to measure
    KAFKA=                       a Kafka to compare with: own (the benchmark fetches 50 MB from Maven Central, and
                                 starts a broker), or the host:port of a running broker, which is enough for
                                 scans; without it, the comparisons with Kafka are skipped
    ONLY=                        the benchmarks to run, by default all: calls, latency, rates, append, append3,
                                 typed, replicate, hot, idle, tier, remote_log, scan, pruned, plan, ranges, kafka,
                                 mirror, stream, remote_reads, bootstrap, restore, quorum, metadata, replay, state,
                                 growth, costs
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    appending,
    bootstrap_many,
    bootstrapping,
    calls,
    checkpointing,
    copying,
    costs,
    expiring,
    growth,
    hot,
    idle,
    kafka,
    large_cluster,
    latency,
    mirroring,
    opening,
    page,
    planning,
    quorum,
    ranges,
    rates,
    remote_log,
    remote_reads,
    replaying,
    replicated,
    restoring,
    scanning,
    state,
    streaming,
    typed,
    uploading,
)
from bench.bench import Bench
from bench.kafka_server import connector_class_path
from bench.measuring import TURNS, timed
from bench.options import BenchOptions, bench_options, size_text
from bench.table import Row, render
from stratalog import spark_session
from stratalog.jobs.jars import class_path, jar_folder
from stratalog.partitions.errors import InvalidCallError, StratalogError

ALL_DONE, SOMETHING_FAILED, BAD_CALL = 0, 1, 2

WITHOUT_SPARK = {"latency", "idle", "mirror", "restore", "growth", "costs"}

_BENCHMARKS: dict[str, tuple[Callable[[Bench], Sequence[Row]], ...]] = {
    "calls": (calls.calls,),
    "latency": (latency.latency,),
    "rates": (rates.rates,),
    "append": (appending.append,),
    "append3": (replicated.append3,),
    "typed": (typed.typed,),
    "replicate": (copying.replicate,),
    "hot": (hot.hot,),
    "idle": (idle.idle,),
    "tier": (copying.tier, uploading.tier_to_s3),
    "remote_log": (remote_log.remote_log, expiring.expiring),
    "scan": (scanning.scan,),
    "ranges": (ranges.ranges, ranges.hot_scan),
    "kafka": (kafka.kafka,),
    "mirror": (mirroring.mirror,),
    "pruned": (scanning.pruned,),
    "plan": (planning.planning,),
    "stream": (streaming.stream,),
    "remote_reads": (remote_reads.remote_reads,),
    "bootstrap": (bootstrapping.bootstrap, bootstrap_many.bootstrap_many),
    "restore": (restoring.restore,),
    "quorum": (quorum.quorum,),
    "metadata": (large_cluster.metadata, checkpointing.checkpoints, opening.opening),
    "replay": (replaying.replay,),
    "state": (state.snapshot, state.commits, state.lag),
    "growth": (growth.growth,),
    "costs": (costs.costs,),
}


def main() -> int:
    """Measure, and print the table. Returns the exit status; a ratio outside its limit is not a failure. A
    failed benchmark does not stop the others, and is named at the end.
    """
    if len(sys.argv) > 1:
        print(__doc__, file=sys.stderr)
        return BAD_CALL
    try:
        options = bench_options(os.environ, Path("bench-data"))
        if options.folder.exists():
            raise InvalidCallError(
                f"BENCH_DIR {options.folder} exists: name a folder that does not exist, or remove this one"
            )
        options.folder.mkdir(parents=True)
    except (InvalidCallError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return BAD_CALL
    failed: list[str] = []
    try:
        lines = _measure(options, failed)
    except StratalogError as error:
        print(f"bench: {error.code}: {error}", file=sys.stderr)
        return SOMETHING_FAILED
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    print(render([line for measured in lines.values() for line in measured]))
    for why in failed:
        print(f"bench: {why}", file=sys.stderr)
    return SOMETHING_FAILED if failed else ALL_DONE


def _settings(options: BenchOptions) -> dict[str, str]:
    """Spark settings of the session: its Kafka connector, if used, in addition to the jars of all sessions."""
    if options.kafka is None or "kafka" not in options.only:
        return {}
    return {"spark.driver.extraClassPath": os.pathsep.join([class_path(jar_folder()), connector_class_path()])}


def _measure(options: BenchOptions, failed: list[str]) -> dict[str, list[Row]]:
    """The lines of each benchmark. The lines of a successful benchmark are written to the page as soon as it
    ends.
    """
    if {"idle", "tier", "remote_log", "restore", "quorum", "costs"} & set(options.only):
        uploading.reach_servers()
    bench = _begun(options)
    lines: dict[str, list[Row]] = {}
    for name in (name for name in _BENCHMARKS if name in options.only):
        if name in ("pruned", "bootstrap"):
            bench.remove_filled()
        lines[name], failures = [], len(failed)
        for benchmark in _BENCHMARKS[name]:
            try:
                measured = benchmark(bench)
            except (StratalogError, OSError) as error:
                failed.append(f"{name}: {getattr(error, 'code', type(error).__name__)}: {error}")
                bench.say(failed[-1])
                continue
            for line in measured:
                bench.say("  ".join(filter(None, (cell.strip() for cell in line.cells))))
            lines[name] += measured
        if lines[name] and len(failed) == failures:
            spark = None if bench.session is None or name in WITHOUT_SPARK else bench.session.version
            heading = f"`{page.command(name, os.environ)}`, {page.machine(spark)}"
            text = page.filled(page.of(name).read_text(encoding="utf-8"), name, heading, lines[name])
            page.of(name).write_text(text, encoding="utf-8")
    if bench.session is not None:
        bench.session.stop()
    return lines


def _begun(options: BenchOptions) -> Bench:
    """The environment of the benchmarks, with a session unless no selected benchmark needs one."""
    if set(options.only) <= WITHOUT_SPARK:
        return Bench(None, options)
    started, session = timed(lambda: spark_session("bench", settings=_settings(options)))
    print(
        f"{options.records:,} records of 1 KiB, {size_text(options.bytes)}, {options.partitions} partitions, in "
        f"{options.folder}\n{page.machine(session.version)}; zstd at level 1 on both sides; {TURNS} turns of "
        "each, side by side: their medians, with the range in brackets\nthe session started in "
        f"{started:.1f} s, which the figures below do not include\n",
        flush=True,
    )
    return Bench(session, options)


if __name__ == "__main__":
    sys.exit(main())

"""Copies the files of one hot partition, in memory, with all cores, compared with one core."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.bench import (
    TOPIC,
    Bench,
    BenchCluster,
    data_files,
    in_memory,
    record_batch,
    size_of,
    values_of,
)
from bench.measuring import in_turn, seconds_of, timed
from bench.options import RECORD_BYTES, size_text
from bench.table import Limit, Line
from stratalog.engine.driver.storage import COPY_THREADS
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import SyncOptions, sync_followers
from stratalog.partitions.runner import Runner, SerialRunner, ThreadRunner, values

SIZE_RATIO = 2
"""The bytes of the partition, as a multiple of ``BYTES``."""
FILES = 16
BATCHES = 16
AT_LEAST = Limit(1.6)
CORES = os.cpu_count() or 1
_SEED = 406


def hot(bench: Bench) -> list[Line]:
    """Sync an empty follower in one task. The files are in memory, so that nothing waits for a disk."""
    size = SIZE_RATIO * bench.options.bytes
    with in_memory(size * 3 + size // 4) as folder:
        made = bench.cluster("hot", brokers=2, within=folder)
        made.create_topic(1, replicas=2, compression="uncompressed")
        bench.say(f"hot, writing {size_text(size)} to memory")
        _fill(made, size)
        bench.say("hot")
        files = data_files(made.replicas(leading=True))
        size = size_of(files)
        one, all_of_them, one_cp, all_cp = in_turn(
            lambda: _sync(made, SerialRunner()),
            lambda: _sync(made, ThreadRunner(COPY_THREADS)),
            lambda: _copy(files, folder / "cp", 1),
            lambda: _copy(files, folder / "cp", CORES),
        )

    def rate_text(seconds: float) -> str:
        return f"{seconds:.2f} s, {size / seconds / 1e6:.0f} MB/s"

    what = f"hot partition, {size_text(size)} in memory: {CORES} cores; one"
    return [
        Line(what, rate_text(all_of_them), rate_text(one), one / all_of_them, AT_LEAST),
        Line(
            f"    the same number of cp at once, compared with one cp: the gain from {CORES} cores",
            rate_text(all_cp),
            rate_text(one_cp),
            one_cp / all_cp,
        ),
    ]


def _fill(made: BenchCluster, size_bytes: int) -> None:
    """Append this number of bytes of values, which no codec compresses, in ``FILES`` appends that only the leader
    has."""
    rows = max(1, size_bytes // RECORD_BYTES // FILES // BATCHES)
    data = np.random.default_rng(_SEED).bytes(rows * RECORD_BYTES)
    batch = record_batch(values_of(data, rows, RECORD_BYTES))
    for _ in range(FILES):
        made.cluster.append_batches(TOPIC, {0: [batch] * BATCHES}, acks="leader").raise_for_failures()


def _copy(files: Sequence[Path], target: Path, processes: int) -> float:
    target.mkdir()

    def run() -> None:
        shares = (files[number::processes] for number in range(processes))
        running = [subprocess.Popen(["cp", "--", *map(str, share), str(target)]) for share in shares]
        if any(process.wait() for process in running):
            raise AssertionError("cp failed")

    seconds = seconds_of(run)
    shutil.rmtree(target)
    return seconds


def _sync(made: BenchCluster, copies: Runner) -> float:
    for folder in made.replicas(leading=False):
        shutil.rmtree(folder)
    (view,) = made.cluster.image.views(TOPIC)
    replicas = PartitionReplicas(view, made.cluster.stores)

    def sync() -> list[int]:
        _, outcomes = sync_followers(replicas, replicas.followers, SyncOptions(copies=copies))
        return [synced.copied_files for synced in values(outcomes)]

    seconds, copied = timed(sync)
    if copied != [FILES]:
        raise AssertionError(f"a sync copied {copied} of {FILES} files")
    return seconds

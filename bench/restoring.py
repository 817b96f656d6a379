"""Restores a cluster from the remote tier after the loss of all brokers, and measures the time, without Spark.

All partitions are tiered, with one segment each; the size is irrelevant, because a restore copies no bytes. The
brokers and the remote tier are folders in memory and, up to a thousand partitions, prefixes of a bucket of an S3
server. From the start of the command, another driver tries to append. The append is acknowledged as soon as its
partition has a leader. The restore itself ends when all replicas are in their ISR.
"""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.bench import TOPIC, Bench, BenchCluster, CountedStores, cluster_file, in_memory
from bench.calls import append_one
from bench.costs import s3_cluster_file
from bench.idle import lay_out
from bench.measuring import seconds_of
from bench.uploading import fresh_server
from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.partitions.errors import StratalogError

REPLICAS = 3
SIZES = (10, 1_000)
"""The numbers of partitions; the last one is an option."""
PARTITION_BYTES = 256 * 1024
"""The size of a partition, in files of a few kilobytes."""
AT_ONCE = 1_000
ON_S3 = (10, 1_000)
TRIED_EVERY_S = 0.2
NOTE = (
    "Seconds since the command started. Requests: calls to brokers and the remote tier (listing a folder counts "
    "as two). The S3 server runs on the same machine and shares its cores. With a more distant bucket, 16 "
    "requests are in flight at the same time, so the time is about requests x latency / 16."
)


@dataclass(frozen=True, slots=True)
class RestoreLine:
    """The restore of a cluster with this number of partitions."""

    headings: ClassVar[tuple[str, ...]] = (
        *("partitions", "first acknowledged append", "all replicas in the ISR", "CPU"),
        *("requests", "requests per partition"),
    )
    note: ClassVar[str] = NOTE

    partitions: int
    where: str
    append_s: float
    all_s: float
    cpu_s: float
    requests: int

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as texts, one for each of ``headings``."""
        seconds = (f"{value:.2f} s" for value in (self.append_s, self.all_s, self.cpu_s))
        return (
            f"{self.partitions:,}, {self.where}",
            *seconds,
            f"{self.requests:,}",
            f"{self.requests / self.partitions:.1f}",
        )


def restore(bench: Bench) -> list[RestoreLine]:
    """A line for each size, on folders and on S3."""
    most = bench.options.restore_partitions
    lines = [restored(bench, size) for size in (*(size for size in SIZES if size < most), most)]
    return [*lines, *(restored_on_s3(bench, size) for size in ON_S3 if size <= most)]


def restored(bench: Bench, partitions: int) -> RestoreLine:
    """Fill a cluster, tier everything, remove its brokers, restore it."""
    with in_memory(partitions * PARTITION_BYTES) as folder:
        made = _tiered(bench, folder, partitions)
        heir = folder / "heir"
        for broker in range(1, REPLICAS + 1):
            shutil.rmtree(made.folder / f"broker-{broker}")
            (heir / f"broker-{broker}").mkdir(parents=True)
        file = cluster_file(heir, "heir", REPLICAS, str(made.folder / "remote"))
        bench.say(f"restore of {partitions:,} partitions")
        return _restored(file, made.name, partitions, "folders")


def restored_on_s3(bench: Bench, partitions: int) -> RestoreLine:
    """Measure the same in a bucket: the heir's brokers are other prefixes of the bucket."""
    folder = bench.folder / f"restore-{partitions}"
    with fresh_server(folder) as endpoint:
        bench.say(f"restore on S3, laying out {partitions:,} partitions, and tiering them")
        file = s3_cluster_file(folder / "lost", endpoint, "lost")
        lost = Cluster.format(file)
        lay_out(lost, partitions)
        lost.tier().raise_for_failures()
        lost.close()
        heir = file.with_name("heir.toml")
        text = file.read_text(encoding="utf-8").replace('id = "lost"', 'id = "heir"')
        heir.write_text(text.replace("/lost/broker-", "/heir/broker-"), encoding="utf-8")
        bench.say(f"restore of {partitions:,} partitions on S3")
        return _restored(heir, "lost", partitions, "S3")


def _restored(file: Path, lost: str, partitions: int, where: str) -> RestoreLine:
    stores, over = CountedStores(), threading.Event()
    with ThreadPoolExecutor(1) as other:
        began, cpu_s = time.perf_counter(), time.process_time()
        acknowledged = other.submit(_first_append, file, partitions - 1, over)
        try:
            all_s = seconds_of(lambda: with_parts(Cluster, opener=stores).restore(file, lost).raise_for_failures())
            cpu_s = time.process_time() - cpu_s
        finally:
            over.set()
        append_s = acknowledged.result() - began
    views = Cluster.open(file).image.views(TOPIC)
    if any(len(view.isr) != REPLICAS for view in views) or len(views) != partitions:
        raise AssertionError("after the restore not every replica is in the ISR")
    return RestoreLine(partitions, where, append_s, all_s, cpu_s, stores.counts.requests)


def _tiered(bench: Bench, folder: Path, partitions: int) -> BenchCluster:
    bench.say(f"restore, appending to {partitions:,} partitions, and tiering them")
    made = bench.cluster("lost", brokers=REPLICAS, within=folder)
    made.create_topic(partitions, replicas=REPLICAS)
    made.tiered()
    made.cluster.topics.alter_configs(TOPIC, {"segment.bytes": "1"})
    for start in range(0, partitions, AT_ONCE):
        append_one(made.cluster, range(start, min(start + AT_ONCE, partitions))).raise_for_failures()
    made.cluster.tier().raise_for_failures()
    made.cluster.close()
    return made


def _first_append(file: Path, partition: int, over: threading.Event) -> float:
    """The time when an append to the partition was acknowledged. The driver retries continuously; its try after
    the end of the restore must succeed.
    """
    while not over.wait(TRIED_EVERY_S):
        try:
            append_one(Cluster.open(file), [partition]).raise_for_failures()
        except (StratalogError, OSError):
            continue
        return time.perf_counter()
    append_one(Cluster.open(file), [partition]).raise_for_failures()
    return time.perf_counter()

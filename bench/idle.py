"""Many partitions in which nothing happens: a run of everything (``maintain``) over them, and one after a hundred
of them got a record; the single jobs beside it.

Each run is a process of its own, so its memory is that of nothing else. On folders in memory, for a disk would be
asked for nothing else than names; and on a real S3 server a twenty-fifth of them. The partitions hold a
record each, laid out as an append leaves it, on all replicas; all are tiered.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from bench.bench import TOPIC, Bench, in_memory, record_batch
from bench.calls import append_one
from bench.costs import counted, s3_cluster_file
from bench.measuring import in_child
from bench.uploading import fresh_server
from stratalog import Cluster, Report
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segment_writer import SegmentWriter

REPLICAS = 3
FOLDER_BYTES = 16 * 1024
"""What a replica's folder of three small files takes."""
REMOTE_BYTES = 8 * 1024
"""What a partition's one segment takes in the remote tier, with the folder that it lies in."""
CHANGED = 100
PART = 25
"""The S3 server gets one in so many partitions: what comes before the run that counts takes long there."""
ROUNDS = 10
"""Of ``maintain``, after which nothing may be due any more."""
THREADS = 16
_CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
_ALWAYS_DUE = {
    "log.retention.check.interval.ms": "1",
    "leader.imbalance.check.interval.seconds": "1",
    "remote.log.manager.task.interval.ms": "1000",
}
"""Every step is part of every round."""
NOTE = (
    "Each by a process of its own, which knows no partition yet; wall and CPU without its imports, and its whole "
    "memory. maintain with all steps but vacuum and scrub, which read and list by the day; all are due, of "
    "partitions that an earlier run has seen. Requests are the calls to brokers and remote, in buckets those of "
    "the client, with the opening: on folders a listing is two scans, and a look at a broker one walk; in a "
    "bucket a look is a request for each thousand names. The table of a topic is loaded by another library, whose "
    "requests are not among them."
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    seconds: float
    cpu_s: float
    requests: int
    peak_mb: float
    items: int
    """Partitions that anything was done for, or looked at."""


@dataclass(frozen=True, slots=True)
class IdleLine:
    """One run, as a line."""

    headings: ClassVar[tuple[str, ...]] = ("what", "wall", "CPU", "memory", "requests", "a partition of these")
    note: ClassVar[str] = NOTE

    what: str
    run: Run
    of: int
    """Partitions that the run was for."""
    besides: int = 0
    """Requests of a run without these."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as texts, one for each of ``headings``."""
        run = self.run
        each = f"{(run.requests - self.besides) / self.of:.1f} of {self.of:,}" if self.of else ""
        memory = f"{run.peak_mb:,.0f} MB"
        return self.what, f"{run.seconds:.1f} s", f"{run.cpu_s:.1f} s", memory, f"{run.requests:,}", each


def idle(bench: Bench) -> list[IdleLine]:
    """On folders, then on an S3 server."""
    partitions = bench.options.idle_partitions
    with in_memory(partitions * (REPLICAS * FOLDER_BYTES + REMOTE_BYTES)) as folder:
        made = bench.cluster("idle", brokers=REPLICAS, within=folder)
        lines = _lines(bench, made.folder / "cluster.toml", made.cluster, partitions, "folders")
        for name, job in (("replicate", replicate), ("tier", tier)):
            run = in_child(job, made.folder / "cluster.toml")
            lines.append(IdleLine(f"{partitions:,} partitions, folders: {name} alone", run, partitions))
        made.remove()
    fewer = max(1, partitions // PART)
    with _on_s3(bench) as file:
        return lines + _lines(bench, file, Cluster.format(file), fewer, "S3")


def _lines(bench: Bench, file: Path, cluster: Cluster, partitions: int, where: str) -> list[IdleLine]:
    bench.say(f"idle, {partitions:,} partitions, {where}: laying them out")
    lay_out(cluster, partitions)
    bench.say("idle, the first rounds of maintain")
    until_idle(cluster)
    cluster.close()
    nothing = in_child(maintain, file)
    if nothing.items:
        raise AssertionError(f"an idle run had something to do: {nothing}")
    changed = range(min(CHANGED, partitions))
    append_one(Cluster.open(file, keeps_short=False), changed).raise_for_failures()
    some = in_child(maintain, file)
    what = f"{partitions:,} partitions, {where}: maintain"
    return [
        IdleLine(f"{what}, nothing has changed", nothing, 0),
        IdleLine(f"{what}, {len(changed):,} have changed", some, len(changed), nothing.requests),
    ]


def lay_out(cluster: Cluster, partitions: int) -> None:
    """Create ``TOPIC``, and let each partition hold a record on all replicas, all in the ISR, and below the high
    watermark: the files that an append leaves.
    """
    cluster.topics.alter_configs(None, _ALWAYS_DUE)
    cluster.topics.create(TOPIC, partitions=partitions, replication_factor=REPLICAS, configs=_CONFIGS)
    append_one(cluster, [0]).raise_for_failures()
    views = cluster.image.views(TOPIC)
    leader = PartitionReplicas(views[0], cluster.stores).leader
    names = [stored.name.rsplit("/", 1)[1] for stored in leader.store.list(leader.folder)]
    registers = {name: leader.store.read(leader.path(name)) for name in names if not name.endswith(".parquet")}

    def write(view: PartitionView) -> None:
        replicas = PartitionReplicas(view, cluster.stores)
        files = {**registers, str(DataName(0, None, view.leader_epoch)): _segment(view)}
        for broker in view.replicas:
            replica = replicas.replica(broker)
            for name, content in files.items():
                replica.store.create(replica.path(name), content)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, views[1:]))


def _segment(view: PartitionView) -> bytes:
    """One record of now."""
    sink, now_ms = io.BytesIO(), SystemClock().now_ms()
    writer = SegmentWriter(
        sink, physical_schema(), topic_id=view.topic_id, partition=view.partition, base_offset=0
    )
    writer.write(record_batch(pa.array([b"one"], pa.binary())))
    writer.close(lineage=Lineage([(view.leader_epoch, 0)]), producers=lambda _: {}, created_ms=now_ms)
    return sink.getvalue()


def until_idle(cluster: Cluster) -> int:
    """Rounds of ``maintain`` until one has nothing to do; how many."""
    for done in range(1, ROUNDS + 1):
        if not items_of(_maintain(cluster)):
            return done
        time.sleep(1)  # a partition is tiered once in its interval
    raise AssertionError(f"{ROUNDS} rounds of maintain, and something is still to do")


def items_of(report: Report) -> int:
    """Partitions that the steps of a round were for."""
    return sum(int(row["items"] or 0) for row in report.rows)


def maintain(file: Path) -> Run:
    """By a driver that knows nothing."""
    return _measured(file, _maintain)


def replicate(file: Path) -> Run:
    """The same."""
    return _measured(file, lambda cluster: cluster.replicate())


def tier(file: Path) -> Run:
    """The same."""
    return _measured(file, lambda cluster: cluster.tier())


def _maintain(cluster: Cluster) -> Report:
    return cluster.maintain(leave_out=("vacuum", "scrub")).raise_for_failures()


def _measured(file: Path, job: Callable[[Cluster], Report]) -> Run:
    with counted() as calls:
        began, used_s = time.perf_counter(), time.process_time()
        cluster = Cluster.open(file)
        report = job(cluster).raise_for_failures()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - used_s
    cluster.close()
    items = items_of(report) if report.operation == "maintain" else len(report.rows)
    return Run(seconds, cpu_s, sum(calls.values()) or report.counts.requests, _peak_mb(), items)


def _peak_mb() -> float:
    """Of this process since its program began; getrusage would tell of the process that forked it, too."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1e6


@contextmanager
def _on_s3(bench: Bench) -> Iterator[Path]:
    """The file of a cluster whose brokers and remote are in a bucket of a server that nobody else uses."""
    folder = bench.folder / "idle-server"
    with fresh_server(folder) as endpoint:
        yield s3_cluster_file(folder / "cluster", endpoint, "idle")

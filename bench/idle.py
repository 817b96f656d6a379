"""Many idle partitions: a run of everything (``maintain``) over them, a run after a hundred of them got a record,
and single jobs.

Each run is a separate process, so the measured memory is the memory of one run. The storage is folders in memory,
because a run reads only names from a disk, and a real S3 server. Each partition holds one record on all replicas,
with the files that an append leaves.

On folders, rounds of ``maintain`` tier all partitions. In buckets these rounds would take half a million requests
before the measured run. So in buckets only a few partitions of another topic are tiered, and maintained until
nothing is due. The other partitions are not tiered, and their files are written past S3. For these other
partitions, ``maintain`` gets the state that it has stored for the few (``settle``). If that state were wrong,
``maintain`` would have something to do, and the benchmark would fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.bench import TOPIC, Bench, in_memory, record_batch, segment_of
from bench.calls import append_one
from bench.costs import counted, s3_cluster_file
from bench.measuring import in_child
from bench.memory import own_peak_so_far
from bench.s3_server import S3Endpoint, upload
from bench.table import Cells
from bench.uploading import fresh_server
from stratalog import Cluster, Report
from stratalog.engine.driver.opening import open_driver
from stratalog.engine.driver.stored_schedule import load_stored, save_stored
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.maintenance.sweep import sweep
from stratalog.engine.upkeep.memory.times import Settled, Times, decode, encode
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.paths import MAINTENANCE, DataName
from stratalog.partitions.store import Store

REPLICAS = 3
FOLDER_BYTES = 16 * 1024
"""The size of a replica's folder of three small files."""
REMOTE_BYTES = 8 * 1024
"""The size of a partition's one segment in the remote tier, with its folder."""
CHANGED = 100
SEEN, SEEN_PARTITIONS = "seen", 5
"""The topic whose partitions are maintained before the other partitions exist."""
ROUNDS = 10
"""The maximum number of rounds of ``maintain`` until nothing is due."""
THREADS = 16
_CONFIGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
UNTIERED = {"retention.ms": "-1", "file.delete.delay.ms": "0"}
_ALWAYS_DUE = {
    "log.retention.check.interval.ms": "1",
    "leader.imbalance.check.interval.seconds": "1",
    "remote.log.manager.task.interval.ms": "1000",
}
"""Every step is part of every round."""
NOTE = (
    "Each run is a new process that has not read any partition before. Wall and CPU: without imports. Memory: of "
    "the whole process. Requests: calls to brokers and the remote tier, including opening the cluster but not the "
    "delta-rs loads of topics' tables. On folders, a listing counts as two requests, and a walk through a broker "
    "as one. In a bucket, a walk takes one request per thousand names. maintain: all steps except the daily "
    "vacuum and scrub. All of these steps are due, and an earlier run has stored the state of the partitions. S3: "
    "only five other partitions are tiered."
)


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    cpu_s: float
    requests: int
    peak_mb: float
    items: int
    """The number of partitions that the run processed or listed."""


def idle_line(what: str, run: Run, of: int, besides: int = 0) -> Cells:
    """A run for ``of`` partitions. A run without these partitions makes ``besides`` requests."""
    each = f"{(run.requests - besides) / of:.1f} of {of:,}" if of else ""
    memory = f"{run.peak_mb:,.0f} MB"
    cells = (what, f"{run.seconds:.1f} s", f"{run.cpu_s:.1f} s", memory, f"{run.requests:,}", each)
    return Cells(("what", "wall", "CPU", "memory", "requests", "per partition (of n)"), cells, NOTE)


def idle(bench: Bench) -> list[Cells]:
    """Measure on folders, then on an S3 server."""
    return [*_in_folders(bench, bench.options.idle_partitions), *in_buckets(bench, bench.options.idle_partitions)]


def _in_folders(bench: Bench, partitions: int) -> list[Cells]:
    with in_memory(partitions * (REPLICAS * FOLDER_BYTES + REMOTE_BYTES)) as folder:
        made = bench.cluster("idle", brokers=REPLICAS, within=folder)
        bench.say(f"idle, {partitions:,} partitions, folders: laying them out")
        lay_out(made.cluster, partitions)
        bench.say("idle, the first rounds of maintain")
        until_idle(made.cluster)
        made.cluster.close()
        lines = _lines(made.folder / "cluster.toml", partitions, "folders")
        for name, job in (("replicate", replicate), ("tier", tier)):
            run = in_child(job, made.folder / "cluster.toml")
            lines.append(idle_line(f"{partitions:,} partitions, folders: {name} alone", run, partitions))
        made.remove()
    return lines


def in_buckets(bench: Bench, partitions: int) -> list[Cells]:
    """``maintain`` on an S3 server."""
    with _on_s3(bench) as (file, endpoint):
        cluster = Cluster.format(file)
        bench.say(f"idle, {partitions:,} partitions, S3: laying them out")
        lay_out(cluster, SEEN_PARTITIONS, SEEN)
        until_idle(cluster)
        with in_memory(partitions * REPLICAS * FOLDER_BYTES) as folder:
            lay_out(cluster, partitions, configs=UNTIERED, put=partial(put_below, folder))
            upload(endpoint, folder)
        settle(file)
        cluster.close()
        return _lines(file, partitions, "S3")


def _lines(file: Path, partitions: int, where: str) -> list[Cells]:
    nothing = in_child(maintain, file)
    if nothing.items:
        raise AssertionError(f"an idle run had something to do: {nothing}")
    changed = range(min(CHANGED, partitions))
    append_one(Cluster.open(file, keeps_short=False), changed).raise_for_failures()
    some = in_child(maintain, file)
    what = f"{partitions:,} partitions, {where}: maintain"
    return [
        idle_line(f"{what}, nothing has changed", nothing, 0),
        idle_line(f"{what}, {len(changed):,} have changed", some, len(changed), nothing.requests),
    ]


def _put(store: Store, path: str, content: bytes) -> None:
    store.create(path, content)


def put_below(folder: Path, store: Store, path: str, content: bytes) -> None:
    """Write a file below a folder, under the object's path in its bucket."""
    file = folder / store.uri_of(path).split("/", 3)[3]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def lay_out(
    cluster: Cluster,
    partitions: int,
    topic: str = TOPIC,
    configs: Mapping[str, str] = _CONFIGS,
    put: Callable[[Store, str, bytes], None] = _put,
) -> None:
    """Create ``topic`` with one record in each partition, on all replicas, which are all in the ISR. The record is
    below the high watermark, and the files are those that an append leaves. ``put`` names all files except those
    of the first partition.
    """
    cluster.topics.alter_configs(None, _ALWAYS_DUE)
    cluster.topics.create(topic, partitions=partitions, replication_factor=REPLICAS, configs=configs)
    append_one(cluster, [0], topic=topic).raise_for_failures()
    views = cluster.image.views(topic)
    leader = PartitionReplicas(views[0], cluster.stores).leader
    names = [stored.name.rsplit("/", 1)[1] for stored in leader.store.list(leader.folder)]
    registers = {name: leader.store.read(leader.path(name)) for name in names if not name.endswith(".parquet")}

    record = record_batch(pa.array([b"one"], pa.binary()))

    def write(view: PartitionView) -> None:
        replicas = PartitionReplicas(view, cluster.stores)
        segment = segment_of(record, view.topic_id, view.partition, 0, view.leader_epoch, SystemClock().now_ms())
        files = {**registers, str(DataName(0, None, view.leader_epoch)): segment}
        for broker in view.replicas:
            replica = replicas.replica(broker)
            for name, content in files.items():
                put(replica.store, replica.path(name), content)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, views[1:]))


def settle(file: Path) -> None:
    """Store for the partitions of ``TOPIC`` the state that rounds of ``maintain`` have stored for the first one of
    ``SEEN``: the steps for which nothing is due while a partition looks the same."""
    ports = open_driver(file)
    image = ports.metadata.image()
    ends = {key: entry.remote_end for key, entry in load_schedule(ports.storage, image).schedule.entries.items()}
    looks = sweep(ports.storage, image, ends)
    stored = load_stored(ports.storage, image, MAINTENANCE)
    until_ms = decode(stored.line).settled[image.views(SEEN)[0].key].until_ms
    keys = [view.key for view in image.views(TOPIC)]
    laid_out = Times(settled={key: Settled(looks[key].digest, until_ms) for key in keys})

    def laid(line: bytes) -> bytes:
        times = decode(line)
        return encode(times.updated(laid_out, [*times.settled, *keys]))

    failed = save_stored(ports.storage, image, MAINTENANCE, stored, laid)
    if failed is not None:
        raise AssertionError(failed)


def until_idle(cluster: Cluster) -> int:
    """Run ``maintain`` until a round has nothing to do; returns the number of rounds."""
    for done in range(1, ROUNDS + 1):
        if not items_of(_maintain(cluster)):
            return done
        time.sleep(1)  # a partition is tiered at most once in its interval
    raise AssertionError(f"{ROUNDS} rounds of maintain have ended, and something is still due")


def items_of(report: Report) -> int:
    """The numbers of partitions for which the steps of a round were due."""
    return sum(int(row["items"] or 0) for row in report.rows)


def maintain(file: Path) -> Run:
    """Run maintain with a driver that has cached nothing."""
    return _measured(file, _maintain)


def replicate(file: Path) -> Run:
    """Run replicate with such a driver."""
    return _measured(file, lambda cluster: cluster.replicate())


def tier(file: Path) -> Run:
    """Run tier with such a driver."""
    return _measured(file, lambda cluster: cluster.tier())


def _maintain(cluster: Cluster) -> Report:
    return cluster.maintain(exclude=("vacuum", "scrub")).raise_for_failures()


def _measured(file: Path, job: Callable[[Cluster], Report]) -> Run:
    with counted() as calls:
        began, used_s = time.perf_counter(), time.process_time()
        cluster = Cluster.open(file)
        report = job(cluster).raise_for_failures()
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - used_s
    cluster.close()
    items = items_of(report) if report.operation == "maintain" else len(report.rows)
    return Run(
        seconds, cpu_s, sum(calls.values()) or report.counts.requests, (own_peak_so_far() or 0) / 1e6, items
    )


@contextmanager
def _on_s3(bench: Bench) -> Iterator[tuple[Path, S3Endpoint]]:
    """The cluster file of a cluster whose brokers and remote tier are in a bucket of a server without other
    users."""
    folder = bench.folder / "idle-server"
    with fresh_server(folder) as endpoint:
        yield s3_cluster_file(folder / "cluster", endpoint, "idle"), endpoint

"""Measures how the cost of each operation grows with the existing data, or with the data that it moves: without
Spark, with three replicas, on a file system in memory if there is one.

The appends, group commits and metadata commits are real ones. Long logs of merged segments, backlogs of appends,
and footers with many producers are written directly as files into the folders of all replicas, with the same bytes
as an append writes. ``verify`` then checks these files, and must find nothing wrong.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from bench.bench import TMPFS, TOPIC, Bench, BenchCluster, CountedStores, in_memory, record_batch, segment_of
from bench.growth_table import NOTE, Cost, GrowthLine, sizes_up_to
from bench.measuring import TURNS, in_child
from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.columns import binaries
from stratalog.partitions.paths import DataName, WatermarkName
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.store import StoreCounts

REPLICAS = 3
RECORDS = 100
"""The number of records of each append, and of each segment."""
PARTITIONS_BY_SIZE = 4
"""The number of partitions of a topic per unit of the largest size."""
LEAST_SIZE = 20
SECONDS, SECONDS_EACH = 60, 0.05
"""Limits of repeated work: total seconds, and seconds on average."""
NEW_PROCESSES = 3
WARM = "warm"
"""A topic for a first run in each process, so that imports are not part of the cost."""
_TIERED = {"remote.storage.enable": "true", "segment.bytes": "1"}
_BYTES_BY_SIZE = 256 * 1024

Costs = dict[str, dict[int, Cost]]
"""Costs, keyed by operation and size."""


def growth(bench: Bench) -> list[GrowthLine]:
    most = bench.options.growth
    costs: Costs = {}
    with _folder(bench, most * _BYTES_BY_SIZE) as folder:
        for what, law, sizes in (
            ("appends", appends, sizes_up_to(most)),
            ("segments of a partition", _at_each(segments), sizes_up_to(most)),
            ("files to catch up, and to merge", _at_each(backlogs), sizes_up_to(most)),
            ("partitions of a topic", _at_each(partitions), sizes_up_to(most * PARTITIONS_BY_SIZE)),
            ("producers of a partition", _at_each(producers), sizes_up_to(most)),
            ("commits of a group", group_commits, sizes_up_to(most)),
            ("commits of metadata", metadata_commits, sizes_up_to(most)),
        ):
            began = time.perf_counter()
            costs.update(law(bench, folder, sizes))
            bench.say(f"growth over {what}, up to {sizes[-1]:,}: {time.perf_counter() - began:.0f} s")
    notes = itertools.chain([NOTE], itertools.repeat(""))
    return [GrowthLine(what, by_size, next(notes)) for what, by_size in costs.items()]


def _at_each(law: Callable[[Bench, Path, int], dict[str, Cost]]) -> Callable[[Bench, Path, Sequence[int]], Costs]:
    def measured(bench: Bench, folder: Path, sizes: Sequence[int]) -> Costs:
        costs: Costs = {}
        for size in sizes:
            _note(costs, size, law(bench, folder, size))
        return costs

    return measured


# ------------------------------------------------------------------------------------ the operations


def appends(bench: Bench, folder: Path, sizes: Sequence[int]) -> Costs:
    """Measure real appends to one partition, one after the other; nothing else runs meanwhile."""
    with _cluster(bench, folder) as made:
        append(made.cluster)  # the first append of a process includes imports
        taken = _one_after_the_other(made.cluster, lambda: append(made.cluster), sizes[-1])
    reached = _reached(sizes, taken)
    return {
        "the n-th append to a partition": {size: _middle(taken[:size][-TURNS:]) for size in reached},
        "an append, average of n": {size: _average(taken[:size]) for size in reached},
    }


def segments(bench: Bench, folder: Path, size: int) -> dict[str, Cost]:
    """Measure a partition of n merged segments, all sealed: a merge finds nothing to do."""
    with _cluster(bench, folder, {"segment.bytes": "1"}) as made:
        made.cluster.topics.create(WARM, partitions=1, replication_factor=REPLICAS, configs=_TIERED)
        append(made.cluster, WARM)
        end, file = lay_out(made, size, merged=True), made.folder / "cluster.toml"
        retained = [in_child(retain_of_a_new_driver, str(file)) for _ in range(NEW_PROCESSES)]
        cluster = made.driver()
        found = {
            "fetch from the middle, n segments": _cost(
                cluster, lambda: cluster.fetch(TOPIC, 0, end // 2, max_bytes=1)
            ),
            "poll at the end of the log, n segments": _cost(cluster, lambda: cluster.fetch(TOPIC, 0, end)),
            "offsets (latest), n segments": _cost(cluster, lambda: cluster.offsets(TOPIC, "latest")),
            "plan_read of the last 100 records, n segments": _cost(
                cluster, lambda: cluster.plan_read(TOPIC, last=RECORDS)
            ),
            "describe, n segments": _cost(cluster, lambda: cluster.describe(TOPIC)),
            "replicate with nothing to do, n segments": _cost(cluster, cluster.replicate),
            "append, n segments": _cost(cluster, lambda: append(cluster)),
            "retain with nothing to do, by a new process, n segments": _middle(retained),
        }
        cluster.tier(WARM).raise_for_failures()
        cluster.topics.alter_configs(TOPIC, {"remote.storage.enable": "true"})
        found["tier of n segments"] = _cost(cluster, lambda: cluster.tier().raise_for_failures(), turns=1)
        _check(made)
        return found


def backlogs(bench: Bench, folder: Path, size: int) -> dict[str, Cost]:
    """Measure operations that move n files; their cost is linear at best."""
    with _cluster(bench, folder) as made:
        lay_out(made, size, merged=False, followers=False)
        behind = made.cluster
        replicated = _cost(behind, lambda: behind.replicate().raise_for_failures(), turns=1)
        _check(made)
    with _cluster(bench, folder) as made:
        made.cluster.topics.alter_configs(TOPIC, {"segment.merge.min.files": "2"})
        lay_out(made, size, merged=False)
        unmerged = made.cluster
        merged = _cost(unmerged, lambda: unmerged.merge().raise_for_failures(), turns=1)
        _check(made)
    return {"replicate to followers that lack n files": replicated, "merge of n appends": merged}


def partitions(bench: Bench, folder: Path, size: int) -> dict[str, Cost]:
    """Measure appends to one partition of a topic that has n partitions."""
    with _cluster(bench, folder, partitions=size) as made:
        append(made.cluster)
        return {"append to one of n partitions": _cost(made.cluster, lambda: append(made.cluster))}


def producers(bench: Bench, folder: Path, size: int) -> dict[str, Cost]:
    """Measure appends to a partition to which n producers have appended today."""
    with _cluster(bench, folder) as made:
        lay_out(made, 1, merged=True, producers=size)
        cluster = made.driver()
        found = {"append to a partition of n producers": _cost(cluster, lambda: append(cluster))}
        _check(made)
        return found


def group_commits(bench: Bench, folder: Path, sizes: Sequence[int]) -> Costs:
    """Measure real commits of one group, one after the other."""
    with _cluster(bench, folder) as made:
        append(made.cluster)
        groups = made.cluster.groups

        def commit() -> None:
            groups.commit("bench", {(TOPIC, 0): RECORDS}).raise_for_failures()

        commit()
        taken = _one_after_the_other(made.cluster, commit, sizes[-1])
    return {
        "the n-th commit of a group": {size: _middle(taken[:size][-TURNS:]) for size in _reached(sizes, taken)}
    }


def metadata_commits(bench: Bench, folder: Path, sizes: Sequence[int]) -> Costs:
    """Measure real commits of metadata, one after the other, and a cluster that is opened again after some of
    them."""
    costs: Costs = {}
    taken: list[Cost] = []
    numbers = itertools.count(1000)
    with _cluster(bench, folder) as made:

        def commit() -> None:
            made.cluster.topics.alter_configs(None, {"segment.bytes": str(next(numbers))})

        for size in sizes:
            taken += [_cost(made.cluster, commit, turns=1) for _ in range(len(taken), size)]
            found = {
                "open a cluster after n metadata commits": _middle([_opened(made) for _ in range(TURNS)]),
                "read the metadata after n commits": _cost(made.cluster, lambda: made.cluster.image),
                "the n-th metadata commit": _middle(taken[-TURNS:]),
            }
            _note(costs, size, found)
    return costs


# --------------------------------------------------------------------------------- measuring


def _cost(cluster: Cluster, work: Callable[[], object], turns: int = TURNS) -> Cost:
    """The median of some turns. If there are several, an additional first turn is not counted, as for a
    long-running driver."""
    if turns > 1:
        work()
    taken = []
    for _ in range(turns):
        with cluster.measured() as measure:
            began = time.process_time()
            work()
            cpu_s = time.process_time() - began
        taken.append(_counted(cpu_s, measure.counts))
    return _middle(taken)


def _one_after_the_other(cluster: Cluster, work: Callable[[], object], times: int) -> list[Cost]:
    """The costs of repeated runs of the work: ``times`` runs, or fewer if time runs out, because an operation
    whose cost grows would take hours at the largest sizes.
    """
    end = time.perf_counter() + max(SECONDS, times * SECONDS_EACH)
    taken: list[Cost] = []
    while len(taken) < times and (time.perf_counter() < end or len(taken) < LEAST_SIZE):
        taken.append(_cost(cluster, work, turns=1))
    return taken


def _reached(sizes: Sequence[int], taken: Sequence[Cost]) -> list[int]:
    return sorted({min(size, len(taken)) for size in sizes})


def _counted(cpu_s: float, counts: StoreCounts) -> Cost:
    return Cost(cpu_s, counts.requests, counts.read_bytes + counts.written_bytes)


def _middle(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median_low(cost.requests for cost in costs),
        statistics.median_low(cost.bytes for cost in costs),
    )


def _average(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.fmean(cost.cpu_s for cost in costs),
        round(statistics.fmean(cost.requests for cost in costs)),
        round(statistics.fmean(cost.bytes for cost in costs)),
    )


def _note(costs: Costs, size: int, found: Mapping[str, Cost]) -> None:
    for what, cost in found.items():
        costs.setdefault(what, {})[size] = cost


def retain_of_a_new_driver(file: str) -> Cost:
    """Run retain in a separate process, which remembers no footer of the topic."""
    cluster = Cluster.open(file)
    cluster.retain(WARM).raise_for_failures()
    return _cost(cluster, lambda: cluster.retain(TOPIC).raise_for_failures(), turns=1)


def _opened(made: BenchCluster) -> Cost:
    stores, began = CountedStores(), time.process_time()
    image = with_parts(Cluster, opener=stores).open(made.folder / "cluster.toml").image
    cpu_s = time.process_time() - began
    if len(image.brokers) != REPLICAS:
        raise AssertionError(f"the cluster was opened with {len(image.brokers)} brokers")
    return _counted(cpu_s, stores.counts)


# ---------------------------------------------------------------------------- clusters and files


@contextmanager
def _folder(bench: Bench, size_bytes: int) -> Iterator[Path]:
    if TMPFS.is_dir():
        with in_memory(size_bytes) as folder:
            yield folder
    else:
        yield bench.folder / "growth"


@contextmanager
def _cluster(
    bench: Bench, folder: Path, configs: Mapping[str, str] | None = None, partitions: int = 1
) -> Iterator[BenchCluster]:
    made = bench.cluster("growth", brokers=REPLICAS, within=folder)
    made.cluster.topics.create(TOPIC, partitions=partitions, replication_factor=REPLICAS, configs=configs)
    yield made
    made.remove()


def append(cluster: Cluster, topic: str = TOPIC, partition: int = 0) -> None:
    """Make one small append, acknowledged by all."""
    cluster.append_batches(topic, {partition: [_batch()]}).raise_for_failures()


def _batch() -> pa.RecordBatch:
    """Recent records, which no retention deletes."""
    return record_batch(binaries([b"x" * 100] * RECORDS), timestamp_us=SystemClock().now_ms() * 1000)


def lay_out(made: BenchCluster, files: int, *, merged: bool, followers: bool = True, producers: int = 0) -> int:
    """Write a number of files after a real append: merged segments or appends, only on the leader or also on the
    followers. ``producers`` are in the footer of each file. Returns the log end offset.
    """
    append(made.cluster)
    [view] = made.cluster.image.views(TOPIC)
    [leader] = made.replicas(leading=True)
    others = made.replicas(leading=False) if followers else []
    now_ms, batch = SystemClock().now_ms(), _batch()
    for start in range(RECORDS, RECORDS * (files + 1), RECORDS):
        end = start + RECORDS
        state = {f"producer-{number}": ProducerEntry(0, 0, start, end, now_ms) for number in range(producers)}
        data = segment_of(batch, view.topic_id, 0, start, view.leader_epoch, now_ms, state)
        name = str(DataName(start, end if merged else None, view.leader_epoch))
        for folder in (leader, *others):
            (folder / name).write_bytes(data)
    if followers:
        for folder in (leader, *others):
            (folder / str(WatermarkName(end, view.leader_epoch))).touch()
    return end


def _check(made: BenchCluster) -> None:
    made.cluster.verify(TOPIC).raise_for_failures()

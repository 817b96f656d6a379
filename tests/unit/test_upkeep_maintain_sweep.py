"""Maintain over many partitions: one look at the brokers for all, and work only on changed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratalog import Report
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import load_stored
from stratalog.engine.driver.tasks import LocalTasks
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.maintenance import maintain as maintaining
from stratalog.engine.upkeep.maintenance.sweep import log_ends, sweep
from stratalog.engine.upkeep.memory.times import LONGEST_MS, decode
from stratalog.engine.upkeep.replication.merge import merge
from stratalog.engine.upkeep.replication.replicate import replicate
from stratalog.engine.upkeep.retention.retain import retain
from stratalog.engine.upkeep.snapshots.snapshot import snapshot
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.engine.upkeep.tiering.tier import tier
from stratalog.partitions.errors import SourceChangedError, StorageError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.paths import DESCRIPTIONS, MAINTENANCE
from tests.ports import with_ports
from tests.unit.cluster_harness import LiveCluster, fence, rows_of, unfence
from tests.unit.faulty_store import FaultyStore

MINUTE_MS = 60_000
STEPS: dict[str, Callable[..., Report]] = {
    "replicate": replicate,
    "merge": merge,
    "tier": partial(tier, due=True),
    "retain": retain,
    "snapshot": snapshot,
}


def settled(live: LiveCluster, step: str) -> set[TopicIdPartition]:
    """The partitions that the next run would skip."""
    ports = live.cluster._ports
    image = ports.metadata.image()
    times = decode(load_stored(ports.storage, image, MAINTENANCE).line)
    ends = {key: entry.remote_end for key, entry in load_schedule(ports.storage, image).schedule.entries.items()}
    looks, now_ms = sweep(ports.storage, image, ends), live.clock.now_ms()
    return {key for key, look in looks.items() if times.is_settled(step, key, look.digest, now_ms)}


def settle(live: LiveCluster) -> None:
    """Run until a run has nothing to do: each run looks once more at the work of the previous one."""
    for _ in range(4):
        live.clock.advance_ms(5 * MINUTE_MS)
        live.cluster.maintain(exclude=["vacuum", "scrub"]).raise_for_failures()


def idle_requests(folder: Path, partitions: int) -> int:
    folder.mkdir()
    live = LiveCluster(folder, voters=(1, 2, 3))
    live.topic(partitions=partitions)
    live.append({partition: ["a"] for partition in range(partitions)})  # type: ignore[arg-type]
    live.cluster.maintain().raise_for_failures()  # the cluster has never been read completely
    settle(live)
    live.clock.advance_ms(5 * MINUTE_MS)
    found = live.driver().maintain().raise_for_failures()
    assert {row["outcome"] for row in found.rows} <= {"done", "not due"}
    assert {row["items"] for row in found.rows if row["step"] in STEPS} == {0}
    return found.counts.requests


@pytest.mark.slow
def test_an_idle_run_costs_the_same_for_few_partitions_and_for_many(tmp_path: Path) -> None:
    """The exception is one request per broker and thousand names, which is the listing of a bucket."""
    few, many = idle_requests(tmp_path / "few", 3), idle_requests(tmp_path / "many", 120)
    assert few == many <= 50


def test_an_idle_round_of_an_empty_cluster_makes_few_requests(tmp_path: Path) -> None:
    """The requests with three voters: the metadata, a look at each root, one listing of each, and the stored
    state.
    """
    live = LiveCluster(tmp_path, voters=(1, 2, 3))
    live.cluster.maintain()
    live.cluster.maintain()
    assert live.cluster.maintain().raise_for_failures().counts.requests <= 20


@pytest.mark.slow
def test_only_what_has_changed_is_worked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=10)
    live.append({partition: ["a"] for partition in range(10)})  # type: ignore[arg-type]
    settle(live)
    found: dict[str, list[int]] = {}

    def spied(name: str) -> Callable[..., Report]:
        step = getattr(maintaining, name)

        def run(*ports: object, only: Collection[TopicIdPartition], **more: object) -> Report:
            found[name] = sorted(key.partition for key in only)
            return step(*ports, only=only, **more)  # type: ignore[no-any-return]

        return run

    for name in ("replicate", "merge", "retain"):
        monkeypatch.setattr(maintaining, name, spied(name))
    live.append({3: ["b"], 7: ["b"]})
    live.clock.advance_ms(5 * MINUTE_MS)
    live.cluster.maintain().raise_for_failures()
    assert found == {name: [3, 7] for name in ("replicate", "merge", "retain")}


@pytest.mark.parametrize(
    "change",
    [
        lambda live: live.append(["b"]),
        lambda live: live.append(["b"], acks="leader"),
        lambda live: live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures(),
        lambda live: live.cluster.topics.alter_configs("t", {"segment.bytes": "1000000"}),
        lambda live: live.cluster.topics.alter_configs(None, {"replica.lag.time.max.ms": "12345"}),
        lambda live: fence(live, live.followers()[0]),
        lambda live: live.store(2).create(live.replica(2).path("stranger"), b""),
        lambda live: live.store(3).delete(
            [live.replica(3).path(name.rsplit("/", 1)[-1]) for name in live.data(3)]
        ),
        lambda live: live.clock.advance_ms(LONGEST_MS),
        lambda live: live.clock.advance_ms(-10 * MINUTE_MS - LONGEST_MS),
    ],
    ids=[
        "append",
        "leader-append",
        "elect",
        "topic-config",
        "cluster-config",
        "fence",
        "stranger",
        "loss",
        "day",
        "clock-back",
    ],
)
def test_whatever_changes_is_inspected_again(tmp_path: Path, change: Callable[[LiveCluster], object]) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"])
    settle(live)
    assert len(settled(live, "replicate")) == 1
    change(live)
    assert settled(live, "replicate") == set()


def test_retain_is_due_when_another_driver_has_tiered(tmp_path: Path) -> None:
    """No file of a broker has changed, but the list of the remote log manager has the end of the remote log."""
    live = LiveCluster(tmp_path)
    live.tiered()
    live.fill(["a", "b"])
    for _ in range(3):
        live.clock.advance_ms(5 * MINUTE_MS)
        live.cluster.maintain(exclude=["tier", "vacuum", "scrub"]).raise_for_failures()
    assert len(settled(live, "retain")) == 1
    live.driver().tier().raise_for_failures()
    assert settled(live, "retain") == set()


def test_a_broker_that_cannot_be_listed_leaves_nothing_settled(tmp_path: Path) -> None:
    """The broker's root answers, so the broker is not fenced."""
    stores: dict[str, FaultyStore] = {}

    def through(uri: str, store: object) -> FaultyStore:
        return stores.setdefault(uri, FaultyStore(store))  # type: ignore[arg-type]

    live = LiveCluster(tmp_path, through=through)
    live.topic(copies=2)
    settle(live)
    assert len(settled(live, "replicate")) == 1

    def away(what: str, name: str, call: Callable[[], object]) -> object:
        if what == "list" and "/" not in name:
            raise StorageError("not now")
        return call()

    stores[f"memory://b{live.leader()}"].hook = away
    assert settled(live, "replicate") == set()
    again = live.cluster.maintain(only="replicate").raise_for_failures()
    assert again.rows[0]["items"] == 1


def test_the_end_of_a_log_that_cannot_be_listed_is_unknown(tmp_path: Path) -> None:
    """An event with the end 0 would make the page count all records as appended again."""
    stores: dict[str, FaultyStore] = {}

    def through(uri: str, store: object) -> FaultyStore:
        return stores.setdefault(uri, FaultyStore(store))  # type: ignore[arg-type]

    live = LiveCluster(tmp_path, through=through)
    live.topic(partitions=2, copies=1)
    live.append({0: ["a", "b"], 1: ["a", "b"]}).raise_for_failures()
    ports = live.cluster._ports

    def away(what: str, name: str, call: Callable[[], object]) -> object:
        if what == "list" and "/" not in name:
            raise StorageError("not now")
        return call()

    def ends() -> list[tuple[object, ...]]:
        image = ports.metadata.image()
        return rows_of(log_ends(image, sweep(ports.storage, image, {}), {}), "partition", "log_end")

    assert ends() == [(0, 2), (1, 2)]
    stores[f"memory://b{live.leader()}"].hook = away
    assert ends() == [(1, 2)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_a_step_changes_nothing_in_a_settled_partition(tmp_path: Path, seed: int) -> None:
    """The law of the sweep, on random states: a step that gets a settled partition changes nothing; and an
    unchanged partition is finally settled.
    """
    rng = random.Random(seed)
    live = LiveCluster(tmp_path)
    live.tiered(partitions=2, local_retention_ms=str(3 * MINUTE_MS), retention_ms=str(40 * MINUTE_MS))
    live.topic("u", partitions=2, retention_ms=str(25 * MINUTE_MS), segment_ms=str(12 * MINUTE_MS))
    passed = 0
    for _ in range(12):
        _something(rng, live)
        live.cluster.maintain(exclude=["vacuum", "scrub"]).raise_for_failures()
        live.clock.advance_ms(rng.choice((0, 31_000, 2 * MINUTE_MS, 7 * MINUTE_MS)))
        for step, run in STEPS.items():
            keys = settled(live, step)
            passed += len(keys)
            before = _files(live)
            with_ports(run, live.cluster._ports)(only=keys).raise_for_failures()
            assert _files(live) == before, step
    assert passed > 20
    live.clock.advance_ms(60 * MINUTE_MS)
    settle(live)
    assert all(len(settled(live, step)) == 4 for step in ("replicate", "merge", "retain"))
    assert len(settled(live, "tier")) == 2


def _files(live: LiveCluster) -> dict[str, bytes]:
    """All files except the descriptions of the cluster, which belong to no partition."""
    return {name: data for name, data in live._all_but_hints().items() if f"/{DESCRIPTIONS}/" not in name}


def _something(rng: random.Random, live: LiveCluster) -> None:
    topic, partition = rng.choice("tu"), rng.randrange(2)
    match rng.randrange(6):
        case 0 | 1 | 2:
            for _ in range(rng.choice((1, 3, 12))):
                at_ms = live.clock.now_ms() - rng.choice((0, 5, 20)) * MINUTE_MS
                acks = rng.choice(("all", "leader"))
                live.append({partition: ["x"]}, topic, at_ms=at_ms, acks=acks).raise_for_failures()
        case 3:
            leader = rng.choice(live.followers(topic, partition))
            if leader in live.isr(topic, partition):
                live.cluster.elect(topic, [partition], leader=leader).raise_for_failures()
        case 4:
            broker = rng.choice((2, 3))
            fence(live, broker)
            live.cluster.maintain(only="replicate")
            unfence(live, broker)
        case _:
            pass


@pytest.mark.parametrize(
    ("partitions", "small_bytes", "here"), [(2, 10**9, True), (40, 10**9, False), (2, 0, False)]
)
def test_executors_get_the_work_that_is_worth_telling_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int, small_bytes: int, here: bool
) -> None:
    """If there are few small partitions, threads of the driver process them faster than a Spark job
    would begin.
    """
    live = LiveCluster(tmp_path)
    live.topic(partitions=partitions)
    live.append({partition: ["a"] for partition in range(partitions)})  # type: ignore[arg-type]
    executors = LocalTasks(2)
    monkeypatch.setattr(executors, "processes", 8, raising=False)
    monkeypatch.setattr(maintaining, "_SMALL_BYTES", small_bytes)
    live.cluster._ports.execution.tasks = executors
    used: list[bool] = []
    step = merge

    def spied(metadata: MetadataClient, storage: Storage, execution: Execution, **more: Any) -> Report:
        used.append(execution.tasks is executors)
        return step(metadata, storage, execution, **more)

    monkeypatch.setattr(maintaining, "merge", spied)
    live.cluster.maintain(only="merge").raise_for_failures()
    assert used == [not here]


# ---------------------------------------------------------------------------------- what it never does


def test_dry_runs_do_not_even_take_over(tmp_path: Path) -> None:
    """A new leader whose epoch has not begun yet: its register is a file, too."""
    live = LiveCluster(tmp_path)
    live.tiered()
    live.append(["a"])
    live.cluster.replicate()
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    with live.unchanged():
        live.cluster.maintain(dry_run=True).raise_for_failures()
        live.cluster.merge(dry_run=True).raise_for_failures()
        live.cluster.tier(dry_run=True).raise_for_failures()


def test_a_file_that_another_run_took_away_is_noted_and_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = LiveCluster(tmp_path)
    live.topic()

    def changed(*_: object, **__: object) -> Report:
        raise SourceChangedError("t-0 on broker 1: a file is gone")

    monkeypatch.setattr(maintaining, "merge", changed)
    found = live.cluster.maintain().raise_for_failures()
    assert "merge: merge: t-0 on broker 1: a file is gone; the next run tries again" in found.notes
    assert settled(live, "merge") == set()


def test_partitions_below_min_isr_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveCluster(tmp_path)
    live.topic(partitions=6, copies=2, min_insync_replicas="2")
    live.topic("safe", partitions=6, copies=1)
    fence(live, 3)
    order: list[str] = []
    step = replicate

    def spied(*ports: Any, **more: Any) -> Report:
        report = step(*ports, **more)
        order.extend(str(row["isr"]) for row in report.rows)
        return report

    monkeypatch.setattr(maintaining, "replicate", spied)
    live.cluster.maintain(only="replicate", budget_requests=10_000, check=False)
    few = [len(isr.split()) < 2 for isr in order[:4]]
    assert few == [True] * len(few)

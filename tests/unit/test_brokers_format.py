"""An interrupted format is completed by calling it again; impossible formats are detected before they begin."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.cluster.parts import with_parts
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    EnvironmentUnusableError,
    InvalidReplicationFactorError,
    LogDirError,
    StorageError,
    StratalogError,
)
from stratalog.partitions.identity import random_id
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch


class Roots:
    """Brokers 1 to 3 in memory, not formatted; 1 and 2 vote."""

    def __init__(self, folder: Path, faults: Faults) -> None:
        self.clock = ManualClock()
        self.stores = {f"memory://b{n}": MemoryStore(f"memory://b{n}", self.clock) for n in (1, 2, 3)}
        self.faults = faults
        self.file = folder / "cluster.toml"
        brokers = "".join(f'[[brokers]]\nid = {n}\nlog_dir = "memory://b{n}"\n' for n in (1, 2, 3))
        self.file.write_text(f'[cluster]\nid = "c"\nvoters = [1, 2]\n{brokers}')

    def open_root(self, uri: str, *_: object) -> Store:
        return self.faults.wrap(uri, self.stores[uri])

    def format(self, spark: object = None) -> Cluster:
        return with_parts(Cluster, clock=self.clock, new_id=random_id, opener=self.open_root).format(
            self.file, spark
        )  # type: ignore[arg-type]

    def names(self) -> list[str]:
        return [stored.name for store in self.stores.values() for stored in store.list("")]


def stop_at(call: int) -> Callable[[str, str, str], None]:
    """Let storage fail from the call of that number on."""
    calls = 0

    def fail(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise StorageError(f"gone since call {call}")

    return fail


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_wherever_it_stopped_calling_it_again_finishes_it(tmp_path: Path, faults: Faults, step: int) -> None:
    """The driver stops after each of its storage calls (or after each eighth)."""
    stopped, call = True, 0
    while stopped:
        call += step
        roots = Roots(tmp_path, faults)
        faults.after = stop_at(call)
        try:
            roots.format()
            stopped = False
        except StratalogError:
            pass
        faults.none()
        cluster = roots.format()
        assert {broker.fenced for broker in cluster.image.brokers.values()} == {False}
        cluster.topics.create("t", partitions=1, replication_factor=3)
        cluster.append_batches("t", {0: [batch(["a"])]}).raise_for_failures()
    assert call > 50


def test_a_topic_that_lacks_brokers_says_which_were_never_registered(tmp_path: Path, faults: Faults) -> None:
    """Broker 3 cannot be registered: its root fails when it is read for the third time."""
    roots = Roots(tmp_path, faults)

    faults.refuse(StorageError("b3 is gone"), "stat", at="b3")
    with pytest.raises(StratalogError, match="broker 3: KAFKA_STORAGE_ERROR: b3 is gone"):
        roots.format()
    faults.none()
    half = with_parts(Cluster, clock=roots.clock, opener=roots.open_root).open(roots.file)
    with pytest.raises(
        InvalidReplicationFactorError, match=r"brokers \[3\] of the cluster file were never registered"
    ):
        half.topics.create("t", partitions=1, replication_factor=3)
    roots.format().topics.create("t", partitions=1, replication_factor=3)


class Stopped:
    """Answers like a stopped Spark session."""

    def range(self, end: int) -> object:
        raise AttributeError("'NoneType' object has no attribute 'sc'")


def test_a_session_that_cannot_run_tasks_is_found_before_anything_is_written(
    tmp_path: Path, faults: Faults
) -> None:
    roots = Roots(tmp_path, faults)
    with pytest.raises(EnvironmentUnusableError, match=r"runs no tasks; it was probably stopped .*NoneType"):
        roots.format(Stopped())
    assert roots.names() == []
    cluster = roots.format()
    with pytest.raises(EnvironmentUnusableError, match="runs no tasks"):
        cluster.using(Stopped())  # type: ignore[arg-type]


@pytest.mark.parametrize("brokers", [1, 2, 3, 4])
def test_new_topics_groups_and_transactions_have_three_copies_or_as_many_as_there_are_brokers(
    tmp_path: Path, brokers: int
) -> None:
    live = LiveCluster(tmp_path, brokers=brokers)
    live.topic(copies=1)
    live.cluster.groups.commit("g", {("t", 0): 0})
    with live.cluster.transactions.begin("x") as transaction:
        transaction.append_batches("t", {0: [batch("a")]})
    live.cluster.topics.create("user", partitions=1)
    topics = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "user")
    factors = {len(live.cluster.image.views(name)[0].replicas) for name in topics}
    assert factors == {min(3, brokers)}


def test_formatting_a_cluster_again_keeps_its_configs(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=2)
    live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "1"})
    before = dict(live.cluster.image.configs)
    with_parts(Cluster, clock=live.clock, new_id=live.new_id, opener=live.open_root).format(live.file)
    assert dict(live.driver().image.configs) == before


@pytest.mark.parametrize("exists", [True, False])
def test_a_refused_format_writes_nothing(tmp_path: Path, exists: bool) -> None:
    """The folder of the only voter is new and empty, or that of another new broker does not exist."""
    live = LiveCluster(tmp_path, on_disk=True)
    kept = {2, 3} if exists else set()
    for broker in {1, 2, 3} - kept:
        shutil.rmtree(live.root(broker))
    live.root(1).mkdir()
    text = "no voter has its metadata" if exists else "is not a folder: create it, or mount its volume"
    with pytest.raises(StratalogError, match=text):
        Cluster.format(live.file)
    assert list(live.root(1).iterdir()) == []


def test_a_remote_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True)
    shutil.rmtree(live.remote)
    with pytest.raises(LogDirError, match="remote is not a folder: create it, or mount its volume"):
        Cluster.format(live.file)
    (failure,) = Cluster.plan_format(live.file).failures
    assert failure.item == "remote tier"

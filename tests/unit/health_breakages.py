"""Ways to break a cluster, one for each row of the table of findings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from stratalog.engine.health import sight
from stratalog.engine.records.groups import commit
from stratalog.engine.state.internal_topics import OFFSETS_TOPIC
from stratalog.partitions.clock import SystemClock
from stratalog.partitions.store import Store, StoredObject
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.local_space import FolderSpace
from stratalog.partitions.unwritable import UnwritableStorageError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster, fence, unfence
from tests.unit.health_harness import HOUR_MS, Patient, files
from tests.unit.snapshot_harness import keyed
from tests.unit.test_health_memory import flip
from tests.unit.test_upkeep_bad_remote import remote_files, table_of
from tests.unit.test_upkeep_compact import commit_rule
from tests.unit.transact_harness import rows

Broken = Callable[[Patient], Callable[[], object] | None]
"""Breaks a cluster; returns a function that reverts the part that no command repairs."""


def away(broker: int) -> Callable[[Patient], Callable[[], object]]:
    """The broker's mount is missing."""

    def broken(patient: Patient) -> Callable[[], object]:
        mount = patient.live.unreachable(broker)
        mount.__enter__()
        return lambda: mount.__exit__(None, None, None)

    return broken


def folder_gone(broker: int) -> Callable[[Patient], None]:
    """The broker's folder is deleted."""
    return lambda patient: shutil.rmtree(patient.live.root(broker))


def noticed(broken: Broken) -> Broken:
    """A run of maintain has failed since."""

    def then(patient: Patient) -> Callable[[], object] | None:
        undo = broken(patient)
        assert patient.job("maintain") == 1
        return undo

    return then


def offline(patient: Patient) -> Callable[[], object]:
    patient.live.topic("u", copies=1)
    patient.live.fill("a", "u")
    patient.job("reassign", "--topics", "u", "--drain", "1,3")
    return away(2)(patient)


def lost_leader(patient: Patient) -> None:
    patient.live.topic("u", copies=2)
    patient.job("reassign", "--topics", "u", "--drain", "1")
    patient.live.fill("a", "u")
    for broker in (2, 3):
        patient.live.wipe(broker)
    for broker in (2, 3):
        patient.job("bootstrap", str(broker))


def another(patient: Patient) -> None:
    """The root was restored from a copy."""
    root, copy = patient.live.root(3), patient.live.folder / "copy"
    shutil.copytree(root, copy)
    shutil.rmtree(root)
    copy.rename(root)


def wiped(patient: Patient) -> None:
    patient.live.wipe(3)
    patient.job("bootstrap", "3")


def configured(**configs: str) -> Callable[[Patient], None]:
    def broken(patient: Patient) -> None:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        patient.live.cluster.topics.alter_configs("t", given)
        out_of_isr(patient)

    return broken


def out_of_isr(patient: Patient) -> None:
    """A follower was fenced for a moment."""
    follower = patient.live.followers()[-1]
    fence(patient.live, follower)
    unfence(patient.live, follower)


def age(*paths: Path, hours: int = 2) -> None:
    for path in paths:
        then_s = path.stat().st_mtime - hours * 3600
        os.utime(path, (then_s, then_s))


def lagging(patient: Patient) -> None:
    live = patient.live
    live.append(["x"], acks="leader").raise_for_failures()
    age(files(live, live.leader())[-1])


def cut(patient: Patient) -> None:
    file = files(patient.live, patient.live.leader())[1]
    file.write_bytes(file.read_bytes()[:-10])


def flipped(patient: Patient) -> None:
    flip(files(patient.live, patient.live.followers()[0])[1])
    patient.job("verify", "--deep")


def flipped_everywhere(patient: Patient) -> Callable[[], object]:
    held = [files(patient.live, broker)[1] for broker in (1, 2, 3)]
    good = held[0].read_bytes()
    for file in held:
        flip(file)
    patient.job("maintain", "--only", "scrub")
    return lambda: held[0].write_bytes(good)


def unnamed(patient: Patient) -> None:
    """Broker 4 leaves the cluster file."""
    file = patient.live.file
    file.write_text(file.read_text().partition("[[brokers]]\nid = 4")[0])


def unregistered(patient: Patient) -> None:
    file = patient.live.file
    patient.live.root(4).mkdir()
    file.write_text(file.read_text() + '[[brokers]]\nid = 4\nrack = "d"\nlog_dir = "b4"\n')


def blocked(patient: Patient) -> None:
    staging = patient.live.root(3) / ".staging"
    if staging.exists():
        shutil.rmtree(staging)
    staging.write_text("in the way")


def full(patient: Patient) -> None:
    """The disk of a broker is full of files that have left the log."""
    live = patient.live
    live.fill("defgh")
    configs = {"segment.bytes": "1", "retention.bytes": "1", "file.delete.delay.ms": "0"}
    live.cluster.topics.alter_configs("t", configs)
    patient.job("retain")
    age(*(file for broker in (1, 2, 3) for file in live.root(broker).rglob("t-*/**/*") if file.is_file()))
    live.cluster.topics.alter_configs(None, {"health.log.dir.max.used.ratio": "0.85"})

    def used(path: str) -> int:
        return sum(file.stat().st_size for file in Path(path).rglob("*.parquet"))

    size = round(used(str(live.root(1))) / 0.95)
    patient.monkeypatch.setattr(sight, "folder_space", lambda path: FolderSpace(size, max(0, size - used(path))))


@contextmanager
def remote_away(live: LiveCluster) -> Iterator[None]:
    live.remote.rename(live.folder / "away")
    live.remote.write_text("no folder")
    yield
    live.remote.unlink()
    (live.folder / "away").rename(live.remote)


@contextmanager
def remote_empty(live: LiveCluster) -> Iterator[None]:
    """The mount point of the remote tier without its mount."""
    live.remote.rename(live.folder / "away")
    live.remote.mkdir()
    yield
    shutil.rmtree(live.remote)
    (live.folder / "away").rename(live.remote)


def remote(
    how: Callable[[LiveCluster], AbstractContextManager[None]], *jobs: str, back: bool = False
) -> Callable[[Patient], Callable[[], object] | None]:
    """The remote tier is away while these jobs run; ``back``: it has returned since."""

    def broken(patient: Patient) -> Callable[[], object] | None:
        patient.live.fill("d")
        mount = how(patient.live)
        mount.__enter__()
        for job in jobs:
            assert patient.job(*job.split()) == 1, job
        if back:
            mount.__exit__(None, None, None)
            return None
        return lambda: mount.__exit__(None, None, None)

    return broken


def uploads(*jobs: str) -> Callable[[Patient], Callable[[], object]]:
    """The remote tier accepts no files, but can be read."""

    def broken(patient: Patient) -> Callable[[], object]:
        live, create, stage = patient.live, LocalStore.create, LocalStore.stage_copy

        def check(store: LocalStore, name: str) -> None:
            if store.uri.endswith("/remote"):
                raise UnwritableStorageError("Read-only file system: remount it", store.path_of(name))

        def created(store: LocalStore, name: str, data: bytes) -> bool:
            check(store, name)
            return create(store, name, data)

        def staged(store: LocalStore, source: Store, source_object: StoredObject, name: str) -> Any:
            check(store, name)
            return stage(store, source, source_object, name)

        live.fill("d")
        patient.monkeypatch.setattr(LocalStore, "create", created)
        patient.monkeypatch.setattr(LocalStore, "stage_copy", staged)
        for job in jobs:
            assert patient.job(*job.split()) == 1
        return patient.monkeypatch.undo

    return broken


def not_uploaded(patient: Patient) -> None:
    live = patient.live
    live.cluster.topics.alter_configs("t", {"segment.ms": "1000"})
    live.fill("d")
    age(files(live, live.leader())[-1])


def erased(patient: Patient) -> Callable[[], object]:
    """Records were erased, and the replaced files wait for their readers."""
    live = patient.live
    live.cluster.append_batches("t", {0: [keyed([("k", "1"), ("l", "1")], 1)]}).raise_for_failures()
    live.cluster.erase("t", ["k"]).raise_for_failures()
    return lambda: [age(*files(live, broker)) for broker in (1, 2, 3)]


def expired(patient: Patient) -> None:
    live = patient.live
    live.cluster.topics.alter_configs("t", {"retention.ms": "1000"})
    age(*files(live, live.leader()))


COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1"}


def uncompacted(patient: Patient) -> None:
    live = patient.live
    live.cluster.topics.alter_configs("t", COMPACTED)
    age(*files(live, live.leader()))


def cut_off_compaction(patient: Patient) -> None:
    """A run ended two hours ago, after it had committed its rule."""
    live = patient.live
    live.cluster.topics.alter_configs("t", COMPACTED)
    commit_rule(live, bound=2, at_ms=SystemClock().now_ms() - 2 * HOUR_MS)


def lost(brokers: tuple[int, ...]) -> Callable[[Patient], None]:
    """The topic's folders are missing on these brokers."""

    def broken(patient: Patient) -> None:
        for broker in brokers or (patient.live.leader(),):
            for folder in [*patient.live.root(broker).glob("*/t-*")]:
                shutil.rmtree(folder)

    return broken


def behind(patient: Patient) -> None:
    """All brokers were restored from a copy without the last segment."""
    live = patient.live
    live.cluster.topics.alter_configs("t", {"local.retention.bytes": "-2"})
    live.fill("d")
    copies = live.folder / "copies"
    for broker in (1, 2, 3):
        for folder in live.root(broker).glob("*/t-*"):
            shutil.copytree(folder, copies / folder.relative_to(live.folder))
    live.fill("e")
    live.cluster.tier().raise_for_failures()
    for broker in (1, 2, 3):
        for folder in [*live.root(broker).glob("*/t-*")]:
            shutil.rmtree(folder)
            shutil.copytree(copies / folder.relative_to(live.folder), folder)


def optimized(patient: Patient) -> None:
    table_of(patient.live).optimize.compact()


def written(patient: Patient) -> None:
    table = table_of(patient.live)
    write_deltalake(table, pa.table(table.to_pyarrow_table()).slice(0, 1), mode="append")


def object_gone(patient: Patient) -> None:
    remote_files(patient.live)[0].unlink()
    patient.job("maintain", "--only", "retain")


def late_group(patient: Patient) -> Callable[[], object]:
    groups = patient.live.cluster.groups
    groups.commit("g", {("t", 0): 1}).raise_for_failures()
    patient.live.cluster.topics.alter_configs(None, {"health.consumer.max.lag.records": "1"})
    return lambda: groups.commit("g", {("t", 0): 3}).raise_for_failures()


def beyond_group(patient: Patient) -> Callable[[], object]:
    groups = patient.live.cluster.groups
    with_ports(commit, ports_of(patient.live.cluster))("g", {("t", 0): 99}, beyond_end=True).raise_for_failures()
    return lambda: groups.commit("g", {("t", 0): 3}).raise_for_failures()


def stopped_group(patient: Patient) -> Callable[[], object]:
    live, groups = patient.live, patient.live.cluster.groups
    groups.commit("g", {("t", 0): 1}).raise_for_failures()
    age(*files(live, live.leader())[1:])
    return lambda: groups.commit("g", {("t", 0): 3}).raise_for_failures()


def unread_group(patient: Patient) -> Callable[[], object]:
    patient.live.cluster.topics.alter_configs(None, {"offsets.topic.replication.factor": "1"})
    patient.live.cluster.groups.commit("g", {("t", 0): 3}).raise_for_failures()
    patient.job("reassign", "--topics", OFFSETS_TOPIC, "--drain", "1,3")
    return away(2)(patient)


def damaged_group(patient: Patient) -> Callable[[], object]:
    patient.live.cluster.groups.commit("g", {("t", 0): 3}).raise_for_failures()
    held = sorted(patient.live.folder.glob(f"b*/*/{OFFSETS_TOPIC}-*/**/*.parquet"))
    good = held[0].read_bytes()
    for file in held:
        file.write_bytes(good[:-10])
    return lambda: held[0].write_bytes(good)


def abandoned(patient: Patient) -> None:
    live = patient.live
    live.clock.advance_ms(-2 * HOUR_MS)
    live.driver().transactions.begin("loader", timeout_ms=1000).append_batches("t", {0: rows("x")})
    live.clock.advance_ms(2 * HOUR_MS)


def long_ago(hours: int) -> Callable[[Patient], None]:
    """The last run of maintain."""

    def broken(patient: Patient) -> None:
        for store in patient.live.cluster.stores.values():
            store.delete([one.name for one in store.list("") if one.name.endswith(".schedule")])
        if hours:
            patient.live.clock.advance_ms(-hours * HOUR_MS)
            patient.live.driver().maintain().raise_for_failures()
            patient.live.clock.advance_ms(hours * HOUR_MS)

    return broken


def skewed(patient: Patient) -> None:
    """The clock of this machine is three days ahead. The test's ``timedatectl`` corrects it."""
    ahead, tool = patient.live.folder / "ahead", patient.live.folder / "bin" / "timedatectl"
    ahead.touch()
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\n[ "$*" = "set-ntp true" ] && exec rm {ahead}\n')
    tool.chmod(0o755)
    now_ms = SystemClock.now_ms
    patient.monkeypatch.setattr(SystemClock, "now_ms", lambda clock: now_ms(clock) + 72 * HOUR_MS * ahead.exists())


def unscrubbed(patient: Patient) -> None:
    long_ago(200)(patient)
    patient.job("maintain", "--exclude", "scrub")

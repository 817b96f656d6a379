"""A root whose ``.staging`` is no folder accepts no files. No operation waits for such a root, and all
report it.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store import StagedCopy, Store
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.local_space import staging_in_the_way
from stratalog.partitions.store.protocol import StoredObject
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.special_files import FILES, put

KINDS = [*FILES, "file"]


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    """Two topics on three brokers; broker 1 alone votes."""
    made = LiveCluster(tmp_path, on_disk=True)
    for topic in ("t", "u"):
        made.topic(topic)
        made.fill("ab", topic)
    return made


def block(live: LiveCluster, broker: int, kind: str = "file") -> Path:
    staging = live.root(broker) / ".staging"
    if kind == "file":
        staging.rename(live.folder / "aside")
        staging.write_bytes(b"theirs")
    else:
        victim = live.folder / "victim" / "inside"
        victim.mkdir(parents=True)
        put(kind, staging, victim)
    return staging


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_that_can_take_no_file_is_not_waited_for(live: LiveCluster, kind: str) -> None:
    """The first driver that meets such a root takes it out of service for all others, with the reason."""
    broker = next(b for b in live.followers() if b != 1)
    staging = block(live, broker, kind)
    began_s = live.clock.monotonic_s()
    report = live.append("c")
    report.raise_for_failures()
    assert live.clock.monotonic_s() == began_s
    assert any(f"broker {broker}" in note and str(staging) in note for note in report.notes)
    assert live.cluster.image.brokers[broker].fenced
    assert broker not in live.isr("t") | live.isr("u")
    other = live.append("c", "u", driver=live.driver())
    other.raise_for_failures()
    assert live.clock.monotonic_s() == began_s


def test_a_leader_that_can_take_no_file_leads_no_longer(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, on_disk=True, voters=(1, 2, 3))
    live.topic()
    live.fill("ab")
    broker = live.leader()
    block(live, broker)
    live.cluster = live.driver()
    began_s = live.clock.monotonic_s()
    live.append("c").raise_for_failures()
    assert live.clock.monotonic_s() == began_s
    assert live.leader() != broker
    assert broker not in live.isr()
    live.append("d", driver=live.driver()).raise_for_failures()
    assert live.read() == {0: list("abcd")}


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_blocked_root_is_blamed_even_if_it_is_blocked_after_the_brokers_were_inspected(
    tmp_path: Path, role: str
) -> None:
    """A sound leader does not resign because of a follower."""
    faults = Faults()
    live = LiveCluster(tmp_path, on_disk=True, voters=(1, 2, 3), through=faults.wrap)
    live.topic()
    live.fill("ab")
    leader = live.leader()
    broker = leader if role == "leader" else live.followers()[0]

    faults.once(lambda: block(live, broker), "stage", at=live.store(leader).uri, ending=".parquet")
    began_s = live.clock.monotonic_s()
    live.append("c").raise_for_failures()
    assert live.clock.monotonic_s() == began_s
    assert live.isr() == {1, 2, 3} - {broker}
    assert (live.leader() == leader) == (role == "follower")
    assert live.read() == {0: list("abc")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_a_log_that_is_none_is_not_waited_for(live: LiveCluster, kind: str) -> None:
    """A file, or a folder in the path of the log, has the wrong kind."""
    broker = live.followers()[0]
    folder = live.root(broker) / live.replica(broker).folder
    victim = live.folder / "victim" / "inside"
    victim.mkdir(parents=True)
    if kind == "file":
        folder.rename(live.folder / "aside")
        folder.write_bytes(b"theirs")
    else:
        put(kind, folder, victim)
    began_s = live.clock.monotonic_s()
    report = live.append("c")
    report.raise_for_failures()
    assert live.clock.monotonic_s() == began_s
    assert live.isr() == {1, 2, 3} - {broker}
    assert any(f"broker {broker} leaves the ISR" in note for note in report.notes)


def test_the_report_says_who_was_waited_for(tmp_path: Path) -> None:
    """The broker's root has a transient fault."""
    failing: set[str] = set()

    class Failing(LocalStore):
        def create(self, name: str, data: bytes) -> bool:
            if self.root in failing:
                raise StorageError("the disk is full")
            return super().create(name, data)

        def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
            if self.root in failing:
                raise StorageError("the disk is full")
            return super().stage_copy(source, source_object, name)

    live = LiveCluster(
        tmp_path, on_disk=True, through=lambda uri, store: Failing(uri.removeprefix("file://"), SystemClock())
    )
    live.topic()
    live.fill("ab")
    broker = next(b for b in live.followers() if b != 1)
    failing.add(str(live.root(broker)))
    report = live.append("c")
    report.raise_for_failures()
    assert [note for note in report.notes if note.startswith(f"the append waited 30.0 s for broker {broker}")]
    began_s = live.clock.monotonic_s()
    live.append("d", driver=live.driver()).raise_for_failures()
    assert live.clock.monotonic_s() == began_s


@pytest.mark.parametrize("kind", KINDS)
def test_health_and_describe_name_it_and_the_remedy_repairs_it(live: LiveCluster, kind: str) -> None:
    broker = next(b for b in live.followers() if b != 1)
    staging = block(live, broker, kind)
    assert staging_in_the_way(live.store(broker).uri) is not None
    [finding] = [one for one in live.cluster.health().findings if f"broker {broker}" in one.subjects]
    assert str(staging) in finding.what
    assert finding.do == f"rm {staging}"
    described = live.cluster.describe()
    assert str(staging) in "\n".join(map(str, described.failures))
    live.append("c").raise_for_failures()
    subprocess.run(shlex.split(finding.do), check=True)
    assert staging_in_the_way(live.store(broker).uri) is None
    live.cluster.replicate().raise_for_failures()
    assert broker in live.isr()
    assert live.cluster.health().ok


def test_roots_that_are_no_folders_have_no_obstacles(tmp_path: Path) -> None:
    for uri in ("s3://bucket/x", "memory://x", f"file://{tmp_path}", f"file://{tmp_path}/missing"):
        assert staging_in_the_way(uri) is None

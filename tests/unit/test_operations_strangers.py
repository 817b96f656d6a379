"""What a stranger leaves in one broker's root is that broker's finding: everything else goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog.engine.driver.report import Failure
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.producers import encode
from tests.unit.cluster_harness import LiveCluster

BROKEN = {
    "brackets": b'{"x":' + b"[" * 5000,
    "nothing": b"",
    "garbage": b"\xff\xfe" * 100,
    "elsewhere": b'{"cluster_id":"c","broker_id":3,"directory_id":"../../../x"}',
    "another cluster": b'{"cluster_id":"d","broker_id":3,"directory_id":"' + b"f" * 32 + b'"}',
    "another incarnation": b'{"cluster_id":"c","broker_id":3,"directory_id":"' + b"f" * 32 + b'"}',
    "a number without end": b'{"cluster_id":"c","broker_id":' + b"9" * 5000 + b"}",
}


FAR = 9_999_999_999
ROOT = Path(__file__).resolve().parents[2]
VALUES = {0: ["a"], 1: ["b"], 2: ["c"]}


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path, brokers=3, on_disk=True)
    made.topic(partitions=3)
    made.append(VALUES).raise_for_failures()
    return made


def others(failures: Sequence[Failure]) -> list[Failure]:
    """Those that are not of broker 3."""
    return [failure for failure in failures if "broker 3" not in f"{failure.item} {failure.message}"]


@pytest.mark.parametrize("broken", [*BROKEN, "gigabytes"])
def test_another_brokers_file_is_that_brokers_finding(live: LiveCluster, broken: str) -> None:
    file = live.root(3) / "broker.json"
    file.unlink()
    file.touch()
    if broken == "gigabytes":
        os.truncate(file, 3 << 30)
    else:
        file.write_bytes(BROKEN[broken])
    driver = live.cluster = live.driver()
    driver.describe()
    assert others(driver.brokers.list().failures) == []
    live.append({0: ["d"], 1: ["e"], 2: ["f"]}).raise_for_failures()
    assert others(driver.replicate().failures) == []
    assert others(driver.verify().failures) == []
    assert others(driver.retain().failures) == []
    driver.topics.alter_configs("t", {"retention.ms": "1000000"})
    driver.topics.create("u", replication_factor=2)
    assert live.read() == {0: ["a", "d"], 1: ["b", "e"], 2: ["c", "f"]}


def register(live: LiveCluster, broker: int, name: EpochName | LocalStartName, content: bytes) -> None:
    replica = live.replica(broker)
    assert replica.store.create(replica.path(name), content)


@pytest.mark.parametrize("content", [b"", b"x" * 100, Lineage([(1, 0), (FAR, 1)]).to_json()])
@pytest.mark.parametrize("epoch", [FAR, 2])
@pytest.mark.parametrize("leads", [True, False])
def test_a_register_of_an_epoch_that_nobody_committed_is_damage_that_heals(
    live: LiveCluster, leads: bool, epoch: int, content: bytes
) -> None:
    leader = live.leader()
    broker = leader if leads else live.followers()[0]
    register(live, broker, EpochName(epoch), content)
    began_s = live.clock.monotonic_s()
    live.append(["d"]).raise_for_failures()
    assert live.clock.monotonic_s() - began_s < 5, "nobody waits for it"
    assert broker not in live.isr()
    assert live.read(partitions=[0]) == {0: ["a", "d"]}
    if epoch == FAR:
        named = [
            failure for failure in live.cluster.verify().failures if "nobody of ours wrote it" in failure.message
        ]
        assert len(named) == 1
    live.cluster.heal()
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.isr() == {1, 2, 3}
    live.append(["e"]).raise_for_failures()
    assert live.read(partitions=[0]) == {0: ["a", "d", "e"]}


def test_replicate_goes_on_where_a_leader_has_such_a_register(live: LiveCluster) -> None:
    leader = live.leader()
    register(live, leader, EpochName(FAR), b"")
    live.cluster.replicate()
    assert live.leader() != leader
    assert live.isr() == {1, 2, 3} - {leader}


@pytest.mark.parametrize("leads", [True, False])
def test_nobody_follows_a_local_start_beyond_the_log(live: LiveCluster, leads: bool) -> None:
    leader = live.leader()
    broker = leader if leads else live.followers()[0]
    register(live, broker, LocalStartName(8 * 10**18), encode({}))
    began_s = live.clock.monotonic_s()
    live.append(["d"]).raise_for_failures()
    assert live.clock.monotonic_s() - began_s < 5
    assert live.isr() == {1, 2, 3} - {broker}
    assert live.read(partitions=[0]) == {0: ["a", "d"]}
    for member in live.isr():
        assert live.log(member).local_start == 0


def test_a_log_whose_high_watermark_is_gone_from_the_leader_is_not_read_as_an_empty_one(live: LiveCluster) -> None:
    replica = live.replica(live.leader())
    gone = [stored.name for stored in replica.store.list(replica.folder) if stored.name.endswith(".hw")]
    replica.store.delete(gone)
    assert live.read(partitions=[0]) == {0: ["a"]}
    assert live.cluster.fetch("t", 0, 0).records.num_rows == 1
    live.append(["d"]).raise_for_failures()
    assert live.read(partitions=[0]) == {0: ["a", "d"]}


def test_a_driver_takes_no_gigabyte_whatever_lies_in_the_roots(live: LiveCluster) -> None:
    """Gigabytes under every kind of name, at a follower that is one voter of three."""
    for broker in (2, 3):
        live.cluster.quorum.add_voter(broker)
    lines = live.file.read_text().splitlines()
    live.file.write_text("\n".join("voters = [1, 2, 3]" if line.startswith("voters") else line for line in lines))
    replica = live.replica(3)
    voter = live.root(3) / f"{replica.directory_id}/__cluster_metadata"
    folder = live.root(3) / replica.folder
    schedules = live.root(3) / f"{replica.home}/__remote_log_manager"
    schedules.mkdir()
    names = [
        *(voter / name for name in ("0000000900.claim", f"{900:020d}.{900:010d}.parquet")),
        voter / f"{900:020d}-{900:010d}.checkpoint",
        *(folder / name for name in (f"{FAR}.epoch", f"{5:020d}.local", f"{1:020d}.{1:010d}.hw")),
        *(folder / name for name in (f"{1:020d}.{1:010d}.parquet", f"{1:020d}-{1:010d}.checkpoint")),
        schedules / f"{7:020d}.schedule",
    ]
    for name in names:
        name.touch()
        os.truncate(name, 3 << 30)
    code = f"""
import resource
from stratalog.engine.cluster import Cluster
cluster = Cluster.open({str(live.file)!r})
for work in (cluster.describe, cluster.quorum.describe, cluster.brokers.list, cluster.verify):
    work()
cluster.topics.alter_configs("t", {{"retention.ms": "1000000"}})
assert cluster.fetch("t", 0, 0).records.num_rows == 1
print("KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1 << 20, done.stdout

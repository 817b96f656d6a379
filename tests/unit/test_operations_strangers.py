"""Foreign files in one broker's root are that broker's finding: everything else continues."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stratalog.engine.driver.report import Failure
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.log_end import LOOK_AGAIN_MS
from stratalog.engine.replication.sync import SyncOptions
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import EpochName, LocalStartName, WatermarkName
from stratalog.partitions.producers import encode
from stratalog.partitions.runner import SerialRunner
from tests.unit.cluster_harness import LiveCluster
from tests.unit.harness import sync

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
HISTORIES = [[(2, 0)], [(1, 0), (2, 0)], [(1, 0), (2, 1)], [(1, 2), (2, 3)], [(1, 0), (2, 7)]]
"""Lineages, other than its own, that a log of three records could have under epoch 2."""
VALUES = {0: ["a"], 1: ["b"], 2: ["c"]}


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path, brokers=3, on_disk=True)
    made.topic(partitions=3)
    made.append(VALUES).raise_for_failures()
    return made


def others(failures: Sequence[Failure]) -> list[Failure]:
    """The failures that are not those of broker 3."""
    return [failure for failure in failures if "broker 3" not in f"{failure.item} {failure.message}"]


@pytest.mark.slow
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


def register(
    live: LiveCluster, broker: int, name: EpochName | LocalStartName | WatermarkName, content: bytes
) -> None:
    replica = live.replica(broker)
    assert replica.store.create(replica.path(name), content)


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"x" * 100, Lineage([(1, 0), (FAR, 1)]).to_json()])
@pytest.mark.parametrize("epoch", [FAR, 2])
@pytest.mark.parametrize("leads", [True, False])
def test_a_register_of_an_epoch_that_nobody_committed_is_damage_that_heals(
    live: LiveCluster, leads: bool, epoch: int, content: bytes
) -> None:
    leader = live.leader()
    broker = leader if leads else live.followers()[0]
    register(live, broker, EpochName(epoch), content)
    live.clock.advance_ms(LOOK_AGAIN_MS)
    began_s = live.clock.monotonic_s()
    live.append(["d"]).raise_for_failures()
    assert live.clock.monotonic_s() - began_s < 5, "nobody waits for it"
    assert broker not in live.isr()
    assert live.read(partitions=[0]) == {0: ["a", "d"]}
    if epoch == FAR:
        named = [
            failure
            for failure in live.cluster.verify().failures
            if "stratalog did not write this register" in failure.message
        ]
        assert len(named) == 1
    live.cluster.heal()
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.isr() == {1, 2, 3}
    live.append(["e"]).raise_for_failures()
    assert live.read(partitions=[0]) == {0: ["a", "d", "e"]}


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("before_the_election", [True, False])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_register_left_for_the_next_leader_epoch_truncates_nobody(
    live: LiveCluster, history: list[tuple[int, int]], before_the_election: bool
) -> None:
    """A member of the ISR that has such a register, and is elected, seems to have taken over. The others do not
    adopt a lineage that would drop records which they know to be committed.
    """
    live.append({0: ["b", "c"]}).raise_for_failures()
    leader, member = live.leader(), live.followers()[0]
    if before_the_election:
        register(live, member, EpochName(2), Lineage(history).to_json())
    live.cluster.elect("t", [0], leader=member).raise_for_failures()
    if not before_the_election:
        register(live, member, EpochName(2), Lineage(history).to_json())
    assert live.replicas().view.leader_epoch == 2
    live.append(["d"]).raise_for_failures()
    assert live.read(partitions=[0]) == {0: ["a", "b", "c", "d"]}
    assert member not in live.isr()
    assert live.log(leader).lineage == Lineage([(1, 0), (3, 3)])
    live.cluster.replicate().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.isr() == {1, 2, 3}
    live.append(["e"]).raise_for_failures()
    assert live.read(partitions=[0]) == {0: ["a", "b", "c", "d", "e"]}


@pytest.mark.slow
def test_a_run_without_an_append_truncates_nobody_either(live: LiveCluster) -> None:
    member = live.followers()[0]
    register(live, member, EpochName(2), Lineage([(1, 0), (2, 0)]).to_json())
    live.cluster.elect("t", [0], leader=member).raise_for_failures()
    live.cluster.replicate()
    assert live.leader() != member
    live.cluster.replicate().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.read(partitions=[0]) == {0: ["a"]}


def test_nor_if_the_leader_has_missed_the_epoch_that_a_member_joined_last(live: LiveCluster) -> None:
    """In this case the register of the previous epoch has the common history."""
    leader, (member, other) = live.leader(), live.followers()
    live.cluster.elect("t", [0], leader=other).raise_for_failures()
    sync(live.replicas(), leader, SyncOptions(copies=SerialRunner()))
    assert (live.log(leader).joined_epoch, live.log(member).joined_epoch) == (2, 1)
    register(live, member, EpochName(3), Lineage([(1, 0), (3, 0)]).to_json())
    live.cluster.elect("t", [0], leader=member).raise_for_failures()
    live.append(["d"]).raise_for_failures()
    assert member not in live.isr()
    assert live.read(partitions=[0]) == {0: ["a", "d"]}


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_register_left_at_a_member_before_its_leader_takes_over_loses_nothing(
    live: LiveCluster, history: list[tuple[int, int]], copies: int
) -> None:
    """The leader is not blamed for the loss of a takeover that only the member knew."""
    live.topic("u", copies=copies)
    live.append(["a", "b", "c"], "u").raise_for_failures()
    leader, member = live.followers("u")[-1], live.leader("u")
    live.cluster.elect("u", leader=leader).raise_for_failures()
    replica = live.replica(member, "u")
    assert replica.store.create(replica.path(EpochName(2)), Lineage(history).to_json())
    live.append(["d"], "u").raise_for_failures()
    live.cluster.heal()
    live.cluster.replicate().raise_for_failures()
    assert live.read("u") == {0: ["a", "b", "c", "d"]}
    assert len(live.isr("u")) == copies


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("history", HISTORIES)
def test_a_member_with_a_register_of_the_epoch_that_has_begun_takes_over_with_nothing_lost(
    live: LiveCluster, history: list[tuple[int, int]], marked: bool
) -> None:
    """This is so even if a foreign high watermark is beside it, and the register is not compared."""
    live.append({0: ["b", "c"]}).raise_for_failures()
    member, leader = live.followers()
    live.cluster.elect("t", [0], leader=leader).raise_for_failures()
    leader_log(live.replicas())
    register(live, member, EpochName(2), Lineage(history).to_json())
    if marked:
        register(live, member, WatermarkName(1, 2), b"")
        live.append(["d"]).raise_for_failures()
    live.cluster.elect("t", [0], leader=member).raise_for_failures()
    live.append(["e"]).raise_for_failures()
    live.cluster.heal()
    live.cluster.replicate().raise_for_failures()
    assert live.read(partitions=[0]) == {0: ["a", "b", "c", *(["d"] if marked else []), "e"]}
    assert live.isr() == {1, 2, 3}


@pytest.mark.slow
def test_nothing_leaves_the_remote_log_for_such_a_register(live: LiveCluster) -> None:
    """A tier run believes its leader's lineage when it shows that an unclean election lost records, unless members
    of the ISR contradict it.
    """
    live.tiered("u")
    live.fill("abcd", "u")
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    member = live.followers("u")[0]
    replica = live.replica(member, "u")
    assert replica.log().local_start == 3, "the rest is in the remote tier alone"
    register = Lineage([(1, 0), (2, 0)]).to_json()
    assert replica.store.create(replica.path(EpochName(2)), register)
    live.cluster.elect("u", leader=member).raise_for_failures()
    live.cluster.tier()
    assert live.read("u") == {0: ["a", "b", "c", "d"]}
    live.fill("e", "u")
    assert live.leader("u") != member
    assert live.read("u") == {0: ["a", "b", "c", "d", "e"]}


@pytest.mark.slow
@pytest.mark.parametrize("reads_anew", [True, False])
def test_a_follower_with_the_register_of_a_stranger_counts_for_nothing(
    live: LiveCluster, reads_anew: bool
) -> None:
    """The follower seems to have joined its leader's epoch, and would later lead with another history."""
    member, leader = live.followers()
    live.cluster.elect("t", [0], leader=leader).raise_for_failures()
    leader_log(live.replicas())  # the leader takes over, as before any append
    register(live, member, EpochName(2), Lineage([(1, 0), (2, 0)]).to_json())
    if reads_anew:
        live.cluster = live.driver()
    live.append(["d"]).raise_for_failures()
    assert live.isr() == {1, 2, 3} - {member}
    assert live.leader() == leader
    (named,) = [failure for failure in live.cluster.verify().failures if "a different lineage" in failure.message]
    assert f"broker {member}" in named.item
    live.cluster.heal().raise_for_failures()
    live.cluster.verify(deep=True).raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.log(member).lineage == live.log(leader).lineage
    assert live.read(partitions=[0]) == {0: ["a", "d"]}


def test_replicate_continues_where_a_leader_has_such_a_register(live: LiveCluster) -> None:
    leader = live.leader()
    register(live, leader, EpochName(FAR), b"")
    live.cluster.replicate(check=False)
    assert live.leader() != leader
    assert live.isr() == {1, 2, 3} - {leader}


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.slow
def test_no_follower_adopts_a_local_start_beyond_the_log(live: LiveCluster, leads: bool) -> None:
    leader = live.leader()
    broker = leader if leads else live.followers()[0]
    register(live, broker, LocalStartName(8 * 10**18), encode({}))
    live.clock.advance_ms(LOOK_AGAIN_MS)
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


@pytest.mark.nightly
def test_a_driver_takes_no_gigabyte_whatever_the_roots_contain(live: LiveCluster) -> None:
    """Gigabytes under every kind of name, at a follower that is one voter of three."""
    for broker in (2, 3):
        live.cluster.quorum.add_voter(broker)
    lines = live.file.read_text().splitlines()
    live.file.write_text("\n".join("voters = [1, 2, 3]" if line.startswith("voters") else line for line in lines))
    replica = live.replica(3)
    voter = live.root(3) / f"{replica.directory_id}/__cluster_metadata"
    folder = live.root(3) / replica.folder
    schedules = live.root(3) / f"{replica.incarnation_folder}/__remote_log_manager"
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
from stratalog import Cluster
cluster = Cluster.open({str(live.file)!r})
for work in (cluster.describe, cluster.quorum.describe, cluster.brokers.list, cluster.verify):
    work()
cluster.topics.alter_configs("t", {{"retention.ms": "1000000"}})
assert cluster.fetch("t", 0, 0).records.num_rows == 1
with open("/proc/self/status") as status:  # getrusage would tell of the parent, too
    print("KiB", *(line.split()[1] for line in status if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 1 << 20, done.stdout

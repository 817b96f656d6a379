"""Heal recreates damaged and missing registers of leader epochs, or deletes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.engine.metadata.partition_commands import AlterPartition
from stratalog.engine.replicas.in_sync import without
from stratalog.partitions.errors import StorageError
from stratalog.partitions.store.rules import STAGING_FOLDER
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.tampering import register
from tests.unit.test_upkeep_heal import assert_healed, five_records


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return five_records(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("broker", [1, 2], ids=["leader", "follower"])
@pytest.mark.parametrize("content", [None, b"", b"[[1,0],[1,3]]"], ids=["missing", "empty", "contradicting"])
def test_an_epoch_register_is_copied_from_another_replica(
    live: LiveCluster, content: bytes | None, broker: int
) -> None:
    """A follower's register comes from its leader; a leader resigns first, and is then a follower."""
    before = register(live, 3, ".epoch").read()
    epoch = register(live, broker, "1.epoch")
    epoch.remove() if content is None else epoch.replace(content)
    live.driver().heal().raise_for_failures()
    assert epoch.read() == before
    assert_healed(live)


def test_a_register_that_cannot_be_written_leaves_nothing_staged(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, on_disk=True, through=faults.wrap)
    live.topic()
    live.fill("abc")
    follower = live.followers()[0]
    register(live, follower, ".epoch").flip(3)

    def refuse(uri: str, what: str, name: str) -> None:
        if what == "replace":
            raise StorageError("no space left")

    faults.before = refuse
    assert not live.driver().heal(check=False).ok
    assert list((live.root(follower) / STAGING_FOLDER).iterdir()) == []


@pytest.mark.slow
def test_an_earlier_register_that_the_leader_never_had_goes_when_it_is_damaged(live: LiveCluster) -> None:
    """Such a register decides nothing once its replica has joined a later epoch."""
    late, other = live.followers()
    ports_of(live.cluster).metadata.submit(AlterPartition((without(live.replicas().view, [late]),)))
    for leader, value in ((other, "f"), (live.leader(), "g")):
        live.cluster.elect("t", leader=leader).raise_for_failures()
        live.append([value]).raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.cluster.elect("t", leader=late).raise_for_failures()
    live.append(["h"]).raise_for_failures()
    damaged = register(live, other, "2.epoch")
    damaged.flip(1)
    live.driver().heal().raise_for_failures()
    assert not damaged.there()
    assert_healed(live, "abcdefgh")


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_the_epoch_register_of_a_last_member_comes_from_a_replica_that_has_joined_that_epoch(
    live: LiveCluster, content: bytes | None
) -> None:
    leader = live.leader()
    shrunk = AlterPartition((without(live.replicas().view, live.followers()),))
    ports_of(live.cluster).metadata.submit(shrunk)
    assert live.isr() == {leader}
    epoch = register(live, leader, "1.epoch")
    before = epoch.read()
    epoch.remove() if content is None else epoch.replace(content)
    report = live.driver().heal()
    report.raise_for_failures()
    assert [row["outcome"] for row in report.rows] == ["repaired"]
    assert epoch.read() == before
    live.cluster.replicate().raise_for_failures()
    assert_healed(live)


def test_all_registers_of_a_last_member_come_from_replicas_that_have_joined_its_epochs(live: LiveCluster) -> None:
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.append(["f"]).raise_for_failures()
    leader = live.leader()
    ports_of(live.cluster).metadata.submit(AlterPartition((without(live.replicas().view, live.followers()),)))
    for epoch in ("1.epoch", "2.epoch"):
        register(live, leader, epoch).flip(1)
    live.driver().heal().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert_healed(live, "abcdef")


@pytest.mark.slow
def test_an_earlier_register_that_is_damaged_is_a_note_and_goes_also_at_the_only_replica(tmp_path: Path) -> None:
    """No log uses the register, and there is no copy of it."""
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=1)
    live.fill("abc")
    first = live.leader()
    last = 3 - first
    for brokers in ((first, last), (last,)):
        live.cluster.reassign({("t", 0): brokers}).raise_for_failures()
        live.cluster.replicate().raise_for_failures()
    live.append(["d"]).raise_for_failures()
    damaged = register(live, last, "1.epoch")
    damaged.flip(1)
    found = live.driver().verify(deep=True)
    found.raise_for_failures()
    assert any(damaged.name in note for note in found.notes)
    live.driver().heal().raise_for_failures()
    assert not damaged.there()
    assert_healed(live, "abcd")


@pytest.mark.slow
def test_one_heal_repairs_the_register_of_a_last_member_and_then_those_that_are_copied_from_it(
    live: LiveCluster,
) -> None:
    good, leader = 2, 3
    live.cluster.elect("t", leader=leader).raise_for_failures()
    live.append(["f"]).raise_for_failures()
    ports_of(live.cluster).metadata.submit(AlterPartition((without(live.replicas().view, [good]),)))
    for broker in (1, leader):
        register(live, broker, "2.epoch").flip(1)
    live.driver().heal().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert_healed(live, "abcdef")


def test_the_epoch_register_of_a_last_member_needs_a_person(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=1)
    live.topic(copies=1)
    live.fill("abc")
    register(live, 1, ".epoch").replace(b"")
    with live.unchanged():
        assert "from a backup" in the_failure(live.driver().heal(check=False))

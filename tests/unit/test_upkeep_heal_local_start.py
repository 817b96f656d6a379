"""Heal: the register of a local log start, which alone has the producer state if the log is empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.partitions.paths import LocalStartName
from stratalog.partitions.producers import decode
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure, unfence
from tests.unit.tampering import Spot, register
from tests.unit.test_upkeep_heal import assert_healed

pytestmark = pytest.mark.slow


def appended(folder: Path, deleted: int, *, copies: int = 3) -> LiveCluster:
    """``a`` to ``c`` from producer ``p``, with sequences 0 to 2; a number of them is deleted on all replicas."""
    live = LiveCluster(folder)
    live.topic(copies=copies, file_delete_delay_ms="0")
    for sequence, value in enumerate("abc"):
        live.append([value], producer="p", sequence=sequence).raise_for_failures()
    live.cluster.topics.delete_records("t", {0: deleted}).raise_for_failures()
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    return live


def assert_a_producer_is_known(live: LiveCluster, spot: Spot) -> None:
    assert decode(spot.read())["p"].has_appended(2)
    again = live.append(["c"], producer="p", sequence=2, driver=live.driver())
    assert rows_of(again, "outcome") == [("duplicate",)]


@pytest.mark.parametrize("who", ["leader", "follower"])
@pytest.mark.parametrize("fault", ["flipped", "empty"])
def test_the_local_start_of_an_empty_log_comes_from_another_replica(tmp_path: Path, who: str, fault: str) -> None:
    """A damaged leader resigns before its files change."""
    live = appended(tmp_path, 3)
    broker, other = (live.leader(), live.followers()[0])[:: 1 if who == "leader" else -1]
    local = register(live, broker, ".local")
    good = local.read()
    local.flip(9) if fault == "flipped" else local.replace(b"")
    assert "is damaged: it lacks the state of producers" in the_failure(live.cluster.verify(deep=True))
    healed = live.driver().heal()
    healed.raise_for_failures()
    source = live.leader() if who == "leader" else other
    assert rows_of(healed, "broker", "damage", "source", "outcome") == [
        (broker, str(LocalStartName(3)), f"broker-{source}", "repaired")
    ]
    assert local.read() == good
    live.cluster.elect("t", leader=broker).raise_for_failures()
    assert_a_producer_is_known(live, local)
    live.fill("d")
    assert_healed(live, "d")


def test_if_all_have_lost_it_the_file_that_ends_there_shows_it(tmp_path: Path) -> None:
    """Here the state comes from a segment of the remote tier. No replica can replace the leader, so it is repaired
    in place.
    """
    live = LiveCluster(tmp_path)
    live.tiered(copies=2, file_delete_delay_ms="0")
    for sequence, value in enumerate("abc"):
        live.append([value], producer="p", sequence=sequence).raise_for_failures()
    live.tier_and_drop()
    good = {broker: register(live, broker, ".local").read() for broker in (1, 2)}
    for broker in good:
        register(live, broker, ".local").flip(9)
    healed = live.driver().heal()
    assert rows_of(healed, "broker", "source", "outcome") == [(1, "remote", "repaired"), (2, "remote", "repaired")]
    assert {broker: register(live, broker, ".local").read() for broker in good} == good
    assert_healed(live, "abc")


def test_a_follower_without_any_hint_begins_where_its_leader_does(tmp_path: Path) -> None:
    """The follower had not dropped the files that the leader has."""
    live = appended(tmp_path, 1)
    follower = live.followers()[0]
    fence(live, follower)
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    for _ in range(2):
        live.cluster.retain()
    unfence(live, follower)
    live.cluster.replicate().raise_for_failures()
    register(live, follower, ".local").flip(9)
    healed = live.driver().heal()
    healed.raise_for_failures()
    assert rows_of(healed, "broker", "damage", "outcome") == [(follower, str(LocalStartName(1)), "repaired")]
    assert register(live, follower, ".local").name.endswith(str(LocalStartName(2)))
    assert_healed(live, "c")


def test_without_any_evidence_an_only_member_is_left_as_it_is_and_the_way_out_is_named(tmp_path: Path) -> None:
    live = appended(tmp_path, 2, copies=1)
    register(live, live.leader(), ".local").flip(9)
    with live.unchanged():
        report = live.driver().heal(check=False)
    assert codes(report) == {"CORRUPT_MESSAGE": 1}
    assert "wait until retention advances the start" in the_failure(report)
    live.fill("d")
    live.cluster.topics.delete_records("t", {0: 3}).raise_for_failures()
    for _ in range(2):
        live.cluster.retain().raise_for_failures()
    assert_healed(live, "d")


def test_the_only_copy_of_an_empty_log_has_to_come_from_a_backup(tmp_path: Path) -> None:
    """A log that continued without this file would append repeated records again."""
    live = appended(tmp_path, 3, copies=1)
    local = register(live, live.leader(), ".local")
    good = local.read()
    local.flip(9)
    assert "restore the file from a backup" in the_failure(live.driver().heal(check=False))
    assert codes(live.append(["d"], driver=live.driver())) == {"CORRUPT_MESSAGE": 1}
    local.replace(good)
    live.fill("d")
    assert_healed(live, "d")


def test_an_append_to_an_empty_log_continues_under_a_leader_that_knows_its_producers(tmp_path: Path) -> None:
    live = appended(tmp_path, 3)
    leader = live.leader()
    register(live, leader, ".local").flip(9)
    again = live.append(["c"], producer="p", sequence=2, driver=live.driver())
    assert rows_of(again, "outcome") == [("duplicate",)]
    assert live.leader() != leader
    live.fill("d")
    live.driver().heal().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert_healed(live, "d")

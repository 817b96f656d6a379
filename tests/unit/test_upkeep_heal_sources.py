"""Heal: replacements of a damaged file that come from elsewhere than the leader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.engine.driver.tasks import Silent
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.partition_commands import AlterPartition
from stratalog.engine.replicas.in_sync import adding, without
from stratalog.engine.upkeep.verification import content
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster, rows_of, the_failure
from tests.unit.tampering import register, spot
from tests.unit.test_upkeep_heal import assert_healed

pytestmark = pytest.mark.slow


def test_a_follower_gets_nothing_for_a_damaged_file_below_the_log_start(tmp_path: Path) -> None:
    """Retention could not read the damaged file, so it stayed; all other copies are deleted, and not needed."""
    live = LiveCluster(tmp_path)
    live.topic(file_delete_delay_ms="0")
    live.fill("abc")
    follower = live.followers()[0]
    bad = spot(live, follower, 1)
    bad.flip(-200)
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    for _ in range(2):
        assert [failure.code for failure in live.cluster.retain(check=False).failures] == ["CORRUPT_SEGMENT"]
    healed = live.driver().heal()
    healed.raise_for_failures()
    assert rows_of(healed, "broker", "start", "end", "outcome") == [(follower, 1, 2, "repaired")]
    assert not bad.there()
    assert_healed(live, "c")


def test_a_last_member_is_repaired_in_place_even_while_another_is_added(tmp_path: Path) -> None:
    """The run that adds the member found the leader damaged in the second sync, and stopped."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("abc")
    one, two = live.followers()
    for change in (
        lambda: without(live.replicas().view, [one, two]),
        lambda: adding(live.replicas().view, [one]),
    ):
        ports_of(live.cluster).metadata.submit(AlterPartition((change(),)))
    register(live, live.leader(), ".epoch").flip(3)
    live.driver().heal().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert_healed(live, "abc")


def test_records_without_a_good_copy_are_dropped_if_an_intact_member_never_had_them(tmp_path: Path) -> None:
    """All members of an ISR hold the committed records, so this record was not committed, and is lost as in any
    election.
    """
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("ab")
    live.append(["c"], acks="leader").raise_for_failures()
    leader, (one, whole) = live.leader(), live.followers()
    live.driver().replicate(brokers=[one]).raise_for_failures()
    assert live.isr() == {leader, one, whole}
    for broker in (leader, one):
        spot(live, broker, 2).flip(30)
    healed = live.driver().heal()
    healed.raise_for_failures()
    assert "t-0: offsets [2, 3) had no good copy; they were never committed, and are truncated" in healed.notes
    assert live.leader() == whole
    assert_healed(live, "ab")


def _led_by_another(tmp_path: Path) -> tuple[LiveCluster, int]:
    """Only the leader of t-0 had "c"; the next leader is the last member of the ISR. Returns the former leader."""
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("ab")
    live.append(["c"], acks="leader").raise_for_failures()
    former, (heir, other) = live.leader(), live.followers()
    metadata = ports_of(live.cluster).metadata
    epoch = live.replicas().view.partition_epoch
    metadata.submit(ElectLeaders((Election(*live.replicas().view.key, heir, resign=True, partition_epoch=epoch),)))
    metadata.submit(AlterPartition((without(live.replicas().view, [other]),)))
    assert (live.leader(), live.isr()) == (heir, {heir})
    return live, former


def test_a_last_member_is_repaired_whatever_uncommitted_records_a_former_leader_has_lost(tmp_path: Path) -> None:
    """The former leader is outside the ISR, so no member needs the records that only it had."""
    live, former = _led_by_another(tmp_path)
    spot(live, former, 2).flip(30)
    spot(live, live.leader(), 1).flip(-200)
    healed = live.driver().heal(check=False)
    assert [(row["broker"], row["start"], row["outcome"]) for row in healed.rows] == [
        (live.leader(), 1, "repaired")
    ]
    assert any(f"[2, 3) on broker {former}, outside the ISR" in note for note in healed.notes)
    live.driver().replicate().raise_for_failures()
    assert_healed(live, "ab")


def test_replicate_removes_a_damaged_record_that_was_never_committed(tmp_path: Path) -> None:
    live, former = _led_by_another(tmp_path)
    spot(live, former, 2).flip(30)
    assert "run replicate" in the_failure(live.driver().heal(check=False))
    live.driver().replicate().raise_for_failures()
    assert_healed(live, "ab")


class _Meanwhile(Silent):
    """Lets other drivers act after a heal has listed all replicas, and before it reads its findings."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def start(self, operation: str, items: int, unit: str) -> None:
        if operation == "verify --deep":
            self.act()
            self.act = lambda: None


def test_a_record_that_is_acknowledged_while_heal_looks_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader got the record after it was listed, and before it was elected: commit, then read. (A file
    that is not small is read later than its footer.)
    """
    monkeypatch.setattr(content, "SMALL_BYTES", 0)
    live = LiveCluster(tmp_path)
    live.topic(copies=2)
    live.fill("ab")
    live.append(["c"], acks="leader").raise_for_failures()
    leader, (follower,) = live.leader(), live.followers()
    bad = spot(live, leader, 2)

    def acknowledge_it_and_flip() -> None:
        live.driver().replicate().raise_for_failures()
        assert live.log(leader).high_watermark == 3
        bad.flip(30)

    healed = live.driver(_Meanwhile(acknowledge_it_and_flip)).heal(check=False)
    assert live.leader() == follower
    assert not any("never committed" in note for note in healed.notes)
    assert [row["outcome"] for row in healed.rows] == ["left alone"]
    live.driver().heal().raise_for_failures()
    assert_healed(live, "abc")

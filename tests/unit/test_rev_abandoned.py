"""Probe of a reviewer: a current snapshot of a history that an unclean election has abandoned."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.engine.upkeep.snapshots import snapshot as snapshotting
from tests.unit.cluster_harness import fence, unfence
from tests.unit.erase_harness import KEY, OTHER, SECRET, traces
from tests.unit.test_upkeep_erase_of_snapshots import LATER, Erasable


def make_only(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot job that dies before it copies the snapshot, and moves the log start."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(snapshotting, "spread_snapshot", stop)
        with suppress(KeyboardInterrupt):
            live.cluster.snapshot("t", by_hand=True, check=False)


@pytest.mark.parametrize("late", [False, True])
def test_an_abandoned_snapshot_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    live = Erasable(tmp_path, on_disk=True, voters=[3]).start(
        copies=2, unclean_leader_election_enable="true", min_insync_replicas="1"
    )
    leader, follower = live.leader(), live.followers()[0]
    assert 3 not in (leader, follower)
    with live.unreachable(follower):
        live.put([(KEY, f"{SECRET}-c"), (LATER, "lost")])
        live.put([(LATER, "lost")])
        make_only(live, monkeypatch)
        print("isr", live.isr(), live.ids(leader), live.replicas().view.log_start_offset)
    with live.unreachable(leader):
        fence(live, leader)
        unfence(live, follower)
        live.cluster.elect("t", unclean=True)
        print("leader", live.leader(), leader, follower)
        assert live.leader() == follower
        if late:
            live.put([(OTHER, "3")])
    unfence(live, leader)
    live.cluster.replicate()
    print("isr", live.isr(), live.ids(leader), live.log(leader).log_end, live.log(follower).log_end)
    live.cluster.erase("t", [KEY], check=False, now=True)
    report = live.cluster.erase("t", [KEY], check=False, now=True, certificate=tmp_path / "c.json")
    print(report.whole, report.failures, live.ids(leader))
    print(traces(live, KEY, SECRET))
    if report.whole:
        assert traces(live, KEY, SECRET) == []


def test_an_abandoned_snapshot_with_the_key_when_nothing_is_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key was only ever in the abandoned history, so the run makes no erasure."""
    live = Erasable(tmp_path, on_disk=True, voters=[3])
    live.begin(
        copies=2,
        unclean_leader_election_enable="true",
        min_insync_replicas="1",
        file_delete_delay_ms="0",
        segment_bytes="1",
    )
    live.put([(OTHER, "1")])
    leader, follower = live.leader(), live.followers()[0]
    assert 3 not in (leader, follower)
    with live.unreachable(follower):
        live.put([(KEY, f"{SECRET}-c"), (LATER, "lost")])
        live.put([(LATER, "lost")])
        make_only(live, monkeypatch)
        print("isr", live.isr(), live.ids(leader), live.replicas().view.log_start_offset)
    with live.unreachable(leader):
        fence(live, leader)
        unfence(live, follower)
        live.cluster.elect("t", unclean=True)
        print("leader", live.leader(), leader, follower)
        assert live.leader() == follower
    unfence(live, leader)
    live.cluster.replicate()
    live.put([(OTHER, "2")])
    live.cluster.replicate()
    live.take()
    live.clock.sleep(100 * 86400)
    live.cluster.retain()
    live.cluster.vacuum(check=False)
    print("isr", live.isr(), live.ids(leader), live.log(leader).log_end, live.log(follower).log_end)
    print(traces(live, KEY, SECRET))
    report = live.cluster.erase("t", [KEY], check=False, now=True, certificate=tmp_path / "c.json")
    print(report.whole, report.failures, live.ids(leader))
    print(traces(live, KEY, SECRET))
    if report.whole:
        print(live.cluster.verify_erased(tmp_path / "c.json").rows)
        assert traces(live, KEY, SECRET) == []

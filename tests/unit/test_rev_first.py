"""Probes of a reviewer: files that a certificate does not name."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog.partitions.paths import WatermarkName, base_name, parse_name
from tests.unit.cluster_harness import fence, unfence
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, traces
from tests.unit.test_upkeep_erase_of_snapshots import LATER, STATE, Erasable


def lose_watermarks(live: Erasable, *brokers: int) -> None:
    for broker in brokers:
        replica = live.replica(broker)
        names = [stored.name for stored in replica.store.list(replica.folder)]
        replica.store.delete([name for name in names if isinstance(parse_name(base_name(name)), WatermarkName)])


@pytest.mark.parametrize("trimmed", [False, True])
def test_lost_watermarks_and_an_older_snapshot_with_the_key(tmp_path: Path, trimmed: bool) -> None:
    live = Erasable(tmp_path).start()
    live.take()
    live.put([(KEY, None)], at_ms=1)
    live.take()
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "3")])
    live.take()
    assert KEY not in live.held(1)
    if trimmed:
        live.cluster.topics.alter_configs("t", {"file.delete.delay.ms": str(10 * DAY_MS)})
        live.cluster.retain().raise_for_failures()
        live.clock.sleep(3600)
        live.cluster.retain().raise_for_failures()
    print(live.ids(1), live.log(1).local_start, live.log(1).high_watermark)
    lose_watermarks(live, 1, 2, 3)
    report = live.erase(KEY, now=True)
    print(report.whole, report.failures, report.rows)
    print(traces(live, KEY, SECRET))
    if report.whole:
        assert traces(live, KEY, SECRET) == []


@pytest.mark.parametrize("remount", [False, True])
def test_an_abandoned_snapshot_with_the_key(tmp_path: Path, remount: bool) -> None:
    live = Erasable(tmp_path).start(copies=2, unclean_leader_election_enable="true", min_insync_replicas="1")
    leader, follower = live.leader(), live.followers()[0]
    fence(live, follower)
    live.put([(KEY, f"{SECRET}-c"), (LATER, "lost")])
    live.put([(LATER, "lost")])
    live.put([(LATER, "lost")])
    live.take()
    print("isr", live.isr(), live.ids(leader), live.ids(follower))
    fence(live, leader)
    unfence(live, follower)
    live.cluster.elect("t", unclean=True)
    print("leader", live.leader(), leader, follower)
    assert live.leader() == follower
    unfence(live, leader)
    live.cluster.replicate()
    print("isr", live.isr(), live.ids(leader), live.log(leader).log_end, live.log(follower).log_end)
    live.cluster.erase("t", [KEY], check=False, now=True)
    report = live.cluster.erase("t", [KEY], check=False, now=True, certificate=tmp_path / "c.json")
    print(report.whole, report.failures)
    print(traces(live, KEY, SECRET))
    if report.whole:
        assert traces(live, KEY, SECRET) == []


@pytest.mark.parametrize("erased", [False, True])
def test_a_first_snapshot_by_hand_after_the_leader_has_lost_its_own(tmp_path: Path, erased: bool) -> None:
    live = Erasable(tmp_path, on_disk=True).start(copies=2)
    if erased:
        assert live.erase(KEY, now=True).whole
    else:
        live.take()
        live.cluster.retain().raise_for_failures()
    live.put([("new", "1")])
    leader, followers = live.leader(), live.followers()
    live.store(leader).delete([stored.name for _, stored in live.log(leader).listing.checkpoints])
    with ExitStack() as stack:
        for follower in followers:
            stack.enter_context(live.unreachable(follower))
        report = live.cluster.snapshot("t", by_hand=True, check=False)
        print(report.rows, report.failures)
    live.cluster.replicate()
    live.cluster.snapshot("t", by_hand=True, check=False)
    live.put([("new", "2")])
    live.cluster.snapshot("t", by_hand=True, check=False)
    live.clock.sleep(3600)
    live.cluster.retain()
    for broker in (leader, *followers):
        print(broker, live.ids(broker), live.log(broker).local_start, live.state(broker))
    for broker in (leader, *followers):
        assert STATE.items() <= live.state(broker).items()

"""Probe of a reviewer: a first snapshot by hand without any lost file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cluster_harness import fence, unfence
from tests.unit.erase_harness import KEY
from tests.unit.test_upkeep_erase_of_snapshots import STATE, Erasable


@pytest.mark.parametrize("steps", ["", "replicate", "retain", "replicate+retain", "retain+replicate"])
def test_a_follower_that_was_fenced_leads(tmp_path: Path, steps: str) -> None:
    live = Erasable(tmp_path, on_disk=True, voters=[3]).start(copies=2)
    leader, follower = live.leader(), live.followers()[0]
    fence(live, follower)
    live.take()
    live.clock.sleep(3600)
    live.cluster.retain()
    unfence(live, follower)
    live.put([("new", "1")])
    for step in steps.split("+"):
        if step == "replicate":
            live.cluster.replicate(check=False)
        elif step == "retain":
            live.clock.sleep(3600)
            live.cluster.retain(check=False)
    live.put([("new", "2")])
    print(
        steps,
        live.isr(),
        live.ids(leader),
        live.ids(follower),
        live.log(follower).local_start,
        live.replicas().view.log_start_offset,
    )
    if follower not in live.isr():
        pytest.skip("not in the ISR")
    with live.unreachable(leader):
        fence(live, leader)
        live.cluster.elect("t", check=False)
        print("leader", live.leader())
        assert live.leader() == follower
        report = live.cluster.snapshot("t", by_hand=True, check=False)
        print(report.rows, report.failures)
    unfence(live, leader)
    live.cluster.replicate(check=False)
    live.cluster.snapshot("t", by_hand=True, check=False)
    for broker in (leader, follower):
        print(broker, live.ids(broker), live.log(broker).local_start, live.state(broker))
    for broker in (leader, follower):
        assert STATE.items() <= live.state(broker).items()


@pytest.mark.parametrize("steps", ["", "replicate", "retain", "erase", "replicate+retain", "retain+replicate"])
def test_a_follower_that_was_fenced_during_an_erasure_leads(tmp_path: Path, steps: str) -> None:
    live = Erasable(tmp_path, on_disk=True, voters=[3]).start(copies=2)
    leader, follower = live.leader(), live.followers()[0]
    fence(live, follower)
    report = live.erase(KEY, now=True)
    print(report.whole, report.failures, live.isr(), live.ids(follower))
    unfence(live, follower)
    live.put([("new", "1")])
    for step in steps.split("+"):
        if step == "replicate":
            live.cluster.replicate(check=False)
        elif step == "erase":
            print(live.erase().whole)
        elif step == "retain":
            live.clock.sleep(3600)
            live.cluster.retain(check=False)
    live.put([("new", "2")])
    print(
        steps,
        live.isr(),
        live.ids(leader),
        live.ids(follower),
        live.log(follower).local_start,
        live.replicas().view.log_start_offset,
    )
    if follower not in live.isr():
        pytest.skip("not in the ISR")
    with live.unreachable(leader):
        fence(live, leader)
        live.cluster.elect("t", check=False)
        print("leader", live.leader())
        assert live.leader() == follower
        report = live.cluster.snapshot("t", by_hand=True, check=False)
        print(report.rows, report.failures)
    unfence(live, leader)
    live.cluster.replicate(check=False)
    live.cluster.snapshot("t", by_hand=True, check=False)
    for broker in (leader, follower):
        print(broker, live.ids(broker), live.log(broker).local_start, live.state(broker))
    for broker in (leader, follower):
        assert STATE.items() <= live.state(broker).items()

"""Verify and heal beside concurrent operations: on intact storage nothing is found, and no leader resigns.

Before any of their storage calls, at random, other drivers run from beginning to end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.driver.report import Report
from stratalog.engine.upkeep.verification import audit
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults
from tests.unit.tampering import Spot, register, spot

RUNS = 1000
"""The number of runs of verify, and of heal."""
PARTS = 200
_DAMAGE = {"CORRUPT_MESSAGE", "CORRUPT_SEGMENT", "LOG_GAP", "REMOTE_OBJECT_MISSING"}


class Bystanders:
    """Other drivers of the cluster, which act between the calls of the tested driver."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.faults = Faults()
        self.live = LiveCluster(folder, brokers=4, through=self.faults.wrap)
        self.live.topic(segment_merge_min_files="2", file_delete_delay_ms="0", retention_bytes="9000")
        self.rng = random.Random(seed)
        self.other = self.live.driver()
        self.acted = 0

    def beside(self, run: Callable[[], Report], rate: float) -> Report:
        """The report of an operation during which others act."""

        def before(uri: str, what: str, name: str) -> None:
            if self.rng.random() < rate:
                self.faults.none()
                for _ in range(self.rng.choice((1, 1, 2))):
                    self.act()
                self.faults.before = before

        self.faults.before = before
        try:
            return run()
        finally:
            self.faults.none()

    def act(self) -> None:
        """Run one operation of another driver, with any outcome: a partition may be moving."""
        self.acted += 1
        other, rng = self.other, self.rng
        match rng.choice(("append",) * 5 + ("leader",) * 2 + ("replicate", "tidy", "elect", "move")):
            case "append":
                self.live.append([f"{self.acted}"], driver=other)
            case "leader":
                self.live.append([f"{self.acted}"], acks="leader", driver=other)
            case "replicate":
                other.replicate()
            case "tidy":
                for operation in (other.merge, other.replicate, other.retain, other.vacuum):
                    operation()
            case "elect":
                other.elect("t", leader=rng.choice(self.live.followers()))
            case "move":
                other.reassign({("t", 0): rng.sample((1, 2, 3, 4), 3)})


@pytest.fixture
def live(tmp_path: Path, faults: Faults) -> LiveCluster:
    """Three brokers; ``t`` holds a to c on all of them."""
    made = LiveCluster(tmp_path, through=faults.wrap)
    made.topic()
    made.fill("abc")
    return made


def before_every_listing(live: LiveCluster, faults: Faults, act: Callable[[], object]) -> None:
    """Act before every listing of a replica of ``t``."""

    def before(uri: str, what: str, name: str) -> None:
        if what == "list" and "/t-" in name:
            faults.none()
            act()
            faults.before = before

    faults.before = before


def test_a_follower_that_is_listed_again_is_not_held_against_the_leader_as_it_was_before(
    live: LiveCluster, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver appends between any two listings, so each listing shows more than the previous one."""
    monkeypatch.setattr(audit, "walk_topics", lambda *_: {})
    other = live.driver()
    before_every_listing(live, faults, lambda: live.append(["x"], driver=other).raise_for_failures())
    live.driver().verify("t").raise_for_failures()
    faults.none()
    assert len(live.read()[0]) >= 3 + 4


def test_a_leader_that_has_not_taken_over_yet_may_lack_unacknowledged_records(live: LiveCluster) -> None:
    live.append(["d"], acks="leader").raise_for_failures()
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    live.driver().verify("t").raise_for_failures()
    live.driver().heal("t").raise_for_failures()


def test_a_leader_that_has_not_taken_over_yet_must_have_what_a_member_knows_to_be_committed(
    live: LiveCluster,
) -> None:
    leader = live.followers()[0]
    spot(live, leader, 2).remove()
    register(live, leader, ".hw").remove()
    register(live, leader, ".hw").remove()
    register(live, leader, ".hw").remove()
    live.cluster.elect("t", leader=leader).raise_for_failures()
    found = {f.message for f in live.driver().verify("t").failures}
    assert any("offsets [2, 3) are missing: broker" in each for each in found), found


def test_a_damaged_file_that_no_log_uses_is_a_note(live: LiveCluster) -> None:
    live.cluster.topics.alter_configs("t", {"segment.merge.min.files": "2"})
    live.cluster.merge().raise_for_failures()
    hidden = live.log(live.leader()).hidden[0].object.name
    Spot(live.store(live.leader()), hidden).flip(30)
    for report in (live.cluster.verify("t", deep=True), live.cluster.heal("t")):
        report.raise_for_failures()
        (note,) = report.notes
        assert hidden in note
        assert "the log does not use this file" in note


def verified(driver: Cluster) -> Report:
    return driver.verify("t", deep=True)


def healed(driver: Cluster) -> Report:
    """A log that changes faster than it can be checked is a failure, but not damage."""
    return driver.heal("t", check=False)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("check", [verified, healed])
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_found_during_other_work_if_nothing_is_wrong(
    tmp_path: Path, part: int, check: Callable[[Cluster], Report], record_property: Callable[[str, object], None]
) -> None:
    beside = Bystanders(tmp_path, part)
    beside.live.fill("abc")
    for number in range(RUNS // PARTS):
        driver = beside.live.driver()
        report = beside.beside(lambda driver=driver: check(driver), beside.rng.choice((0.02, 0.1, 0.3)))  # type: ignore[misc]
        found = [failure for failure in report.failures if failure.code in _DAMAGE]
        assert not found, f"run {number}: {found}"
        if check is healed:
            assert report.rows == [], f"run {number}: {report}"
    assert beside.acted, "nobody else did anything"
    name = f"{check.__name__} beside others"
    record_property(name, {"runs without a finding": RUNS // PARTS, "operations of others": beside.acted})

"""The metadata goes away after the work of an operation: the caller still gets the report of the work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog import Failure, Report
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.healing.heal import _HealRun
from stratalog.engine.upkeep.replication import bootstrap, elect, reassign, replicate
from stratalog.engine.upkeep.retention import delete_records
from stratalog.partitions.errors import FencedLeaderEpochError, NoMajorityError, RemoteNotReadyError
from tests.unit.at_calls import during, raising
from tests.unit.cluster_harness import LiveCluster, fence, the_failure, unfence
from tests.unit.reassign_harness import replicas, two_others
from tests.unit.tampering import spot
from tests.unit.test_upkeep_elect import outdated

LostAfter = Callable[[Any, str], None]
LOST = "metadata: NO_MAJORITY: the voters do not answer"


@pytest.fixture
def lost_after(monkeypatch: pytest.MonkeyPatch) -> LostAfter:
    """A function that loses the metadata after the next call of ``owner.name``."""

    def lose() -> None:
        for name in ("image", "submit"):
            monkeypatch.setattr(MetadataClient, name, raising(NoMajorityError("the voters do not answer")))

    return lambda owner, name: during(monkeypatch, owner, name, lose, after=True)


def rows(report: Report, *columns: str) -> list[tuple[object, ...]]:
    """These columns of a report with failures."""
    return [tuple(row[name] for name in columns) for row in report.rows]


@pytest.mark.parametrize("step", ["sync_all", "_run"])
def test_replicate_reports_its_copies(live: LiveCluster, lost_after: LostAfter, step: str) -> None:
    live.topic()
    live.append(["a"], acks="leader")
    size = sum(map(len, live.data(live.leader()).values()))
    lost_after(replicate, step)
    report = live.cluster.replicate(check=False)
    assert the_failure(report) == LOST
    assert report.totals["copied_bytes"] == 2 * size
    assert not report.settled


@pytest.mark.parametrize(("step", "state"), [("replicate", "unknown"), ("_copy", "done")])
def test_reassign_reports_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost_after: LostAfter, step: str, state: str
) -> None:
    live = LiveCluster(tmp_path, brokers=5)
    live.topic()
    live.fill("abc")
    target = (*two_others(live), replicas(live)[0])
    monkeypatch.setattr(replicate, "end_throttle", lambda *_: None)  # so that it remains for reassign itself
    lost_after(reassign, step)
    report = live.cluster.reassign({("t", 0): target}, throttle_bytes_per_s=1e9, check=False)
    assert the_failure(report) == LOST
    assert rows(report, "state") == [(state,)]
    assert report.totals["copied_bytes"]


def test_bootstrap_reports_its_copies(live: LiveCluster, lost_after: LostAfter) -> None:
    live.topic()
    live.fill("abc")
    follower = live.followers()[0]
    live.wipe(follower)
    lost_after(bootstrap, "_replicate")
    report = live.cluster.bootstrap(follower, check=False)
    assert the_failure(report) == LOST
    assert rows(report, "copied_files", "remote_bytes") == [(3, None)]
    assert report.totals["remote_bytes"] is None


def test_bootstrap_reports_the_copies_of_its_earlier_attempts(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.topic()
    live.fill("abc")
    follower = live.followers()[0]
    live.wipe(follower)
    attempt = bootstrap.replicate

    def first(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(bootstrap, "replicate", raising(NoMajorityError("the voters do not answer")))
        report = attempt(*args, **named)
        report.failures.append(Failure("t-0", RemoteNotReadyError.code, "later"))
        return report

    monkeypatch.setattr(bootstrap, "replicate", first)
    report = live.cluster.bootstrap(follower, check=False)
    assert [str(one) for one in report.failures] == [LOST, f"t-0: {RemoteNotReadyError.code}: later"]
    assert rows(report, "copied_files") == [(3,)]


def test_elect_reports_its_elections(live: LiveCluster, lost_after: LostAfter) -> None:
    live.topic()
    live.fill("a")
    preferred = live.leader()
    fence(live, preferred)
    unfence(live, preferred)
    live.cluster.replicate().raise_for_failures()
    assert live.leader() != preferred
    lost_after(elect, "_commit")
    report = live.cluster.elect(check=False)
    assert the_failure(report) == LOST
    assert rows(report, "leader") == [(preferred,)]


def test_a_run_names_the_losses_of_its_unclean_elections(live: LiveCluster, lost_after: LostAfter) -> None:
    live.topic(unclean_leader_election_enable="true")
    live.append(["a"]).raise_for_failures()
    outdated(live, "t")
    lost_after(elect, "_commit")
    notes = live.cluster.replicate(check=False).notes
    assert any(note.startswith("t-0: unclean election of broker ") for note in notes)


def test_delete_records_reports_the_new_log_starts(live: LiveCluster, lost_after: LostAfter) -> None:
    live.topic()
    live.fill("abc")
    lost_after(delete_records, "_commit")
    report = live.cluster.topics.delete_records("t", {0: 2}, check=False)
    assert the_failure(report) == LOST
    assert rows(report, "low_watermark") == [(2,)]


def test_delete_records_names_the_partitions_that_it_did_not_try_again(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition had a new leader at the first commit."""
    live.topic(partitions=2)
    live.append({0: ["a"], 1: ["b"]}).raise_for_failures()
    commit = delete_records._commit

    def first(metadata: Any, image: Any, found: Any, dry_run: bool) -> Any:
        moved = ("t", 1)
        errors = commit(metadata, image, {one: start for one, start in found.items() if one != moved}, dry_run)
        monkeypatch.setattr(delete_records, "_starts", raising(NoMajorityError("the voters do not answer")))
        return {**errors, moved: FencedLeaderEpochError("another leader")}

    monkeypatch.setattr(delete_records, "_commit", first)
    report = live.cluster.topics.delete_records("t", {0: 1, 1: 1}, check=False)
    assert the_failure(report) == "t-1: NO_MAJORITY: the voters do not answer"
    assert rows(report, "partition", "low_watermark") == [(0, 1), (1, None)]


def test_heal_reports_its_repairs(live: LiveCluster, lost_after: LostAfter) -> None:
    live.topic()
    live.fill("abc")
    broker = live.followers()[0]
    spot(live, broker, 1).flip(30)
    lost_after(_HealRun, "_repair_replicas")
    report = live.driver().heal(check=False)
    assert rows(report, "broker", "outcome") == [(broker, "repaired")]
    assert LOST in map(str, report.failures)

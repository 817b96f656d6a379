"""Erasures of keys from topics with snapshots, when files of the leader are lost, or a job reads the keys
meanwhile (``stratalog.snapshots.erasure``).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from stratalog.engine.replication.snapshots import fetch_latest
from stratalog.engine.upkeep.erasing import plan as planning
from stratalog.engine.upkeep.erasing import snapshot_run
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.snapshots import partition as snapshots
from stratalog.partitions.errors import InvalidUpdateVersionError, LogGapError
from stratalog.partitions.paths import WatermarkName, base_name, parse_name
from stratalog.snapshots.erasure import next_generation, proves_change
from tests.unit.at_calls import during
from tests.unit.cluster_harness import unfence
from tests.unit.erase_harness import KEY, OTHER, SECRET, stop_at, traces
from tests.unit.erase_snapshots_harness import LATER, STATE, Erasable, erasable_topic

live = erasable_topic

# ------------------------------------------------------------------------------ lost snapshots


def lose_snapshots(live: Erasable) -> int:
    """Delete the leader's snapshots. Returns the leader."""
    leader = live.leader()
    live.store(leader).delete([stored.name for _, stored in live.log(leader).listing.checkpoints])
    return leader


def start_at_snapshot(live: Erasable) -> None:
    """Let the log start at the latest snapshot."""
    live.take()
    live.cluster.retain().raise_for_failures()


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("dry_run", [True, False])
def test_no_first_snapshot_replaces_a_lost_one(tmp_path: Path, copies: int, dry_run: bool) -> None:
    live = Erasable(tmp_path, on_disk=True).start(copies=copies)
    start_at_snapshot(live)
    live.put([(KEY, "z"), (LATER, "y")])
    leader, followers = lose_snapshots(live), live.followers()
    with ExitStack() as stack:
        for follower in followers:
            stack.enter_context(live.unreachable(follower))
        report = live.erase(KEY, dry_run=dry_run)
    [failure] = [one for one in report.failures if one.code == LogGapError.code]
    assert "the log starts at offset 6, but the latest usable snapshot ends at 0" in failure.message
    assert not report.whole
    fenced = set() if dry_run else {*followers}
    assert live.isr() == {leader, *followers} - fenced, "no member leaves the ISR because of the snapshot"
    unfence(live, *fenced)
    live.cluster.replicate()
    assert live.isr() == {leader, *followers}
    assert not live.replicas().view.erasures
    assert live.ids(leader) == []
    for follower in followers:
        assert live.held(follower) == {**STATE, KEY: f"{SECRET}-b"}
        assert live.erase(KEY, now=True).whole
        assert live.state(leader) == live.state(follower) == {**STATE, LATER: "y"}


def test_a_lost_snapshot_is_repaired_before_the_search(tmp_path: Path) -> None:
    """Only the snapshot has the key."""
    live = Erasable(tmp_path).start(copies=2)
    start_at_snapshot(live)
    leader = lose_snapshots(live)
    with live.unchanged():
        [planned] = live.erase(KEY, dry_run=True).rows
    assert planned["records"] > 0
    report = live.erase(KEY)
    assert report.whole
    assert report.rows[0]["records"] == planned["records"]
    assert live.state(leader) == STATE
    assert traces(live, KEY, SECRET) == []


def test_a_leader_without_its_snapshot_folds_no_erased_records(live: Erasable) -> None:
    """Its log still begins before the bound, as after a crash between the commit and the next step."""
    stop_at(live, "erase_partition")
    lost = {}
    for broker in (1, 2, 3):
        name = next(name for name in live.log(broker).listing.checkpoints)
        lost[broker] = live.store(broker).read(name[1].name)
        live.store(broker).delete([name[1].name])
    report = live.cluster.snapshot("t", by_hand=True, check=False)
    assert [failure.code for failure in report.failures] == [LogGapError.code]
    assert all(not live.log(broker).listing.checkpoints for broker in (1, 2, 3))
    follower = live.followers()[0]
    assert live.store(follower).create(live.replica(follower).path(name[0]), lost[follower])
    live.take()
    assert live.state(live.leader()) == STATE
    assert live.erase().whole
    live.check_erased()


# ----------------------------------------------------------------------------- lost watermarks


def test_an_erasure_never_ends_below_the_records_that_it_found(live: Erasable) -> None:
    leader = live.leader()
    replica = live.replica(leader)
    names = [stored.name for stored in replica.store.list(replica.folder)]
    replica.store.delete([name for name in names if isinstance(parse_name(base_name(name)), WatermarkName)])
    report = live.erase(KEY)
    assert report.failures[0].code == LogGapError.code
    assert not report.whole
    assert not live.replicas().view.erasures
    assert live.held(leader)[KEY] == f"{SECRET}-a"
    live.cluster.replicate().raise_for_failures()
    assert live.erase(KEY).whole
    live.check_erased()


# --------------------------------------------------------------------------------- slow jobs


def test_a_slow_job_that_has_read_the_key_names_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    eraser = live.driver()
    erased: list[ErasureReport] = []
    live.put([(OTHER, "3")])
    during(
        monkeypatch,
        snapshots,
        "_content",
        lambda: erased.append(eraser.erase("t", [KEY], check=False, now=True)),
        after=True,
    )
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    assert erased[0].certificate is not None
    assert set(live.generations(live.leader())) == {live.replicas().view.last_erasure}
    live.check_erased()


def test_an_erasure_waits_for_a_writer_that_may_have_read_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Erasable(tmp_path, on_disk=True).start()
    eraser = live.driver()
    live.put([(OTHER, "3")])
    erased: list[ErasureReport] = []
    during(
        monkeypatch, snapshots, "_content", lambda: erased.append(eraser.erase("t", [KEY], check=False, now=True))
    )
    live.cluster.snapshot("t", by_hand=True, check=False)
    assert not erased[0].whole
    assert ".tmp" in str(erased[0].rows) or "writer" in str(erased[0].rows), erased[0].rows
    assert live.erase(KEY, now=True).whole
    live.check_erased()


def test_a_follower_fetches_no_snapshot_of_a_view_from_before_an_erasure(
    live: Erasable, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = live.replicas()
    during(
        monkeypatch,
        snapshot_run,
        "rewrite_snapshot",
        lambda: fetch_latest(live.replicas(), live.replica(live.followers()[0])),
        after=True,
    )
    live.erase(KEY).raise_for_failures()
    with pytest.raises(InvalidUpdateVersionError, match="began after this view"):
        fetch_latest(before, before.replica(live.followers()[0]))


def test_a_run_that_ended_before_its_commit_stops_no_job(live: Erasable) -> None:
    stop_at(live, "AddSnapshotErasures")
    assert live.log(live.leader()).listing.other_snapshots
    live.put([(OTHER, "3")])
    live.take()
    live.cluster.replicate().raise_for_failures()
    assert live.held(3) == {**STATE, KEY: f"{SECRET}-b"}
    assert live.erase(KEY).whole
    live.check_erased()


def test_a_generation_proves_that_its_view_is_old() -> None:
    numbered = 7
    generation = next_generation(numbered)
    assert proves_change(generation, numbered - 1)
    assert not proves_change(generation, numbered), "the run may have ended without a commit"


# ------------------------------------------------------------------------------------ dry runs


def test_a_dry_run_says_that_the_run_needs_spark(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MEMORY_BYTES", 0)
    with live.unchanged():
        report = live.erase(KEY, dry_run=True)
    assert "run this job on Spark" in str(report.failures)
    assert live.erase("nobody", dry_run=True).ok


# ---------------------------------------------------------------- the first snapshot, made by hand


@pytest.mark.parametrize("erased", [False, True])
def test_a_first_snapshot_by_hand_never_replaces_a_lost_one(tmp_path: Path, erased: bool) -> None:
    """The leader has lost its snapshot, and the followers, which have it, are away for a moment."""
    live = Erasable(tmp_path, on_disk=True).start(copies=2)
    if erased:
        assert live.erase(KEY, now=True).whole
    else:
        start_at_snapshot(live)
    live.put([("new", "1")])
    leader, [follower] = lose_snapshots(live), live.followers()
    with live.unreachable(follower):
        report = live.cluster.snapshot("t", by_hand=True, check=False)
    [failure] = report.failures
    assert failure.code == LogGapError.code
    if not erased:
        assert f"Broker {follower} may have one, but cannot be listed" in failure.message
    assert live.ids(leader) == []
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    for broker in (leader, follower):
        assert STATE.items() <= live.state(broker).items()


def test_a_first_snapshot_by_hand_waits_for_the_replica_that_has_a_damaged_one(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True).start(copies=2)
    start_at_snapshot(live)
    leader, [follower] = lose_snapshots(live), live.followers()
    for _, stored in live.log(follower).listing.checkpoints:
        path = live.root(follower) / stored.name
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    live.put([("new", "1")])
    report = live.cluster.snapshot("t", by_hand=True, check=False)
    assert [one.code for one in report.failures] == [LogGapError.code]
    assert live.ids(leader) == []

"""Erasures of keys from topics with snapshots (``stratalog.snapshots.erasure``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratalog.engine.metadata.partition_commands import AdvanceLogStart, LogStart
from stratalog.engine.replicas.nearest import follower_log
from stratalog.engine.upkeep.erasing import plan as planning
from stratalog.engine.upkeep.erasing import snapshot_run, snapshot_tasks
from stratalog.engine.upkeep.erasing.report import ErasureReport
from stratalog.engine.upkeep.snapshots import snapshot as snapshotting
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    StratalogError,
)
from stratalog.partitions.paths import CheckpointName, base_name, parse_name
from stratalog.partitions.rewrites.merge import MergePolicy, plan_merges
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.snapshots.erasure import is_abandoned, next_generation
from tests.unit.at_calls import during
from tests.unit.cluster_harness import fence, unfence
from tests.unit.erase_harness import DAY_MS, KEY, OTHER, SECRET, stop_at, traces
from tests.unit.erase_snapshots_harness import LATER, STATE, Erasable, erasable_topic
from tests.unit.faulty_store import WRITES, Faults
from tests.unit.snapshot_harness import keyed

live = erasable_topic


def test_the_key_leaves_every_file_and_all_others_stay(live: Erasable, tmp_path: Path) -> None:
    before = live.state(1)
    report = live.erase(KEY, certificate=tmp_path / "certificate.json").raise_for_failures()
    assert report.whole
    assert {**before} == {**STATE, KEY: f"{SECRET}-b"}
    live.check_erased()
    [row] = report.rows
    assert (row["records"], row["files"], row["not_erased"]) == (3, 1, 0), (
        "a record that the latest snapshot has, too, counts twice"
    )
    view = live.cluster.image.view(live.cluster.image.topic("t").topic_id, 0)
    assert view.log_start_offset == 6
    assert live.cluster.verify(deep=True).ok
    verified = live.cluster.verify_erased(tmp_path / "certificate.json")
    assert {one["state"] for one in verified.rows} == {"erased"}
    assert not [one for one in live.cluster.health().rows if one["finding"] == "unfinished-erasure"]


def test_the_topic_goes_on(live: Erasable) -> None:
    live.erase(KEY).raise_for_failures()
    live.put([(KEY, "again"), ("new", "1")])
    live.take()
    assert live.state(1) == live.state(3) == {**STATE, KEY: "again", "new": "1"}
    assert live.ids(1)[-1].endswith(f".{live.replicas().view.last_erasure}")
    live.cluster.topics.alter_configs("t", {"retention.ms": "1000000"})
    live.cluster.retain().raise_for_failures()
    assert live.erase(KEY).raise_for_failures().whole
    assert traces(live, KEY) == []
    assert live.state(2) == {**STATE, "new": "1"}


def test_a_dry_run_changes_nothing_and_counts(live: Erasable) -> None:
    with live.unchanged():
        report = live.erase(KEY, dry_run=True)
    [row] = report.rows
    assert (row["records"], row["files"]) == (3, 1)
    assert row["deleted_files"] > 0


def test_a_key_that_is_nowhere_makes_nothing(live: Erasable) -> None:
    before = live.ids(1)
    assert live.erase("nobody").raise_for_failures().whole
    assert live.ids(1) == before
    assert live.state(1)[KEY] == f"{SECRET}-b"


def test_an_older_snapshot_of_a_key_that_has_a_tombstone_goes_too(live: Erasable) -> None:
    live.put([(KEY, None)], at_ms=1)
    live.take()
    live.clock.sleep(2 * DAY_MS / 1000)
    live.put([(OTHER, "3")])
    live.take()
    assert KEY not in live.held(1)
    assert live.erase(KEY).raise_for_failures().whole
    live.check_erased()


def test_the_files_wait_for_their_delay_unless_now(tmp_path: Path) -> None:
    live = Erasable(tmp_path).start(file_delete_delay_ms="60000")
    report = live.erase(KEY)
    assert not report.whole
    assert not report.failures
    assert traces(live, KEY)
    assert [one["finding"] for one in live.cluster.health().rows if one["finding"] == "unfinished-erasure"]
    live.clock.sleep(61)
    assert live.erase().whole
    live.check_erased()
    live.put([(KEY, SECRET)])
    assert live.erase(KEY, now=True).whole
    assert traces(live, KEY, SECRET) == []


def test_a_protected_topic_is_refused(live: Erasable) -> None:
    live.cluster.topics.protect("t", days=1)
    with live.unchanged(), pytest.raises(PolicyViolationError, match="it is protected"):
        live.erase(KEY)


# ---------------------------------------------------------------------------------- crashes


@pytest.mark.sample(4)
@pytest.mark.parametrize("number", range(1, 60, 2))
def test_a_driver_that_dies_at_any_write_leaves_a_whole_state(tmp_path: Path, number: int) -> None:
    faults = Faults()
    live = Erasable(tmp_path, through=faults.wrap).start()
    with faults.dies_at(number, *WRITES):
        live.erase(KEY)
    assert STATE.items() <= live.state(live.leader()).items()
    assert live.driver().erase("t", [KEY], check=False).whole
    live.check_erased()
    assert live.cluster.verify(deep=True).ok


STEPS = ["find_keys", "rewrite_snapshot", "AddSnapshotErasures", "erase_partition", "clean", "forget"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("elected", [False, True])
def test_the_next_run_goes_on(live: Erasable, step: str, elected: bool) -> None:
    stop_at(live, step)
    if elected:
        live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    committed = STEPS.index(step) > STEPS.index("AddSnapshotErasures")
    if committed:
        with pytest.raises(OffsetOutOfRangeError):
            live.cluster.plan_read("t", start={0: 0}, partitions=[0])
        assert live.erase().whole, "it needs no keys"
        live.check_erased()
    assert live.erase(KEY).whole
    live.check_erased()


# ------------------------------------------------------------------------------------ races


def test_a_slow_snapshot_job_brings_no_key_back(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has made its snapshot under the view from before the erasure, and copies it, moves the log start, and
    deletes what that replaces."""
    eraser = live.driver()
    live.put([(OTHER, "3")])
    erased: list[ErasureReport] = []
    during(
        monkeypatch,
        snapshotting._SnapshotRun,
        "_make",
        lambda: erased.append(eraser.erase("t", [KEY], check=False)),
        after=True,
    )
    live.cluster.snapshot("t", by_hand=True)
    assert erased[0].certificate is not None
    for broker in (1, 2, 3):
        assert live.state(broker) == STATE
        assert set(live.generations(broker)) == {live.replicas().view.last_erasure}
    live.put([(OTHER, "3")])
    live.take()
    assert live.erase(KEY).whole
    live.check_erased()


def test_a_job_that_read_the_metadata_before_the_commit_reads_them_again(
    live: Erasable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshots of its view are gone, and the one that follows the erasure has the next generation."""
    views: list[Any] = []
    with monkeypatch.context() as patch:
        numbered = live.driver()._ports.metadata
        during(patch, snapshot_run, "rewrite_snapshot", lambda: views.append(numbered.image()))
        assert live.erase(KEY).whole
    monkeypatch.setattr(snapshotting, "probe_first", lambda *_: views[0])
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    live.check_erased()


def test_a_log_start_of_an_outdated_snapshot_is_refused(live: Erasable) -> None:
    before = live.replicas().view
    live.erase(KEY).raise_for_failures()
    live.put([(OTHER, "4")])
    [answer] = live.cluster._ports.metadata.submit(
        AdvanceLogStart((LogStart(*before.key, 7, before.leader_epoch, before.generation),))
    )
    assert "follows erasure 0" in str(answer.error)  # type: ignore[union-attr]


def outdated(live: Erasable, broker: int) -> str:
    """Write the snapshot of a slow job to a replica: one from before the erasure. Returns its path."""
    replica = live.replica(broker)
    name = live.log(broker).listing.checkpoints[-1][0]
    return replica.path(CheckpointName(name.end_offset, name.epoch))


def test_a_late_outdated_snapshot_is_used_by_no_one_and_deleted_by_who_meets_it(live: Erasable) -> None:
    live.take()
    old = {broker: live.store(broker).read(outdated(live, broker)) for broker in (1, 2, 3)}
    paths = {broker: outdated(live, broker) for broker in (1, 2, 3)}
    live.erase(KEY).raise_for_failures()
    for broker in (1, 2, 3):
        assert live.store(broker).create(paths[broker], old[broker])
    for broker in (1, 2, 3):
        assert live.state(broker) == STATE
    assert live.cluster.verify(deep=True).ok
    assert live.cluster.heal().ok
    live.put([(OTHER, "3")])
    live.take()
    live.put([(OTHER, "3")])
    live.take()
    live.check_erased()


def test_two_at_once_harm_nothing(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    other = live.driver()
    during(monkeypatch, snapshot_tasks, "copy_to_members", lambda: other.erase("t", [LATER], check=False))
    assert live.erase(KEY).whole
    assert live.erase(KEY, LATER).whole
    assert live.state(1) == {OTHER: "3"}
    assert traces(live, KEY, SECRET, LATER) == []


def test_an_append_of_the_key_after_the_bound_stays(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    during(monkeypatch, snapshot_run, "rewrite_snapshot", lambda: live.put([(KEY, "later")]))
    live.erase(KEY)
    for broker in (1, 2, 3):
        assert live.state(broker) == {**STATE, KEY: "later"}
    assert traces(live, SECRET) == []


def test_an_erasure_continues_after_an_election(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    other = live.driver()
    during(
        monkeypatch,
        snapshot_tasks,
        "copy_to_members",
        lambda: other.elect("t", leader=live.followers()[0]).raise_for_failures(),
        after=True,
    )
    assert live.erase(KEY).whole
    live.check_erased()


# ---------------------------------------------------------------------------------- replicas


def test_a_replica_that_was_away_is_named_and_cleaned_when_it_is_back(tmp_path: Path) -> None:
    live = Erasable(tmp_path, on_disk=True).start()
    away = live.followers()[-1]
    with live.unreachable(away):
        report = live.erase(KEY)
        assert not report.whole
        assert any(f"broker {away}" in failure.message for failure in report.failures)
    assert away not in live.isr()
    assert traces(live, KEY)
    assert live.generations(away) == []
    replicas = live.replicas()
    assert follower_log(replicas, away, replicas.leader.log()) is None, "no read uses it"
    members = sorted(live.isr())
    fence(live, *members)
    with pytest.raises(StratalogError, match="not every replica has applied an erasure"):
        live.cluster.elect("t", unclean=True).raise_for_failures()
    unfence(live, *members)
    live.cluster.replicate().raise_for_failures()
    assert set(live.generations(away)) == {live.replicas().view.last_erasure}
    assert live.erase(KEY, now=True).whole
    live.check_erased()
    assert away in live.isr()


def test_a_fenced_leader_of_old_is_no_way_back(live: Erasable) -> None:
    old = live.leader()
    fence(live, old)
    assert live.leader() != old
    live.erase(KEY)
    assert live.state(live.leader()) == STATE
    unfence(live, old)
    live.cluster.replicate().raise_for_failures()
    live.cluster.elect("t", leader=old).raise_for_failures()
    assert live.state(old) == STATE
    assert live.erase(KEY).whole
    live.check_erased()


def test_the_names_of_all_snapshots_have_the_generation(live: Erasable) -> None:
    live.erase(KEY).raise_for_failures()
    names = [parse_name(base_name(name)) for name in live.on_brokers() if "/t-" in name]
    view = live.replicas().view
    assert {one.generation for one in names if isinstance(one, CheckpointName)} == {view.last_erasure}
    assert is_abandoned(view.last_erasure, view.partition_epoch)
    assert not is_abandoned(next_generation(view.partition_epoch), view.partition_epoch)


def test_an_open_transaction_is_outside(live: Erasable) -> None:
    transaction = live.cluster.transactions.begin("x")
    transaction.append_batches("t", {0: [keyed([(KEY, "open")], live.clock.now_ms())]})
    report = live.erase(KEY)
    assert not report.whole
    assert "1 wanted records are at or above the last stable offset 6" in str(report.failures)
    assert traces(live, SECRET) == []
    transaction.commit()
    live.take()
    assert live.held(1) == {**STATE, KEY: "open"}
    assert live.erase(KEY).whole
    live.check_erased()


def test_a_late_merge_across_the_bound_keeps_no_key(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was planned before the erasure, and gets its name after it."""
    leader = live.leader()
    replica = live.replica(leader)
    live.put([(LATER, "x")])
    policy = MergePolicy(segment_bytes=10**9, segment_ms=1, min_files=2)
    (run,) = plan_merges(live.log(leader), policy, 0, 10**12)
    merge_run(replica, run, compression="zstd")
    path = replica.path(run.segment_name)
    merged = replica.store.read(path)
    replica.store.delete([path])
    bound = live.take
    during(monkeypatch, snapshot_run.SnapshotErasing, "remove", lambda: (live.put([(OTHER, "3")]), bound()))
    live.erase(KEY)
    assert live.store(leader).create(path, merged)
    live.erase()
    assert live.erase(KEY).whole
    live.check_erased()


def test_heal_and_verify_use_current_snapshots_only(live: Erasable) -> None:
    live.take()
    follower = live.followers()[0]
    path = outdated(live, follower)
    old = live.store(follower).read(path)
    live.erase(KEY).raise_for_failures()
    leader = live.leader()
    [(name, stored)] = live.log(leader).listing.checkpoints
    live.store(leader).delete([stored.name])
    assert live.store(follower).create(path, old)
    assert not live.cluster.verify().ok
    live.cluster.heal().raise_for_failures()
    assert [one for one, _ in live.log(leader).listing.checkpoints] == [name]
    assert live.state(leader) == STATE
    assert live.erase(KEY).whole
    live.check_erased()


def test_a_snapshot_that_spark_must_make_is_named_before_anything_changes(
    live: Erasable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MEMORY_BYTES", 0)
    before = live.on_brokers()
    report = live.erase(KEY)
    assert "run this job on Spark" in str(report.failures)
    assert {name for name in before if "/t-" in name} == {name for name in live.on_brokers() if "/t-" in name}
    assert not live.replicas().view.erasures


def test_a_try_under_a_later_view_commits_nothing(live: Erasable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task begins again after an election. Its snapshot has the generation of the view before."""
    rewrite, done = snapshot_run.rewrite_snapshot, []

    def fail_once(work: Any) -> Any:
        if not done:
            done.append(True)
            live.driver().elect("t", leader=live.followers()[0]).raise_for_failures()
            raise FencedLeaderEpochError("the view is old")
        return rewrite(work)

    monkeypatch.setattr(snapshot_run, "rewrite_snapshot", fail_once)
    assert live.erase(KEY).whole
    assert live.generations(live.leader()) == [live.replicas().view.last_erasure]
    live.check_erased()

"""Reassign on a whole cluster: replicas move, nothing is lost, and interruptions do no harm."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from stratalog.engine.upkeep.replication import reassign
from stratalog.partitions.errors import (
    InvalidCallError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    UnknownBrokerError,
    UnknownTopicOrPartitionError,
)
from tests.unit.at_calls import during
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure, unfence
from tests.unit.faulty_store import Faults
from tests.unit.reassign_harness import replicas, two_others, without_copies
from tests.unit.tampering import remote_spot, spot


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return LiveCluster(tmp_path, brokers=5)


# ------------------------------------------------------------------------------- carried out


def test_replicas_move_and_the_log_is_the_same(live: LiveCluster) -> None:
    """New replicas are filled first; the old ones leave with the commit that adds the last new one to the ISR."""
    live.topic()
    live.fill("abc")
    before = live.data(live.leader())
    target = (*two_others(live), replicas(live)[0])
    report = live.cluster.reassign({("t", 0): target})
    assert rows_of(report, "replicas", "state") == [(" ".join(map(str, target)), "done")]
    assert report.totals["copied_bytes"] == 2 * sum(map(len, before.values()))
    assert (replicas(live), live.isr()) == (target, set(target))
    assert live.replicas().view.target == ()
    for broker in target:
        assert live.data(broker) == before
    live.append(["d"]).raise_for_failures()
    assert live.read() == {0: list("abcd")}
    live.cluster.verify().raise_for_failures()


def test_a_leader_that_moves_away_is_followed_by_one_of_the_new_replicas(live: LiveCluster) -> None:
    live.topic(copies=2)
    live.append(["a"]).raise_for_failures()
    old = live.leader()
    target = tuple(sorted({1, 2, 3, 4, 5} - {*replicas(live)})[:2])
    live.cluster.reassign({("t", 0): target}).raise_for_failures()
    assert old not in target
    assert live.leader() == target[0]
    live.append(["b"]).raise_for_failures()
    assert live.read() == {0: ["a", "b"]}


def test_another_order_is_done_at_once_and_needs_no_copy(live: LiveCluster) -> None:
    live.topic()
    live.append(["a"]).raise_for_failures()
    turned = replicas(live)[::-1]
    report = live.cluster.reassign({("t", 0): turned})
    assert rows_of(report, "state", "copied_bytes") == [("done", 0)]
    assert report.notes[-1] == "1 partitions are not led by their preferred replica: run elect"
    live.cluster.elect().raise_for_failures()
    assert live.leader() == turned[0]


def test_many_partitions_are_one_commit(live: LiveCluster) -> None:
    live.topic(partitions=4)
    live.append({p: ["a"] for p in range(4)}).raise_for_failures()
    plan = {("t", p): replicas(live, partition=p)[:2] for p in range(4)}
    before = live.cluster.image.next_offset
    live.cluster.reassign(plan).raise_for_failures()
    assert live.cluster.image.next_offset == before + 4  # one record for each
    assert [replicas(live, partition=p) for p in range(4)] == list(plan.values())


def test_a_plan_that_is_already_true_changes_nothing(live: LiveCluster) -> None:
    live.topic()
    live.cluster.replicate()
    with live.unchanged():
        report = live.cluster.reassign({("t", 0): replicas(live)})
    assert rows_of(report, "state") == [("done",)]


def test_a_dry_run_changes_nothing_and_says_who_joins_and_who_leaves(live: LiveCluster) -> None:
    live.topic()
    stays, *leave = replicas(live)
    join = two_others(live)
    with live.unchanged():
        report = live.cluster.reassign({("t", 0): (stays, *join)}, dry_run=True)
    assert rows_of(report, "joining", "leaving") == [(" ".join(map(str, join)), " ".join(map(str, leave)))]


# ---------------------------------------------------------------------------------- worked out


def test_a_drained_broker_holds_nothing_and_everything_else_stays(live: LiveCluster) -> None:
    live.topic("t", partitions=6)
    live.topic("u", partitions=4, copies=2)
    live.append({p: [f"v{p}"] for p in range(6)}).raise_for_failures()
    before = live.cluster.image
    plan = live.cluster.plan_replicas(drain=[3])
    assert plan == live.cluster.plan_replicas(drain=[3])
    live.cluster.reassign(plan).raise_for_failures()
    after = live.cluster.image
    for name in ("t", "u"):
        for old, new in zip(before.topic(name).partitions, after.topic(name).partitions, strict=True):
            assert 3 not in new.replicas
            assert len(new.replicas) == len(old.replicas)
            assert {*old.replicas} - {3} <= {*new.replicas}
            assert new.isr == new.replicas or set(new.isr) == set(new.replicas)
    firsts = [p.replicas[0] for name in ("t", "u") for p in after.topic(name).partitions]
    assert max(map(firsts.count, (1, 2, 4, 5))) - min(map(firsts.count, (1, 2, 4, 5))) <= 1
    assert live.read() == {p: [f"v{p}"] for p in range(6)}


def test_replicas_are_added_removed_moved_and_counted(live: LiveCluster) -> None:
    live.topic(copies=2)
    one, two = replicas(live)
    free = sorted({1, 2, 3, 4, 5} - {one, two})
    assert live.cluster.plan_replicas("t", add=[free[0]]) == {("t", 0): (one, two, free[0])}
    assert live.cluster.plan_replicas("t", add=[one]) == {}
    assert live.cluster.plan_replicas("t", remove=[two]) == {("t", 0): (one,)}
    assert live.cluster.plan_replicas("t", move={two: free[1]}) == {("t", 0): (one, free[1])}
    (grown,) = live.cluster.plan_replicas("t", replication_factor=5).values()
    assert (grown[:2], set(grown)) == ((one, two), {1, 2, 3, 4, 5})
    assert live.cluster.plan_replicas("t", replication_factor=1) == {("t", 0): (one,)}


def test_fewer_replicas_are_those_in_sync(live: LiveCluster) -> None:
    live.topic()
    lame = replicas(live)[1]
    fence(live, lame)
    (kept,) = live.cluster.plan_replicas("t", replication_factor=2).values()
    assert set(kept) == {*replicas(live)} - {lame}


def test_a_broker_that_is_gone_for_good_is_drained_like_any_other(live: LiveCluster) -> None:
    live.topic(partitions=4)
    live.append({p: [f"v{p}"] for p in range(4)}).raise_for_failures()
    fence(live, 2)
    live.cluster.reassign(live.cluster.plan_replicas(drain=[2])).raise_for_failures()
    for p in range(4):
        assert 2 not in replicas(live, partition=p)
        assert live.isr(partition=p) == set(replicas(live, partition=p))
    assert live.read() == {p: [f"v{p}"] for p in range(4)}


def test_a_request_refers_to_the_result_of_a_reassignment_in_progress(tmp_path: Path) -> None:
    faults = Faults()
    live = LiveCluster(tmp_path, brokers=5, through=faults.wrap)
    live.topic(copies=2)
    live.append(["a"]).raise_for_failures()
    one, two = replicas(live)
    third, fourth, _ = sorted({1, 2, 3, 4, 5} - {one, two})
    without_copies(faults, third)
    assert not live.cluster.reassign({("t", 0): (one, third)}, check=False).ok
    assert live.cluster.plan_replicas("t", add=[fourth]) == {("t", 0): (one, third, fourth)}


def test_a_change_that_cannot_be_made_names_the_partitions(live: LiveCluster) -> None:
    live.topic(partitions=2, copies=5)
    image = live.cluster.image
    with live.unchanged():
        with pytest.raises(InvalidReplicaAssignmentError, match="t-0, t-1: no unfenced broker is left to"):
            live.cluster.plan_replicas("t", drain=[2])
        with pytest.raises(InvalidReplicationFactorError, match="t-0, t-1: replication factor 6, but only"):
            live.cluster.plan_replicas("t", replication_factor=6)
        with pytest.raises(InvalidReplicaAssignmentError, match="t-0, t-1: broker 2 already has a replica"):
            live.cluster.plan_replicas("t", move={1: 2})
        with pytest.raises(InvalidReplicaAssignmentError, match="t-0, t-1: without broker 1, 2, 3, 4, 5 no"):
            live.cluster.plan_replicas("t", remove=[1, 2, 3, 4, 5])
        with pytest.raises(InvalidReplicaAssignmentError, match="broker 2 would both get and lose replicas"):
            live.cluster.plan_replicas("t", add=[2], remove=[2])
        with pytest.raises(UnknownBrokerError, match="not registered: broker 8, 9"):
            live.cluster.plan_replicas("t", add=[8, 9])
        with pytest.raises(UnknownTopicOrPartitionError, match="'u' does not exist"):
            live.cluster.plan_replicas("u", drain=[1])
    assert live.cluster.image == image


# ------------------------------------------------------------------------------------ refused


def test_a_plan_that_is_wrong_as_a_whole_changes_nothing(live: LiveCluster) -> None:
    """Bad input: an unknown or the same broker, partitions that do not exist (all named)."""
    live.topic(partitions=2)
    with live.unchanged():
        with pytest.raises(UnknownTopicOrPartitionError, match="do not exist: t-2, u-0; nothing was changed"):
            live.cluster.reassign({("t", 0): (1,), ("t", 2): (1,), ("u", 0): (1,)})
        with pytest.raises(UnknownBrokerError, match="not registered: broker 7, 9"):
            live.cluster.reassign({("t", 0): (1, 9), ("t", 1): (7,)})
        with pytest.raises(InvalidReplicaAssignmentError, match=r"t-0: the plan gives it broker 4 twice"):
            live.cluster.reassign({("t", 0): (4, 1, 4), ("t", 1): (1,)})
        with pytest.raises(InvalidReplicaAssignmentError, match="t-1: the plan gives it no replica at all"):
            live.cluster.reassign({("t", 0): (4,), ("t", 1): ()})
        with pytest.raises(InvalidCallError, match="give more than 0"):
            live.cluster.reassign({("t", 0): (4,)}, throttle_bytes_per_s=0)


def test_the_last_replica_in_sync_is_not_removed_without_force(live: LiveCluster) -> None:
    """Bad input is refused without ``--force``; other partitions continue."""
    live.topic("t", copies=2)
    live.topic("u", copies=2)
    live.append(["a"]).raise_for_failures()
    last = live.leader("t")
    fence(live, live.followers("t")[0])
    (lame,) = {*replicas(live, "t")} - {last}
    plan = {("t", 0): (lame,), ("u", 0): replicas(live, "u")[::-1]}
    report = live.cluster.reassign(plan, check=False)
    failure = the_failure(report)
    assert failure.startswith("t-0: INVALID_REPLICA_ASSIGNMENT: ")
    assert "would leave no in-sync replica" in failure
    assert [row["state"] for row in report.rows] == ["refused", "done"]
    assert live.isr("t") == {last}
    report = live.cluster.reassign({("t", 0): (lame,)}, force=True)
    assert (replicas(live), live.isr(), live.replicas().view.leader) == ((lame,), set(), None)
    assert rows_of(report, "state") == [("done",)]


def test_a_fenced_newcomer_is_refused_until_it_is_back(live: LiveCluster) -> None:
    live.topic(partitions=2, copies=2)
    new = next(b for b in (1, 2, 3, 4, 5) if all(b not in replicas(live, partition=p) for p in (0, 1)))
    fence(live, new)
    plan = {("t", 0): (replicas(live)[0], new)}
    failure = the_failure(live.cluster.reassign(plan, check=False))
    assert f"broker {new} is fenced" in failure
    unfence(live, new)
    live.cluster.reassign(plan).raise_for_failures()
    assert live.isr() == set(plan["t", 0])


# ----------------------------------------------------------------------------------- throttled


def test_a_throttled_reassignment_takes_its_time(live: LiveCluster) -> None:
    live.topic(copies=1)
    live.fill("abcdef")
    size = sum(map(len, live.data(live.leader()).values()))
    new = next(b for b in (1, 2, 3, 4, 5) if b not in replicas(live))
    began = live.clock.monotonic_s()
    live.cluster.reassign({("t", 0): (new,)}, throttle_bytes_per_s=size / 10).raise_for_failures()
    assert live.clock.monotonic_s() - began == pytest.approx(9, abs=0.1)  # the first second's worth is free
    assert live.read() == {0: list("abcdef")}


# ------------------------------------------------------------------------------------ property


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_whatever_is_reassigned_and_cancelled_every_acknowledged_record_stays_in_order(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    faults = Faults()
    live = LiveCluster(tmp_path, brokers=4, through=faults.wrap)
    live.topic(partitions=2, copies=2, segment_merge_min_files="3", file_delete_delay_ms="0")
    other = live.driver()
    expected: dict[int, list[str]] = {0: [], 1: []}
    for step in range(14):
        driver = rng.choice([live.cluster, other])
        match rng.choice(
            ["append", "append", "reassign", "reassign", "cancel", "replicate", "elect", "merge", "sweep"]
        ):
            case "append":
                partition, value = rng.randrange(2), f"v{step}"
                live.append({partition: [value]}, driver=driver).raise_for_failures()
                expected[partition].append(value)
            case "reassign":
                if rng.random() < 0.4:
                    without_copies(faults, rng.randint(1, 4))
                target = rng.sample([1, 2, 3, 4], rng.randint(1, 3))
                report = driver.reassign({("t", rng.randrange(2)): target}, check=False)
                assert set(codes(report)) <= {"KAFKA_STORAGE_ERROR", "REASSIGNMENT_IN_PROGRESS"}
                faults.none()
            case "cancel":
                driver.cancel_reassignments().raise_for_failures()
            case "replicate":
                driver.replicate().raise_for_failures()
            case "elect":
                driver.elect()
            case "merge":
                driver.merge().raise_for_failures()
            case _:
                driver.vacuum().raise_for_failures()
        assert live.read() == {p: values for p, values in expected.items() if values}, f"after step {step}"
    live.cluster.replicate().raise_for_failures()
    assert rows_of(live.cluster.reassignments()) == []
    for partition in (0, 1):
        held = replicas(live, partition=partition)
        assert live.isr(partition=partition) == set(held)
    live.cluster.verify().raise_for_failures()


# ------------------------------------------------------- nobody goes before what stays was read


def test_replicas_do_not_go_where_nobody_whole_would_stay(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("abc")
    spot(live, 1, 1).flip(40)
    refused = live.cluster.reassign({("t", 0): (1,)}, check=False)
    assert "no intact replica would remain" in the_failure(refused)
    assert replicas(live) == (1, 2, 3)
    live.cluster.heal().raise_for_failures()
    live.cluster.reassign({("t", 0): (1,)}).raise_for_failures()
    assert (replicas(live), live.read()) == ((1,), {0: list("abc")})


def test_one_whole_replica_that_stays_is_enough_and_the_damage_is_reported(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.fill("abc")
    spot(live, 1, 1).flip(40)
    report = live.cluster.reassign({("t", 0): (1, 2)}).raise_for_failures()
    assert any("run heal" in note for note in report.notes)
    live.cluster.heal().raise_for_failures()
    assert live.read() == {0: list("abc")}


@pytest.mark.slow
def test_replicas_go_while_remote_segments_expire(tmp_path: Path, faults: Faults) -> None:
    """A missing object may not be needed: the table is read again before the object is called missing."""
    live = LiveCluster(tmp_path, brokers=2, through=faults.wrap)
    live.cluster.topics.alter_configs(None, {"follower.fetch.last.tiered.offset.enable": "true"})
    live.tiered(copies=1, local_retention_bytes="-2")
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    leader, other = live.leader(), live.driver()

    def expire_first(uri: str, what: str, name: str) -> None:
        if uri.endswith("/remote") and what == "open" and name.endswith(".parquet"):
            faults.none()
            other.topics.delete_records("t", {0: 2}).raise_for_failures()
            other.retain().raise_for_failures()
            live.clock.advance_ms(2 * 3_600_000)
            other.retain().raise_for_failures()
            other.vacuum().raise_for_failures()
            expired.append(name)

    expired: list[str] = []
    faults.before = expire_first
    live.cluster.reassign({("t", 0): (3 - leader,)}).raise_for_failures()
    assert expired
    assert not (live.remote / expired[0]).exists()
    assert live.read() == {0: list("cd")}


@pytest.mark.slow
def test_replicas_do_not_go_while_the_remote_lacks_what_only_they_have(tmp_path: Path) -> None:
    """The new replica begins at the end of the remote log; one earlier object is damaged."""
    live = LiveCluster(tmp_path, brokers=2)
    live.cluster.topics.alter_configs(None, {"follower.fetch.last.tiered.offset.enable": "true"})
    live.tiered(copies=1, local_retention_bytes="-2")
    live.fill("abcd")
    live.cluster.tier().raise_for_failures()
    remote_spot(live, 1).flip(40)
    leader = live.leader()
    refused = live.cluster.reassign({("t", 0): (3 - leader,)}, check=False)
    assert "run heal before you remove the replicas that have the records" in the_failure(refused)
    assert replicas(live) == (leader,)
    live.cluster.heal().raise_for_failures()
    live.cluster.reassign({("t", 0): (3 - leader,)}).raise_for_failures()
    assert live.read() == {0: list("abcd")}


def test_a_replica_may_be_gone_by_another_reassignment_meanwhile(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later reassignment counts; it sees the partition as it is at that time."""
    live.topic()
    live.fill("abc")
    moved, rest = replicas(live)[0], replicas(live)[1:]
    during(monkeypatch, reassign, "_check_cover", partial(live.driver().reassign, {("t", 0): rest}))
    live.cluster.reassign({("t", 0): rest[:1]}).raise_for_failures()
    assert moved not in replicas(live)
    assert replicas(live) == rest[:1]

"""The snapshot job on the replicas of a topic: their snapshots, and the deletions (KIP-630)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.snapshots import fetch_latest
from stratalog.engine.upkeep.snapshots.read_snapshot import locate
from stratalog.partitions.errors import FencedLeaderEpochError, LogGapError, StorageError, UnknownLeaderEpochError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import codes, rows_of, the_failure
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.snapshot_harness import DAY_MS, Keyed, checkpoint


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path).begin()


# ------------------------------------------------------------------------------ on which replicas


def test_every_live_replica_gets_the_same_bytes(live: Keyed) -> None:
    """One replica makes it, and the same run lets the others fetch it."""
    live.put([("a", "1")])
    live.take()
    assert {checkpoint(live, broker).read() for broker in (1, 2, 3)} == {checkpoint(live, live.leader()).read()}


def test_a_follower_that_was_away_gets_it_by_the_next_replicate(tmp_path: Path) -> None:
    """Sync copies snapshots as it copies data; an append does not wait for them."""
    live = Keyed(tmp_path, on_disk=True).begin()
    live.put([("a", "1")])
    away = live.followers()[0]
    live.cluster.brokers.fence(away).raise_for_failures()
    live.take()
    assert live.ids(away) == []
    live.cluster.brokers.unfence(away)
    live.put([("b", "1")])
    assert live.ids(away) == []
    live.cluster.replicate("t").raise_for_failures()
    assert live.ids(away) == ["1-1"]
    assert live.isr() == {1, 2, 3}


def test_a_follower_below_the_log_start_takes_the_snapshot_first(live: Keyed) -> None:
    """KIP-630, "Changes to Leader Election": fetch the snapshot, start the log at its end, then fetch the log."""
    live.put([("a", "1"), ("b", "1")])
    lost = live.followers()[0]
    live.wipe(lost)
    live.put([("a", "2")])
    live.take()
    live.clock.sleep(100)
    live.put([("c", "1")])
    live.cluster.retain("t")
    live.clock.sleep(100)
    live.cluster.retain("t")
    assert live.replicas().view.log_start_offset == 3
    live.cluster.bootstrap(lost).raise_for_failures()
    log = live.log(lost)
    assert live.ids(lost) == ["3-1"]
    assert (log.local_start, log.log_end) == (3, 4)
    assert live.isr() == {1, 2, 3}
    assert live.state(lost) == {"a": "2", "b": "1", "c": "1"}


def test_a_follower_that_parted_ways_below_the_log_start_takes_the_snapshot(tmp_path: Path) -> None:
    """KIP-630, "Overview": "with an offset and last fetched epoch greater than or equal to the LogStartOffset"; if
    the logs agree only below it, there is no offset to truncate to."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    live.put([("a", "1")])
    ahead, (heir,) = live.leader(), live.followers()
    live.cluster.brokers.fence(heir).raise_for_failures()
    live.put([(key, "lost") for key in "bcdef"])
    live.cluster.brokers.fence(ahead, force=True).raise_for_failures()
    live.cluster.brokers.unfence(heir).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    live.put([("b", "2"), ("c", "2")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    live.put([("d", "3")])
    assert (live.leader(), live.log(heir).local_start) == (heir, 3)
    live.cluster.brokers.unfence(ahead).raise_for_failures()
    live.cluster.replicate("t").raise_for_failures()
    assert live.ids(ahead) == live.ids(heir)
    assert (live.log(ahead).local_start, live.log(ahead).log_end) == (3, 4)
    assert live.state(ahead) == {"a": "1", "b": "2", "c": "2", "d": "3"}


@pytest.mark.slow
def test_the_snapshot_is_in_place_before_the_log_starts_at_its_end(tmp_path: Path) -> None:
    """Whatever interrupts a follower: the local start never exists without its snapshot."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1"), ("b", "1")])
    lost = live.followers()[0]
    live.wipe(lost)
    live.put([("a", "2")])
    live.take()
    live.cluster.retain("t")
    live.clock.sleep(100)
    live.cluster.retain("t")
    stopped = 0
    for nth in range(1, 100):
        left = nth

        def stop(uri: str, what: str, name: str) -> None:
            nonlocal left
            if uri == f"memory://b{lost}" and what in CHANGES and "/t-" in name:
                left -= 1
                if left == 0:
                    raise StorageError("full")

        faults.before = stop
        report = (
            live.cluster.bootstrap(lost, check=False) if nth == 1 else live.cluster.replicate("t", check=False)
        )
        faults.none()
        listing = live.replica(lost).list()
        assert listing.local_start in (0, 3)
        assert listing.local_start == 0 or [name.end_offset for name, _ in listing.checkpoints] == [3]
        stopped += not report.ok
        if report.ok and left > 0:
            break
    assert stopped > 3
    live.cluster.replicate("t").raise_for_failures()
    assert live.state(lost) == {"a": "2", "b": "1"}
    assert live.replica(lost).list().chunks == ()


@pytest.mark.slow
def test_a_damaged_snapshot_is_skipped_and_not_copied(live: Keyed) -> None:
    """The previous one and the log after it are used, and the report says so."""
    live.put([("a", "1")])
    live.take()
    live.put([("b", "1")])
    live.take()
    leader = live.leader()
    lacking, other = live.followers()
    for broker in (leader, other):
        checkpoint(live, broker).flip(700)
    for name, _ in live.log(lacking).listing.checkpoints:
        live.store(lacking).delete([live.replica(lacking).path(name)])
    report = live.cluster.snapshot("t")
    assert any("skipped a damaged snapshot" in note for note in report.notes)
    assert live.ids(lacking) == ["1-1"]
    live.put([("c", "1")])
    live.take()
    assert live.held(leader) == {"a": "1", "b": "1", "c": "1"}
    assert live.held(lacking) == live.held(leader)


@pytest.mark.slow
def test_a_leader_whose_snapshot_is_damaged_gets_a_whole_copy_of_a_follower(live: Keyed) -> None:
    """The snapshot's records are no longer in the log: without it, the next one would lose them."""
    live.put([("a", "1"), ("b", "1")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    live.clock.sleep(100)
    live.cluster.retain("t").raise_for_failures()
    whole = checkpoint(live, live.leader()).read()
    checkpoint(live, live.leader()).flip(700)
    live.put([("c", "1")])
    report = live.cluster.snapshot("t").raise_for_failures()
    assert rows_of(report, "outcome") == [("not now",)]
    assert checkpoint(live, live.leader()).read() == whole
    checkpoint(live, live.leader()).remove()
    live.take()
    assert live.held(live.leader()) == {"a": "1", "b": "1", "c": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("heirs", [(4,), (1,)])
def test_old_and_new_replicas_have_the_whole_snapshot_though_the_leaders_is_damaged(
    tmp_path: Path, heirs: tuple[int, ...]
) -> None:
    """The snapshot's records are no longer in the log: the old replicas leave once their heir has it."""
    live = with_a_snapshot_alone(tmp_path)
    assert live.leader() == 1
    checkpoint(live, 1).flip(700)
    live.driver().reassign({("t", 0): heirs}).raise_for_failures()
    live.driver().verify("t", deep=True).raise_for_failures()
    assert live.state(heirs[0]) == {"a": "1", "b": "1"}


@pytest.mark.slow
@pytest.mark.parametrize("heirs", [(4,), (1,)])
def test_no_replica_goes_if_no_snapshot_covers_what_left_the_log(tmp_path: Path, heirs: tuple[int, ...]) -> None:
    live = with_a_snapshot_alone(tmp_path)
    for broker in (1, 2, 3):
        checkpoint(live, broker).flip(700)
    report = live.driver().reassign({("t", 0): heirs}, check=False)
    assert "only this snapshot replaces the records below offset 1" in the_failure(report)
    assert set(live.replicas().view.replicas) == {1, 2, 3}


def test_a_snapshot_is_read_from_a_follower_where_the_leaders_is_damaged(tmp_path: Path) -> None:
    live = with_a_snapshot_alone(tmp_path)
    assert live.leader() == 1
    checkpoint(live, 1).flip(700)
    checkpoint(live, 2).flip(700)
    _, (located,) = with_ports(locate, ports_of(live.cluster))("t")
    assert (located.broker_id, located.stored.name) == (3, checkpoint(live, 3).path)
    checkpoint(live, 3).flip(700)
    with pytest.raises(LogGapError, match="no readable replica has a usable snapshot"):
        with_ports(locate, ports_of(live.cluster))("t")


def with_a_snapshot_alone(folder: Path) -> Keyed:
    live = Keyed(folder, brokers=4).begin()
    live.cluster.reassign({("t", 0): (1, 2, 3)}).raise_for_failures()
    live.put([("a", "1")])
    live.take()
    live.put([("b", "1")])
    for _ in range(2):
        live.cluster.retain("t").raise_for_failures()
        live.clock.sleep(61_000)
    assert live.log(live.leader()).local_start == 1
    return live


def test_without_any_snapshot_of_what_left_the_log_none_is_made(live: Keyed) -> None:
    """Records that only old snapshots held are never left out silently."""
    live.put([("a", "1")])
    live.take()
    live.cluster.retain("t").raise_for_failures()
    live.put([("b", "1")])
    for broker in (1, 2, 3):
        checkpoint(live, broker).flip(700)
    assert codes(live.cluster.snapshot("t", by_hand=True, check=False)) == {"LOG_GAP": 1}
    for broker in (1, 2, 3):
        checkpoint(live, broker).remove()
    assert codes(live.cluster.snapshot("t", check=False)) == {"LOG_GAP": 1}


def test_a_topic_may_get_the_policy_when_its_log_start_has_grown(tmp_path: Path) -> None:
    """Records that retention had deleted by then are not needed; an operator confirms this by the first snapshot
    by hand."""
    live = Keyed(tmp_path).begin(cleanup_policy="delete", retention_bytes="1")
    live.put([("a", "1")])
    live.put([("b", "1")])
    live.cluster.retain("t").raise_for_failures()
    live.cluster.topics.alter_configs("t", {"cleanup.policy": "snapshot"})
    assert "take the first snapshot by hand" in the_failure(live.cluster.snapshot("t", check=False))
    live.take()
    assert live.held(live.leader()) == {"b": "1"}


# ------------------------------------------------------------------------------ what it lets go


def test_the_log_start_grows_when_all_live_replicas_have_it(live: Keyed) -> None:
    """KIP-630, "When to Increase the LogStartOffset"; local starts follow by retain."""
    live.put([("a", "1")])
    assert rows_of(live.take(), "log_start") == [(1,)]
    assert live.replicas().view.log_start_offset == 1
    assert {live.log(broker).local_start for broker in (1, 2, 3)} == {0}
    live.cluster.retain("t").raise_for_failures()
    assert {live.log(broker).local_start for broker in (1, 2, 3)} == {1}


def test_retention_does_not_move_the_log_start(live: Keyed) -> None:
    """Only a snapshot replaces records that leave the log."""
    live.cluster.topics.alter_configs("t", {"retention.ms": "1", "retention.bytes": "1"})
    live.put([("a", "1")], at_ms=1)
    live.put([("b", "1")], at_ms=1)
    live.clock.sleep(1000)
    assert rows_of(live.cluster.retain("t"), "log_start") == [(0,)]


def no_snapshot_on(broker: int, faults: Faults) -> None:
    """The disk of the broker is full when a snapshot arrives."""
    faults.refuse(StorageError("the disk is full"), *CHANGES, at=f"b{broker}", of=".checkpoint")


def test_a_slow_replica_is_waited_for_and_a_fenced_one_is_not(tmp_path: Path) -> None:
    """KIP-630: "All of the live replicas ... have replicated LogStartOffset"."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    slow = live.followers()[0]
    no_snapshot_on(slow, faults)
    report = live.cluster.snapshot("t", by_hand=True, check=False)
    assert codes(report) == {"KAFKA_STORAGE_ERROR": 1}
    assert live.replicas().view.log_start_offset == 0
    live.cluster.brokers.fence(slow).raise_for_failures()
    live.cluster.snapshot("t").raise_for_failures()
    assert live.replicas().view.log_start_offset == 1


def test_no_replica_is_waited_for_forever(tmp_path: Path) -> None:
    """KIP-630: "or LogStartOffset is metadata.start.offset.lag.time.max.ms milliseconds old"."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin(metadata_start_offset_lag_time_max_ms="5000")
    live.put([("a", "1")])
    slow = live.followers()[0]
    no_snapshot_on(slow, faults)
    live.cluster.snapshot("t", by_hand=True, check=False)
    live.clock.sleep(4)
    live.cluster.snapshot("t", check=False)
    assert live.replicas().view.log_start_offset == 0
    live.clock.sleep(1)
    live.cluster.snapshot("t", check=False)
    assert live.replicas().view.log_start_offset == 1
    live.cluster.retain("t")
    assert live.log(live.leader()).local_start == 1
    assert (
        live.log(slow).local_start == 0
    )  # KIP-630: the minimum of the leader's start and the largest local snapshot


@pytest.mark.slow
def test_snapshots_below_the_log_start_go_after_the_delay_and_the_latest_never(live: Keyed) -> None:
    """KIP-630, "When to Delete Snapshots"; file.delete.delay.ms for the sake of running readers."""
    live.put([("a", "1")])
    live.take()
    live.put([("a", "2")])
    live.take()
    assert live.ids(1) == ["1-1", "2-1"]
    live.clock.sleep(61)
    report = live.cluster.snapshot("t").raise_for_failures()
    assert rows_of(report, "deleted") == [(3,)]
    assert {tuple(live.ids(broker)) for broker in (1, 2, 3)} == {("2-1",)}
    live.clock.sleep(DAY_MS / 1000)
    live.cluster.snapshot("t").raise_for_failures()
    assert {tuple(live.ids(broker)) for broker in (1, 2, 3)} == {("2-1",)}


@pytest.mark.slow
def test_segments_that_a_snapshot_covers_stay_if_it_goes_bad_while_the_delay_passes(live: Keyed) -> None:
    live.put([("a", "1")])
    live.take()
    live.put([("a", "2")])
    live.cluster.retain("t").raise_for_failures()
    victim = live.followers()[0]
    assert live.log(victim).local_start == 1
    checkpoint(live, victim).flip(700)
    live.clock.sleep(61)
    assert f"t-0 on broker {victim}: CORRUPT_SEGMENT" in the_failure(live.driver().retain("t", check=False))
    assert {broker: len(live.log(broker).listing.data) for broker in (1, 2, 3)} == {1: 1, 2: 1, 3: 1} | {victim: 2}
    live.take()
    live.driver().retain("t").raise_for_failures()
    assert f"{0:020d}.{1:010d}.parquet" not in live.data(victim)
    assert live.held(victim) == {"a": "2"}


def test_a_log_stays_if_the_snapshot_that_would_cover_it_is_damaged_and_retain_says_so(live: Keyed) -> None:
    live.put([("a", "1")])
    live.take()
    victim = live.followers()[0]
    checkpoint(live, victim).flip(700)
    failure = the_failure(live.cluster.retain("t", check=False))
    assert failure.startswith(f"t-0 on broker {victim}: CORRUPT_SEGMENT")
    assert "the part of the log that the snapshot would replace remains: take a new snapshot" in failure
    assert {broker: live.log(broker).local_start for broker in (1, 2, 3)} == {1: 1, 2: 1, 3: 1} | {victim: 0}


@pytest.mark.slow
def test_nothing_is_deleted_before_its_successor_is_verified(live: Keyed) -> None:
    """A replica whose later snapshot is damaged keeps the earlier one."""
    live.put([("a", "1")])
    live.take()
    live.put([("a", "2")])
    live.take()
    victim = live.followers()[0]
    checkpoint(live, victim).flip(700)
    live.clock.sleep(61)
    live.cluster.snapshot("t")
    assert live.ids(victim) == ["1-1", "2-1"]
    assert live.ids(live.leader()) == ["2-1"]
    assert live.held(victim) == {"a": "2"}  # repaired; the next run but one deletes
    live.clock.sleep(61)
    live.cluster.snapshot("t").raise_for_failures()
    assert live.ids(victim) == ["2-1"]


def test_a_follower_fetches_from_the_leader_of_its_view_or_says_why_not(live: Keyed) -> None:
    """KIP-630, "Request Handling", "Errors": the leader epoch of the request is older, or newer."""
    live.put([("a", "1")])
    follower = live.followers()[0]
    live.cluster.brokers.fence(follower).raise_for_failures()
    live.take()
    live.cluster.brokers.unfence(follower)
    replicas = live.replicas()

    def fetched(epoch: int) -> None:
        view = replace(replicas.view, leader_epoch=epoch)
        fetch_latest(PartitionReplicas(view, replicas.stores), replicas.replica(follower))

    with pytest.raises(FencedLeaderEpochError):
        fetched(replicas.epoch - 1)
    with pytest.raises(UnknownLeaderEpochError, match=f"does not know leader epoch {replicas.epoch + 1} yet"):
        fetched(replicas.epoch + 1)
    assert live.ids(follower) == []
    fetched(replicas.epoch)
    assert live.ids(follower) == ["1-1"]

"""The snapshot job while leaders change, other runs overlap, and runs are interrupted (KIP-630)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from stratalog import Cluster
from stratalog.engine.replication import snapshots as replication
from stratalog.partitions.errors import (
    RetriableError,
    StorageError,
)
from stratalog.partitions.paths import CheckpointName, ChunkName, base_name, parse_name
from tests.unit.cluster_harness import codes, rows_of
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.snapshot_harness import Keyed, checkpoint, keyed

pytestmark = pytest.mark.slow


@pytest.fixture
def live(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path).begin()


# ------------------------------------------------------------------------------- other leaders


def test_a_new_leader_continues_from_the_snapshots_of_the_old_one(live: Keyed) -> None:
    """The epoch in the name is that of the last contained record, not the current one."""
    live.put([("a", "1")])
    live.take()
    live.cluster.elect("t", leader=live.followers()[0]).raise_for_failures()
    assert rows_of(live.take(), "outcome", "snapshot") == [("not now", "1-1")]
    live.put([("b", "1")])
    assert rows_of(live.take(), "outcome", "snapshot") == [("made", "2-2")]
    assert {frozenset(live.state(broker).items()) for broker in (1, 2, 3)} == {
        frozenset({"a": "1", "b": "1"}.items())
    }


def elected_before(
    faults: Faults, driver: Cluster, when: Callable[[str, str, str], bool], heirs: Sequence[int]
) -> None:
    """Before each call that ``when(root, call, name)`` selects, elect the next of these brokers."""
    left = list(heirs)

    def strike(uri: str, what: str, name: str) -> None:
        if when(uri, what, name) and left:
            heir = left.pop(0)
            faults.none()
            driver.elect("t", leader=heir).raise_for_failures()
            driver.append_batches("t", {0: [keyed([(f"of {heir}", "1")], 1)]}).raise_for_failures()
            faults.before = strike

    faults.before = strike


def makes_snapshot(uri: str, what: str, name: str) -> bool:
    return what == "stage" and name.endswith(".checkpoint")


def test_a_run_whose_leader_is_replaced_meanwhile_continues_under_the_new_one(tmp_path: Path) -> None:
    """Write, then check: before a snapshot gets its name, the leader is read once more. FENCED_LEADER_EPOCH: the
    written part is discarded, and the partition processed again, in the same run."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    heir = live.followers()[0]
    elected_before(faults, live.driver(), makes_snapshot, [heir])
    report = live.cluster.snapshot("t", by_hand=True)
    assert rows_of(report, "outcome", "snapshot") == [("made", "2-2")]
    assert [live.ids(broker) for broker in (1, 2, 3)] == [["2-2"]] * 3
    assert live.leader() == heir


def test_a_run_whose_leader_is_replaced_again_and_again_ends(tmp_path: Path) -> None:
    """Three views, and no more: FENCED_LEADER_EPOCH is its failure, and nothing was made."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    one, two = live.followers()
    elected_before(faults, live.driver(), makes_snapshot, [one, two, one, two])
    assert codes(live.cluster.snapshot("t", by_hand=True, check=False)) == {"FENCED_LEADER_EPOCH": 1}
    faults.none()
    assert [live.ids(broker) for broker in (1, 2, 3)] == [[], [], []]
    assert live.leader() == one, "it was replaced three times"
    assert rows_of(live.take(), "outcome") == [("made",)]


def test_a_follower_whose_leader_is_replaced_between_two_chunks_continues_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-630, "Fetching Snapshots": CurrentLeaderEpoch of every request; FENCED_LEADER_EPOCH. Fetched chunks
    stay, because the new leader has the same bytes."""
    monkeypatch.setattr(replication, "RESPONSE_MAX_BYTES", 600)
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin()
    live.put([("a", "1")])
    heir, last = live.followers()
    positions: list[int] = []

    def second_chunk(uri: str, what: str, name: str) -> bool:
        part = parse_name(base_name(name))
        if uri != f"memory://b{last}" or what != "create" or not isinstance(part, ChunkName):
            return False
        positions.append(part.position)
        return len(positions) == 2

    elected_before(faults, live.driver(), second_chunk, [heir])
    live.cluster.snapshot("t", by_hand=True).raise_for_failures()
    assert live.leader() == heir
    assert [live.ids(broker) for broker in (1, 2, 3)] == [["1-1"]] * 3
    assert positions == list(range(0, len(checkpoint(live, heir).read()), 600)), "none was fetched twice"
    assert live.replicas().view.log_start_offset == 1
    assert live.log(last).listing.chunks == ()


def test_a_log_start_that_was_found_under_another_leader_is_looked_for_again(tmp_path: Path) -> None:
    """AdvanceLogStart carries the leader epoch: after an unclean election the old leader's offset may be beyond
    the log, and later appends would be below the log start."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin(copies=2, unclean_leader_election_enable="true")
    leader, behind = live.put_beside_a_fenced_follower()
    other = live.driver()
    named = False

    def replace_leader(uri: str, what: str, name: str) -> None:
        nonlocal named
        named |= what == "commit" and name.endswith(".checkpoint")
        if named and what == "create" and "__cluster_metadata" in name:
            faults.none()
            other.brokers.unfence(behind).raise_for_failures()
            other.brokers.fence(leader, force=True).raise_for_failures()
            other.elect("t", unclean=True).raise_for_failures()

    faults.before = replace_leader
    report = live.cluster.snapshot("t", by_hand=True)
    assert live.leader() == behind
    assert live.log(behind).log_end == 1
    assert live.replicas().view.log_start_offset == 0
    assert report.ok


def test_after_an_unclean_election_the_snapshot_of_the_old_leader_is_what_is_left(tmp_path: Path) -> None:
    """The log below the log start no longer exists; the old leader's snapshot still exists when it returns, and
    belongs to the current history: the next one is based on it."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    leader, behind = live.put_beside_a_fenced_follower()
    live.take()
    live.cluster.brokers.fence(leader, force=True).raise_for_failures()
    live.cluster.brokers.unfence(behind).raise_for_failures()
    live.cluster.elect("t", unclean=True)
    live.put([("c", "3")])
    assert "LOG_GAP" in codes(live.cluster.snapshot("t", check=False))
    live.cluster.brokers.unfence(leader).raise_for_failures()
    live.cluster.replicate("t").raise_for_failures()
    live.take()
    assert live.leader() == behind
    assert live.held(behind) == live.held(leader) == {"a": "2", "b": "2", "c": "3"}


def test_a_replica_leads_from_the_end_of_its_snapshot_where_its_log_ends_before(tmp_path: Path) -> None:
    """KIP-630, "Changes to Leader Election": the replica "needs to use the snapshot ... and not the replicated
    log"; "Validation of Snapshot and Log": it "must set the LogStartOffset and LEO to O1"."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    leader, behind = live.put_beside_a_fenced_follower()
    live.cluster.brokers.unfence(behind).raise_for_failures()
    live.take()  # the follower gets the snapshot, and its log continues to end at 1
    assert (live.ids(behind), live.log(behind).log_end) == (["3-1"], 1)
    live.cluster.brokers.fence(leader, force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True).raise_for_failures()
    assert live.leader() == behind
    live.put([("c", "3")])
    log = live.log(behind)
    assert (log.local_start, log.log_end) == (3, 4)
    assert live.state(behind) == {"a": "2", "b": "2", "c": "3"}
    live.cluster.brokers.unfence(leader).raise_for_failures()
    live.cluster.replicate("t").raise_for_failures()
    assert live.state(leader) == live.state(behind)
    live.cluster.verify("t", deep=True).raise_for_failures()


def test_a_damaged_snapshot_makes_nobody_lead_from_its_end(tmp_path: Path) -> None:
    """Every byte is verified before anything depends on it."""
    live = Keyed(tmp_path, on_disk=True).begin(copies=2, unclean_leader_election_enable="true")
    leader, behind = live.put_beside_a_fenced_follower()
    live.cluster.brokers.unfence(behind).raise_for_failures()
    live.take()
    checkpoint(live, behind).flip(700)
    live.cluster.brokers.fence(leader, force=True).raise_for_failures()
    live.cluster.elect("t", unclean=True)
    assert live.leader() == behind
    assert live.log(behind).local_start < 3


def test_snapshots_of_a_history_that_was_given_up_count_for_nothing(live: Keyed) -> None:
    """The epoch in the name identifies them; they are deleted when the log start has passed them."""
    live.put([("a", "1"), ("b", "1")])
    leader = live.replica(live.leader())
    leader.store.create(leader.path(CheckpointName(1, 9)), b"of epoch 9, which this history never had at offset 0")
    assert live.cluster.snapshots("t").rows == []
    live.take()
    live.put([("c", "1")])
    live.take()
    assert live.ids(live.leader()) == ["1-9", "2-1", "3-1"]
    live.clock.sleep(61)
    live.cluster.snapshot("t").raise_for_failures()
    assert live.ids(live.leader()) == ["3-1"]


# ----------------------------------------------------------------------------------- two at once


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(12))
def test_two_runs_at_once_do_no_harm(tmp_path: Path, seed: int) -> None:
    """At a random change of one run another one runs from beginning to end, and also appends."""
    faults = Faults()
    live = Keyed(tmp_path, through=faults.wrap).begin(file_delete_delay_ms="0")
    rng = random.Random(seed)
    twin: dict[str, str] = {}

    def put() -> None:
        pairs = [(rng.choice("abcd"), str(rng.randrange(100))) for _ in range(3)]
        live.put(pairs)
        twin.update(pairs)

    other = live.driver()
    for _ in range(4):
        put()
        left = rng.randrange(1, 12)

        def interrupt(uri: str, what: str, name: str) -> None:
            nonlocal left
            left -= what in CHANGES and "/t-" in name
            if left == 0:
                faults.none()
                put()
                live.take(other)
                other.retain("t").raise_for_failures()

        faults.before = interrupt
        live.cluster.snapshot("t", by_hand=True).raise_for_failures()
        faults.none()
        live.cluster.retain("t").raise_for_failures()
        live.clock.sleep(1)
    live.take()
    assert {frozenset(live.state(broker).items()) for broker in (1, 2, 3)} == {frozenset(twin.items())}
    assert live.cluster.verify("t", deep=True).ok


@pytest.mark.sample(1)
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every one"])
def test_a_run_that_stops_anywhere_is_continued(tmp_path: Path, step: int) -> None:
    """I7: the n-th change of a run fails, and so do all later ones; the next run does the rest."""
    for nth in range(1, 40, step):
        faults = Faults()
        folder = tmp_path / str(nth)
        folder.mkdir()
        live = Keyed(folder, through=faults.wrap).begin(file_delete_delay_ms="0")
        live.put([("a", "1")])
        live.take()
        live.put([("a", "2"), ("b", "1")])
        left = nth

        def stop(uri: str, what: str, name: str) -> None:
            nonlocal left
            left -= what in CHANGES
            if left <= 0 and what in CHANGES:
                raise StorageError("the driver is dead")

        faults.before = stop
        with suppress(RetriableError):  # the metadata's only voter is on that storage, too
            live.cluster.snapshot("t", by_hand=True, check=False)
        faults.none()
        other = live.driver()
        other.snapshot("t", by_hand=True).raise_for_failures()
        other.retain("t").raise_for_failures()
        assert [live.state(broker) for broker in (1, 2, 3)] == [{"a": "2", "b": "1"}] * 3
        assert {tuple(live.ids(broker)) for broker in (1, 2, 3)} == {("3-1",)}
        if left > 0:
            return
    raise AssertionError("a run of so many changes was not thought of")

"""Append and replicate on a whole cluster: acknowledgements, the ISR, lost disks, unreachable brokers."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stratalog.partitions.errors import (
    InvalidRecordError,
    OutcomeUnknownError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.root import format_root
from tests.unit.cluster_harness import LiveCluster, offsets_of, rows_of, the_failure
from tests.unit.faulty_store import Faults
from tests.unit.harness import batch


@pytest.fixture
def disks(tmp_path: Path) -> LiveCluster:
    """Brokers on folders, which can be unmounted."""
    return LiveCluster(tmp_path, on_disk=True)


# ------------------------------------------------------------------------------------- append


def test_an_append_goes_to_many_partitions_at_once_and_each_gets_its_offsets(live: LiveCluster) -> None:
    """Protocol, section 2, Append: one file per partition, acknowledged by one look at the metadata."""
    live.topic(partitions=4)
    first = live.append({0: ["a", "b"], 1: ["x"], 3: ["y"]})
    assert offsets_of(first) == {0: (0, 2), 1: (0, 1), 3: (0, 1)}
    assert first.totals["records"] == 4
    assert offsets_of(live.append({3: ["z"]})) == {3: (1, 2)}
    assert live.read() == {0: ["a", "b"], 1: ["x"], 3: ["y", "z"]}
    for broker in (1, 2, 3):
        assert live.data(broker) == live.data(live.leader())


def test_a_partition_without_records_is_left_alone(live: LiveCluster) -> None:
    live.topic(partitions=2)
    with live.unchanged():
        assert live.append({0: [], 1: []}).rows == []


def test_a_sequence_that_is_appended_again_answers_with_its_first_offsets(live: LiveCluster) -> None:
    """Contract: "idempotent by producer name + sequence ... a re-run of the whole job"."""
    live.topic(partitions=2)
    first = live.append({0: ["a"], 1: ["x"]}, producer="p", sequence=7)
    again = live.append({0: ["a"], 1: ["x"]}, producer="p", sequence=7)
    assert offsets_of(again) == offsets_of(first)
    assert rows_of(again, "outcome") == [("duplicate",), ("duplicate",)]
    assert live.read() == {0: ["a"], 1: ["x"]}


def test_a_sequence_may_come_to_other_partitions_than_the_one_before(live: LiveCluster) -> None:
    """A micro-batch may have nothing for a partition: gaps are allowed, lower sequences are not."""
    live.topic(partitions=2)
    live.append({0: ["a"]}, producer="p", sequence=1)
    live.append({1: ["x"]}, producer="p", sequence=2)
    assert rows_of(live.append({0: ["b"], 1: ["x"]}, producer="p", sequence=2), "outcome") == [
        ("acknowledged",),
        ("duplicate",),
    ]
    assert rows_of(live.append({0: ["a"]}, producer="p", sequence=1), "outcome") == [("duplicate",)]
    assert "OUT_OF_ORDER_SEQUENCE_NUMBER" in the_failure(live.append({0: ["z"]}, producer="p", sequence=0))
    assert live.read() == {0: ["a", "b"], 1: ["x"]}


def test_records_with_acks_leader_are_seen_when_the_next_replicate_has_proved_them(live: LiveCluster) -> None:
    """Protocol, section 2: "promises nothing but an attempt: a later sync makes it durable"."""
    live.topic()
    live.append(["a"])
    live.append(["b"], acks="leader")
    assert live.read() == {0: ["a"]}
    assert rows_of(live.cluster.replicate(), "log_end", "high_watermark") == [(2, 2)]
    assert live.read() == {0: ["a", "b"]}


def test_with_too_small_an_isr_nothing_is_appended(live: LiveCluster) -> None:
    """min.insync.replicas: the refusal, NOT_ENOUGH_REPLICAS, comes before step 3."""
    live.topic(copies=3, min_insync_replicas="3")
    live.append(["a"])
    live.wipe(2)
    _format_anew(live, 2)
    with live.unchanged():
        assert "min.insync.replicas is 3" in the_failure(live.append(["b"]))
    live.append(["c"], acks="leader").raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    live.append(["d"]).raise_for_failures()
    assert live.read() == {0: ["a", "c", "d"]}


def test_nothing_is_committed_while_the_isr_is_below_min_insync_replicas(live: LiveCluster) -> None:
    """KIP-966: the high watermark does not advance, for any acks (I9); a consumer never gets a record that an
    unclean election may replace. The high watermark advances in the run that adds the others to the ISR again.
    """
    live.topic(min_insync_replicas="2")
    live.append(["a"]).raise_for_failures()
    live.cluster.brokers.fence([2, 3]).raise_for_failures()
    live.append(["b"], acks="leader").raise_for_failures()
    assert rows_of(live.cluster.replicate(), "isr", "log_end", "high_watermark") == [("1", 2, 1)]
    assert live.read() == {0: ["a"]}
    live.cluster.brokers.unfence(2).raise_for_failures()
    assert rows_of(live.cluster.replicate(), "isr", "log_end", "high_watermark") == [("1 2", 2, 2)]
    assert live.read() == {0: ["a", "b"]}


def test_a_partition_with_fewer_replicas_than_min_insync_replicas_needs_all_of_them(live: LiveCluster) -> None:
    """Kafka's effective minimum (KIP-966), so that such a topic accepts appends."""
    live.topic(copies=2, min_insync_replicas="3")
    live.append(["a"]).raise_for_failures()
    live.append(["b"], acks="leader").raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    assert live.read() == {0: ["a", "b"]}
    live.cluster.brokers.fence([min(live.followers())]).raise_for_failures()
    assert "NOT_ENOUGH_REPLICAS:" in the_failure(live.append(["c"]))
    live.append(["c"], acks="leader").raise_for_failures()
    assert rows_of(live.cluster.replicate(), "log_end", "high_watermark") == [(3, 2)]


def test_batches_that_do_not_fit_the_topic_are_refused(live: LiveCluster) -> None:
    """Bad input: partition out of range; other columns."""
    live.topic(partitions=2)
    with live.unchanged():
        with pytest.raises(UnknownTopicOrPartitionError, match="'t' has no partition 2"):
            live.append({0: ["a"], 2: ["b"]})
        with pytest.raises(UnknownTopicOrPartitionError, match="'u' does not exist"):
            live.append(["a"], "u")
        with pytest.raises(InvalidRecordError, match="'headers' is missing"):
            live.cluster.append_batches("t", {0: [batch(["a"]).select(["timestamp", "key", "value"])]})


@pytest.mark.slow
def test_two_attempts_of_one_append_at_once_append_once(live: LiveCluster) -> None:
    """Contract: "safe for ... speculation"; protocol, section 2, step 2."""
    live.topic(partitions=2)
    drivers = [live.driver() for _ in range(4)]
    for sequence in range(5):
        with ThreadPoolExecutor(len(drivers)) as pool:
            runs = [
                pool.submit(live.append, {0: ["a"], 1: ["b"]}, producer="p", sequence=sequence, driver=driver)
                for driver in drivers
            ]
            places = [offsets_of(run.result()) for run in runs]
        assert places == [{0: (sequence, sequence + 1), 1: (sequence, sequence + 1)}] * len(drivers)
    assert live.read() == {0: ["a"] * 5, 1: ["b"] * 5}


@pytest.mark.slow
def test_drivers_that_append_at_once_get_one_offset_each(live: LiveCluster) -> None:
    """Protocol, section 2, step 3: "It exists already: someone else appended first, go to 1"."""
    live.topic()
    drivers = [live.driver() for _ in range(4)]
    with ThreadPoolExecutor(len(drivers)) as pool:
        runs = [pool.submit(live.append, [str(n)], driver=drivers[n % 4]) for n in range(24)]
        places = [offsets_of(run.result())[0][0] for run in runs]
    assert sorted(places) == list(range(24))
    assert sorted(live.read()[0], key=int) == [str(n) for n in range(24)]


def test_an_append_whose_leader_is_lost_on_the_way_goes_to_the_next_one(tmp_path: Path) -> None:
    """Protocol, section 2, step 6: "else refresh and go to 1 with the same sequence"."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(partitions=3)
    p = next(p for p in range(3) if live.leader(partition=p) == 2)
    live.append({p: ["a"]}).raise_for_failures()
    other = live.driver()

    def lose_the_leader() -> None:
        live.wipe(2)
        other.bootstrap(2)

    faults.once(lose_the_leader, "commit", at="memory://b2", after=True)
    assert rows_of(live.append({p: ["b"]}), "outcome", "base_offset") == [("acknowledged", 1)]
    assert live.leader(partition=p) != 2
    assert live.read() == {p: ["a", "b"]}
    assert live.data(2, partition=p) == live.data(live.leader(partition=p), partition=p)


def test_appends_without_a_producer_make_the_log_know_one_for_each_that_was_at_work_at_once(
    live: LiveCluster,
) -> None:
    """Step 2: every file has the producer state; it does not grow with the number of appends."""
    live.topic("t")
    live.topic("u")
    for value in "abc":
        live.append([value]).raise_for_failures()
        live.append([value], "u").raise_for_failures()
    assert len(_producers(live)) == len(_producers(live, "u")) == 1
    live.append(["d"], driver=live.driver()).raise_for_failures()
    live.append(["e"]).raise_for_failures()
    assert len(_producers(live)) == 2
    assert live.read() == {0: list("abcde")}


def test_the_caller_of_an_unknown_outcome_without_a_producer_learns_how_to_try_again(tmp_path: Path) -> None:
    """I3: the reported name belongs to that append alone; no other append uses it."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.append(["a"]).raise_for_failures()

    faults.refuse(OutcomeUnknownError("no answer"), "commit", after=True)
    lost = live.append(["b"])
    faults.none()
    assert [row["outcome"] for row in lost.rows] == ["unknown"]
    (note,) = [note for note in lost.notes if note.startswith("unknown partitions")]
    found = re.fullmatch(r".*: run the append again with producer '(.*)', sequence (\d+), within a day", note)
    assert found is not None
    producer, sequence = found.groups()
    live.append(["c"]).raise_for_failures()
    again = live.append(["b"], producer=producer, sequence=int(sequence))
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 1)]
    assert live.read() == {0: ["a", "b", "c"]}


def _producers(live: LiveCluster, topic: str = "t") -> set[str]:
    """The producers in the state at the end of the log."""
    leader = live.replica(live.leader(topic), topic)
    return set(leader.producers(leader.log()))


@pytest.mark.parametrize("times", [1, 2])
def test_a_sequence_is_a_duplicate_only_if_an_earlier_call_has_appended_it(tmp_path: Path, times: int) -> None:
    """Protocol, section 2, step 6: the same call may have put the new leader's records there."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    for _ in range(times - 1):
        live.append(["a"], producer="p", sequence=1).raise_for_failures()
    follower, other = live.followers()[0], live.driver()

    def elect_the_follower(uri: str, what: str, name: str) -> None:
        at_last = "commit" if times == 1 else "list"  # a duplicate commits no file
        if (uri, what) == (f"memory://b{follower}", at_last) and "/0." in name:
            faults.none()
            other.elect("t", leader=follower).raise_for_failures()

    faults.after = elect_the_follower
    report = live.append(["a"], producer="p", sequence=1)
    assert rows_of(report, "outcome") == [("acknowledged" if times == 1 else "duplicate",)]
    assert live.leader() == follower
    assert live.read() == {0: ["a"]}


@pytest.mark.parametrize("times", [1, 2])
def test_a_duplicate_is_one_also_where_its_first_leader_failed_in_the_sync(tmp_path: Path, times: int) -> None:
    """Such an attempt has written nothing, so the next leader's records are those of the earlier call, if there
    was one.
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic(copies=2)
    for producer in ("other", "p")[:times]:
        live.append(["a"], producer=producer, sequence=1).raise_for_failures()
    leader, follower, other = live.leader(), live.followers()[0], live.driver()
    listed: list[str] = []

    def fail_in_the_sync(uri: str, what: str, name: str) -> None:
        if what == "list" and "/0." in name:
            listed.append(uri)
            if listed[-2:] == [f"memory://b{follower}", f"memory://b{leader}"]:
                faults.none()
                other.elect("t", leader=follower).raise_for_failures()
                raise StorageError(f"{uri} is away")

    faults.before = fail_in_the_sync
    report = live.append(["a"], producer="p", sequence=1, driver=live.driver())
    assert live.leader() == follower
    assert rows_of(report, "outcome", "base_offset") == [("acknowledged" if times == 1 else "duplicate", 1)]


def test_a_disk_that_was_replaced_is_found_before_anything_on_it_counts(live: LiveCluster) -> None:
    """Protocol, section 4, Register: "a root found with another directory id is another incarnation"."""
    live.topic()
    live.append(["a"]).raise_for_failures()
    live.wipe(3)
    format_root(live.store(3), "c", 3, live.new_id)
    report = live.append(["b"]).raise_for_failures()
    assert any("broker 3" in note for note in report.notes)
    assert live.isr() == {1, 2}
    live.cluster.replicate().raise_for_failures()
    assert live.isr() == {1, 2, 3}
    assert live.data(3) == live.data(1)


# ------------------------------------------------------------------- lost disks, and the ISR


def _format_anew(live: LiveCluster, broker: int) -> None:
    """Format the broker's root as another incarnation, and register it; nothing is replicated to it."""
    format_root(live.store(broker), "c", broker, live.new_id)
    live.cluster.brokers.register([broker]).raise_for_failures()


def test_a_broker_that_lost_its_disk_is_another_incarnation_and_leaves_every_isr(live: LiveCluster) -> None:
    """KIP-903; protocol, section 4, Register: "the old one leaves every ISR ... every partition it led gets a
    new leader epoch"."""
    live.topic(partitions=3)
    live.append({p: [f"v{p}"] for p in range(3)})
    before = live.cluster.image
    led = next(p for p in range(3) if live.leader(partition=p) == 2)
    live.wipe(2)
    _format_anew(live, 2)
    after = live.cluster.image
    assert after.brokers[2].broker_epoch > before.brokers[2].broker_epoch
    assert after.brokers[2].directory_id != before.brokers[2].directory_id
    assert [live.isr(partition=p) for p in range(3)] == [{1, 3}] * 3
    old, new = before.topic("t").partitions[led], after.topic("t").partitions[led]
    assert new.leader != 2
    assert new.leader_epoch == old.leader_epoch + 1
    assert live.read() == {p: [f"v{p}"] for p in range(3)}


def test_a_caught_up_follower_enters_the_isr_in_two_commits(live: LiveCluster) -> None:
    """Protocol, section 4, Expand: commit *adding*, sync again, commit *in the ISR*."""
    live.topic()
    live.append(["a", "b"])
    live.wipe(2)
    _format_anew(live, 2)
    epoch = live.replicas().view.partition_epoch
    report = live.cluster.replicate().raise_for_failures()
    view = live.replicas().view
    assert (set(view.isr), view.adding, view.partition_epoch) == ({1, 2, 3}, (), epoch + 2)
    assert report.totals["copied_bytes"] == sum(map(len, live.data(1).values()))
    assert live.data(2) == live.data(1)


def test_between_the_two_commits_appends_wait_for_the_newcomer_already(tmp_path: Path) -> None:
    """Protocol, section 4: "from here on an append needs F's acknowledgement too", even after the proposer's
    death; the next run completes the expansion."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.append(["a"])
    live.wipe(2)
    _format_anew(live, 2)

    def die_once_it_is_being_added(uri: str, what: str, name: str) -> None:
        if uri == "memory://b2" and what == "list" and live.replicas().view.adding:
            raise StorageError("the follower is gone again")

    faults.before = die_once_it_is_being_added
    assert "t-0 on broker 2" in the_failure(live.cluster.replicate(check=False))
    faults.none()
    assert (live.isr(), live.replicas().view.adding) == ({1, 3}, (2,))
    live.append(["b"]).raise_for_failures()
    assert live.log(2).log_end == 2
    live.cluster.replicate().raise_for_failures()
    assert (live.isr(), live.replicas().view.adding) == ({1, 2, 3}, ())


def test_a_follower_outside_the_isr_is_not_waited_for(live: LiveCluster) -> None:
    live.topic()
    live.wipe(3)
    _format_anew(live, 3)
    live.append(["a"]).raise_for_failures()
    assert live.read() == {0: ["a"]}
    assert live.log(3).log_end == 0


def test_only_the_named_brokers_are_replicated_to(live: LiveCluster) -> None:
    live.topic(copies=3)
    for broker in (2, 3):
        live.wipe(broker)
        _format_anew(live, broker)
    live.append(["a"])
    live.cluster.replicate(brokers=[3]).raise_for_failures()
    assert live.isr() == {1, 3}


# ------------------------------------------------------------------------ unreachable brokers


def test_a_broker_that_cannot_be_reached_is_fenced_and_nobody_waits_for_it(disks: LiveCluster) -> None:
    """Protocol, section 1: a root without ``broker.json`` is an unmounted volume: it is unreachable, never empty.
    Section 4, Fence: "the broker leaves the ISRs in which it is not the last member, and partitions that it led
    get a new leader".
    """
    disks.topic(partitions=6, copies=2)
    disks.append({p: ["a"] for p in range(6)}, acks="leader")
    with disks.unreachable(3):
        report = disks.cluster.replicate().raise_for_failures()
        assert any("broker 3" in note for note in report.notes)
        views = [disks.replicas(partition=p).view for p in range(6)]
        assert all(3 not in view.isr and view.leader not in (3, None) for view in views)
    disks.cluster.replicate().raise_for_failures()
    views = [disks.replicas(partition=p).view for p in range(6)]
    assert all(set(view.isr) == set(view.replicas) for view in views)
    disks.cluster.verify().raise_for_failures()


def test_the_high_watermark_needs_every_member_of_the_isr(disks: LiveCluster) -> None:
    """Protocol, section 2: "the LEO of every replica of isr and adding at or above x"; a fenced broker is not a
    member.
    """
    disks.topic()
    disks.append(["a"], acks="leader")
    assert disks.read() == {}
    with disks.unreachable(3):
        disks.cluster.replicate().raise_for_failures()
        assert disks.isr() == {1, 2}
        assert disks.read() == {0: ["a"]}
    disks.cluster.replicate().raise_for_failures()
    assert disks.isr() == {1, 2, 3}
    assert disks.log(3).high_watermark == 1


def test_an_append_with_an_unreachable_follower_is_acknowledged_by_the_others(disks: LiveCluster) -> None:
    disks.topic()
    disks.append(["a"], producer="p", sequence=1).raise_for_failures()
    with disks.unreachable(3):
        report = disks.append(["b"], producer="p", sequence=2)
        assert rows_of(report, "outcome", "base_offset") == [("acknowledged", 1)]
        assert any("broker 3" in note for note in report.notes)
        assert disks.read() == {0: ["a", "b"]}
    again = disks.append(["b"], producer="p", sequence=2)
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 1)]
    disks.cluster.replicate().raise_for_failures()
    assert disks.data(3) == disks.data(1)


def test_an_append_with_an_unreachable_leader_goes_to_the_next_one(disks: LiveCluster) -> None:
    disks.topic(partitions=3)
    led = next(p for p in range(3) if disks.leader(partition=p) == 3)
    disks.append({led: ["a"]}).raise_for_failures()
    with disks.unreachable(3):
        assert rows_of(disks.append({led: ["b"]}), "outcome", "base_offset") == [("acknowledged", 1)]
        assert disks.leader(partition=led) != 3
    assert disks.read() == {led: ["a", "b"]}


# -------------------------------------------------------------------------------------- merge


def test_after_merge_and_replicate_all_replicas_are_equal_byte_by_byte(live: LiveCluster) -> None:
    """Protocol, section 1: "bytes are copied and never re-encoded"."""
    live.topic(segment_merge_min_files="4", file_delete_delay_ms="0")
    live.fill("abcdefgh", at_ms=5)
    assert rows_of(live.cluster.merge(), "segments", "files") == [(1, 8)]
    live.cluster.replicate().raise_for_failures()
    assert len(live.data(1)) == 1
    assert live.data(1) == live.data(2) == live.data(3)
    assert live.read() == {0: list("abcdefgh")}
    live.clock.advance_ms(60_000)
    live.cluster.retain().raise_for_failures()
    listings = [{str(f.name) for f in live.log(broker).listing.data} for broker in (1, 2, 3)]
    assert listings[0] == listings[1] == listings[2] == set(live.data(1))
    live.cluster.verify().raise_for_failures()


def test_nothing_above_the_high_watermark_is_merged(live: LiveCluster) -> None:
    live.topic(segment_merge_min_files="2")
    for value in "abcd":
        live.append([value], acks="leader")
    assert rows_of(live.cluster.merge(), "segments") == [(0,)]


def test_a_producer_is_recognised_after_its_append_was_merged(live: LiveCluster) -> None:
    live.topic(segment_merge_min_files="2")
    for sequence, value in enumerate("abcd"):
        live.append([value], producer="p", sequence=sequence)
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    again = live.append(["d"], producer="p", sequence=3)
    assert rows_of(again, "outcome", "base_offset") == [("duplicate", 3)]
    assert live.read() == {0: list("abcd")}


# ---------------------------------------------------------------------------------- dry runs


def test_a_dry_run_shows_the_plan_and_changes_nothing(live: LiveCluster) -> None:
    """Contract: ``--dry-run`` (prints the plan)."""
    live.tiered(segment_merge_min_files="2", retention_bytes="1", local_retention_bytes="1")
    live.fill("abcd")
    live.append(["e"], acks="leader")
    cluster = live.cluster
    with live.unchanged():
        assert rows_of(cluster.replicate(dry_run=True), "leader", "followers") == [(1, "2 3")]
        cluster.merge(dry_run=True)
        planned = cluster.tier(dry_run=True)
        assert rows_of(planned, "uploaded_files") == [(0,)]
        assert isinstance(planned.rows[0]["planned_bytes"], int)
        assert planned.rows[0]["planned_bytes"] > 0
        assert rows_of(cluster.retain(dry_run=True), "log_start") == [(4,)]
        cluster.bootstrap(2, dry_run=True)
        assert cluster.topics.delete("t", dry_run=True).dry_run

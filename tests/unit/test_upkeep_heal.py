"""Heal: damaged or missing files are replaced by verified copies, and an intact file is never replaced by a
damaged one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stratalog.partitions.paths import join
from stratalog.partitions.store import Store
from tests.depth import at_depth
from tests.unit.cluster_harness import LiveCluster, codes, fence, rows_of, the_failure, unfence
from tests.unit.faulty_store import CHANGES, Faults
from tests.unit.tampering import Spot, register, remote_spot, spot
from tests.unit.test_upkeep_verify import assert_identical, rewritten

ALL = {1, 2, 3}


def five_records(tmp_path: Path) -> LiveCluster:
    """Three brokers; ``t`` holds a to e, one file each, on all of them; broker 1 leads."""
    made = LiveCluster(tmp_path)
    made.topic()
    made.fill("abcde")
    assert made.leader() == 1
    return made


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return five_records(tmp_path)


class Died(BaseException):
    """Ends the driver's process. This is not an error of stratalog, so nothing catches it."""


def assert_healed(live: LiveCluster, values: str = "abcde") -> None:
    """Check that everything is as it was before the damage."""
    live.driver().verify(deep=True).raise_for_failures()
    assert_identical(live)
    assert live.isr() == set(live.replicas().view.replicas)
    assert live.read() == {0: list(values)}


FAULTS: dict[str, Callable[[Spot], None]] = {
    "a byte flipped": lambda file: file.flip(30),
    "a byte of the footer flipped": lambda file: file.flip(-200),
    "cut": lambda file: file.cut(),
    "garbage": lambda file: file.replace(b"PAR1" + b"garbage" * 100 + b"PAR1"),
    "empty": lambda file: file.replace(b""),
    "deleted": lambda file: file.remove(),
}


PLACES = {"the first file": 0, "one in the middle": 2, "the last one": 4}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("fault", "broker", "index"),
    [
        pytest.param(
            fault,
            broker,
            PLACES[place],
            id=f"{fault}, {place}, {who}",
            marks=[] if fault == "deleted" or (broker, PLACES[place]) == (2, 2) else [pytest.mark.slow],
        )
        for fault, place, (who, broker) in itertools.product(FAULTS, PLACES, [("leader", 1), ("follower", 2)])
    ],
)
def test_one_bad_file_is_replaced_and_the_replica_is_in_sync_again(
    live: LiveCluster, fault: str, broker: int, index: int
) -> None:
    before = live.data(3)
    FAULTS[fault](spot(live, broker, index))
    healed = live.driver().heal()
    assert rows_of(healed, "broker", "start", "end", "outcome") == [(broker, index, index + 1, "repaired")]
    assert_healed(live)
    assert live.data(broker) == before


def test_both_followers_are_healed_from_the_leader(live: LiveCluster) -> None:
    spot(live, 2, 1).flip(30)
    spot(live, 3, 1).cut()
    assert rows_of(live.driver().heal(), "broker", "source") == [(2, "broker-1"), (3, "broker-1")]
    assert live.leader() == 1
    assert_healed(live)


def test_a_damaged_leader_resigns_to_a_member_that_is_whole(live: LiveCluster) -> None:
    """The leader leaves the ISR in the same commit; broker 2 is damaged too, and does not lead."""
    spot(live, 1, 1).flip(30)
    spot(live, 2, 3).flip(30)
    healed = live.driver().heal()
    healed.raise_for_failures()
    assert "t-0: its damaged leader left the ISR, and broker 3 now leads" in healed.notes
    assert live.leader() == 3
    assert_healed(live)


def test_if_every_member_has_lost_a_different_file_they_repair_each_other(live: LiveCluster) -> None:
    """No member is intact: the followers leave the ISR, and the leader, now its last member, is repaired
    in place.
    """
    for broker in ALL:
        spot(live, broker, broker).flip(30)
    live.driver().heal().raise_for_failures()
    assert live.leader() == 1
    assert_healed(live)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["a byte flipped", "deleted"])
def test_records_that_all_replicas_have_lost_come_from_the_remote_tier(tmp_path: Path, fault: str) -> None:
    live = LiveCluster(tmp_path)
    live.tiered(copies=3, local_retention_bytes="-2")
    live.fill("abcde")
    live.cluster.tier().raise_for_failures()
    for broker in ALL:
        FAULTS[fault](spot(live, broker, 1))
    assert set(rows_of(live.driver().heal(), "source")) == {("remote",)}
    assert_healed(live)


@pytest.mark.slow
def test_a_hole_may_be_closed_by_a_segment_that_is_merged_elsewhere(tmp_path: Path) -> None:
    """The remote tier holds the records in one segment, which becomes part of the logs under its own name."""
    live = LiveCluster(tmp_path)
    live.tiered(copies=2, segment_bytes="12000", local_retention_bytes="-2", segment_merge_min_files="99")
    live.fill("abcdefgh")
    assert live.cluster.tier().totals["uploaded_files"]
    merged = remote_spot(live, 0).name
    assert "-" in merged
    for broker in live.replicas().view.replicas:
        spot(live, broker, 1).remove()
    live.driver().heal().raise_for_failures()
    assert merged in live.data(live.leader())
    live.driver().verify(deep=True).raise_for_failures()
    assert live.read() == {0: list("abcdefgh")}


def test_a_hole_without_any_good_copy_is_one_failure_and_nothing_is_touched(live: LiveCluster) -> None:
    for broker in ALL:
        spot(live, broker, 1).flip(30)
    spot(live, 2, 3).flip(30)  # this file could be repaired, but the whole partition is left to an operator
    with live.unchanged():
        failure = the_failure(live.driver().heal(check=False))
    assert failure.startswith("t-0: LOG_GAP: offsets [1, 2): no replica and no remote object has a good copy")
    assert "Nothing was changed. Restore these records from a backup" in failure
    assert live.isr() == ALL


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.slow
def test_files_that_a_damaged_segment_hides_replace_it_if_they_are_the_only_good_copy(
    tmp_path: Path, copies: int
) -> None:
    live = LiveCluster(tmp_path)
    live.topic(copies=copies, segment_bytes="1000000", segment_merge_min_files="2")
    live.fill("abcd")
    live.cluster.merge().raise_for_failures()
    live.cluster.replicate().raise_for_failures()
    for broker in live.replicas().view.replicas:
        (segment,) = live.log(broker).chain
        assert segment.name.merged
        spot(live, broker, 0).flip(40)
    live.driver().heal().raise_for_failures()
    assert len(live.log(live.leader()).chain) == 4
    assert_healed(live, "abcd")


def test_other_partitions_continue(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2, partitions=2)
    for value in "abc":
        live.append({0: [value], 1: [value]}).raise_for_failures()
    for broker in (1, 2):
        spot(live, broker, 1).flip(30)
    victim = live.log(2, partition=1).chain[1].file.object.name
    Spot(live.store(2), victim).flip(30)
    report = live.driver().heal(check=False)
    assert [failure.item for failure in report.failures] == ["t-0"]
    assert [row["partition"] for row in report.rows] == [1]
    assert live.isr(partition=1) == {1, 2}


def test_a_file_with_another_size_is_replaced_by_what_the_others_have(live: LiveCluster) -> None:
    """Replicate refuses "two sizes of one name"; a heal deletes the odd file."""
    rewritten(spot(live, 3, 1), [b"B" * 50], base=1, topic_id=live.cluster.image.topic("t").topic_id)
    live.driver().heal().raise_for_failures()
    assert_healed(live)


def test_copies_without_a_majority_are_left_to_a_person(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path, brokers=2)
    live.topic(copies=2)
    live.fill("abc")
    rewritten(spot(live, 2, 1), [b"B"], base=1, topic_id=live.cluster.image.topic("t").topic_id)
    with live.unchanged():
        assert "compare the copies yourself" in the_failure(live.driver().heal(check=False))


@pytest.mark.slow
def test_a_replica_outside_the_isr_is_healed_as_well(live: LiveCluster) -> None:
    live.wipe(3)
    live.cluster.bootstrap(3).raise_for_failures()
    spot(live, 3, 0).flip(30)
    live.driver().heal().raise_for_failures()
    assert_healed(live)


# --------------------------------------------------------------------------- what is not repaired


@pytest.mark.slow
def test_foreign_files_are_left_alone(live: LiveCluster) -> None:
    stranger = Spot(live.store(1), join(live.replica(1).folder, "notes.txt"))
    stranger.replace(b"hello")
    spot(live, 1, 1).flip(30)
    assert "notes.txt is a foreign file" in the_failure(live.driver().heal(check=False))
    assert stranger.read() == b"hello"
    stranger.remove()
    assert_healed(live)


@pytest.mark.slow
def test_a_leaders_register_comes_from_any_replica_that_kept_it_even_if_that_one_continued(
    live: LiveCluster,
) -> None:
    """Broker 2 led an epoch that broker 1 never joined; broker 1 leads again, and is the last member."""
    live.cluster.elect("t", leader=2).raise_for_failures()
    live.append(["lost"], acks="leader").raise_for_failures()
    fence(live, 3)
    live.cluster.elect("t", leader=1).raise_for_failures()
    fence(live, 2)
    assert (live.leader(), live.isr()) == (1, {1})
    unfence(live, 2)
    assert live.log(2).joined_epoch > live.log(1).joined_epoch
    register(live, 1, ".epoch").flip(3)
    assert rows_of(live.driver().heal(), "broker", "source", "outcome") == [(1, "broker-2", "repaired")]
    unfence(live, 3)
    live.cluster.replicate().raise_for_failures()
    assert_healed(live)


def test_a_register_without_any_copy_needs_a_person(live: LiveCluster) -> None:
    register(live, 2, ".hw").replace(b"x")
    with live.unchanged():
        assert "from a backup" in the_failure(live.driver().heal(check=False))


# --------------------------------------------------------------- dry run, once more, two at once


def test_a_dry_run_shows_what_would_be_done_and_changes_nothing(live: LiveCluster) -> None:
    spot(live, 1, 1).flip(30)
    spot(live, 2, 3).remove()
    with live.unchanged():
        report = live.driver().heal(dry_run=True)
    assert report.dry_run
    assert rows_of(report, "broker", "start", "source", "outcome") == [
        (1, 1, "broker-3", "planned"),
        (2, 3, "broker-3", "planned"),
    ]


def test_if_nothing_is_wrong_nothing_is_changed(live: LiveCluster) -> None:
    with live.unchanged():
        assert live.driver().heal().rows == []


@pytest.mark.slow
def test_a_replica_that_is_in_the_isr_is_not_touched(tmp_path: Path) -> None:
    """The replica is added to the ISR again between the shrink and the delete."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.fill("abc")
    bad = spot(live, 2, 1)
    bad.flip(30)
    data, other = bad.read(), live.driver()

    def let_in() -> None:
        assert 2 not in live.isr()
        other.replicate().raise_for_failures()
        assert 2 in live.isr()

    faults.once(let_in, "stage", at="memory://b2")
    report = live.driver().heal(check=False)
    assert codes(report) == {"CORRUPT_SEGMENT": 1}
    assert any("another driver changed the partition in the meantime" in note for note in report.notes)
    assert bad.read() == data
    live.driver().heal().raise_for_failures()
    assert_healed(live, "abc")


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "every one"])
def test_a_heal_in_the_middle_of_another_one_is_harmless(tmp_path: Path, step: int) -> None:
    """During a call of the first heal, a second one runs from beginning to end."""
    calls = 0

    def run(at: int) -> int:
        nonlocal calls
        calls = 0
        faults = Faults()
        folder = tmp_path / str(at)
        folder.mkdir()
        live = LiveCluster(folder, through=faults.wrap)
        live.topic()
        live.fill("abc")
        spot(live, 1, 1).flip(30)
        spot(live, 2, 2).remove()
        first, second = live.driver(), live.driver()

        def meanwhile(uri: str, what: str, name: str) -> None:
            nonlocal calls
            if what in CHANGES:
                calls += 1
                if calls == at:
                    faults.none()
                    second.heal()

        faults.before = meanwhile
        first.heal()
        faults.none()
        live.driver().heal()
        live.driver().replicate().raise_for_failures()
        assert_healed(live, "abc")
        return calls

    at = 1
    while run(at) >= at:
        at += step
    assert at > 10


@pytest.mark.slow
@pytest.mark.parametrize("crashes", [False, True], ids=["goes on", "crashes"])
@pytest.mark.parametrize("suffix", [".parquet", ".epoch"])
def test_a_heal_that_slept_while_another_one_repaired_takes_nothing_from_a_member(
    tmp_path: Path, suffix: str, crashes: bool
) -> None:
    """The sleeping heal resumes when the replica is in the ISR again: no file is ever missing there (protocol,
    I1).
    """
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.topic()
    live.fill("abc")
    before = {stored.name for stored in live.cluster.stores[2].list("")}
    (register(live, 2, ".epoch") if suffix == ".epoch" else spot(live, 2, 1)).flip(5)
    slept: list[str] = []

    def look(uri: str, what: str, name: str) -> None:
        if what in CHANGES:
            assert {stored.name for stored in live.cluster.stores[2].list("")} >= before

    def sleep(uri: str, what: str, name: str) -> None:
        if uri == "memory://b2" and what in CHANGES - {"stage"} and name.endswith(suffix):
            faults.none()
            live.driver().heal().raise_for_failures()
            assert 2 in live.isr()
            slept.append(what)
            faults.after = look
            if crashes:
                raise Died

    faults.before = sleep
    with suppress(Died):
        live.driver().heal()
    faults.none()
    assert slept == ["replace"]
    live.driver().verify(deep=True).raise_for_failures()


# ---------------------------------------------------------------------------------- crashes


def _damaged(folder: Path, through: Callable[[str, Store], Store], everyone: bool) -> LiveCluster:
    live = LiveCluster(folder, through=through)
    live.topic()
    live.fill("abcd")
    spot(live, 1, 1).flip(30)
    spot(live, 2, 2).cut()
    if everyone:
        register(live, 3, ".epoch").remove()
    return live


def _dies_at(faults: Faults, at: int, with_effect: bool) -> Callable[[], int]:
    """The driver dies at its mutating call number ``at``; returns a counter of such calls."""
    seen = 0

    def count(uri: str, what: str, name: str) -> None:
        nonlocal seen
        if what in CHANGES:
            seen += 1
            if seen >= at:
                raise Died

    if with_effect:
        faults.after = count
    else:
        faults.before = count
    return lambda: seen


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("with_effect", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("everyone", [False, True], ids=["the leader resigns", "the leader is repaired in place"])
def test_after_a_crash_at_any_call_the_next_heal_repairs_the_rest(
    tmp_path: Path, everyone: bool, with_effect: bool
) -> None:
    """Protocol, I7."""
    for at in itertools.count(1, at_depth(test=3, nightly=1)):
        faults = Faults()
        folder = tmp_path / str(at)
        folder.mkdir()
        live = _damaged(folder, faults.wrap, everyone)
        changes = _dies_at(faults, at, with_effect)
        with suppress(Died):
            live.driver().heal()
        faults.none()
        if changes() < at:
            break
        live.driver().heal().raise_for_failures()
        live.driver().replicate().raise_for_failures()
        assert_healed(live, "abcd")
    assert at > 10

"""Erasures on one replica and one partition (partitions.erasure), one step at a time."""

from __future__ import annotations

import random

import pytest

from stratalog.engine.replication.erasing import ErasedOn, erase_records, not_erased
from stratalog.partitions.erasure import (
    Erasure,
    are_ranges,
    count,
    following,
    forgetting,
    is_compacted,
    is_erased,
    ranges_of,
    within,
)
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.records import GAP
from stratalog.partitions.removal import CommittedRule, Rule
from stratalog.partitions.rewrites.erasing import ErasedFrom, ErasingOptions, marks
from stratalog.partitions.rewrites.merge import MergePolicy, plan_merges
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.runner import SerialRunner
from stratalog.partitions.segments.reader import read_batches
from stratalog.partitions.transactions import transactions_of
from tests.unit.harness import sync
from tests.unit.test_replication_removal import SYNC, Keyed, Row


@pytest.mark.parametrize(
    ("offsets", "ranges"),
    [([], ()), ([3], ((3, 4),)), ([0, 1, 2, 5, 7, 8], ((0, 3), (5, 6), (7, 9)))],
)
def test_offsets_become_ranges(offsets: list[int], ranges: tuple[tuple[int, int], ...]) -> None:
    assert ranges_of(offsets) == ranges
    assert are_ranges(ranges)
    assert count(ranges) == len(offsets)


@pytest.mark.parametrize("ranges", [((1, 1),), ((2, 1),), ((0, 2), (2, 3)), ((5, 6), (1, 2)), ((-2, 1),)])
def test_invalid_ranges_are_recognized(ranges: tuple[tuple[int, int], ...]) -> None:
    assert not are_ranges(ranges)


@pytest.mark.parametrize("seed", range(10))
def test_the_ranges_within_a_file_and_their_marks(seed: int) -> None:
    chosen = random.Random(seed)
    offsets = sorted(chosen.sample(range(60), 20))
    ranges = ranges_of(offsets)
    start = chosen.randrange(60)
    end = chosen.randrange(start + 1, 61)
    assert [*within(ranges, start, end)] == [one for one in ranges if one[0] < end and one[1] > start]
    found = marks([Erasure(1, ranges)], start, end)
    assert found.tolist() == [at in offsets for at in range(start, end)]


def test_offsets_are_kept_until_every_replica_has_carried_them_out() -> None:
    first, second, third = (Erasure(g, ((g, g + 1),)) for g in (1, 3, 4))
    kept = following(following((first,), second), third)
    assert kept == (first, second, third)
    assert forgetting(kept, 3) == (third,)
    assert forgetting(kept, 4) == (Erasure(4, ()),), "its generation stays known"
    assert following(forgetting(kept, 4), Erasure(5, ((9, 10),))) == (Erasure(5, ((9, 10),)),)


class Erasable(Keyed):
    """A partition of keyed records, with any erasures."""

    def __init__(self, brokers: int = 3) -> None:
        super().__init__(brokers)
        self.change(rules=())
        self.given: list[Row] = []

    def add(self, *rows: Row) -> None:
        self.given += rows
        self.put(rows)

    def name(self, *offsets: int) -> None:
        """Add the next erasure to the metadata."""
        erasure = Erasure(self.view.generation + 1, ranges_of(sorted(offsets)))
        self.change(erasures=following(self.view.erasures, erasure))

    def carry_out(self, most: int | None = None) -> ErasedOn:
        rule = self.view.rules[-1].rule if self.view.rules else Rule(0, 0)
        options = ErasingOptions(segment_bytes=1, compression="zstd", compacted=rule, most=most)
        return erase_records(self.replicas, options, SerialRunner())

    def erase(self, *offsets: int) -> ErasedFrom:
        self.name(*offsets)
        done = self.carry_out()
        assert not done.missed
        return done.erased

    def left(self, broker: int) -> dict[int, Row]:
        return {at: (key, value) for at, (key, value, _) in self.held(broker).items()}

    def without(self, *offsets: int) -> dict[int, Row]:
        return {at: row for at, row in enumerate(self.given) if at not in offsets}


def some() -> Erasable:
    one = Erasable()
    one.add((b"a", b"1"), (b"b", b"1"))
    one.add((b"a", b"2"), (None, b"2"))
    one.add((b"c", b"3"))
    one.add((b"a", b"4"))
    return one


def test_only_touched_files_are_rewritten_also_the_last_of_the_log() -> None:
    one = some()
    states = {broker: one.replicas.replica(broker).producers(one.log(broker)) for broker in (1, 2, 3)}
    before = {broker: one.log(broker) for broker in (1, 2, 3)}
    assert one.erase(2, 5).segments == 2
    for broker in (1, 2, 3):
        log = one.log(broker)
        assert one.left(broker) == one.without(2, 5)
        assert [link.name.generation for link in log.chain] == [0, 1, 0, 1]
        assert (log.log_end, log.high_watermark) == (before[broker].log_end, before[broker].high_watermark)
        assert log.lineage == before[broker].lineage
        assert one.replicas.replica(broker).producers(log) == states[broker]
    assert one.put([(b"d", b"5")]) == 7, "appends go on behind the gap"
    assert not_erased(one.replicas) == []


def test_a_gap_at_the_end_survives_elections_and_the_loss_of_the_files_that_it_replaced() -> None:
    one = some()
    one.erase(5)
    for broker in (1, 2, 3):
        replica = one.replicas.replica(broker)
        replica.store.delete([file.object.name for file in one.log(broker).hidden])
    one.elect(2)
    sync(one.replicas, 1, SYNC)
    assert one.log(1).log_end == one.log(2).log_end == 6
    one.given.append((b"e", b"6"))
    assert one.put([(b"e", b"6")]) == 7
    assert one.left(1) == one.left(2) == one.without(5)


def test_a_new_leader_continues_byte_for_byte() -> None:
    one, other = some(), some()
    other.erase(0, 2, 5)
    one.name(0, 2, 5)
    one.carry_out(most=1)
    one.elect(2)
    one.carry_out()
    assert [one.left(broker) for broker in (1, 2, 3)] == [one.without(0, 2, 5)] * 3
    for name in (name for name in one.names(2) if name.count(".") == 3):
        path = one.replicas.replica(2).path(name)
        assert one.stores[2].read(path) == one.stores[1].read(one.replicas.replica(1).path(name))


def test_erasures_follow_one_another_and_a_replica_that_was_away_gets_them_at_once() -> None:
    one = some()
    one.change(isr=(1, 2))
    one.erase(0)
    one.erase(1, 2)
    assert not is_erased(one.log(3), one.view.erasures)
    sync(one.replicas, 3, SYNC)
    assert is_erased(one.log(3), one.view.erasures)
    assert one.left(3) == one.without(0, 1, 2)


def test_a_leader_filled_from_a_replica_that_was_away_erases_again() -> None:
    """As after a heal: it holds files of no generation, and the metadata still have the offsets."""
    one = some()
    one.change(isr=(1, 2))
    one.erase(0)
    one.erase(2)
    one.change(isr=(3,))
    one.elect(3)
    assert one.left(3) == one.without()
    one.carry_out()
    assert one.left(3) == one.without(0, 2)
    assert [link.name.generation for link in one.log(3).chain] == [1, 2, 0, 0]


def test_a_compaction_and_an_erasure_compose_in_either_order() -> None:
    one = some()
    one.change(rules=(CommittedRule(Rule(1, 4), 0),))
    one.apply(Rule(1, 4))
    compacted = one.left(1)
    assert all(is_compacted(one.log(broker), Rule(1, 4)) for broker in (1, 2, 3))
    one.erase(1)
    assert one.left(1) == one.left(3) == {at: row for at, row in compacted.items() if at != 1}
    one.change(rules=(CommittedRule(Rule(3, 5), 0),))
    one.apply(Rule(3, 5))
    assert one.left(1) == one.left(2) == {2: (b"a", b"2"), 4: (b"c", b"3"), 5: (b"a", b"4")}


def test_a_file_across_the_bound_of_a_compaction_bars_an_erasure() -> None:
    """It would get the erasure's generation, and keep records that the compaction removed on others."""
    one = some()
    assert not is_compacted(one.log(1), Rule(1, 4))
    one.change(rules=(CommittedRule(Rule(1, 4), 0),))
    one.apply(Rule(1, 4))
    assert is_compacted(one.log(1), Rule(1, 4))
    assert not is_compacted(one.log(1), Rule(1, 5))


@pytest.mark.parametrize("late", [1, 2])
def test_a_merge_that_ends_late_leaves_no_erased_record_in_a_file_that_counts(late: int) -> None:
    """It has both ends of its segment in the log, and the erased records in between: on the leader, or on a member
    that led before."""
    one, other = some(), some()
    policy = MergePolicy(segment_bytes=10**9, segment_ms=1, min_files=2)
    (run,) = plan_merges(other.log(late), policy, 0, 10**12)
    merge_run(other.replicas.replica(late), run, compression="zstd")
    merged = other.stores[late].read(other.replicas.replica(late).path(run.segment_name))
    one.erase(2)
    assert one.stores[late].create(one.replicas.replica(late).path(run.segment_name), merged)
    assert one.left(late) == one.without(2)
    assert not is_erased(one.log(late), one.view.erasures), "the file counts, and has the record"
    for known in (one.view.erasures, forgetting(one.view.erasures, 1)):
        one.change(erasures=known)
        one.carry_out()
        log = one.log(late)
        assert run.segment_name not in {link.name for link in log.chain}
        assert one.left(late) == one.without(2)


def test_records_of_open_transactions_are_left_alone_and_aborted_ones_leave() -> None:
    one = Erasable()
    one.put([(b"a", b"1")])  # 0
    one.put([(b"a", b"lost")], producer="y")  # 1
    one.end("y", 1, commit=False)  # 2
    one.put([(b"a", b"kept")], producer="x")  # 3
    one.end("x", 1, commit=True)  # 4
    one.put([(b"a", b"open")], producer="z")  # 5
    leader = one.replicas.leader
    before = transactions_of(one.log(1), leader.footer)
    assert before.last_stable_offset == 5
    one.erase(0, 1)
    assert {at: row[:2] for at, row in one.held(1).items() if row[0] is not None} == {
        3: (b"a", b"kept"),
        5: (b"a", b"open"),
    }
    assert transactions_of(one.log(1), leader.footer).last_stable_offset == 5
    one.end("z", 1, commit=True)
    assert transactions_of(one.log(2), one.replicas.replica(2).footer).last_stable_offset == 7
    one.name(5)
    one.carry_out()
    assert 5 not in {at for at, row in one.held(1).items() if row[0] is not None}


def test_an_offset_above_the_last_stable_offset_is_refused() -> None:
    one = Erasable()
    one.put([(b"a", b"open")], producer="z")
    one.name(0)
    with pytest.raises(RetriableError, match="last stable offset"):
        one.carry_out()


def test_merges_continue_around_rewritten_segments() -> None:
    """A log that is not compacted continues to merge files before an erased record."""
    one = Erasable()
    for number in range(9):
        one.add((b"%d" % number, b"x"))
    one.erase(4)
    policy = MergePolicy(segment_bytes=10**9, segment_ms=1, min_files=2)
    runs = plan_merges(one.log(1), policy, 0, 10**12)
    assert [(run.start, run.end) for run in runs] == [(0, 4), (5, 9)]
    for run in runs:
        merge_run(one.replicas.leader, run, compression="zstd")
    assert one.left(1) == one.without(4)
    assert plan_merges(one.log(1), policy, 0, 10**12) == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_appends_erasures_merges_elections_and_syncs(seed: int) -> None:
    """No removed record returns, and equal names have equal records at every offset."""
    chosen, one = random.Random(seed), Erasable()
    gone: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}
    for _ in range(30):
        leader = one.view.leader or 0
        match chosen.randrange(7):
            case 0 | 1 | 2:
                one.add(*((chosen.choice([b"a", b"b"]), b"%d" % chosen.randrange(99)) for _ in range(2)))
            case 3 if one.given and not not_erased(one.replicas):
                one.name(*chosen.sample(range(len(one.given)), chosen.randint(1, min(4, len(one.given)))))
            case 4 if one.view.erasures:
                one.carry_out(most=chosen.choice([1, 2, None]))
            case 5:
                one.elect(chosen.choice([1, 2, 3]))
                sync(one.replicas, chosen.choice([b for b in (1, 2, 3) if b != one.view.leader]), SYNC)
            case 6 if one.given:
                policy = MergePolicy(segment_bytes=chosen.choice([1, 9000]), segment_ms=1, min_files=2)
                for run in plan_merges(one.log(leader), policy, 0, 10**12)[:1]:
                    merge_run(one.replicas.leader, run, compression="zstd")
        erased = {at for one_of in one.view.erasures for start, end in one_of.offsets for at in range(start, end)}
        contents: dict[str, object] = {}
        for broker in (1, 2, 3) if one.given else ():
            held = one.left(broker)
            missing = {at for at in range(one.log(broker).log_end) if at not in held}
            assert gone[broker] <= missing <= erased
            gone[broker] = missing
            assert all(one.given[at] == row for at, row in held.items())
            for link in one.log(broker).chain:
                if link.name.generation:
                    rows = [
                        (row["offset"], None if row["control"] == GAP else row["value"])
                        for part in read_batches(one.stores[broker], link.file, link.start, link.end)
                        for row in part.to_pylist()
                    ]
                    for at, value in rows:
                        known = contents.setdefault(f"{at} in {link.name.generation}", value)
                        assert known == value
    if one.view.erasures:
        one.carry_out()
        assert not_erased(one.replicas) == []

"""A rule carried out on a replica: the remaining records, their offsets, and the result of every crash."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from stratalog.partitions.errors import CorruptSegmentError, RetriableError
from stratalog.partitions.paths import DataName
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import GAP
from stratalog.partitions.removal import Rule, carried_out
from stratalog.partitions.rewrites.merge import MergePolicy, plan_merges
from stratalog.partitions.rewrites.removing import Removed, RemovingOptions, carry_out
from stratalog.partitions.rewrites.rewrite import Removal, merge_run, remove_from_run, stage_run, state_after
from stratalog.partitions.segments.check import verify_segment
from stratalog.partitions.segments.reader import forget, read_batches, read_segment
from stratalog.partitions.transactions import transactions_of
from tests.unit.segments import listed, records, write_segment
from tests.unit.test_rewrite import Log

Record = tuple[bytes | None, bytes | None]


class Keyed(Log):
    """A log of keyed records, and the original records."""

    def __init__(self) -> None:
        super().__init__((1, 0))
        self.given: list[Record] = []
        self.replica = replace(self.replica, generation=99)

    def add(self, *rows: Record) -> None:
        base = len(self.given)
        self.given += rows
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        write_segment(
            self.store,
            DataName(base, None, 1),
            [records(values, keys=keys, timestamps_us=[base + at for at in range(len(rows))])],
            folder=self.replica.folder,
            producers={"p": ProducerEntry(1, base, base, len(self.given), 0)},
        )
        self.acknowledge(len(self.given))

    def apply(self, rule: Rule, most: int | None = None, segment_bytes: int = 1) -> Removed:
        log = self.replica.log(fresh=True)
        options = RemovingOptions(segment_bytes=segment_bytes, compression="zstd", memory_bytes=1000, most=most)
        return carry_out(self.replica, log, transactions_of(log, self.replica.footer), rule, options)

    def held(self) -> dict[int, Record]:
        """The records of the log by offset; all others must be gaps."""
        found: dict[int, Record] = {}
        log = self.replica.log(fresh=True)
        assert log.log_end == log.high_watermark == len(self.given)
        for link in log.chain:
            table = pa.Table.from_batches(read_batches(self.store, link.file, link.start, link.end))
            assert table.column("offset").to_pylist() == list(range(link.start, link.end))
            for row in table.to_pylist():
                offset = row.pop("offset")
                assert row.pop("partition") == 3
                if row["control"] == GAP:
                    assert {name for name, value in row.items() if value is not None} == {"control"}
                else:
                    found[offset] = row["key"], row["value"]
        return found

    def surviving(self, rule: Rule) -> dict[int, Record]:
        last = {key: at for at, (key, _) in enumerate(self.given[: rule.bound])}
        return {
            at: (key, value)
            for at, (key, value) in enumerate(self.given)
            if at >= rule.bound
            or (key is not None and last[key] == at and not (value is None and at < rule.tombstones_before))
        }


def a_log(seed: int = 0, files: int = 12) -> Keyed:
    chosen, log = random.Random(seed), Keyed()
    for _ in range(files):
        rows = chosen.randint(1, 6)
        keys = [chosen.choice([None, b"a", b"b", b"c", b"d", b"e", b"f"]) for _ in range(rows)]
        log.add(*((key, None if chosen.random() < 0.3 else b"%d" % chosen.randrange(100)) for key in keys))
    return log


def bounds(log: Keyed) -> list[int]:
    return [link.end for link in log.replica.log(fresh=True).chain]


@pytest.mark.sample(10)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("segment_bytes", [1, 20_000])
def test_the_last_record_of_each_key_stays_at_its_offset(seed: int, segment_bytes: int) -> None:
    log = a_log(seed)
    ends = bounds(log)
    rules = [Rule(1, ends[4]), Rule(2, ends[8], ends[3]), Rule(3, ends[9], ends[8])]
    for rule in rules:
        log.apply(rule, segment_bytes=segment_bytes)
        assert log.held() == log.surviving(rule)
        assert carried_out(log.replica.log(fresh=True), rule)
        assert log.apply(rule) == Removed(), "nothing is left to do"


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_ends_anywhere_is_continued_by_the_next(seed: int) -> None:
    """After each file the log is intact: it has all records that no rule removes."""
    log = a_log(seed)
    ends = bounds(log)
    first, second = Rule(1, ends[6]), Rule(2, ends[9], ends[5])
    for rule, before in ((first, None), (second, first)):
        while log.apply(rule, most=1).segments:
            held = log.held()
            assert log.surviving(rule).items() <= held.items()
            assert held.items() <= (log.surviving(before) if before else dict(enumerate(log.given))).items()
        assert log.held() == log.surviving(rule)


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(10))
def test_a_tombstone_leaves_after_what_it_deletes_even_where_no_rule_came_before(seed: int) -> None:
    """The order is ascending: in any other, the record before a removed tombstone would return after a crash."""
    log = a_log(seed)
    rule = Rule(2, bounds(log)[9], bounds(log)[8])
    while log.apply(rule, most=1).segments:
        assert log.surviving(rule).items() <= log.held().items()
    assert log.held() == log.surviving(rule)


def test_a_rule_over_an_earlier_one_that_was_half_carried_out_leaves_the_same() -> None:
    log, other = a_log(3), a_log(3)
    ends = bounds(log)
    log.apply(Rule(1, ends[6]), most=3)
    for each in (log, other):
        each.apply(Rule(2, ends[8], ends[6]))
    assert log.held() == other.held() == log.surviving(Rule(2, ends[8], ends[6]))
    for link in log.replica.log(fresh=True).chain:
        assert log.store.read(log.replica.path(link.name)) == other.store.read(other.replica.path(link.name))


def test_a_leader_that_does_not_know_the_bound_to_be_committed_says_what_to_do() -> None:
    """The leader was elected with a high watermark below the bound, which its predecessor knew."""
    log = Keyed()
    for value in (b"1", b"2", b"3"):
        log.add((b"a", value))
    names = [stored.name for stored in log.store.list("") if stored.name.endswith(".hw")]
    log.store.delete([name for name in names if int(name.rsplit("/", 1)[1].split(".")[0]) > 1])
    with pytest.raises(
        RetriableError,
        match=r": removal rule 1, below offset 2, extends above .* offset 1 .*run `stratalog replicate`",
    ):
        log.apply(Rule(1, 2))
    assert len(log.replica.log(fresh=True).chain) == 3


def test_a_late_merge_brings_no_record_back() -> None:
    """A driver that planned before the rule names its segment as after the rule."""
    log = a_log(5)
    rule = Rule(1, bounds(log)[8])
    late = log.run(0, 10**9)
    merged = Keyed.__new__(Keyed)
    merged.__dict__ |= a_log(5).__dict__
    merge_run(merged.replica, late, compression="zstd")
    log.apply(rule)
    before = log.held()
    name = late.segment_name
    assert log.store.create(log.replica.path(name), merged.store.read(merged.replica.path(name)))
    assert log.held() == before == log.surviving(rule)


def test_merges_leave_rewritten_segments_alone() -> None:
    log = a_log(6)
    rule = Rule(1, bounds(log)[5])
    log.apply(rule)
    policy = MergePolicy(segment_bytes=10**9, segment_ms=1, min_files=2)
    runs = plan_merges(log.replica.log(fresh=True), policy, 0, 10**12)
    assert [run.start for run in runs] == [rule.bound]
    assert log.merge(runs[0])
    assert log.held() == log.surviving(rule)


def test_the_footer_keeps_what_the_log_needs() -> None:
    log = a_log(7)
    rule = Rule(1, bounds(log)[5])
    states = {link.end: log.replica.producers_at(log.replica.log(), link.end) for link in log.replica.log().chain}
    done = log.apply(rule, segment_bytes=1 << 20)
    assert (done.segments, done.files) == (1, 6)
    file = listed(log.store, DataName(0, rule.bound, 1, 1), log.replica.folder)
    footer = verify_segment(log.store, file).footer
    assert footer.rule == rule
    assert footer.gaps == done.gaps == rule.bound - sum(at < rule.bound for at in log.held())
    assert (footer.base_offset, footer.next_offset, footer.records) == (0, rule.bound, rule.bound)
    assert footer.may_hold_control
    present = log.replica.log(fresh=True)
    assert log.replica.producers_at(present, rule.bound) == states[rule.bound]


def test_a_name_that_contradicts_the_footer_is_damage() -> None:
    log = a_log(8)
    end = bounds(log)[2]
    log.apply(Rule(1, end), segment_bytes=1 << 20)
    data = log.store.read(log.replica.path(DataName(0, end, 1, 1)))
    for wrong in (DataName(0, end, 1, 2), DataName(0, end, 1)):
        assert log.store.create(log.replica.path(wrong), data)
        with pytest.raises(CorruptSegmentError, match="its name contradicts"):
            read_segment(log.store, listed(log.store, wrong, log.replica.folder))


def test_a_rule_above_the_last_stable_offset_is_refused() -> None:
    log = a_log(9)
    with pytest.raises(RetriableError, match="last stable offset"):
        log.apply(Rule(1, len(log.given) + 1))


def test_a_key_that_is_only_a_tombstone_leaves_when_its_time_is_over() -> None:
    log = Keyed()
    log.add((b"a", b"1"))
    log.add((b"a", None), (b"b", b"2"))
    log.add((b"c", b"3"))
    log.apply(Rule(1, 3))
    assert log.held() == {1: (b"a", None), 2: (b"b", b"2"), 3: (b"c", b"3")}
    log.apply(Rule(2, 3, 3))
    assert log.held() == {2: (b"b", b"2"), 3: (b"c", b"3")}


def test_a_merged_file_around_a_rewritten_one_is_rewritten_with_it() -> None:
    """A late merge of an older generation covers offsets on both sides of the rewritten file: two links of the run
    are one file.
    """
    log = a_log(5)
    rule = Rule(1, len(log.given))
    late, middle = log.run(0, 10**9), log.run(bounds(log)[3], bounds(log)[6])
    staged, _ = stage_run(
        log.store,
        late,
        log.store,
        log.replica.path(late.segment_name),
        compression="zstd",
        state=lambda: state_after(log.replica, late),
    )
    nothing = Removal(Rule(1, rule.bound), lambda start, end: np.zeros(end - start, bool))
    name = middle.name_in(log.replica.log(), 1)
    remove_from_run(log.replica, middle, name, nothing, compression="zstd")
    assert staged.commit()
    chain = log.replica.log(fresh=True).chain
    assert [link.name for link in chain] == [late.segment_name, name, late.segment_name]
    run = log.run(0, 10**9)
    forget()
    before = log.store.counts.snapshot()
    stage_run(log.store, run, log.store, "staged", compression="zstd", state=dict, removal=nothing)[0].abort()
    assert (log.store.counts - before).reads == 2
    held = log.held()
    log.apply(Rule(2, rule.bound), segment_bytes=10**9)
    assert [link.name.generation for link in log.replica.log(fresh=True).chain] == [2]
    assert held != log.held() == log.surviving(rule)

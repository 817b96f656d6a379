"""The choice of files for one segment (protocol section 4, Merge; segment.bytes, segment.ms)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.engine.config.settings import topic_config
from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, ReplicaLog, parse, resolve
from stratalog.partitions.paths import DataName, WatermarkName
from stratalog.partitions.rewrites.compaction import Cleanable, CompactionPolicy, cleanable
from stratalog.partitions.rewrites.merge import (
    FEW,
    MergePolicy,
    Run,
    next_merge_ms,
    plan_merges,
    sealed_runs,
    why_not_merged,
)
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.transactions import LogTransactions
from tests.unit.notation import FOLDER, log_of, stored, text_of

NEVER_MS = 10**15
POLICY = MergePolicy(segment_bytes=1000, segment_ms=60_000, min_files=3)


def spans(runs: list[Run]) -> list[str]:
    """Runs as ``first..last[start,end)``."""
    return [
        f"{text_of(run.links[0].name)}..{text_of(run.links[-1].name)}[{run.start},{run.end})"
        if len(run.links) > 1
        else f"{text_of(run.links[0].name)}[{run.start},{run.end})"
        for run in runs
    ]


def sealed(log: ReplicaLog, from_offset: int = 0, now_ms: int = 0) -> list[str]:
    return spans(sealed_runs(log, POLICY, from_offset, now_ms))


def planned(log: ReplicaLog, from_offset: int = 0, now_ms: int = 0) -> list[str]:
    return spans(plan_merges(log, POLICY, from_offset, now_ms))


# ---------------------------------------------------------------------------------- sealing


def test_a_run_is_sealed_when_the_next_file_would_make_it_larger_than_a_segment() -> None:
    """segment.bytes."""
    log = log_of("0.1 1.1 2.1 3.1 4.1.hw", sizes={"0.1": 400, "1.1": 400, "2.1": 400, "3.1": 100})
    assert sealed(log) == ["0.1..1.1[0,2)"]


def test_a_file_of_half_a_segment_is_one_and_seals_what_precedes_it() -> None:
    log = log_of("0.1 1.1 2.1 3.1 4.1.hw", sizes={"0.1": 100, "1.1": 100, "2.1": 500, "3.1": 100})
    assert sealed(log) == ["0.1..1.1[0,2)", "2.1[2,3)"]


def test_the_tail_is_sealed_once_its_oldest_file_has_the_age() -> None:
    """segment.ms."""
    log = log_of("0.1 1.1 2.1.hw", sizes={"0.1": 10, "1.1": 10}, modified_ms={"0.1": 5_000, "1.1": 60_000})
    assert sealed(log, now_ms=64_999) == []
    assert sealed(log, now_ms=65_000) == ["0.1..1.1[0,2)"]


def test_a_sealed_file_that_dwarfs_what_follows_is_not_rewritten_for_it() -> None:
    """With a trickle of records, each segment.ms adds a little; rewriting all of it each time would be
    quadratic.
    """
    log = log_of("0-9.1 9.1 10.1 11.1.hw", sizes={"0-9.1": 300, "9.1": 20, "10.1": 20})
    assert sealed(log, now_ms=60_000) == ["0-9.1[0,9)", "9.1..10.1[9,11)"]
    assert planned(log, now_ms=60_000) == ["9.1..10.1[9,11)"]


def test_only_what_is_wholly_below_the_high_watermark_is_merged() -> None:
    """Section 1: merged segments are only ever below the high watermark."""
    log = log_of("0.1 1.1 2.1 5.1 4.1.hw", end=9, sizes={})
    assert spans(plan_merges(log, MergePolicy(10**6, NEVER_MS, 2), 0, 0)) == ["0.1..1.1[0,2)"]


def test_no_run_crosses_the_end_of_the_remote_log() -> None:
    """Section 4, Merge."""
    log = log_of("0.1 1.1 2.1 3.1 4.1.hw", sizes=dict.fromkeys(("0.1", "1.1", "2.1", "3.1"), 300))
    assert sealed(log, from_offset=0, now_ms=NEVER_MS) == ["0.1..2.1[0,3)", "3.1[3,4)"]
    assert sealed(log, from_offset=2, now_ms=NEVER_MS) == ["2.1..3.1[2,4)"]


def test_a_segment_that_straddles_the_end_of_the_remote_log_is_cut_there() -> None:
    """Section 4: the remote table holds every offset once."""
    log = log_of("0-4.1 4-8.1 8.1.hw", sizes={"0-4.1": 500, "4-8.1": 500})
    [first, second] = sealed_runs(log, POLICY, from_offset=2, now_ms=0)
    assert (first.start, first.end, first.is_segment) == (2, 4, False)
    assert first.segment_name == DataName(2, 4, 1)
    assert (second.is_segment, second.segment_name) == (True, DataName(4, 8, 1))


def test_a_merged_segment_has_the_epoch_of_its_last_record() -> None:
    log = log_of(
        "0.1 1.1 2.3 3.3 4.3.hw", [(1, 0), (3, 2)], sizes=dict.fromkeys(("0.1", "1.1", "2.3", "3.3"), 300)
    )
    assert sealed_runs(log, POLICY, 0, NEVER_MS)[0].segment_name == DataName(0, 3, 3)


def test_a_single_append_keeps_its_name_and_is_not_rewritten() -> None:
    log = log_of("0.1 1.1 2.1.hw", sizes={"0.1": 900, "1.1": 10})
    [run] = sealed_runs(log, POLICY, 0, 0)
    assert (run.is_segment, run.segment_name, run.size_bytes) == (True, DataName(0, None, 1), 900)
    assert planned(log) == []


def test_an_empty_log_has_nothing_to_merge() -> None:
    assert planned(log_of("")) == []


# ------------------------------------------------------------------------------- size tiers

TIERS = MergePolicy(segment_bytes=1 << 30, segment_ms=NEVER_MS, min_files=4)


def crowds(*sizes_kib: int) -> list[tuple[int, int]]:
    """The offsets that are merged in a tail of files of these sizes, with one record each."""
    names = [f"{i}.1" for i in range(len(sizes_kib))]
    log = log_of(
        [*names, f"{len(names)}.1.hw"], sizes={n: s * 1024 for n, s in zip(names, sizes_kib, strict=True)}
    )
    return [(run.start, run.end) for run in plan_merges(log, TIERS, 0, 0)]


def test_neighbours_of_about_the_same_size_are_merged_when_there_are_enough() -> None:
    """segment.merge.min.files."""
    assert crowds(1, 2, 3) == []
    assert crowds(1, 2, 3, 4) == [(0, 4)]
    assert crowds(100, 120, 140, 160) == [(0, 4)]


def test_a_large_file_is_not_rewritten_for_the_sake_of_small_ones() -> None:
    assert crowds(1000, 1, 2, 3) == []
    assert crowds(1000, 1, 2, 3, 4) == [(1, 5)]


def test_files_of_which_few_fill_a_segment_wait_for_its_seal() -> None:
    """An earlier merge would write their bytes once more: a segment has at most 64 of them."""
    part = TIERS.segment_bytes // 1024 // 64
    assert crowds(*[part - 1] * 40) == [(0, 40)]
    assert crowds(*[part] * 40) == []
    assert crowds(part, 1, 2, 3, 4, part) == [(1, 5)]


def test_a_sealed_run_that_the_remote_tier_takes_from_its_files_is_not_merged_first() -> None:
    log = log_of("0.1 1.1 2.1 3.1 4.1.hw", sizes={"0.1": 400, "1.1": 400, "2.1": 400, "3.1": 100})
    policy = replace(POLICY, leaves_sealed=True)
    assert planned(log) == ["0.1..1.1[0,2)"]
    assert spans(plan_merges(log, policy, 0, 0)) == []
    assert spans(sealed_runs(log, policy, 0, 0)) == ["0.1..1.1[0,2)"]
    assert "remote tier without a merge" in why_not_merged(log_of("0.1 1.1.hw", sizes={"0.1": 900}), policy, 0, 0)


def test_small_files_between_larger_ones_are_merged_with_them() -> None:
    """Adjacent files of alternating sizes must not stay unmerged forever."""
    assert crowds(*([100, 10] * 4)) == [(0, 8)]


# ------------------------------------------------------------------------------- simulation


@dataclass
class Folder:
    """A log as numbers: appends arrive, plans are carried out immediately, bytes are counted."""

    policy: MergePolicy
    shrink: float = 1.0
    files: list[tuple[DataName, int, int]] = field(default_factory=list)
    end: int = 0
    now_ms: int = 0
    appended_bytes: int = 0
    rewritten_bytes: int = 0
    most_files: int = 0

    def append(self, size_bytes: int) -> None:
        self.files.append((DataName(self.end, None, 1), size_bytes, self.now_ms))
        self.end += 1
        self.appended_bytes += size_bytes

    def log(self) -> ReplicaLog:
        objects = [stored(name, size, modified) for name, size, modified in self.files]
        listing = parse(FOLDER, [*objects, stored(WatermarkName(self.end, 1))])
        return resolve(listing, Lineage([(1, 0)]), lambda file: file.name.base_offset + 1)

    def plan(self) -> list[Run]:
        self.most_files = max(self.most_files, len(self.files))
        return plan_merges(self.log(), self.policy, 0, self.now_ms)

    def merge(self) -> None:
        for run in self.plan():
            gone = {link.name for link in run.links}
            size = round(run.size_bytes * self.shrink)
            self.rewritten_bytes += size
            self.files = [f for f in self.files if f[0] not in gone]
            self.files.append((run.segment_name, size, self.now_ms))
            self.files.sort()

    @property
    def amplification(self) -> float:
        return self.rewritten_bytes / self.appended_bytes


SIZES: dict[str, Callable[[random.Random, int], int]] = {
    "all of 4 KiB": lambda _, __: 4096,
    "1 to 50 KiB": lambda dice, _: dice.randrange(1024, 50 * 1024),
    "small and large in turn": lambda _, i: (10 if i % 2 else 100) * 1024,
    "a large one now and then": lambda dice, _: 1024 * (2000 if dice.random() < 0.01 else 3),
    "of any magnitude": lambda dice, _: 2 ** dice.randrange(10, 22),
}


@pytest.mark.parametrize("inline_bytes", [0, 1, 4096, 16_383, 16_384, 65_536, 64 << 20])
@pytest.mark.parametrize("min_files", [16, 100_000])
def test_an_upload_reads_few_files_whatever_a_driver_may_merge(inline_bytes: int, min_files: int) -> None:
    """Small files must not stay unmerged until the upload, which would read each of them."""
    configs = {
        "remote.storage.enable": "true",
        "segment.bytes": str(1 << 20),
        "segment.merge.inline.bytes": str(inline_bytes),
        "segment.merge.min.files": str(min_files),
    }
    config = topic_config(configs, {})
    folder = Folder(config.merging_on_brokers)
    for _ in range(1000):
        folder.append(3000)
    folder.now_ms = config.segment_ms
    while folder.plan():
        folder.merge()
    uploads = sealed_runs(folder.log(), config.merging, 0, folder.now_ms)
    assert len(folder.files) <= 4 * FEW
    assert max(len(run.links) for run in uploads) <= 2 * FEW


@pytest.mark.parametrize(("files", "left"), [(64, 64), (65, 1)])
def test_a_run_of_many_files_is_merged_before_the_remote_tier_takes_it(files: int, left: int) -> None:
    folder = Folder(replace(POLICY, segment_bytes=64_000, min_files=100, leaves_sealed=True))
    for _ in range(files):
        folder.append(10)
    folder.now_ms = POLICY.segment_ms
    folder.merge()
    assert len(folder.files) == left


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("sizes", list(SIZES))
def test_ten_thousand_small_appends_are_rewritten_a_small_number_of_times(sizes: str) -> None:
    """Every byte is rewritten a logarithmic number of times, and the folder stays short."""
    dice = random.Random(7)
    folder = Folder(MergePolicy(segment_bytes=32 << 20, segment_ms=NEVER_MS, min_files=10))
    for i in range(10_000):
        folder.append(SIZES[sizes](dice, i))
        if i % 10 == 9:
            folder.merge()
    segments = folder.appended_bytes / folder.policy.segment_bytes
    assert folder.amplification < 6
    assert folder.most_files < 150 + 2.5 * segments


@pytest.mark.slow
def test_a_trickle_is_rewritten_a_small_number_of_times() -> None:
    """The topic gets a few records a day, and its segment.ms is a day."""
    folder = Folder(MergePolicy(segment_bytes=1 << 30, segment_ms=86_400_000, min_files=10))
    for _ in range(1_000):
        folder.append(20_000)
        folder.append(20_000)
        folder.now_ms += 86_400_000
        folder.merge()
    assert folder.amplification < 12


@given(
    st.lists(st.tuples(st.integers(1, 1200), st.booleans()), min_size=1, max_size=40),
    st.integers(0, 120_000),
    st.integers(2, 5),
)
def test_merging_what_merging_made_plans_nothing_new(
    appends: list[tuple[int, bool]], now_ms: int, min_files: int
) -> None:
    """Sealed runs become segments that are never merged again, so a run of the job ends."""
    folder = Folder(MergePolicy(1000, 60_000, min_files))
    for size, _ in appends:
        folder.append(size)
    folder.now_ms = now_ms
    for _ in range(5):
        folder.merge()
    assert folder.plan() == []


@given(st.lists(st.integers(1, 1200), min_size=1, max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_plans_are_disjoint_in_order_and_within_their_bounds(sizes: list[int], remote: int, hw: int) -> None:
    names = [f"{i}.1" for i in range(len(sizes))]
    log = log_of([*names, f"{hw}.1.hw"], sizes=dict(zip(names, sizes, strict=True)))
    position = remote
    for run in plan_merges(log, POLICY, remote, NEVER_MS):
        assert position <= run.start < run.end <= log.high_watermark
        assert len(run.links) > 1
        assert [link.end for link in run.links[:-1]] == [link.start for link in run.links[1:]]
        position = run.end
    position = remote
    for run in sealed_runs(log, POLICY, remote, NEVER_MS):
        assert run.start == position, "everything below a sealed run is sealed: it can be tiered in order"
        position = run.end


# ------------------------------------------------------------------------------ until when nothing changes


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 90_000)), min_size=1, max_size=6), st.data())
def test_time_changes_a_plan_only_where_a_file_becomes_too_old(
    files: list[tuple[int, int]], data: st.DataObject
) -> None:
    names = [f"{i}.1" for i in range(len(files))]
    sizes = {name: size for name, (size, _) in zip(names, files, strict=True)}
    times = {name: at_ms for name, (_, at_ms) in zip(names, files, strict=True)}
    log = log_of(f"{' '.join(names)} {len(files)}.1.hw", sizes=sizes, modified_ms=times)
    now_ms = data.draw(st.integers(0, 200_000))
    next_ms = next_merge_ms(log, POLICY, now_ms)
    assert next_ms > now_ms
    later_ms = data.draw(st.integers(now_ms, min(next_ms, 10**6) - 1))
    assert planned(log, 0, later_ms) == planned(log, 0, now_ms)


def test_a_plan_changes_when_a_file_is_as_old_as_segment_ms() -> None:
    log = log_of("0.1 1.1 2.1.hw", sizes={"0.1": 100, "1.1": 100})
    at_ms = next_merge_ms(log, POLICY, 0)
    assert planned(log, 0, at_ms - 1) == []
    assert planned(log, 0, at_ms) == ["0.1..1.1[0,2)"]
    assert next_merge_ms(log, POLICY, at_ms) == FOREVER_MS


def test_a_log_that_is_not_due_for_compaction_is_looked_at_again_when_its_first_append_seals_the_tail() -> None:
    """The tail is one merged file, younger than its first append, and a file of half a segment after it."""
    log = log_of("0-2.1 2.1 3.1.hw", sizes={"0-2.1": 10, "2.1": 10}, modified_ms={"0-2.1": 50_000, "2.1": 50_000})
    policy = CompactionPolicy(min_dirty_ratio=0.0, min_lag_ms=0, max_lag_ms=10**12, delete_retention_ms=0)

    def footer(_: DataFile) -> SegmentFooter:
        return cast(SegmentFooter, SimpleNamespace(oldest_ms=5_000))

    def looked_at(now_ms: int) -> Cleanable:
        return cleanable(log, POLICY, policy, LogTransactions(3), now_ms, footer)

    young = looked_at(55_000)
    assert (young.is_due(policy, 55_000), young.next_ms) == (False, 65_000)
    assert looked_at(65_000).is_due(policy, 65_000)

"""The remote log: the fold of a table's live files, and its refusals."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.retention import LogFile
from stratalog.tiering.plan import both_tiers, expired_segments
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import EARLIEST_MS, LATEST_MS, RemoteSegment
from tests.unit.tiering_harness import segment


def log_of(*segments: RemoteSegment) -> RemoteLog:
    return RemoteLog.of("table", 1, segments)


def test_segments_are_in_offset_order_per_partition() -> None:
    log = log_of(segment(10, 20), segment(5, 7, partition=3), segment(0, 10))
    assert [s.base_offset for s in log.of_partition(0)] == [0, 10]
    assert (log.start(0), log.end(0)) == (0, 20)
    assert (log.start(3), log.end(3)) == (5, 7)
    assert log.bytes_of(3) == 100


@pytest.mark.slow
def test_a_remote_log_estimates_its_memory() -> None:
    """Bounds of memory depend on it. (Python reuses 2,000 tuples of each length, uncounted.)"""
    start, count = 10**12, 20_000
    tracemalloc.start()
    try:
        log = log_of(*(segment(start + 9 * n, start + 9 * n + 9) for n in range(count)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken <= log.memory_bytes <= 3 * taken


def test_if_nothing_is_tiered_the_offsets_are_unknown() -> None:
    log = RemoteLog.empty("table")
    assert (log.start(0), log.end(0)) == (None, None)
    assert log.covering(0, 0, 100) == ()


def test_a_gap_is_named_by_its_offsets_and_neighbours() -> None:
    with pytest.raises(LogGapError, match=r"partition 0 lacks offsets \[10, 12\) between 0/0+-0+10\."):
        log_of(segment(0, 10), segment(12, 20))


def test_offsets_that_are_there_twice_are_named() -> None:
    with pytest.raises(CorruptionError, match=r"holds offsets \[8, 10\) twice, in 0/0+-"):
        log_of(segment(0, 10), segment(8, 20))


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(0, 100), st.integers(0, 100))
def test_covering_is_what_a_scan_finds(lengths: list[int], start: int, end: int) -> None:
    bounds = [5]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    log = log_of(*(segment(*pair) for pair in pairwise(bounds)))
    wanted = set(range(start, end))
    naive = [s for s in log.of_partition(0) if wanted & set(range(s.base_offset, s.next_offset))]
    assert list(log.covering(0, start, end)) == naive


def test_a_path_that_is_no_segment_belongs_to_another_writer() -> None:
    with pytest.raises(CorruptionError, match="another writer wrote"):
        RemoteSegment.listed("table", "part-00000-c000.snappy.parquet", 1, 1, None, None, 0)


def test_an_append_ends_where_its_number_of_records_says() -> None:
    path = f"4/{DataName(10, None, 2)}"
    found = RemoteSegment.listed("table", path, 7, 5, None, None, 0)
    assert (found.partition, found.base_offset, found.next_offset, found.path) == (4, 10, 15, path)
    assert (found.min_timestamp_ms, found.max_timestamp_ms) == (EARLIEST_MS, LATEST_MS)


def test_an_append_without_a_number_of_records_ends_nowhere() -> None:
    with pytest.raises(CorruptionError, match="without numRecords"):
        RemoteSegment.listed("table", f"4/{DataName(10, None, 2)}", 7, None, None, None, 0)


def test_a_name_and_statistics_that_disagree_are_corruption() -> None:
    with pytest.raises(CorruptionError, match="which its name contradicts"):
        RemoteSegment.listed("table", f"4/{DataName(10, 20, 2)}", 7, 5, None, None, 0)


def test_adds_that_are_listed_already_are_not_needed() -> None:
    log = log_of(segment(0, 10))
    assert log.needed([segment(0, 10), segment(10, 20)], []) == [segment(10, 20)]
    assert log.needed([segment(10, 20)], []) == [segment(10, 20)]


def test_adds_whose_offsets_came_in_other_files_are_superseded() -> None:
    log = log_of(segment(0, 12))
    assert log.needed([segment(0, 10), segment(10, 20), segment(20, 30)], []) == []


def test_the_same_file_with_another_size_is_corruption() -> None:
    with pytest.raises(CorruptionError, match="with 100 bytes, but the upload had 99"):
        log_of(segment(0, 10)).needed([segment(0, 10, size=99)], [])


def test_an_add_behind_a_gap_is_refused() -> None:
    with pytest.raises(LogGapError, match="ends at offset 10 in the remote"):
        log_of(segment(0, 10)).needed([segment(11, 20)], [])


def test_a_log_whose_every_segment_goes_may_begin_anywhere() -> None:
    log = log_of(segment(0, 10))
    assert log.needed([segment(50, 60)], [segment(0, 10)]) == [segment(50, 60)]
    after = log.after([segment(50, 60)], [segment(0, 10)], 2)
    assert (after.version, after.start(0), after.end(0)) == (2, 50, 60)


def test_removing_from_the_middle_is_refused() -> None:
    with pytest.raises(LogGapError):
        log_of(segment(0, 10), segment(10, 20), segment(20, 30)).after([], [segment(10, 20)], 2)


def test_only_segments_wholly_below_the_log_start_expire() -> None:
    """KIP-405, RLM task, step 1: "delete the segment": whole segments only."""
    log = log_of(segment(0, 10), segment(10, 20), segment(0, 10, partition=1))
    assert expired_segments(log, {0: 15, 1: 9}) == [segment(0, 10)]
    assert expired_segments(log, {0: 20}) == [segment(0, 10), segment(10, 20)]
    assert expired_segments(log, {7: 100}) == []


def test_total_retention_sees_every_offset_once() -> None:
    local = [LogFile(0, 10, 5, 1), LogFile(10, 30, 6, 2), LogFile(30, 40, 7, 3)]
    remote = [segment(0, 10), segment(10, 20)]
    seen = both_tiers(remote, local)
    assert [(e.start, e.end) for e in seen] == [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert both_tiers([], local) == local


def test_a_segment_of_a_lost_history_is_recognised() -> None:
    lineage = Lineage([(1, 0), (3, 10)])
    assert segment(0, 10, epoch=1).is_of(lineage)
    assert not segment(0, 12, epoch=2).is_of(lineage)

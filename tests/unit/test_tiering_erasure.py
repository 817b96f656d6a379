"""Erasures in a remote log: rewritten segments, the record in a table, and refused later commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.removal import Rule
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.erasure import (
    ERASURES,
    check_searchable,
    decide_begun,
    decide_erased,
    erasures_json,
    erasures_of,
    log_litter,
    older_log_files,
    to_erase_remotely,
)
from stratalog.tiering.remote_change import CommittedBatch, Rebuilt, TableChange, decide, decide_rebuilt
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded

LINEAGE = Lineage([(1, 0)])
NAMED = Erasure(2, ((4, 6), (12, 13)))


def segment(start: int, end: int, generation: int = 0, rebuilt: int = 0) -> RemoteSegment:
    return RemoteSegment(0, DataName(start, end, 1, generation), end, 100, rebuilt=rebuilt)


def log(*segments: RemoteSegment, erased: int = 0) -> RemoteLog:
    return RemoteLog.of("the table", 7, segments, erased={0: erased} if erased else {})


def uploaded(of: RemoteSegment) -> Uploaded:
    return Uploaded(of, 0, "{}", 100)


@pytest.mark.parametrize(
    ("segments", "wanted"),
    [
        ([segment(0, 5), segment(5, 10), segment(10, 15)], [0, 5, 10]),
        ([segment(0, 4), segment(4, 6), segment(6, 12)], [4]),
        ([segment(0, 5, 2), segment(5, 10, 1), segment(10, 15, 3)], [5]),
        ([segment(13, 20)], []),
        ([], []),
    ],
)
def test_segments_with_a_named_offset_and_a_lesser_generation_are_rewritten(
    segments: Sequence[RemoteSegment], wanted: list[int]
) -> None:
    assert [one.base_offset for one in to_erase_remotely(segments, [Erasure(1, ()), NAMED])] == wanted


@pytest.mark.parametrize(
    ("before", "recorded"),
    [
        (log(segment(0, 4), segment(4, 6, 2), segment(6, 12)), True),
        (log(segment(0, 4)), True),
        (log(), True),
        (log(segment(0, 5)), False),
        (log(segment(0, 4), erased=2), False),
        (log(segment(0, 4), erased=5), False),
    ],
)
def test_a_table_records_an_erasure_when_no_segment_is_left(before: RemoteLog, recorded: bool) -> None:
    found = decide_erased(before, {0: [NAMED]}, {})
    assert isinstance(found, TableChange) is recorded
    if isinstance(found, TableChange):
        assert found
        assert found.erased == {0: 2}
        assert found.info("t")["stratalog.operation"] == "erase"
    else:
        assert found is before


def test_the_others_are_recorded_where_one_partition_must_wait() -> None:
    before = RemoteLog.of("the table", 7, [segment(0, 5)], erased={3: 9})
    found = decide_erased(before, {0: [NAMED], 1: [Erasure(4, ((0, 1),))]}, {})
    assert isinstance(found, TableChange)
    assert found.erased == {1: 4, 3: 9}


COMPACTED = Rule(1, 8, 4)


@pytest.mark.parametrize(
    ("segments", "rules", "recorded"),
    [
        ([segment(0, 4, 1), segment(4, 8, 2), segment(8, 12)], {}, (True, True)),
        ([], {}, (True, True)),
        ([segment(0, 4)], {}, (False, False)),
        ([segment(0, 4)], {0: COMPACTED}, (True, False)),
        ([segment(0, 4, 1)], {0: Rule(3, 9, 4)}, (True, False)),
        ([segment(4, 6, 2), segment(6, 10)], {}, (False, False)),
    ],
)
def test_an_erasure_waits_for_the_compaction_before_it(
    segments: Sequence[RemoteSegment], rules: Mapping[int, Rule], recorded: tuple[bool, bool]
) -> None:
    before = RemoteLog.of("the table", 7, segments, rules=rules)
    found = decide_erased(before, {0: [NAMED]}, {0: COMPACTED})
    assert isinstance(found, TableChange) is recorded[0]
    if isinstance(found, TableChange):
        assert found.erased == {0: 2}
        assert found.rules == ({0: COMPACTED} if recorded[1] else None)


def test_a_beginning_is_recorded_where_no_segment_is_listed() -> None:
    before = RemoteLog.of("the table", 7, [segment(0, 4, 5)])
    erasures = {0: [Erasure(2, ())], 1: [Erasure(3, ())], 2: ()}
    found = decide_begun(before, erasures, {1: COMPACTED})
    assert isinstance(found, TableChange)
    assert (found.erased, found.rules) == ({1: 3}, {1: COMPACTED})
    assert decide_begun(before, {0: [Erasure(2, ())]}, {}) is before


def test_the_property_reads_back_and_a_damaged_one_is_named() -> None:
    assert erasures_of({ERASURES: erasures_json({1: 3, 0: 2})}, "t") == {0: 2, 1: 3}
    assert erasures_of({}, "t") == {}
    for text in ("[]", '{"0": -1}', '{"x": 1}', "{"):
        with pytest.raises(CorruptionError, match=ERASURES):
            erasures_of({ERASURES: text}, "t")


def test_the_generation_of_a_log_is_that_of_its_last_rule_or_erasure() -> None:
    assert log(segment(0, 4), erased=3).generation(0) == 3
    assert log(segment(0, 4)).generation(0) == 0
    assert log(segment(0, 4), erased=3).lacks_erasure(0, 4)
    assert not log(segment(0, 4), erased=3).lacks_erasure(0, 3)
    assert log(segment(0, 4), erased=3).after([segment(4, 5)], [], 8).erased == {0: 3}


@pytest.mark.parametrize(("known", "now", "added"), [(0, 0, True), (2, 2, True), (2, 1, True), (1, 2, False)])
def test_a_commit_leaves_out_what_was_planned_before_an_erasure(known: int, now: int, added: bool) -> None:
    histories = Histories({0: LINEAGE}, lambda: {0: Present(1, erasure=now)}, {0: known})
    found = decide(log(segment(0, 4)), [uploaded(segment(4, 8))], (), histories)
    if added:
        assert isinstance(found, TableChange)
    else:
        assert isinstance(found, CommittedBatch)
        assert [one.segment.base_offset for one in found.stale] == [4]
        assert not found.fenced


@pytest.mark.parametrize(("known", "added"), [(2, True), (1, False)])
def test_a_heal_leaves_out_what_was_rebuilt_before_an_erasure(known: int, added: bool) -> None:
    histories = Histories({0: LINEAGE}, lambda: {0: Present(1, erasure=2)}, {0: known})
    rebuilt = Rebuilt((segment(0, 4, 2),), (uploaded(segment(0, 4, 0, 1)),), 0)
    found = decide_rebuilt(log(segment(0, 4, 2), erased=2), [rebuilt], histories)
    if added:
        assert isinstance(found, TableChange)
    else:
        assert isinstance(found, CommittedBatch)
        assert [one.segment.path for one in found.stale] == [segment(0, 4, 0, 1).path]


@pytest.mark.parametrize(
    ("segments", "local_start", "error"),
    [
        ([segment(0, 4), segment(4, 8)], 8, None),
        ([segment(0, 4), segment(4, 8)], 3, None),
        ([], 0, None),
        ([segment(0, 4)], 5, LogGapError),
        ([], 1, LogGapError),
        ([RemoteSegment(0, DataName(0, 4, 2), 4, 100)], 4, CorruptionError),
    ],
)
def test_both_tiers_are_searched_only_as_one_log(
    segments: Sequence[RemoteSegment], local_start: int, error: type[Exception] | None
) -> None:
    if error is None:
        check_searchable(segments, LINEAGE, 0, local_start, "t-0")
        return
    with pytest.raises(error, match="erase again"):
        check_searchable(segments, LINEAGE, 0, local_start, "t-0")


def test_files_of_older_versions_and_of_no_version_are_distinguished() -> None:
    names = (
        *(f"{version:020d}.json" for version in (3, 7, 8)),
        *(f"{3:020d}.checkpoint.parquet", f"{3:020d}.crc", f"{1:020d}.{3:020d}.compacted.json"),
        *("_last_checkpoint", "_commit_1.json.tmp"),
    )
    files = [StoredObject(f"t/_delta_log/{name}", 1, 0, "") for name in names]
    older = [one.name.rpartition("/")[2] for one in older_log_files(files, 7)]
    assert older == [names[0], *names[3:6]]
    assert [one.name.rpartition("/")[2] for one in log_litter(files)] == ["_commit_1.json.tmp"]

"""The times of snapshots, the moves of log starts, and deletions: tables beside the KIP's sentences (KIP-630)."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog.partitions.errors import CorruptionError, InvalidConfigError
from stratalog.snapshots.policy import (
    SinceSnapshot,
    SnapshotPolicy,
    changed_records,
    counts_as_changed,
    reason_to_wait,
)
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId
from stratalog.snapshots.start_offset import (
    FrozenSnapshot,
    check_invariant,
    follower_start_offset,
    leader_start_offset,
    to_delete,
)

MB = 1024 * 1024
HOUR_MS = 60 * 60 * 1000
POLICY = SnapshotPolicy()
SINCE: dict[str, Any] = {
    "latest": SnapshotId(100, 2),
    "next": SnapshotId(200, 3),
    "log_bytes": 20 * MB,
    "snapshot_records": 10,
    "changed_records": 5,
    "age_ms": HOUR_MS - 1,
}


# ------------------------------------------------------------------------------- When to Snapshot


@pytest.mark.parametrize(
    ("changes", "by_hand", "reason"),
    [
        pytest.param({}, False, None, id="both conditions"),
        pytest.param({"log_bytes": 20 * MB - 1}, False, "between.snapshots = 20971520", id="too few bytes"),
        pytest.param({"changed_records": 4}, False, "4 of 10 records of snapshot 100-2", id="too few changes"),
        pytest.param({"changed_records": 0, "log_bytes": 1}, True, None, id="by hand"),
        pytest.param({"next": SnapshotId(100, 2)}, False, "nothing has been committed", id="nothing new"),
        pytest.param({"next": SnapshotId(100, 2)}, True, "nothing has been committed", id="nothing new, by hand"),
        pytest.param({"next": SnapshotId(90, 3)}, True, "nothing has been committed", id="never back"),
        pytest.param(
            {"latest": EMPTY, "snapshot_records": 0, "changed_records": 0},
            False,
            None,
            id="the first: bytes alone",
        ),
        pytest.param(
            {"latest": EMPTY, "snapshot_records": 0, "changed_records": 0, "log_bytes": MB},
            False,
            "1048576 bytes of log since snapshot 0-0",
            id="the first, too few bytes",
        ),
    ],
)
def test_both_conditions_are_needed(changes: dict[str, Any], by_hand: bool, reason: str | None) -> None:
    """KIP-630, "When to Snapshot": "Both of these configuration need to be satisfied before the Controller or
    Metadata Cache will generate a new snapshot"."""
    found = reason_to_wait(POLICY, SinceSnapshot(**{**SINCE, **changes}), by_hand=by_hand)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


@pytest.mark.parametrize(
    ("changes", "interval_ms", "reason"),
    [
        pytest.param({}, HOUR_MS, None, id="old enough, whatever its size and its changes"),
        pytest.param({"age_ms": HOUR_MS - 1}, HOUR_MS, "100 bytes of log since", id="not quite"),
        pytest.param({"next": SnapshotId(100, 2)}, HOUR_MS, "nothing has been committed", id="nothing new"),
        pytest.param({"age_ms": 10**12}, 0, "100 bytes of log since", id="0: never"),
        pytest.param({"latest": EMPTY, "snapshot_records": 0}, HOUR_MS, None, id="the first"),
    ],
)
def test_an_old_snapshot_is_reason_enough(changes: dict[str, Any], interval_ms: int, reason: str | None) -> None:
    """KIP-876: "the maximum number of milliseconds to wait to generate a snapshot if there are committed records
    in the log that are not included in the latest snapshot. A value of zero disables time based snapshot
    generation"."""
    little = {**SINCE, "log_bytes": 100, "changed_records": 0, "age_ms": HOUR_MS}
    found = reason_to_wait(
        SnapshotPolicy(max_snapshot_interval_ms=interval_ms), SinceSnapshot(**{**little, **changes})
    )
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_the_defaults_are_the_kips() -> None:
    """KIP-630, "Topic configuration": "The default is .5 (50%)", "The default is 20MB"; KIP-876: an hour."""
    assert POLICY.min_changed_records_ratio == 0.5
    assert POLICY.max_record_bytes_between_snapshots == 20 * MB
    assert POLICY.max_snapshot_interval_ms == HOUR_MS


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_changed_records_ratio": -0.1},
        {"min_changed_records_ratio": 1.1},
        {"max_record_bytes_between_snapshots": -1},
        {"max_snapshot_interval_ms": -1},
    ],
)
def test_policies_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match=r"metadata\."):
        SnapshotPolicy(**wrong)


@pytest.mark.parametrize(
    ("held", "touched", "changed"),
    [
        pytest.param("ab", "", 0, id="nothing"),
        pytest.param("ab", "a", 1, id="modified or deleted"),
        pytest.param("ab", "aaa", 1, id="one record counts once"),
        pytest.param("ab", "c", 0, id="a new record"),
        pytest.param("ab", "cc", 1, id="a new record that was then modified or deleted"),
        pytest.param("ab", "cabcad", 3, id="all of it"),
    ],
)
def test_modified_and_deleted_records_count_as_changed_and_new_ones_do_not(
    held: str, touched: str, changed: int
) -> None:
    """KIP-630, "When to Snapshot": "new snapshot records don't count against this ratio. ... If a snapshot record
    was added and then modify or deleted then it counts against the ratio"."""
    assert changed_records(set(held), touched) == changed


def test_untouched_records_do_not_count_as_changed() -> None:
    assert not counts_as_changed(0, held=True)
    assert not counts_as_changed(0, held=False)


# ------------------------------------------------------------------- When to Increase the LogStartOffset

WEEK_MS = 7 * 24 * 60 * 60 * 1000
NOW_MS = 10 * WEEK_MS
FRESH, OLD = NOW_MS - WEEK_MS + 1, NOW_MS - WEEK_MS


@pytest.mark.parametrize(
    ("snapshots", "fetched", "log_start"),
    [
        pytest.param([], [500], 10, id="no snapshot"),
        pytest.param([(100, FRESH)], [100, 500], 100, id="all live replicas have it"),
        pytest.param([(100, FRESH)], [99, 500], 10, id="one live replica lacks it"),
        pytest.param([(100, OLD)], [0, 500], 100, id="old enough, whichever replica lacks it"),
        pytest.param([(100, FRESH), (200, FRESH)], [150, 500], 100, id="the greatest that all have"),
        pytest.param([(100, OLD), (200, FRESH)], [50], 100, id="the greatest that is old enough"),
        pytest.param([(100, FRESH), (200, OLD)], [50], 200, id="an older one is not needed for it"),
        pytest.param([(100, FRESH)], [], 100, id="no other live replica"),
        pytest.param([(5, OLD)], [500], 10, id="never back"),
    ],
)
def test_the_leader_s_log_start_grows_to_the_end_of_a_snapshot(
    snapshots: list[tuple[int, int]], fetched: list[int], log_start: int
) -> None:
    """KIP-630, "When to Increase the LogStartOffset": "can be increased to an offset X if ... 1. There is a
    snapshot for the topic partition with an end offset of X. 2. One of the following is true: 1. All of the live
    replicas (followers and observers) have replicated LogStartOffset or 2. LogStartOffset is
    metadata.start.offset.lag.time.max.ms milliseconds old"."""
    frozen = [FrozenSnapshot(SnapshotId(end, 2), at) for end, at in snapshots]
    assert leader_start_offset(10, frozen, fetched, now_ms=NOW_MS, lag_time_max_ms=WEEK_MS) == log_start


@pytest.mark.parametrize(
    ("own", "leader", "snapshots", "log_start"),
    [
        pytest.param(0, 100, [], 0, id="no snapshot of its own"),
        pytest.param(0, 100, [100], 100, id="one at the leader's start"),
        pytest.param(0, 100, [150], 100, id="one above"),
        pytest.param(0, 100, [60], 60, id="one below"),
        pytest.param(80, 100, [60], 80, id="never back"),
        pytest.param(80, 10, [200], 80, id="never back to its leader's"),
    ],
)
def test_a_follower_s_log_start_is_the_lesser_of_its_leader_s_and_its_snapshot(
    own: int, leader: int, snapshots: list[int], log_start: int
) -> None:
    """KIP-630, "When to Increase the LogStartOffset": "for followers and observers the local log start offset is
    the minimum of the leader's log start offset and the largest local snapshot"."""
    assert follower_start_offset(own, leader, [SnapshotId(end, 2) for end in snapshots]) == log_start


# -------------------------------------------------------------------------- When to Delete Snapshots


@pytest.mark.parametrize(
    ("ends", "log_start", "deleted"),
    [
        pytest.param([], 100, [], id="none there"),
        pytest.param([50, 100], 100, [50], id="below the log start"),
        pytest.param([50, 100], 50, [], id="at the log start"),
        pytest.param([10, 20], 100, [10], id="the latest never"),
        pytest.param([10], 100, [], id="the only one never"),
        pytest.param([30, 10, 20, 99], 25, [10, 20], id="all below, in order"),
    ],
)
def test_snapshots_below_the_log_start_go(ends: list[int], log_start: int, deleted: list[int]) -> None:
    """KIP-630, "When to Delete Snapshots": "The broker will delete any snapshot with a end offset and epoch
    (SnapshotId) less than the LogStartOffset"; never the latest one."""
    found = to_delete([SnapshotId(end, 2) for end in ends], log_start)
    assert [one.end_offset for one in found] == deleted


# ------------------------------------------------------------------- Validation of Snapshot and Log


@pytest.mark.parametrize(
    ("log_start", "ends", "holds"),
    [
        pytest.param(0, [], True, id="from 0, none"),
        pytest.param(0, [5], True, id="from 0, one"),
        pytest.param(10, [10], True, id="at the start"),
        pytest.param(10, [5, 40], True, id="at the high watermark"),
        pytest.param(10, [], False, id="none"),
        pytest.param(10, [9], False, id="below the start only"),
        pytest.param(10, [41], False, id="above the high watermark only"),
    ],
)
def test_a_log_that_does_not_start_at_0_has_a_snapshot(log_start: int, ends: list[int], holds: bool) -> None:
    """KIP-630, "Validation of Snapshot and Log": "If the LogStartOffset is greater than 0, there are one or more
    snapshots where the end offset of the snapshot is between LogStartOffset and the High-Watermark"."""
    snapshots = [SnapshotId(end, 2) for end in ends]
    if holds:
        check_invariant(log_start, 40, snapshots, "replica")
        return
    with pytest.raises(CorruptionError, match="replica: the log starts at 10"):
        check_invariant(log_start, 40, snapshots, "replica")

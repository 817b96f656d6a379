"""The due uploads of the remote tier (KIP-405, RLM task, step 2)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from stratalog.partitions.errors import CorruptionError, LogGapError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Link, Listing, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.rewrites.merge import MergePolicy
from stratalog.partitions.store.protocol import StoredObject
from stratalog.tiering.plan import (
    AT_ONCE,
    CopyLag,
    UploadPlan,
    changes_at_ms,
    earliest_pending_upload,
    plan_uploads,
)
from stratalog.tiering.remote_segment import RemoteSegment
from tests.unit.tiering_harness import EACH_FILE, ONE_SEGMENT, TieredPartition, segment


def leader(*bounds: int, high_watermark: int | None = None, lineage: Lineage | None = None) -> ReplicaLog:
    """A log of merged segments between these offsets, of epoch 1."""
    chain = []
    for base, end in pairwise(bounds):
        name = DataName(base, end, 1)
        chain.append(Link(base, end, DataFile(name, StoredObject(str(name), 100, 0, "1"))))
    return ReplicaLog(
        listing=Listing((), (), (), (), ()),
        lineage=lineage or Lineage([(1, 0)]),
        chain=tuple(chain),
        local_start=bounds[0],
        log_end=bounds[-1],
        high_watermark=bounds[-1] if high_watermark is None else high_watermark,
        claimed_high_watermark=0,
        dead=(),
        hidden=(),
        stranded=(),
    )


def plan(
    log: ReplicaLog, *remote: RemoteSegment, log_start: int = 0, policy: MergePolicy = EACH_FILE
) -> UploadPlan:
    start = earliest_pending_upload(log, remote, log_start, "t-0")
    return plan_uploads(log, start, policy=policy, now_ms=10**15)


def bounds(found: UploadPlan) -> list[tuple[int, int]]:
    return [(run.start, run.end) for run in found.runs]


def rewritten(found: UploadPlan) -> list[tuple[int, int]]:
    """Those that cannot be copied unchanged."""
    return [(run.start, run.end) for run in found.runs if not run.is_segment]


def test_segments_go_one_by_one_from_the_earliest_to_the_latest() -> None:
    """KIP-405, step 2: "copied to remote storage one by one, from the earliest to the latest"."""
    found = plan(leader(0, 10, 20, 30))
    assert bounds(found) == [(0, 10), (10, 20), (20, 30)]
    assert (found.start, found.end, found.size_bytes, rewritten(found)) == (0, 30, 300, [])


def test_only_what_the_remote_does_not_cover_goes() -> None:
    """KIP-405, step 2: "the offset range is not covered by the segments on the remote storage"."""
    assert bounds(plan(leader(0, 10, 20, 30), segment(0, 10), segment(10, 20))) == [(20, 30)]
    assert bounds(plan(leader(0, 10), segment(0, 10))) == []


def test_only_inactive_segments_go() -> None:
    """KIP-405, step 2: "Copy the log segment files that are 1) inactive"."""
    policy = MergePolicy(segment_bytes=250, segment_ms=10**16, min_files=9)
    assert bounds(plan(leader(0, 10, 20, 30), policy=policy)) == [(0, 20)]


def test_nothing_above_the_high_watermark_goes() -> None:
    assert bounds(plan(leader(0, 10, 20, 30, high_watermark=25))) == [(0, 10), (10, 20)]


def test_nothing_below_the_log_start_goes() -> None:
    found = plan(leader(0, 10, 20), log_start=12)
    assert bounds(found) == [(12, 20)]
    assert rewritten(found) == bounds(found)


def test_several_files_become_one_segment() -> None:
    found = plan(leader(0, 10, 20, 30), policy=ONE_SEGMENT)
    assert bounds(found) == [(0, 30)]
    assert rewritten(found) == bounds(found)
    assert found.runs[0].segment_name == DataName(0, 30, 1)


def test_a_file_that_straddles_the_end_of_the_remote_is_cut_there() -> None:
    """Protocol, section 4, "Merge": "a segment that straddles it all the same is cut there"."""
    found = plan(leader(0, 10, 30), segment(0, 15))
    assert bounds(found) == [(15, 30)]
    assert found.runs[0].segment_name == DataName(15, 30, 1)
    assert rewritten(found) == bounds(found)


def test_tiering_switched_on_late_begins_at_the_local_start() -> None:
    found = plan(leader(40, 50, 60), log_start=40)
    assert (found.start, bounds(found)) == (40, [(40, 50), (50, 60)])


def test_tiering_switched_off_for_long_starts_over() -> None:
    """KIP-1023, "ReplicaFetcher Changes": "The highest offset on the remote storage may be much lower than the
    leader's Log-Start-Offset".
    """
    found = plan(leader(40, 50), segment(0, 10), log_start=40)
    assert (found.start, bounds(found)) == (40, [(40, 50)])


def test_offsets_that_are_nowhere_are_reported() -> None:
    with pytest.raises(LogGapError, match="ends at offset 10, but the leader's log begins at 40"):
        plan(leader(40, 50), segment(0, 10))


def test_a_remote_of_another_history_is_never_continued() -> None:
    with pytest.raises(CorruptionError, match="leader epoch 2, but the leader's history has epoch 1"):
        plan(leader(0, 10, 20), segment(0, 10, epoch=2))


def test_a_leader_behind_the_remote_has_nothing_to_upload() -> None:
    assert bounds(plan(leader(0, 10), segment(0, 10), segment(10, 20))) == []


def test_the_earliest_pending_upload_follows_the_tiered_segments(tmp_path: Path) -> None:
    """KIP-1023, "ListOffsets API": "the next one to be uploaded to the remote storage"."""
    part = TieredPartition(tmp_path)
    part.append(3, 4)
    assert earliest_pending_upload(part.log, (), 0, "t-0") == 0
    done = part.tier()
    part.append(5)
    assert earliest_pending_upload(part.log, done.log.of_partition(0), 0, "t-0") == 7


# ------------------------------------------------------------------------- the copy lag (KIP-1241)

AGES = (500, 300, 100, -50)
"""The age of each segment's latest record, in milliseconds; the last one's clock is ahead."""
NOW = 10**15


def lagging(lag: CopyLag, *ages: int) -> UploadPlan:
    """The due ones of segments of 100 bytes and 10 records with these ages, and one after the high watermark."""
    log = leader(*range(0, 10 * len(ages) + 20, 10), high_watermark=10 * len(ages))
    latest = {10 * index: NOW - age for index, age in enumerate(ages)}
    return plan_uploads(log, 0, policy=EACH_FILE, now_ms=NOW, lag=lag, latest_ms=lambda link: latest[link.start])


@pytest.mark.parametrize(
    ("ms", "size_bytes", "due"),
    [
        (0, -1, 4),  # the defaults: at once
        (-1, 0, 4),
        (0, 10**9, 4),  # either one suffices
        (10**9, 0, 4),
        (300, -1, 2),  # by age: exactly so old is old enough
        (301, -1, 1),
        (501, -1, 0),
        (-1, 300, 2),  # by the bytes after it, including those of the last segment
        (-1, 301, 1),
        (-1, 401, 0),
        (301, 300, 2),  # either one suffices
        (501, 400, 1),
        (-1, -1, 0),  # like local retention, which has no limit: never
    ],
)
def test_a_sealed_segment_goes_when_it_is_old_enough_or_has_enough_behind_it(
    ms: int, size_bytes: int, due: int
) -> None:
    """KIP-1241: "eligible for upload when either" of the two is satisfied; nothing after an ineligible one."""
    found = lagging(CopyLag(ms, size_bytes), *AGES)
    assert bounds(found) == [(10 * n, 10 * n + 10) for n in range(due)]
    assert found.held_bytes == 100 * (4 - due)


def test_a_timestamp_in_the_future_holds_nothing_back() -> None:
    """Otherwise a producer whose clock is a year ahead would keep a segment on the brokers for that year."""
    assert bounds(lagging(CopyLag(200, -1), 500, -(10**9))) == [(0, 10), (10, 20)]


def test_a_young_segment_holds_back_the_segments_behind_it() -> None:
    assert bounds(lagging(CopyLag(200, -1), 500, 100, 900)) == [(0, 10)]


def test_without_a_time_no_footer_is_read() -> None:
    def never(_: Link) -> int:
        raise AssertionError

    run = plan(leader(0, 10)).runs[0]
    assert AT_ONCE.eligible(run, 0, NOW, never)
    assert not CopyLag(-1, 5).eligible(run, 4, NOW, never)
    assert CopyLag(10, 5).eligible(run, 5, NOW, never)


def test_a_tail_is_as_old_as_its_first_record_not_as_the_file_that_a_merge_has_made_of_it() -> None:
    """segment.ms bounds how long a record waits for the remote tier, however often its file is merged again."""
    policy = MergePolicy(segment_bytes=10**6, segment_ms=1000, min_files=9)
    log = leader(0, 10, 20)  # files made at 0

    def sealed(now_ms: int, oldest_ms: int) -> list[tuple[int, int]]:
        return bounds(
            plan_uploads(
                log, 0, policy=policy, now_ms=now_ms, oldest_ms=lambda link: oldest_ms if link.start == 0 else 0
            )
        )

    assert sealed(now_ms=500, oldest_ms=0) == []
    assert sealed(now_ms=500, oldest_ms=-500) == [(0, 10)]  # as large as all that came after it
    assert sealed(now_ms=1000, oldest_ms=0) == [(0, 10), (10, 20)]
    idle = changes_at_ms(log, UploadPlan(0, ()), policy=policy, lag=AT_ONCE, now_ms=100, oldest_ms=lambda _: -500)
    assert idle == 500


def test_a_file_from_the_future_expires_by_its_time_of_writing() -> None:
    """Retention ignores such timestamps, so the tail must be tiered before the brokers may delete it."""
    policy = MergePolicy(segment_bytes=1000, segment_ms=10_000, min_files=9)
    name = DataName(0, None, 1)
    made = Link(0, 10, DataFile(name, StoredObject(str(name), 100, 0, "1")))  # at 0
    log = replace(leader(0, 10), chain=(made,))

    def due(now_ms: int) -> tuple[object, ...]:
        args = {"policy": policy, "now_ms": now_ms, "expires_ms": 1000, "latest_ms": lambda _: 9999}
        found = plan_uploads(log, 0, **args)  # type: ignore[arg-type]
        return bounds(found), changes_at_ms(log, UploadPlan(0, ()), lag=AT_ONCE, **args)  # type: ignore[arg-type]

    assert due(500) == ([], 1001)
    assert due(1000) == ([], 1001)
    assert due(1001)[0] == [(0, 10)]


def test_a_plan_with_nothing_due_says_when_that_may_change() -> None:
    """By the age of the unsealed part; by the records' own times, if the lag uses them: any time."""
    policy = MergePolicy(segment_bytes=150, segment_ms=1000, min_files=9)
    idle = leader(0, 10)

    def until(lag: CopyLag, found: UploadPlan) -> int:
        return changes_at_ms(idle, found, policy=policy, lag=lag, now_ms=500)

    assert until(AT_ONCE, UploadPlan(0, ())) == 1000
    assert until(CopyLag(5, -1), UploadPlan(0, (), held_bytes=100)) == 500
    assert until(CopyLag(5, -1), UploadPlan(0, ())) == 1000
    assert until(AT_ONCE, UploadPlan(10, ())) > 10**18

"""The files that may leave a log (KIP-405, "Log retention"; protocol section 4, Retention; V6, V10, V11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import parse, resolve
from stratalog.partitions.retention import (
    KEPT_EPOCHS,
    UNLIMITED,
    LogFile,
    RetentionLimits,
    local_start_for,
    next_expiry_ms,
    next_removal_ms,
    removable,
    retained_from,
)
from tests.unit.notation import FOLDER, log_of, name_of, stored

NOW_MS = 1_000_000
DELAY_MS = 60_000


def extents(*files: tuple[int, int]) -> list[LogFile]:
    """A log of files given as (bytes, age of the newest record in ms), ten offsets each."""
    return [LogFile(i * 10, i * 10 + 10, size, NOW_MS - age) for i, (size, age) in enumerate(files)]


# ----------------------------------------------------------------------------- retained_from

LOG = extents((100, 5_000), (100, 4_000), (100, 3_000), (100, 2_000), (100, 1_000))


@pytest.mark.parametrize(
    ("retention_ms", "retention_bytes", "keeps_from"),
    [
        pytest.param(UNLIMITED, UNLIMITED, None, id="unlimited"),
        pytest.param(5_000, UNLIMITED, None, id="exactly as old as allowed is kept"),
        pytest.param(4_999, UNLIMITED, 10, id="one millisecond too old goes"),
        pytest.param(2_500, UNLIMITED, 30, id="whole files go from the oldest on"),
        pytest.param(0, UNLIMITED, 50, id="the last file goes like any other"),
        pytest.param(999, UNLIMITED, 50, id="one millisecond too old: the last one, too"),
        pytest.param(1_000, UNLIMITED, 40, id="exactly as old as allowed: the last one, too"),
        pytest.param(UNLIMITED, 500, None, id="exactly as large as allowed is kept"),
        pytest.param(UNLIMITED, 401, None, id="a file stays while without it too little would be left"),
        pytest.param(UNLIMITED, 400, 10, id="a file goes when what is left is still enough"),
        pytest.param(UNLIMITED, 250, 20, id="at least retention.bytes stay"),
        pytest.param(UNLIMITED, 0, 50, id="no bytes at all"),
        pytest.param(UNLIMITED, 1, 40, id="one byte keeps the last file"),
        pytest.param(2_500, 400, 30, id="both: time asks for more"),
        pytest.param(4_999, 200, 30, id="both: size asks for more"),
        pytest.param(UNLIMITED, 10_000, None, id="more allowed than there is"),
    ],
)
def test_retention_follows_kafkas_rules_for_time_and_size(
    retention_ms: int, retention_bytes: int, keeps_from: int | None
) -> None:
    """retention.ms and retention.bytes."""
    assert retained_from(LOG, RetentionLimits(retention_ms, retention_bytes), NOW_MS) == keeps_from


def test_an_old_file_behind_a_young_one_stays() -> None:
    """Kafka deletes a prefix: it stops at the first segment that must stay."""
    log = extents((100, 5_000), (100, 10), (100, 5_000), (100, 10))
    assert retained_from(log, RetentionLimits(1_000, UNLIMITED), NOW_MS) == 10


def test_the_only_file_goes_when_it_has_expired() -> None:
    """Kafka's UnifiedLog deletes the expired active segment, and rolls a new one: log start = log end."""
    assert retained_from(extents((100, 5_000)), RetentionLimits(4_999, UNLIMITED), NOW_MS) == 10
    assert retained_from(extents((100, 5_000)), RetentionLimits(5_000, UNLIMITED), NOW_MS) is None
    assert retained_from([], RetentionLimits(0, 0), NOW_MS) is None


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 6_000)), max_size=12),
    st.integers(-1, 6_000),
    st.integers(-1, 2_000),
)
def test_it_is_the_further_of_the_two_limits_taken_alone(
    files: list[tuple[int, int]], retention_ms: int, retention_bytes: int
) -> None:
    log = extents(*files)
    both = retained_from(log, RetentionLimits(retention_ms, retention_bytes), NOW_MS)
    by_time = retained_from(log, RetentionLimits(retention_ms, UNLIMITED), NOW_MS)
    by_size = retained_from(log, RetentionLimits(UNLIMITED, retention_bytes), NOW_MS)
    assert both == max((x for x in (by_time, by_size) if x is not None), default=None)
    if by_size is not None:
        assert sum(e.size_bytes for e in log if e.start >= by_size) >= retention_bytes


# --------------------------------------------------------------------------- local_start_for


@pytest.mark.parametrize(("wanted", "start"), [(0, 0), (1, 0), (2, 2), (4, 2), (5, 5), (6, 5), (7, 5), (100, 5)])
def test_the_local_start_moves_to_a_file_boundary_below_the_high_watermark(wanted: int, start: int) -> None:
    """Otherwise a live append could straddle the local start: its base would be below the start, and the append
    dead.
    """
    assert local_start_for(log_of("0.1 2.1 5.1 8.1 6.1.hw", end=9), wanted) == start


def test_the_local_start_never_goes_back() -> None:
    """Section 1: ``local`` and ``hw`` only grow."""
    assert local_start_for(log_of("5.1 8.1 5.local 9.1.hw"), 3) == 5


def test_local_retention_never_passes_what_is_in_the_remote_log() -> None:
    """KIP-405: a local segment is deleted only after it was copied; the caller's bound is the end of the remote
    log.
    """
    log = log_of("0.1 2.1 5.1 9.1.hw", end=9)
    for remote_end in range(10):
        assert local_start_for(log, remote_end) <= remote_end


@given(st.integers(0, 14))
def test_moving_the_local_start_loses_nothing_above_it(wanted: int) -> None:
    names = "0.1 2.1 2-6.1 6.1 4-8.1 8.1 11.1 12.1.hw"
    before = log_of(names, end=12)
    start = local_start_for(before, wanted)
    after = log_of(f"{names} {start}.local", end=12)
    assert (after.local_start, after.log_end, after.high_watermark) == (start, 12, 12)


# --------------------------------------------------------------------------------- removable


def removed(names: str, lineage: list[tuple[int, int]] | None = None, **modified_ms: int) -> set[str]:
    """The names that a vacuum at ``NOW_MS`` may delete; everything is old unless ``modified_ms`` says
    otherwise."""
    ages = {name.lstrip("_").replace("_to_", "-").replace("_", "."): at for name, at in modified_ms.items()}
    log = log_of(names, lineage or [(1, 0)], modified_ms=ages)
    return set(removable(log, NOW_MS, DELAY_MS))


def named(names: str) -> set[str]:
    return {str(name_of(text)) for text in names.split()}


def test_files_of_the_log_are_never_removed() -> None:
    assert removed("0.1 1.1 2.1 1.epoch 3.1.hw") == set()


def test_files_below_the_local_start_go_after_the_delay() -> None:
    """Section 4, Retention: creates ``<offset>.local``; a later run, after the delay, deletes files below it."""
    names = "0.1 1.1 2.1 2.local"
    assert removed(names) == named("0.1 1.1")
    assert removed(names, _2_local=NOW_MS - DELAY_MS) == named("0.1 1.1")
    assert removed(names, _2_local=NOW_MS - DELAY_MS + 1) == set()


def test_v10a_a_merged_segment_below_the_local_start_goes_with_them() -> None:
    assert removed("0-2.1 2.1 2.local") == named("0-2.1")
    assert removed("0-3.1 3.1 2.local") == set(), "it reaches across the local start"


def test_files_that_a_merged_segment_hides_go_after_the_delay() -> None:
    names = "0.1 1.1 0-2.1 2.1 3.1.hw"
    assert removed(names) == named("0.1 1.1")
    assert removed(names, _0_to_2_1=NOW_MS - DELAY_MS) == named("0.1 1.1")
    assert removed(names, _0_to_2_1=NOW_MS - DELAY_MS + 1) == set()


def test_a_hidden_segment_waits_for_the_youngest_file_that_covers_it() -> None:
    """The overlap of V10b: until 2-5 came, readers read offset 2 from 1-3; their plans may still run."""
    names = "0-2.1 1-3.1 2-5.1 5.1 6.1.hw"
    assert removed(names) == named("1-3.1")
    assert removed(names, _2_to_5_1=NOW_MS) == set()


def test_hidden_files_stay_while_their_cover_is_not_below_the_high_watermark() -> None:
    assert removed("0.1 1.1 0-2.1 2.1 1.1.hw") == set()


def test_v6_a_dead_file_above_the_high_watermark_may_come_alive_again_and_stays() -> None:
    """V6, step 4: 1.1 is dead on K under [[1,0],[2,1]]; the next leader may have it."""
    assert removed("0.1 1.1 1.1.hw", [(1, 0), (2, 1)]) == set()


def test_v6_a_dead_file_below_the_high_watermark_is_dead_forever() -> None:
    names, lineage = "0.1 1.1 1.2 2.2.hw", [(1, 0), (2, 1)]
    assert removed(names, lineage) == named("1.1")
    assert removed(names, lineage, _1_1=NOW_MS - DELAY_MS + 1) == set(), "not before the delay"


def test_a_truncated_file_waits_for_the_delay_from_when_its_replica_joined_the_epoch() -> None:
    """The file waits however old it is: until then it was in the log, and readers' plans may still run."""
    names, lineage = "0.1 1.1 1.2 2.2.hw 1.epoch 2.epoch", [(1, 0), (2, 1)]
    assert removed(names, lineage, _2_epoch=NOW_MS - DELAY_MS) == named("1.1")
    assert removed(names, lineage, _2_epoch=NOW_MS - DELAY_MS + 1) == set()


def test_v6_a_dead_segment_stays_while_its_last_offset_is_not_below_the_high_watermark() -> None:
    """The epoch of the segment is looked up at its last record, and that record's epoch may change again."""
    names, lineage = "0.1 1.1 0-3.1 2.2", [(1, 0), (2, 2)]
    assert removed(f"{names} 2.2.hw", lineage) == set()
    assert removed(f"{names} 3.2.hw", lineage) == named("0-3.1")


def test_files_behind_a_gap_are_evidence_and_stay() -> None:
    assert removed("0-1.1 2-3.1 3.1.hw") == set()


def test_v11_registers_that_say_nothing_any_more_go() -> None:
    assert removed("2.1 1.local 2.local 1.1.hw 3.1.hw") == named("1.local 1.1.hw")


def test_a_local_start_that_moves_on_faster_than_the_delay_keeps_no_file_forever() -> None:
    """file.delete.delay.ms counts for each file from the first local start above it, so that register stays until
    a greater one is old enough.
    """
    names = "0.1 1.1 2.1 3.1 1.local 2.local 3.local"
    aged = {"_2_local": NOW_MS - DELAY_MS, "_3_local": NOW_MS - 1}
    assert removed(names, **aged) == named("0.1 1.1 1.local")
    assert removed("0.1 1.1 1.local", _1_local=NOW_MS) == set()


def test_v6_the_greatest_epoch_and_local_start_stay() -> None:
    kept = removed("2.1 2.local 1.epoch 2.epoch 3.1.hw")
    assert not kept & named("2.local 1.epoch 2.epoch")


dead_or_alive = st.sets(
    st.builds(lambda base, epoch: f"{base}.{epoch}", st.integers(0, 7), st.integers(1, 3))
    | st.builds(lambda a, n, epoch: f"{a}-{a + n}.{epoch}", st.integers(0, 5), st.integers(1, 3), st.just(1)),
    max_size=14,
)


@given(dead_or_alive, st.integers(0, 8), st.integers(1, 3), st.integers(0, 3), st.integers(1, 8))
def test_a_vacuum_changes_no_log_under_this_lineage_or_a_later_one(
    data: set[str], hw: int, hw_epoch: int, local: int, later_start: int
) -> None:
    """V6: below the high watermark no later leader of a clean election differs; above it, nothing is deleted."""
    lineage = [(1, 0), (2, 4)]
    names = [*sorted(data), f"{hw}.{hw_epoch}.hw", f"{local}.local"]
    log = log_of(names, lineage)
    gone = set(removable(log, NOW_MS, DELAY_MS))
    kept = [name for name in names if str(name_of(name)) not in gone]
    futures = [lineage]
    if later_start >= log.high_watermark:
        agreed = [entry for entry in lineage if entry[1] < min(later_start, log.high_watermark)]
        futures += [[*agreed, (3, later_start)], [*agreed, (9, later_start)]]
    for future in futures:
        before, after = (
            resolve(
                parse(FOLDER, [stored(name_of(n)) for n in some]),
                Lineage(future),
                lambda f: f.name.base_offset + 1,
            )
            for some in (names, kept)
        )
        below = [(link.start, link.end) for link in before.chain if link.end <= log.high_watermark]
        assert [(link.start, link.end) for link in after.chain][: len(below)] == below
        assert after.log_end == before.log_end


# ----------------------------------------------------------------------------- until when nothing changes

ages = st.lists(st.tuples(st.integers(1, 200), st.integers(-3_000, 6_000)), max_size=6)


@given(ages, st.sampled_from([UNLIMITED, 0, 1_000, 2_500]), st.sampled_from([UNLIMITED, 0, 250]))
def test_limits_keep_the_same_until_the_next_file_expires(
    files: list[tuple[int, int]], retention_ms: int, retention_bytes: int
) -> None:
    """This is so even if timestamps are in the future (an age below 0): such a file counts from the time when it
    was written.
    """
    log = [
        LogFile(i * 10, i * 10 + 10, size, NOW_MS - age, NOW_MS - 500 * (6 - i))
        for i, (size, age) in enumerate(files)
    ]
    limits = RetentionLimits(retention_ms, retention_bytes)
    now, next_ms = retained_from(log, limits, NOW_MS) or 0, next_expiry_ms(log, limits, NOW_MS)
    assert next_ms > NOW_MS
    for later_ms in (NOW_MS + 1, NOW_MS + 999, next_ms - 1):
        if later_ms < min(next_ms, 10**12):
            assert (retained_from(log, limits, later_ms) or 0) <= now


def test_the_next_file_expires_when_it_is_a_millisecond_too_old() -> None:
    assert next_expiry_ms(LOG, RetentionLimits(4_500, UNLIMITED), NOW_MS) == NOW_MS + 501
    assert next_expiry_ms(LOG, RetentionLimits(500, UNLIMITED), NOW_MS) == FOREVER_MS
    assert next_expiry_ms(LOG, RetentionLimits(UNLIMITED, 100), NOW_MS) == FOREVER_MS


@pytest.mark.parametrize(
    "text", ["0.1 1.1 0-2.1 2.1 2.1.hw", "0.1 1.1 1.local 2.1.hw", "0.1 1.1 1.local 2.local 2.1.hw"]
)
def test_nothing_more_is_removable_before_the_next_delay_is_over(text: str) -> None:
    log = log_of(text)
    at_ms = next_removal_ms(log, 0, DELAY_MS)
    assert 0 < at_ms < FOREVER_MS
    assert removable(log, at_ms - 1, DELAY_MS) == removable(log, 0, DELAY_MS)
    assert removable(log, at_ms, DELAY_MS) != removable(log, 0, DELAY_MS)
    assert next_removal_ms(log, at_ms, DELAY_MS) == FOREVER_MS


# --------------------------------------------------------------------------- registers of epochs


def epochs_left(names: list[str], leader_epoch: int, **ages: int) -> list[int]:
    log = log_of(names, [(1, 0)], end=1, modified_ms={f"{name}.epoch": at for name, at in ages.items()})
    gone = set(removable(log, NOW_MS, DELAY_MS, leader_epoch))
    return [int(name.split(".")[0]) for name in names if name.endswith("epoch") and str(name_of(name)) not in gone]


def test_a_thousand_elections_leave_a_bounded_number_of_registers() -> None:
    """The last register counts; the earlier ones that identify a foreign one stay."""
    names = ["0.1", *(f"{epoch}.epoch" for epoch in range(1, 1001))]
    assert epochs_left(names, 1000) == [*range(1001 - KEPT_EPOCHS, 1001)]


def test_a_register_above_the_committed_epoch_is_no_substitute_for_another() -> None:
    """Heal deletes the foreign register, and the previous one counts again."""
    names = ["0.1", *(f"{epoch}.epoch" for epoch in [*range(1, 31), *range(900, 1000)])]
    assert epochs_left(names, 30) == [*range(31 - KEPT_EPOCHS, 31), *range(900, 1000)]


def test_registers_go_when_those_that_follow_are_as_old_as_the_delay() -> None:
    """A reader may be reading the listed file."""
    names = ["0.1", *(f"{epoch}.epoch" for epoch in range(1, 31))]
    young = {str(epoch): NOW_MS for epoch in range(21, 31)}
    assert epochs_left(names, 30, **young) == [*range(21 - KEPT_EPOCHS, 31)]
    assert epochs_left(names, 30, **{str(epoch): NOW_MS for epoch in range(1, 31)}) == [*range(1, 31)]


def test_the_next_register_goes_when_those_that_follow_are_old_enough() -> None:
    names = [name_of(f"{epoch}.epoch") for epoch in range(1, 31)]
    log = log_of(["0.1", *map(str, names)], [(1, 0)], end=1, modified_ms={str(name): NOW_MS for name in names})
    at_ms = next_removal_ms(log, NOW_MS, DELAY_MS)
    assert at_ms == NOW_MS + DELAY_MS
    assert removable(log, at_ms - 1, DELAY_MS, 30) == []
    assert len(removable(log, at_ms, DELAY_MS, 30)) == 30 - KEPT_EPOCHS


@pytest.mark.parametrize("again_ms", [1, 10, DELAY_MS - 1])
def test_the_delay_of_an_append_begins_with_the_first_merge_that_hides_it(again_ms: int) -> None:
    """A tail of small appends is merged again every few appends, more often than the delay."""
    ages = {"0-2.1": NOW_MS, "0-3.1": NOW_MS + again_ms}
    log = log_of(["0.1", "1.1", "2.1", "0-2.1", "0-3.1", "3.1.hw"], [(1, 0)], modified_ms=ages)

    def gone(at_ms: int) -> set[str]:
        return set(removable(log, at_ms, DELAY_MS))

    appends = {str(name_of(name)) for name in ("0.1", "1.1")}
    assert gone(NOW_MS + DELAY_MS - 1) == set()
    assert gone(NOW_MS + DELAY_MS) == appends
    assert gone(NOW_MS + again_ms + DELAY_MS) == appends | {str(name_of(name)) for name in ("2.1", "0-2.1")}

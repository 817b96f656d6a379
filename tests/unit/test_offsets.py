"""ListOffsets: the named positions (KIP-405, "ListOffsets"; KIP-1005; KIP-1023)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.partitions.offsets import Answer, FoundOffset, OffsetSpec, Positions, UnknownOffset, named_offset

TIERED = Positions(log_start=10, local_start=60, high_watermark=90, log_end=95, remote_end=80, tiered=True)
"""Remote [10, 80), local [60, 95), readable up to 90."""

PLAIN = Positions(log_start=10, local_start=10, high_watermark=90, log_end=95, remote_end=None, tiered=False)


@pytest.mark.parametrize(
    ("spec", "number"),
    [
        (OffsetSpec.LATEST, -1),
        (OffsetSpec.EARLIEST, -2),
        (OffsetSpec.MAX_TIMESTAMP, -3),
        (OffsetSpec.EARLIEST_LOCAL, -4),
        (OffsetSpec.LAST_TIERED, -5),
        (OffsetSpec.EARLIEST_PENDING_UPLOAD, -6),
    ],
)
def test_the_kinds_have_kafkas_numbers(spec: OffsetSpec, number: int) -> None:
    """KIP-1023: "a new target timestamp with a value of -6"."""
    assert spec == number


@pytest.mark.parametrize(
    ("positions", "spec", "answer"),
    [
        (TIERED, OffsetSpec.LATEST, FoundOffset(90)),
        (TIERED, OffsetSpec.EARLIEST, FoundOffset(10)),
        (TIERED, OffsetSpec.EARLIEST_LOCAL, FoundOffset(60)),
        (TIERED, OffsetSpec.LAST_TIERED, FoundOffset(79)),
        (TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD, FoundOffset(80)),
        (PLAIN, OffsetSpec.LATEST, FoundOffset(90)),
        (PLAIN, OffsetSpec.EARLIEST, FoundOffset(10)),
        (PLAIN, OffsetSpec.EARLIEST_LOCAL, FoundOffset(10)),
    ],
)
def test_every_named_offset_has_its_place_on_tiered_and_on_plain_topics(
    positions: Positions, spec: OffsetSpec, answer: Answer
) -> None:
    assert named_offset(positions, spec) == answer


def test_the_latest_offset_is_the_high_watermark_and_not_the_log_end() -> None:
    """I5: a reader never sees an offset at or above the high watermark."""
    assert named_offset(TIERED, OffsetSpec.LATEST) == FoundOffset(TIERED.high_watermark)


@pytest.mark.parametrize("spec", [OffsetSpec.LAST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD])
def test_a_topic_that_is_not_tiered_has_no_remote_positions(spec: OffsetSpec) -> None:
    assert named_offset(PLAIN, spec) == UnknownOffset("the topic is not tiered")


def test_before_the_first_upload_nothing_is_tiered() -> None:
    fresh = replace(TIERED, log_start=0, local_start=0, remote_end=None)
    assert named_offset(fresh, OffsetSpec.LAST_TIERED) == UnknownOffset("nothing is tiered yet")


def test_before_the_first_upload_the_whole_local_log_is_pending() -> None:
    """KIP-1023: when the log start is the local log start, nothing was uploaded, and the answer is that offset."""
    fresh = replace(TIERED, log_start=7, local_start=7, remote_end=None)
    assert named_offset(fresh, OffsetSpec.EARLIEST_PENDING_UPLOAD) == FoundOffset(7)


def test_deleted_records_that_are_still_local_are_not_pending() -> None:
    """Kafka 4.3: nothing is tiered, and the log start is above the local start after DeleteRecords; if the log
    start is inside a file, this is permanent.
    """
    deleted = replace(TIERED, log_start=65, remote_end=None)
    assert named_offset(deleted, OffsetSpec.EARLIEST_PENDING_UPLOAD) == FoundOffset(65)


def test_a_leader_that_does_not_know_the_remote_log_yet_does_not_guess() -> None:
    """KIP-1023: the local start is above the log start, so some records are remote; the leader will
    learn which.
    """
    unaware = replace(TIERED, remote_end=None)
    assert isinstance(named_offset(unaware, OffsetSpec.EARLIEST_PENDING_UPLOAD), UnknownOffset)


def test_the_pending_offset_is_never_below_the_log_start() -> None:
    """Kafka 4.3 raises it, while KIP-1023 says that the remote log may end much lower: there is nothing to upload
    below the log start. (Followers use the end of the remote log itself.)"""
    deleted_beyond = replace(TIERED, log_start=85, local_start=85)
    assert named_offset(deleted_beyond, OffsetSpec.EARLIEST_PENDING_UPLOAD) == FoundOffset(85)


def test_the_earliest_local_offset_is_never_below_the_log_start() -> None:
    """DeleteRecords is committed before any replica's ``.local`` follows."""
    assert named_offset(replace(PLAIN, log_start=30), OffsetSpec.EARLIEST_LOCAL) == FoundOffset(30)


def test_the_largest_timestamp_is_no_named_position() -> None:
    with pytest.raises(ValueError, match="lookup"):
        named_offset(TIERED, OffsetSpec.MAX_TIMESTAMP)

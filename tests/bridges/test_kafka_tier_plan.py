"""The segments that count, compared with a simple model: histories of elections, uploads and deletions, from
seeds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.lineage import LeaderEpochs
from stratalog.bridges.kafka_tier.plan import plan_partition, within
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from tests.bridges.kafka_tier_data import AIVEN, MAIN, real, rows_of
from tests.bridges.test_kafka_tier_read import opened

ID = "A" * 22
STATES = list(SegmentState)


def segment(number: int, start: int, end: int, log: list[int], state: SegmentState) -> RemoteLogSegment:
    """The upload of ``[start, end)`` of a log, which has the leader epoch of each offset."""
    epochs: list[tuple[int, int]] = []
    for offset in range(start, end):
        if not epochs or epochs[-1][0] != log[offset]:
            epochs.append((log[offset], offset))
    return RemoteLogSegment(
        ID, "t", 0, f"{number:022d}", start, end - 1, 0, 100, tuple(epochs), event_timestamp_ms=number, state=state
    )


def starts_of(log: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((epoch, at) for at, epoch in enumerate(log) if at == 0 or log[at - 1] != epoch)


@pytest.mark.parametrize("seed", range(300))
def test_a_plan_reads_the_present_history_and_names_the_offsets_that_it_leaves_out(seed: int) -> None:
    draw = random.Random(seed)
    log: list[int] = [0] * draw.randrange(1, 30)
    segments: list[tuple[RemoteLogSegment, list[int]]] = []
    epoch = 0
    for number in range(draw.randrange(2, 14)):
        match draw.choice(["append", "append", "upload", "upload", "upload", "elect", "unclean"]):
            case "append":
                log = log + [epoch] * draw.randrange(1, 20)
            case "elect":
                epoch += draw.randrange(1, 3)
                log = log + [epoch] * draw.randrange(1, 6)
            case "unclean":
                epoch += 1
                log = log[: draw.randrange(1, len(log) + 1)] + [epoch] * draw.randrange(1, 20)
            case _:
                start = draw.randrange(len(log))
                end = draw.randrange(start + 1, len(log) + 1)
                state = draw.choice([*STATES, SegmentState.COPY_SEGMENT_FINISHED])
                segments.append((segment(number, start, end, log, state), log))
    contradictory = {one.segment_id: "x" for one, _ in segments if draw.random() < 0.1}
    plan = plan_partition("t", 0, [one for one, _ in segments], contradictory, LeaderEpochs(starts_of(log)))
    logs = {one.segment_id: its for one, its in segments}

    def same(its: list[int], offset: int) -> bool:
        """The epoch identifies the record at an offset, because an epoch has one history."""
        return offset < min(len(its), len(log)) and its[offset] == log[offset]

    good = [
        one
        for one, _ in segments
        if one.state is SegmentState.COPY_SEGMENT_FINISHED and one.segment_id not in contradictory
    ]
    there = {
        offset
        for one in good
        for offset in range(one.start_offset, one.next_offset)
        if same(logs[one.segment_id], offset)
    }
    read = [(offset, piece) for piece in plan.pieces for offset in range(piece.start, piece.end)]
    assert [offset for offset, _ in read] == sorted({offset for offset, _ in read}) == sorted(there)
    assert all(same(logs[piece.segment.segment_id], offset) for offset, piece in read)
    assert all(piece.segment in good for _, piece in read)
    named = {offset for one in plan.unclear for offset in range(one.start, one.end)}
    assert named == set(range(plan.start, plan.end)) - there
    assert all(one.reason for one in plan.unclear)
    assert [piece for run in plan.runs() for piece in run] == list(plan.pieces)
    low, high = sorted((draw.randrange(60), draw.randrange(60)))
    inside = [offset for piece in within(plan.pieces, low, high) for offset in range(piece.start, piece.end)]
    assert inside == [offset for offset in sorted(there) if low <= offset < high]


def test_a_known_start_of_the_log_cuts_segments() -> None:
    one = segment(1, 0, 20, [0] * 20, SegmentState.COPY_SEGMENT_FINISHED)
    two = replace(one, segment_id="B" * 22, start_offset=30, end_offset=39, leader_epochs=((0, 30),))
    plan = plan_partition("t", 0, [one, two], {}, LeaderEpochs(((0, 0),)), 7)
    assert [(piece.start, piece.end) for piece in plan.pieces] == [(7, 20), (30, 40)]
    assert [str(gap) for gap in plan.unclear] == [
        "t-0 offsets [20, 30): no segment with a finished upload has these offsets"
    ]
    behind = plan_partition("t", 0, [one], {}, LeaderEpochs(((0, 0),)), 50)
    assert (behind.start, behind.end, behind.pieces) == (50, 50, ())


@real
@pytest.mark.parametrize("folder", [MAIN, f"{AIVEN}/zstd"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.filterwarnings("ignore:left out")
def test_tasks_that_share_a_segment_read_it_once(
    folder: str, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = opened(folder)
    expected = rows_of(tier.read_arrow("txn", isolation=isolation).read_all())
    whole = len(tier.plan("txn", isolation=isolation).tasks)
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 8192)
    plan = tier.plan("txn", isolation=isolation)
    assert len(plan.tasks) > 3 * whole
    assert rows_of(tier.read_arrow("txn", isolation=isolation).read_all()) == expected
    assert len(tier_tasks.packed(plan.tasks)) > whole

"""Appends, ListOffsets and reads: KIP-79 (times), KIP-734 (max timestamp), KIP-98 (isolation levels)."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Found, Got, Log, Trace

pytestmark = pytest.mark.kafka


def test_records_get_the_offsets_of_their_partition_one_after_the_other(both: Both) -> None:
    def script(log: Log) -> Trace:
        return [
            log.create_topic("t", 2),
            log.append("t", ["a", "b"]),
            log.append("t", ["c"], partition=1),
            log.append("t", ["d", "e", "f"]),
            log.read("t"),
            log.read("t", start=3),
            log.read("t", partition=1),
            log.list_offsets("t", At.EARLIEST),
            log.list_offsets("t", At.LATEST),
        ]

    assert both.same(script) == [
        None,
        [0, 1],
        [0],
        [2, 3, 4],
        Got({0: "a", 1: "b", 2: "d", 3: "e", 4: "f"}, 5),
        Got({3: "e", 4: "f"}, 5),
        Got({0: "c"}, 1),
        {0: 0, 1: 0},
        {0: 5, 1: 1},
    ]


def test_appends_and_reads_where_there_is_no_partition_are_refused(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [
            log.append("t", ["a"], partition=1),
            log.read("t", partition=1),
            log.read("missing"),
            log.list_offsets("missing", At.LATEST),
            log.delete_records("missing", {0: 0}),
            log.delete_records("t", {1: 0}),
        ]

    assert both.same(script) == ["UNKNOWN_TOPIC_OR_PARTITION"] * 6


def test_an_empty_log_has_no_offsets_by_time(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        return [
            log.list_offsets("t", At.EARLIEST),
            log.list_offsets("t", At.LATEST),
            log.list_offsets("t", At.MAX_TIMESTAMP),
            log.list_offsets("t", 0),
            log.read("t"),
        ]

    assert both.same(script) == [{0: 0}, {0: 0}, {0: None}, {0: None}, Got({}, 0)]


@pytest.mark.parametrize("batches", [1, 5], ids=["one batch", "a batch a record"])
@pytest.mark.parametrize(
    ("times", "first_at_or_after", "largest"),
    [
        pytest.param([10, 20, 30], {5: 0, 10: 0, 15: 1, 20: 1, 30: 2, 31: None}, 2, id="in order"),
        pytest.param([30, 10, 20], {5: 0, 10: 0, 15: 0, 30: 0, 31: None}, 0, id="out of order"),
        pytest.param([10, 30, 20, 30], {11: 1, 30: 1, 31: None}, 1, id="the largest twice"),
        pytest.param([20, 20, 20], {19: 0, 20: 0, 21: None}, 0, id="all the same"),
    ],
)
def test_a_time_finds_the_first_record_at_or_after_it(
    both: Both, batches: int, times: list[int], first_at_or_after: dict[int, int | None], largest: int
) -> None:
    """Of several records with the largest timestamp, the first is found (KIP-734)."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        for some in [times] if batches == 1 else [[time] for time in times]:
            log.append("t", ["v"] * len(some), times_ms=[LATER_MS + time for time in some])
        by_time = [log.list_offsets("t", LATER_MS + time) for time in first_at_or_after]
        return [*by_time, log.list_offsets("t", At.MAX_TIMESTAMP)]

    def found(offset: int | None) -> dict[int, Found | None]:
        return {0: None if offset is None else Found(offset, LATER_MS + times[offset])}

    assert both.same(script) == [*map(found, first_at_or_after.values()), found(largest)]


def test_reads_begin_within_the_log(both: Both) -> None:
    """A read that begins at the log end waits for records; one that begins beyond it is out of range."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["a", "b", "c"])
        log.delete_records("t", {0: 1})
        return [
            log.read("t", start=start, committed=committed) for start in range(5) for committed in (False, True)
        ]

    assert both.same(script) == [
        *["OFFSET_OUT_OF_RANGE"] * 2,
        *[Got({1: "b", 2: "c"}, 3)] * 2,
        *[Got({2: "c"}, 3)] * 2,
        *[Got({}, 3)] * 2,
        *["OFFSET_OUT_OF_RANGE"] * 2,
    ]

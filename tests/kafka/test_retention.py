"""Retention: a log without appends expires up to its last record."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Got, Log, Trace

pytestmark = pytest.mark.kafka


def bounds(log: Log) -> Trace:
    """The start and the end of the log."""
    return [log.list_offsets("t", At.EARLIEST), log.list_offsets("t", At.LATEST)]


def test_the_active_segment_expires_by_time_too(both: Both) -> None:
    """The log then starts at its end, and continues there."""

    def script(log: Log) -> Trace:
        log.create_topic("t", configs={"retention.ms": "1"})
        log.append("t", ["a", "b"], times_ms=[1, 2])
        log.append("t", ["c"], times_ms=[3])
        log.retain()
        trace = [*bounds(log), log.read("t", start=2), log.read("t", start=3), log.list_offsets("t", 0)]
        log.append("t", ["d"])
        log.retain()
        return [*trace, *bounds(log), log.read("t", start=3)]

    assert both.same(script) == [
        *[{0: 3}, {0: 3}],
        *["OFFSET_OUT_OF_RANGE", Got({}, 3), {0: None}],
        *[{0: 3}, {0: 4}, Got({3: "d"}, 4)],
    ]


def test_a_record_that_has_not_expired_keeps_all_that_are_in_its_segment(both: Both) -> None:
    """A segment is as young as its youngest record, at any place in it."""

    def script(log: Log) -> Trace:
        log.create_topic("t", configs={"retention.ms": "1000", "segment.ms": str(2**60)})
        log.append("t", ["old", "young", "old again"], times_ms=[1, LATER_MS, 2])
        log.retain()
        return bounds(log)

    assert both.same(script) == [{0: 0}, {0: 3}]


@pytest.mark.parametrize("retention", ["retention.ms", "retention.bytes"])
def test_without_a_limit_nothing_expires(both: Both, retention: str) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t", configs={"retention.ms": "-1", "retention.bytes": "-1", retention: "-1"})
        log.append("t", ["a"], times_ms=[1])
        log.retain()
        return bounds(log)

    assert both.same(script) == [{0: 0}, {0: 1}]


@pytest.mark.parametrize(("limit", "start"), [(0, 2), (1, 0)])
def test_the_active_segment_expires_by_size_if_nothing_should_stay(both: Both, limit: int, start: int) -> None:
    """The remaining log is at least as large as the limit."""

    def script(log: Log) -> Trace:
        log.create_topic("t", configs={"retention.bytes": str(limit), "retention.ms": "-1"})
        log.append("t", ["a", "b"])
        log.retain()
        return bounds(log)

    assert both.same(script) == [{0: start}, {0: 2}]


def test_the_state_of_a_producer_outlives_its_records(both: Both) -> None:
    """The producer state of an expired log recognizes a retry, and knows the next sequence."""

    def script(log: Log) -> Trace:
        log.create_topic("t", configs={"retention.bytes": "0"})
        log.append_as(7, 0, "a")
        log.append_as(7, 1, "b")
        log.retain()
        return [*bounds(log), log.append_as(7, 1, "b"), log.append_as(7, 2, "c")]

    assert both.same(script) == [{0: 2}, {0: 2}, [1], [2]]

"""Consumer groups: their commits without members, and refused commits."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import Committed, Log, Trace

pytestmark = pytest.mark.kafka


def topic(log: Log) -> None:
    """Two partitions, the first with three records."""
    log.create_topic("t", 2)
    log.append("t", ["a", "b", "c"])


def test_the_last_commit_of_a_partition_counts(both: Both) -> None:
    def script(log: Log) -> Trace:
        topic(log)
        return [
            log.committed("g", "t", [0, 1]),
            log.commit("g", "t", {0: 3}),
            log.committed("g", "t", [0, 1]),
            log.commit("g", "t", {0: 1, 1: 0}),
            log.committed("g", "t", [0, 1]),
            log.committed("other", "t", [0, 1]),
        ]

    assert both.same(script) == [
        {},
        None,
        {0: Committed(3)},
        None,
        {0: Committed(1), 1: Committed(0)},
        {},
    ]


def test_metadata_and_leader_epoch_come_back(both: Both) -> None:
    def script(log: Log) -> Trace:
        topic(log)
        return [
            log.commit("g", "t", {0: 2}, "half past ten \N{BELL}", 0),
            log.committed("g", "t"),
            log.commit("g", "t", {0: 2}),
            log.committed("g", "t"),
        ]

    noted = Committed(2, "half past ten \N{BELL}", 0)
    assert both.same(script) == [None, {0: noted}, None, {0: Committed(2)}]


@pytest.mark.parametrize("size", [4095, 4097])
def test_metadata_has_a_largest_size(both: Both, size: int) -> None:
    """The limit is offset.metadata.max.bytes, 4096. (The client adds one byte.)"""

    def script(log: Log) -> Trace:
        topic(log)
        return [log.commit("g", "t", {0: 1}, "x" * size), log.committed("g", "t")]

    fits: Trace = [None, {0: Committed(1, "x" * size)}]
    assert both.same(script) == (fits if size == 4095 else ["OFFSET_METADATA_TOO_LARGE", {}])


def test_offsets_of_what_is_not_there_are_refused(both: Both) -> None:
    def script(log: Log) -> Trace:
        topic(log)
        return [log.commit("g", "t", {2: 0}), log.commit("g", "missing", {0: 0}), log.committed("g", "t")]

    assert both.same(script) == [*["UNKNOWN_TOPIC_OR_PARTITION"] * 2, {}]


def test_offsets_below_the_log_start_are_taken(both: Both) -> None:
    def script(log: Log) -> Trace:
        topic(log)
        log.delete_records("t", {0: 2})
        return [log.commit("g", "t", {0: 1}), log.committed("g", "t")]

    assert both.same(script) == [None, {0: Committed(1)}]


def test_a_group_that_is_deleted_has_committed_nothing(both: Both) -> None:
    def script(log: Log) -> Trace:
        topic(log)
        return [
            log.delete_group("g"),
            log.commit("g", "t", {0: 1, 1: 0}),
            log.commit("other", "t", {0: 2}),
            log.groups(),
            log.delete_group("g"),
            log.groups(),
            log.committed("g", "t", [0, 1]),
            log.committed("other", "t"),
            log.delete_group("g"),
            log.commit("g", "t", {1: 0}),
            log.committed("g", "t", [0, 1]),
        ]

    assert both.same(script) == [
        "GROUP_ID_NOT_FOUND",
        None,
        None,
        {"g", "other"},
        None,
        {"other"},
        {},
        {0: Committed(2)},
        "GROUP_ID_NOT_FOUND",
        None,
        {1: Committed(0)},
    ]


def test_a_new_topic_does_not_inherit_the_offsets_of_a_deleted_topic_of_the_same_name(both: Both) -> None:
    def script(log: Log) -> Trace:
        topic(log)
        log.commit("g", "t", {0: 3})
        return [log.delete_topic("t"), log.create_topic("t", 2), log.committed("g", "t")]

    assert both.same(script) == [None, None, {}]

"""The list of due partitions (KIP-405, "Thread Pools", "1. Remote Storage Manager (RLM) Thread Pool")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.identity import TopicIdPartition
from stratalog.tiering.schedule import (
    Entry,
    Intervals,
    Schedule,
    decode,
    encode,
    failed,
    succeeded,
)

KAFKAS = Intervals(interval_ms=30_000, retry_ms=500, retry_max_ms=30_000, jitter=0.2)
"""Kafka's defaults (RemoteLogManagerConfig)."""
PLAIN = Intervals(interval_ms=30_000, retry_ms=500, retry_max_ms=30_000, jitter=0.0)
NOW = 1_000_000_000_000
A, B, C = ("a", 0), ("a", 1), ("b", 0)


def schedule(**due_ms: int) -> Schedule:
    """Partitions of topic ``t``, ``p0=..., p1=...``, each due at that time."""
    return Schedule({("t", int(name[1:])): Entry(1, due) for name, due in due_ms.items()})


def due(of: Schedule, now_ms: int = NOW) -> list[int]:
    return [partition for _, partition in of.due(now_ms, KAFKAS.longest_ms)]


# --------------------------------------------------------------------- who is on it, and when


def test_a_new_partition_has_to_be_processed_immediately() -> None:
    """ "the topic-partition is added to the list, with scheduled processing time = 0"."""
    listed = Schedule().assigned({A: 1})
    assert listed.entries[A].due_ms == 0
    assert listed.due(1, KAFKAS.longest_ms) == [A]


def test_only_partitions_whose_time_has_come_are_processed() -> None:
    """ "the "scheduled processing time" is less than or equal to the current time"."""
    assert due(schedule(p0=NOW - 1, p1=NOW, p2=NOW + 1)) == [0, 1]


def test_the_longest_overdue_goes_first() -> None:
    assert due(schedule(p0=NOW - 1, p1=NOW - 3, p2=0, p3=NOW - 2)) == [2, 1, 3, 0]


def test_after_a_success_a_partition_is_due_after_the_interval() -> None:
    """ "set to ( now() + rlm_process_interval_ms )"."""
    after = succeeded(Entry(3, 5, 7, 9, "X"), NOW, KAFKAS, remote_end=12)
    assert after == Entry(3, NOW + 30_000, remote_end=12)


def test_after_a_failure_a_partition_is_due_after_the_retry_interval() -> None:
    """ "set to ( now() + rlm_retry_interval_ms )"."""
    after = failed(Entry(3, remote_end=12), NOW, PLAIN, code="X", draw=0.5, remote_end=None)
    assert after == Entry(3, NOW + 500, 1, NOW, "X", 12)


@pytest.mark.parametrize(
    ("attempts", "wait_ms"),
    [(1, 500), (2, 1000), (3, 2000), (6, 16_000), (7, 30_000), (8, 30_000), (10**6, 30_000)],
)
def test_the_wait_doubles_with_each_failure_in_a_row_up_to_a_maximum(attempts: int, wait_ms: int) -> None:
    """remote.log.manager.task.retry.backoff.ms and .max.ms."""
    assert PLAIN.after_failure(attempts, 0.0) == wait_ms


@pytest.mark.parametrize(("draw", "wait_ms"), [(0.0, 400), (0.5, 500), (0.999999, 600)])
def test_the_jitter_moves_it_by_a_fifth_either_way(draw: float, wait_ms: int) -> None:
    """remote.log.manager.task.retry.jitter: from [1 - jitter, 1 + jitter)."""
    assert KAFKAS.after_failure(1, draw) == wait_ms


def test_failures_in_a_row_are_counted_from_the_first_one_on() -> None:
    entry = Entry(1)
    for second in range(3):
        entry = failed(entry, NOW + second, PLAIN, code=f"E{second}", draw=0.0, remote_end=None)
    assert (entry.attempts, entry.failing_since_ms, entry.code) == (3, NOW, "E2")
    assert succeeded(entry, NOW, PLAIN, remote_end=None).attempts == 0
    again = failed(
        succeeded(entry, NOW, PLAIN, remote_end=None), NOW + 9, PLAIN, code="F", draw=0, remote_end=None
    )
    assert (again.attempts, again.failing_since_ms) == (1, NOW + 9)


def test_if_leadership_moves_it_is_due_at_once_and_its_failures_stay_known() -> None:
    """ "When a new topic-partition is assigned to the broker": the new leader's."""
    listed = Schedule({A: Entry(1, NOW + 9, 4, NOW, "X", 12, "seen", NOW + 9)})
    assert listed.assigned({A: 1}).entries[A] == listed.entries[A]
    assert listed.assigned({A: 2}).entries[A] == Entry(2, 0, 4, NOW, "X", 12, "", 0)


def test_partitions_that_are_gone_leave_the_list() -> None:
    """ "the topic-partition is directly removed from the list"."""
    assert set(Schedule({A: Entry(1), B: Entry(1)}).assigned({B: 1, C: 1}).entries) == {B, C}


def test_a_partition_that_is_processed_while_its_topic_is_deleted_does_not_come_back() -> None:
    """ "the topic-partition is marked as "deleted", and will be removed after the current process is done"."""
    listed = Schedule({B: Entry(1)})
    assert set(listed.updated({A: Entry(1, 5), B: Entry(1, 5)}).entries) == {B}


def test_a_driver_that_worked_for_a_deposed_leader_does_not_put_the_new_one_off() -> None:
    listed = Schedule({A: Entry(2, 0)})
    assert listed.updated({A: Entry(1, NOW + 30_000)}) == listed
    assert listed.updated({A: Entry(2, NOW)}).entries[A].due_ms == NOW


def test_a_clock_that_jumps_back_delays_nothing_for_long() -> None:
    """A time that no rule would have set counts as due."""
    assert due(schedule(p0=NOW + 30_000, p1=NOW + 30_001, p2=NOW + 10**9)) == [1, 2]


def test_the_next_time_is_the_earliest() -> None:
    found = Schedule({A: Entry(1, 7), B: Entry(1, 5), C: Entry(1, 3)})
    assert [found.next_due_ms(topics) for topics in ({"a"}, {"a", "b"}, {"c"})] == [5, 3, None]
    assert Schedule().next_due_ms({"a"}) is None


@given(st.integers(1, 100), st.floats(0, 1, exclude_max=True))
def test_no_partition_is_ever_due_later_than_the_longest_interval(attempts: int, draw: float) -> None:
    wait_ms = KAFKAS.after_failure(attempts, draw)
    assert 400 <= wait_ms <= KAFKAS.longest_ms
    assert not schedule(p0=NOW + wait_ms).due(NOW, KAFKAS.longest_ms)


# ------------------------------------------------------------------------------- as it is kept

entries = st.builds(
    Entry,
    st.integers(1, 9),
    st.integers(0, NOW),
    st.integers(0, 99),
    st.integers(0, NOW),
    st.sampled_from(["", "KAFKA_STORAGE_ERROR"]),
    st.none() | st.integers(0, 10**12),
    st.sampled_from(["", "0123456789abcdef"]),
    st.integers(0, NOW),
    st.integers(0, 10**12),
)
keys: st.SearchStrategy[TopicIdPartition] = st.builds(
    TopicIdPartition, st.sampled_from(["a" * 32, "b" * 32]), st.integers(0, 99)
)


@given(st.dictionaries(keys, entries))
def test_an_encoded_schedule_decodes_to_the_same_schedule(entries: dict[TopicIdPartition, Entry]) -> None:
    assert decode(encode(Schedule(entries))) == Schedule(entries)


@pytest.mark.parametrize("line", [b"", b"{}", b'[2,{"t":[[0,[1]]]}]', b"[1,{}", b"\xff"])
def test_a_list_of_another_version_is_an_empty_one(line: bytes) -> None:
    """It is a hint: everything is due, nothing is lost."""
    assert decode(line) == Schedule()

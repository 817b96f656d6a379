"""Transactions: KIP-98 (markers, isolation levels, fencing), KIP-447 (offsets that are not stable)."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Committed, Found, Got, Log, Trace

pytestmark = pytest.mark.kafka

END = pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])


def seen(log: Log, topic: str = "t", partition: int = 0) -> Trace:
    """The records for readers of both isolation levels, and their log ends."""
    return [log.read(topic, partition=partition, committed=committed) for committed in (False, True)] + [
        log.list_offsets(topic, At.LATEST, committed=committed) for committed in (False, True)
    ]


@END
def test_a_marker_takes_one_offset_in_each_partition_of_the_transaction(both: Both, commit: bool) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t", 3)
        transaction = log.transaction("x")
        trace: Trace = [
            transaction.append("t", ["a", "b"]),
            transaction.append("t", ["c"], partition=1),
            transaction.append("t", ["d"]),
            *seen(log),
            transaction.commit() if commit else transaction.abort(),
            log.append("t", ["e"]),
        ]
        return trace + seen(log) + seen(log, partition=1)

    records = {0: "a", 1: "b", 2: "d", 4: "e"}
    assert both.same(script) == [
        [0, 1],
        [0],
        [2],
        Got({0: "a", 1: "b", 2: "d"}, 3),
        Got({}, 0),
        {0: 3, 1: 1, 2: 0},
        {0: 0, 1: 0, 2: 0},
        None,
        [4],
        Got(records, 5),
        Got(records if commit else {4: "e"}, 5),
        {0: 5, 1: 2, 2: 0},
        {0: 5, 1: 2, 2: 0},
        Got({0: "c"}, 2),
        Got({0: "c"} if commit else {}, 2),
        {0: 5, 1: 2, 2: 0},
        {0: 5, 1: 2, 2: 0},
    ]


@END
def test_an_empty_transaction_writes_nothing(both: Both, commit: bool) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        transaction = log.transaction("x")
        return [transaction.commit() if commit else transaction.abort(), *seen(log)]

    assert both.same(script) == [None, Got({}, 0), Got({}, 0), {0: 0}, {0: 0}]


def test_the_last_stable_offset_is_where_the_first_open_transaction_begins(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["plain 0"])
        first, second = log.transaction("x"), log.transaction("y")
        trace: Trace = [
            second.append("t", ["y 1"]),
            log.append("t", ["plain 2"]),
            first.append("t", ["x 3"]),
            second.append("t", ["y 4"]),
            *seen(log),
            second.abort(),
            *seen(log),
            log.append("t", ["plain 6"]),
            log.read("t", start=5, committed=True),
            first.commit(),
        ]
        return trace + seen(log)

    everything = {0: "plain 0", 1: "y 1", 2: "plain 2", 3: "x 3", 4: "y 4"}
    assert both.same(script) == [
        [1],
        [2],
        [3],
        [4],
        Got(everything, 5),
        Got({0: "plain 0"}, 1),
        {0: 5},
        {0: 1},
        None,
        Got(everything, 6),
        Got({0: "plain 0", 2: "plain 2"}, 3),
        {0: 6},
        {0: 3},
        [6],
        Got({}, 5),
        None,
        Got(everything | {6: "plain 6"}, 8),
        Got({0: "plain 0", 2: "plain 2", 3: "x 3", 6: "plain 6"}, 8),
        {0: 8},
        {0: 8},
    ]


def test_times_of_what_is_not_decided_are_found_by_readers_of_everything_only(both: Both) -> None:
    """KIP-98, "ListOffsetRequest"."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["plain"], times_ms=[LATER_MS - 1])
        transaction = log.transaction("x")
        transaction.append("t", ["open"])
        asked = (LATER_MS - 1, LATER_MS, At.MAX_TIMESTAMP)
        trace = [log.list_offsets("t", at, committed=committed) for at in asked for committed in (False, True)]
        return [*trace, transaction.abort()]

    decided, latest = {0: Found(0, LATER_MS - 1)}, {0: Found(1, LATER_MS)}
    assert both.same(script) == [decided, decided, latest, {0: None}, latest, {0: None}, None]


@END
def test_offsets_in_a_transaction_count_when_it_is_committed(both: Both, commit: bool) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        log.append("t", ["a", "b", "c"])
        log.commit("g", "t", {0: 1})
        transaction = log.transaction("x")
        return [
            transaction.commit_offsets("g", {0: 3, 1: 0}, "t"),
            log.committed("g", "t", [0, 1]),
            log.committed("g", "t", [0, 1], require_stable=True),
            log.committed("g", "t", [1], require_stable=True),
            transaction.commit() if commit else transaction.abort(),
            log.committed("g", "t", [0, 1], require_stable=True),
        ]

    after = {0: Committed(3), 1: Committed(0)} if commit else {0: Committed(1)}
    assert both.same(script) == [
        None,
        {0: Committed(1)},
        "UNSTABLE_OFFSET_COMMIT",
        "UNSTABLE_OFFSET_COMMIT",
        None,
        after,
    ]


@END
def test_a_commit_next_to_a_transaction_of_the_group_counts_if_it_is_later_in_the_log(
    both: Both, commit: bool
) -> None:
    """An earlier commit of the transaction does not replace the plain commit; a later one does."""

    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        log.append("t", ["a", "b", "c"])
        transaction = log.transaction("x")
        return [
            transaction.commit_offsets("g", {0: 3}, "t"),
            log.commit("g", "t", {0: 2, 1: 0}),
            log.committed("g", "t", require_stable=True),
            transaction.commit_offsets("g", {1: 0}, "t"),
            transaction.commit() if commit else transaction.abort(),
            log.committed("g", "t", [0, 1], require_stable=True),
        ]

    trace = both.same(script)
    assert trace[-1] == {0: Committed(2), 1: Committed(0)}


def test_the_next_incarnation_of_a_transactional_id_aborts_what_the_one_before_left(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        first = log.transaction("x")
        trace: Trace = [first.append("t", ["lost"])]
        second = log.transaction("x", anew=True)
        trace += seen(log)
        trace += [second.append("t", ["kept"]), second.commit(), *seen(log)]
        return trace

    assert both.same(script) == [
        [0],
        Got({0: "lost"}, 2),
        Got({}, 2),
        {0: 2},
        {0: 2},
        [2],
        None,
        Got({0: "lost", 2: "kept"}, 4),
        Got({2: "kept"}, 4),
        {0: 4},
        {0: 4},
    ]


@pytest.mark.parametrize("deed", ["append", "append elsewhere", "offsets", "commit"])
def test_a_producer_that_was_taken_over_is_fenced(both: Both, deed: str) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        first = log.transaction("x")
        trace: Trace = [first.append("t", ["a"])]
        log.transaction("x", anew=True)
        deeds = {
            "append": lambda: first.append("t", ["b"]),
            "append elsewhere": lambda: first.append("t", ["b"], partition=1),
            "offsets": lambda: first.commit_offsets("g", {0: 0}, "t"),
            "commit": first.commit,
        }
        trace.append(deeds[deed]())
        return [*trace, *(log.read("t", committed=committed) for committed in (False, True))]

    assert both.same(script) == [[0], "PRODUCER_FENCED", Got({0: "a"}, 2), Got({}, 2)]


def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(both: Both) -> None:
    """transaction.timeout.ms"""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        transaction = log.transaction("x", timeout_ms=1000)
        trace: Trace = [transaction.append("t", ["a"])]
        transaction.time_out()
        return [*trace, transaction.append("t", ["b"]), *seen(log)]

    assert both.same(script) == [[0], "PRODUCER_FENCED", Got({0: "a"}, 2), Got({}, 2), {0: 2}, {0: 2}]

"""DeleteRecords (KIP-107), and the log starts afterwards."""

from __future__ import annotations

import pytest

from tests.kafka.both import Both
from tests.kafka.log import LATER_MS, At, Found, Got, Log, Trace

pytestmark = pytest.mark.kafka


def test_the_answer_is_the_low_watermark(both: Both) -> None:
    """-1 is the high watermark; an offset below the log start is no error, and changes nothing."""

    def script(log: Log) -> Trace:
        log.create_topic("t", 2)
        log.append("t", ["a", "b", "c", "d"])
        trace: Trace = []
        for before in (0, 2, 1, 5, -2, 4, -1):
            trace += [log.delete_records("t", {0: before}), log.list_offsets("t", At.EARLIEST)]
        return [*trace, log.list_offsets("t", At.LATEST), log.append("t", ["e"]), log.read("t", start=4)]

    out_of_range = "OFFSET_OUT_OF_RANGE"
    assert both.same(script) == [
        *[{0: 0}, {0: 0, 1: 0}],
        *[{0: 2}, {0: 2, 1: 0}],
        *[{0: 2}, {0: 2, 1: 0}],
        *[out_of_range, {0: 2, 1: 0}],
        *[out_of_range, {0: 2, 1: 0}],
        *[{0: 4}, {0: 4, 1: 0}],
        *[{0: 4}, {0: 4, 1: 0}],
        {0: 4, 1: 0},
        [4],
        Got({4: "e"}, 5),
    ]


def test_deleted_records_are_found_neither_by_offset_nor_by_time(both: Both) -> None:
    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["a", "b", "c"], times_ms=[LATER_MS + 1, LATER_MS + 2, LATER_MS + 3])
        log.append("t", ["d"], times_ms=[LATER_MS + 2])
        trace: Trace = []
        for start in (1, 2, 3, 4):
            trace.append(log.delete_records("t", {0: start}))
            trace += [log.read("t", start=start - 1), log.read("t", start=start)]
            trace += [log.list_offsets("t", LATER_MS + time) for time in (0, 2, 3)]
        return trace

    b, c, d = Found(1, LATER_MS + 2), Found(2, LATER_MS + 3), Found(3, LATER_MS + 2)
    assert both.same(script) == [
        *[{0: 1}, "OFFSET_OUT_OF_RANGE", Got({1: "b", 2: "c", 3: "d"}, 4), {0: b}, {0: b}, {0: c}],
        *[{0: 2}, "OFFSET_OUT_OF_RANGE", Got({2: "c", 3: "d"}, 4), {0: c}, {0: c}, {0: c}],
        *[{0: 3}, "OFFSET_OUT_OF_RANGE", Got({3: "d"}, 4), {0: d}, {0: d}, {0: None}],
        *[{0: 4}, "OFFSET_OUT_OF_RANGE", Got({}, 4), {0: None}, {0: None}, {0: None}],
    ]


def test_a_time_is_looked_for_in_all_that_is_left_of_the_log(both: Both) -> None:
    """Records of the year 2100 after one of 1970 begin a segment. (Until retention runs, Kafka looks only in the
    first segment that has such a late record, deleted or not.)
    """

    def script(log: Log) -> Trace:
        log.create_topic("t", configs={"retention.ms": "-1"})
        log.append("t", ["a"], times_ms=[5])
        log.append("t", ["b"], times_ms=[LATER_MS])
        log.delete_records("t", {0: 1})
        log.retain()
        return [log.list_offsets("t", 6), log.list_offsets("t", 5)]

    assert both.same(script) == [{0: Found(1, LATER_MS)}] * 2


END = pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])


@END
@pytest.mark.parametrize("start", [2, 4, 5, 6])
def test_logs_may_start_within_a_transaction_or_at_its_marker(both: Both, start: int, commit: bool) -> None:
    """The remaining part of an aborted transaction stays hidden."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["plain 0"])
        transaction = log.transaction("x")
        transaction.append("t", ["x 1", "x 2"])
        log.append("t", ["plain 3"])
        transaction.append("t", ["x 4"])
        trace: Trace = [transaction.commit() if commit else transaction.abort(), log.append("t", ["plain 6"])]
        trace.append(log.delete_records("t", {0: start}))
        trace += [log.read("t", start=start, committed=committed) for committed in (False, True)]
        return trace + [log.list_offsets("t", at, committed=True) for at in (At.EARLIEST, At.LATEST)]

    everything = {0: "plain 0", 1: "x 1", 2: "x 2", 3: "plain 3", 4: "x 4", 6: "plain 6"}
    left = {offset: value for offset, value in everything.items() if offset >= start}
    visible = {offset: value for offset, value in left.items() if commit or value.startswith("plain")}
    assert both.same(script) == [None, [6], {0: start}, Got(left, 7), Got(visible, 7), {0: start}, {0: 7}]


@END
@pytest.mark.parametrize("start", [2, 3, 4])
def test_records_of_an_open_transaction_may_be_deleted(both: Both, start: int, commit: bool) -> None:
    """The last stable offset is the start of the transaction, or of the log, until the transaction ends."""

    def script(log: Log) -> Trace:
        log.create_topic("t")
        log.append("t", ["plain 0"])
        transaction = log.transaction("x")
        transaction.append("t", ["x 1"])
        transaction.append("t", ["x 2"])
        log.append("t", ["plain 3"])
        trace: Trace = [log.delete_records("t", {0: start}), log.list_offsets("t", At.LATEST, committed=True)]
        trace += [log.read("t", start=start, committed=committed) for committed in (False, True)]
        trace += [transaction.append("t", ["x 4"]), transaction.commit() if commit else transaction.abort()]
        return [*trace, log.list_offsets("t", At.LATEST, committed=True), log.read("t", start, committed=True)]

    before = {1: "x 1", 2: "x 2", 3: "plain 3"}
    left = {offset: value for offset, value in before.items() if offset >= start}
    visible = left | {4: "x 4"} if commit else {offset: value for offset, value in left.items() if offset == 3}
    assert both.same(script) == [
        {0: start},
        {0: start},
        Got(left, 4),
        Got({}, start),
        [4],
        None,
        {0: 6},
        Got(visible, 6),
    ]

"""The records that a batch read of Spark's Python data source plans, over both tiers, without Spark."""

from __future__ import annotations

import pytest

from stratalog.engine.reading.stream_options import batch_options
from stratalog.engine.reading.stream_read import StreamTask
from stratalog.engine.reading.stream_source import StreamSource
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster
from tests.unit.stream_harness import values_of


def planned(live: LiveCluster, **options: str) -> list[StreamTask]:
    given = batch_options({"cluster": str(live.file), "subscribe": "t", **options})
    source = with_ports(StreamSource, ports_of(live.driver()))(given)
    return source.plan(*source.bounds())


def test_a_batch_reads_ranges_by_offset_and_by_time(live: LiveCluster) -> None:
    live.topic(partitions=2)
    for number, value in enumerate("abcd"):
        live.append({0: [value], 1: [value.upper()]}, at_ms=1000 * number)
    assert sorted(values_of(planned(live))) == [*"ABCDabcd"]
    bounds = {"startingOffsets": '{"0": 1, "1": -2}', "endingOffsets": '{"0": -1, "1": 2}'}
    assert sorted(values_of(planned(live, **bounds))) == [*"ABbcd"]
    assert sorted(values_of(planned(live, startingTimestamp="500", endingTimestamp="2000"))) == ["B", "b"]
    assert planned(live, endingTimestamp="0") == []
    assert sorted(values_of(planned(live, startingTimestamp="1000", endingTimestamp="9000"))) == [*"BCDbcd"]


def test_a_range_takes_the_files_that_hold_it_and_no_others(live: LiveCluster) -> None:
    live.topic()
    for value in "abcd":
        live.append([value])
    (task,) = planned(live, startingOffsets='{"0": 1}', endingOffsets='{"0": 3}')
    assert [(one.piece.start, one.piece.end) for one in task.parts] == [(1, 2), (2, 3)]


def test_it_is_pinned_when_it_is_planned_also_while_its_files_go_to_the_remote_tier(live: LiveCluster) -> None:
    live.tiered()
    live.fill("abc")
    tasks = planned(live)
    live.fill("def")
    live.cluster.merge().raise_for_failures()
    live.cluster.tier().raise_for_failures()
    live.cluster.retain().raise_for_failures()
    assert values_of(tasks) == ["a", "b", "c"]
    assert values_of(planned(live)) == [*"abcdef"]


def test_deleted_records_are_refused_or_left_out(live: LiveCluster) -> None:
    live.topic()
    live.fill("abc")
    live.cluster.topics.delete_records("t", {0: 2}).raise_for_failures()
    with pytest.raises(OffsetOutOfRangeError, match=r"startingOffsets is 0, but the log has \[2, 3\)"):
        planned(live, startingOffsets='{"0": 0}')
    assert values_of(planned(live, startingOffsets='{"0": 0}', failOnDataLoss="false")) == ["c"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"startingOffsets": '{"0": 2}', "endingOffsets": '{"0": 1}'},
            OffsetOutOfRangeError,
            "t-0: the read starts at 2, after its end at 1",
        ),
        (
            {"endingOffsets": '{"0": 4}'},
            OffsetOutOfRangeError,
            r"t-0: endingOffsets is 4, but the log has \[0, 3\)",
        ),
        ({"endingOffsets": '{"1": 1}'}, InvalidCallError, "endingOffsets is given for t-1, but t-0 are read"),
        ({"endingTimestamp": "2100-01-01T00:00Z"}, InvalidCallError, "use endingOffsets = latest"),
    ],
)
def test_ranges_outside_the_log_are_refused(
    live: LiveCluster, options: dict[str, str], error: type[Exception], message: str
) -> None:
    live.topic()
    live.fill("abc")
    with pytest.raises(error, match=message):
        planned(live, **options)

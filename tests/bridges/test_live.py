"""A mirrored topic and its source as one relation: each offset is read once, on the side that has it, or an error
names it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stratalog.bridges.formats.json_text import JsonValues
from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.live import boundary
from stratalog.bridges.live.boundary import LiveTopic, look_live
from stratalog.bridges.live.frame import LiveWork, read_piece
from stratalog.bridges.live.plan import LivePlan, plan_live
from stratalog.bridges.live.source import LiveSource
from stratalog.bridges.mirror.catch_up import look_here
from stratalog.bridges.mirror.mirror import end_mirror, mirror
from stratalog.bridges.mirror.options import MirrorOptions
from stratalog.bridges.mirror.source import InconsistentTopicIdError, SourceTruncatedError
from stratalog.engine.reading.bounds import Bound, Committed
from stratalog.engine.reading.stream_offsets import StreamOffsets
from stratalog.engine.reading.stream_options import stream_options
from stratalog.partitions.declared import declared
from stratalog.partitions.errors import (
    InvalidCallError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RetriableError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from tests.bridges.memory_source import OTHER_ID, MemorySource
from tests.ports import ports_of, with_ports
from tests.unit.cluster_harness import LiveCluster


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return LiveCluster(tmp_path)


def mirrored(live: LiveCluster, source: MemorySource, **options: object) -> None:
    with_ports(mirror, ports_of(live.cluster))(source, ["t"], MirrorOptions(**options)).raise_for_failures()


def mirrored_source(live: LiveCluster, *values: str) -> MemorySource:
    """A source with these records in its only partition, which the mirror has."""
    source = MemorySource()
    source.logs[0].append(*values)
    mirrored(live, source)
    return source


def look(live: LiveCluster, source: MemorySource, values: TypedValues | None = None) -> LiveTopic:
    return with_ports(look_live, ports_of(live.driver()))(source, "t", values)


def plan(live: LiveCluster, source: MemorySource, start: Bound = None, end: Bound = None, **how: bool) -> LivePlan:
    return with_ports(plan_live, ports_of(live.driver()))(look(live, source), start, end, **how)


def offsets(live: LiveCluster, planned: LivePlan) -> dict[int, list[int]]:
    """The offsets of all records of a plan, by partition in order, from both sides."""
    found: dict[int, list[int]] = {one.partition: [] for one in planned.log.partitions}
    for one in planned.log.partitions:
        here = live.cluster.fetch("t", one.partition, one.start).records.column("offset").to_pylist()
        assert one.start == one.end or one.files[-1].end == one.end
        found[one.partition] += [offset for offset in here if offset < one.end]
    for rows in rows_of_source(planned):
        (partition,) = set(rows.column("partition").to_pylist())
        found.setdefault(partition, []).extend(rows.column("offset").to_pylist())
    return found


def rows_of_source(planned: LivePlan, values: TypedValues | None = None) -> list[pa.Table]:
    works = [LiveWork(planned.live.source, "t", piece, values) for piece in planned.pieces]
    return [rows for work in works for rows in read_piece(work)]


def test_each_record_is_read_once_on_the_side_that_has_it(live: LiveCluster) -> None:
    """Gaps are no records on either side; a mirror that continues moves the boundary of later plans only."""
    source = MemorySource(2)
    source.logs[0].append("a", "b", gaps=2)
    source.logs[1].append("x")
    mirrored(live, source)
    source.logs[0].append("c", gaps=1)
    source.logs[0].append("d")
    planned = plan(live, source)
    assert [(one.partition, one.start, one.end) for one in planned.pieces] == [(0, 4, 7)]
    every = {0: [0, 1, 4, 6], 1: [0]}
    assert offsets(live, planned) == every
    mirrored(live, source)
    assert offsets(live, planned) == every, "the plan is pinned"
    later = plan(live, source)
    assert later.pieces == ()
    assert offsets(live, later) == every


def test_the_rows_of_the_source_are_those_that_the_mirror_will_append(live: LiveCluster) -> None:
    source = MemorySource()
    source.logs[0].append('{"id": 1}')
    values = TypedValues(JsonValues(declared("id LONG")))
    mirrored(live, source, values=values)
    source.logs[0].append('{"id": 2}', None, "no JSON", '{"id": 5}', '{"id": 6}', '{"id": 7}')
    planned = with_ports(plan_live, ports_of(live.driver()))(look(live, source, values), None, None)
    (there,) = [pa.concat_tables(rows_of_source(planned, values)).drop_columns("partition")]
    mirrored(live, source, values=values)
    here = live.cluster.fetch("t", 0, 1).records
    for name in there.column_names:
        assert there.column(name).to_pylist() == here.column(name).to_pylist(), name


def test_partitions_that_the_source_has_added_are_read_there(live: LiveCluster) -> None:
    source = MemorySource(1)
    source.logs[0].append("a")
    mirrored(live, source)
    source.logs += MemorySource(1).logs
    source.logs[1].append("x", "y")
    assert offsets(live, plan(live, source)) == {0: [0], 1: [0, 1]}


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (None, None, [0, 1, 2, 3, 4, 5]),
        (1, 2, [1, 2][:1]),
        (1, 5, [1, 2, 3, 4]),
        (3, None, [3, 4, 5]),
        (4, 6, [4, 5]),
        ({0: 4}, {0: 5}, [4]),
        (3, 3, []),
        (6, None, []),
    ],
)
def test_a_range_may_be_on_either_side_or_across(
    live: LiveCluster, start: Bound, end: Bound, found: list[int]
) -> None:
    source = mirrored_source(live, "a", "b", "c")
    source.logs[0].append("d", "e", "f")
    assert offsets(live, plan(live, source, start, end)) == {0: found}


def test_times_bound_both_sides(live: LiveCluster) -> None:
    """The records' timestamps are 2023-11-14T22:13:20 and a millisecond more for each offset."""
    source = mirrored_source(live, "a", "b", "c")
    source.logs[0].append("d")
    planned = plan(live, source, "2023-11-14T22:13:20.002", "2023-11-14T22:13:20.003")
    assert planned.times == planned.log.times
    assert planned.times is not None
    assert [(piece.start, piece.end) for piece in planned.pieces] == [(3, 4)], "which the frame filters"


def cut(source: MemorySource) -> None:
    source.logs[0].start = 5


def elect(source: MemorySource) -> None:
    source.logs[0].elect_unclean(2)


def elect_and_append(source: MemorySource) -> None:
    source.logs[0].elect_unclean(2)
    source.logs[0].append("x", "y", "z")


def lose_leader(source: MemorySource) -> None:
    source.logs[0].has_leader = False


def make_again(source: MemorySource) -> None:
    source.topic_id = OTHER_ID


@pytest.mark.parametrize(
    ("happens", "error", "message"),
    [
        (cut, OffsetOutOfRangeError, r"had deleted the offsets \[3, 5\) before they were mirrored"),
        (elect, SourceTruncatedError, "ends at offset 2 in the source, but at 3 here"),
        (elect_and_append, SourceTruncatedError, "leader epoch 0 ends in the source before offset 3"),
        (lose_leader, LeaderNotAvailableError, "t-0 of the source has no leader"),
        (make_again, InconsistentTopicIdError, "deleted in the source and created again"),
    ],
    ids=["retention", "shorter", "other-history", "no-leader", "made-again"],
)
def test_a_source_that_has_lost_its_records_or_leader_fails_the_plan(
    live: LiveCluster, happens: Callable[[MemorySource], None], error: type[StratalogError], message: str
) -> None:
    source = mirrored_source(live, "a", "b", "c")
    source.logs[0].append("d", "e", "f")
    happens(source)
    with pytest.raises(error, match=message):
        plan(live, source)


def test_records_that_may_be_lost_are_left_out_and_named(live: LiveCluster) -> None:
    source = mirrored_source(live, "a", "b", "c")
    source.logs[0].append("d", "e", "f")
    cut(source)
    planned = plan(live, source, fail_on_data_loss=False)
    assert offsets(live, planned) == {0: [0, 1, 2, 5]}
    assert "[3, 5)" in planned.notes[0]
    assert plan(live, source, 0, 3).notes == (), "which the range does not ask for"


def test_a_gap_of_a_later_epoch_at_the_end_is_no_other_history(live: LiveCluster) -> None:
    """The epoch of gaps is unknown here, so the source is asked about the last record."""
    source = MemorySource()
    source.logs[0].append("a", "b")
    source.logs[0].epoch = 1
    source.logs[0].append(gaps=2)
    mirrored(live, source)
    source.logs[0].append("c")
    assert offsets(live, plan(live, source)) == {0: [0, 1, 4]}


@pytest.mark.parametrize(
    ("start", "end", "error", "message"),
    [
        (7, None, OffsetOutOfRangeError, r"\[7, 6\), but committed records end at 6 in Kafka, and at 3 here"),
        (0, 7, OffsetOutOfRangeError, r"\[0, 7\)"),
        ({4: 0}, None, UnknownTopicOrPartitionError, "no partition 4"),
        ("earliest", None, InvalidCallError, "bounded by offsets or by times"),
        (Committed("g"), None, InvalidCallError, "bounded by offsets or by times"),
        ("2023-11-14", 4, InvalidCallError, "by offsets or by times"),
    ],
    ids=["beyond", "end", "partition", "name", "group", "mixed"],
)
def test_a_bound_that_is_invalid_is_refused(
    live: LiveCluster, start: Bound, end: Bound, error: type[StratalogError], message: str
) -> None:
    source = mirrored_source(live, "a", "b", "c")
    source.logs[0].append("d", "e", "f")
    with pytest.raises(error, match=message):
        plan(live, source, start, end)


def test_a_topic_that_is_no_mirror_is_refused(live: LiveCluster) -> None:
    source = mirrored_source(live, "a")
    with_ports(end_mirror, ports_of(live.cluster))(["t"])
    with pytest.raises(InvalidCallError, match="is not a mirror of a Kafka topic"):
        plan(live, source)


def test_typed_values_need_their_decoder(live: LiveCluster) -> None:
    source = MemorySource()
    source.logs[0].append('{"id": 1}')
    mirrored(live, source, values=TypedValues(JsonValues(declared("id LONG"))))
    with pytest.raises(InvalidCallError, match="typed values: give their decoder"):
        plan(live, source)


def test_offsets_that_leave_the_source_after_the_plan_are_named(live: LiveCluster) -> None:
    """The mirror has copied them by then, or they are lost: another plan shows which."""
    source = mirrored_source(live, "a")
    source.logs[0].append("b", "c")
    planned = plan(live, source)
    mirrored(live, source)
    source.logs[0].start = 3
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offsets \[1, 3\) of Kafka were deleted in the source"):
        offsets(live, planned)
    assert offsets(live, plan(live, source)) == {0: [0, 1, 2]}


def test_a_source_that_stops_is_no_end_of_the_records(live: LiveCluster) -> None:
    source = mirrored_source(live, "a")
    source.logs[0].append("b", "c")
    planned = plan(live, source)
    source.logs[0].elect_unclean(2)
    with pytest.raises(RetriableError, match="stopped at offset 2"):
        offsets(live, planned)


# --------------------------------------------------------------------------------------- streams


def stream(live: LiveCluster, source: MemorySource, **options: str) -> LiveSource:
    given = {"cluster": str(live.file), "topic": "t", "startingOffsets": "earliest", **options}
    if "startingTimestamp" in options:
        del given["startingOffsets"]
    return with_ports(LiveSource, ports_of(live.driver()))(stream_options(given), source, "t", None)


def batch(
    live: LiveCluster, source: MemorySource, begin: StreamOffsets | None, rows: int | None = None
) -> tuple[list[int], StreamOffsets]:
    """The offsets of the next batch of one partition, and its end, through a checkpoint."""
    of_query = stream(live, source)
    first = of_query.initial() if begin is None else StreamOffsets.from_json(begin.to_json())
    last = StreamOffsets.from_json(of_query.latest(first, rows, None).to_json())
    return read_again(live, source, first, last), last


def read_again(live: LiveCluster, source: MemorySource, first: StreamOffsets, last: StreamOffsets) -> list[int]:
    ranges = stream(live, source).ranges(first, last)
    if not ranges:
        return []
    planned = with_ports(plan_live, ports_of(live.driver()))(
        look(live, source),
        {one.partition: one.start for one in ranges},
        {one.partition: one.end for one in ranges},
        partitions=[one.partition for one in ranges],
        epochs={one.partition: epoch for one in ranges for epoch, _ in one.epochs},
    )
    return [offset for found in offsets(live, planned).values() for offset in found]


def test_a_stream_goes_over_to_the_source_and_back_without_a_gap(live: LiveCluster) -> None:
    source = mirrored_source(live, "a", "b", "c")
    source.logs[0].append("d", "e")
    first, at = batch(live, source, None, rows=2)
    second, at = batch(live, source, at, rows=2)
    assert (first, second) == ([0, 1], [2, 3]), "the second lies across the boundary"
    mirrored(live, source)
    source.logs[0].append("f")
    source.logs[0].start = 5
    third, at = batch(live, source, at)
    assert third == [4, 5], "the source has deleted 4, which was mirrored before"
    assert batch(live, source, at) == ([], at)


def test_a_batch_that_runs_again_has_the_same_offsets_whichever_side_has_them(live: LiveCluster) -> None:
    source = mirrored_source(live, "a")
    source.logs[0].append("b", "c")
    begin = stream(live, source).initial()
    found, end = batch(live, source, None)
    mirrored(live, source)
    source.logs[0].append("d")
    source.logs[0].start = 3
    assert read_again(live, source, begin, end) == found == [0, 1, 2]


@pytest.mark.parametrize("appended", [0, 1, 2, 3])
def test_an_unclean_election_behind_the_stream_is_an_error(live: LiveCluster, appended: int) -> None:
    """The stream has read records from the source that were not mirrored, and other records take their places. If
    there are exactly as many, the next record reveals it.
    """
    source = mirrored_source(live, "a")
    source.logs[0].append("b", "c")
    _, at = batch(live, source, None)
    source.logs[0].elect_unclean(1)
    source.logs[0].append(*"xyz"[:appended])

    def go_on() -> None:
        batch(live, source, at)
        source.logs[0].append("next")
        batch(live, source, at)

    with pytest.raises((SourceTruncatedError, OffsetOutOfRangeError)):
        go_on()


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": "latest"}, 4),
        ({"startingOffsets": '{"t": {"0": 3}}'}, 3),
        ({"startingTimestamp": "1700000000001"}, 1),
    ],
)
def test_a_stream_begins_anywhere(live: LiveCluster, options: dict[str, str], starts: int) -> None:
    source = mirrored_source(live, "a", "b")
    source.logs[0].append("c", "d")
    initial = stream(live, source, **options).initial()
    assert [position.offset for position in initial.partitions.values()] == [starts]


def test_a_time_that_is_later_than_the_log_here_is_refused(live: LiveCluster) -> None:
    source = mirrored_source(live, "a", "b")
    with pytest.raises(InvalidCallError, match="mirror the topic first"):
        stream(live, source, startingTimestamp="1700000000009").initial()


def test_available_now_ends_where_both_sides_end_now(live: LiveCluster) -> None:
    source = mirrored_source(live, "a", "b")
    source.logs[0].append("c")
    of_query = stream(live, source)
    of_query.stop_at_present_end()
    source.logs[0].append("d")
    end = of_query.latest(of_query.initial(), None, None)
    assert [position.offset for position in end.partitions.values()] == [3]


def test_a_mirror_that_appends_between_two_looks_makes_no_other_history(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the log here then has a later epoch than the one seen before."""
    source = mirrored_source(live, "a")
    source.logs[0].epoch = 1
    source.logs[0].append("b")
    asked = boundary.list_offsets

    def late(*args: Any) -> Any:
        mirrored(live, source)
        source.logs[0].append("c")
        return asked(*args)

    monkeypatch.setattr(boundary, "list_offsets", late)
    assert offsets(live, plan(live, source)) == {0: [0, 1, 2]}


def test_partitions_keep_their_ends_in_whatever_order_they_answer(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads look at the partitions here, in any order of completion."""
    source = MemorySource(2)
    source.logs[0].append("a")
    source.logs[1].append("x", "y", "z")
    mirrored(live, source)
    second_is_done = threading.Event()

    def late(*args: Any) -> Any:
        if args[-1] == ("t", 0):
            assert second_is_done.wait(10)
        found = look_here(*args)
        if args[-1] == ("t", 1):
            second_is_done.set()
        return found

    monkeypatch.setattr(boundary, "look_here", late)
    assert {number: one.offset for number, one in look(live, source).boundaries.items()} == {0: 1, 1: 3}

"""A stream's offsets: the content of the checkpoint, and the continuation after losses (KIP-320)."""

from __future__ import annotations

import json

import pytest

from stratalog.engine.reading.stream_offsets import LogBounds, Position, StreamOffsets, planned_range, resume
from stratalog.engine.reading.stream_options import Subscription
from stratalog.partitions.errors import InvalidCallError, LogTruncationError, OffsetOutOfRangeError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog, parse

ID, OTHER = "a" * 32, "b" * 32


def bounds(start: int, end: int, log_end: int | None = None, *lineage: tuple[int, int]) -> LogBounds:
    """A log ``[start, end)`` for readers, up to ``log_end`` in all."""
    until = end if log_end is None else log_end
    log = ReplicaLog(parse("", []), Lineage(lineage or [(1, 0)]), (), start, until, end, end, (), (), ())
    return LogBounds("t-0", start, end, log)


T = {"t": ID}
OFFSETS = StreamOffsets(T, {("t", 0): Position(17, 3), ("t", 11): Position(0), ("t", 2): Position(5, 0)})
SEVERAL = StreamOffsets({"t": ID, "u": OTHER}, {("t", 0): Position(17, 3), ("u", 0): Position(2)})


@pytest.mark.parametrize(
    "offsets",
    [
        OFFSETS,
        SEVERAL,
        StreamOffsets(T, {("t", 0): Position(4)}, initial=True),
        StreamOffsets(T, {("t", 0): Position(9, 2)}, began={("t", 0): Position(4)}),
        StreamOffsets(T, {("t", 0): Position(9, 2)}, began={}),
    ],
)
def test_offsets_survive_the_checkpoint(offsets: StreamOffsets) -> None:
    assert StreamOffsets.from_json(json.loads(json.dumps(offsets.to_json()))) == offsets


def test_equal_offsets_are_equal_text_whatever_their_order() -> None:
    """Spark compares offsets by their text to decide whether there is new data."""
    for offsets in (OFFSETS, SEVERAL):
        ids, positions = (reversed(list(given.items())) for given in (offsets.topic_ids, offsets.partitions))
        turned = StreamOffsets(dict(ids), dict(positions))
        assert json.dumps(turned.to_json()) == json.dumps(offsets.to_json())


@pytest.mark.parametrize(
    "text",
    [
        '{"t": {"0": 17}}',
        "{}",
        '{"topic": "t", "topicId": "x", "partitions": {"0": 17}}',
        '{"topic": 1}',
        '{"topics": {"t": {"topicId": "x", "partitions": {"0": {"offset": 1e999}}}}}',
        '{"topics": {"t": {"topicId": "x", "partitions": {"0": {"offset": 1, "leaderEpoch": "y"}}}}}',
    ],
)
def test_a_checkpoint_of_another_source_is_refused(text: str) -> None:
    with pytest.raises(InvalidCallError, match="was not written by a stream of this format"):
        StreamOffsets.from_json(json.loads(text))


def test_a_checkpoint_of_another_topic_is_refused() -> None:
    reads = Subscription(("u",))
    assert OFFSETS.of_topics(T, Subscription(("t",)), fail_on_data_loss=True) is OFFSETS
    with pytest.raises(InvalidCallError, match="belongs to topic 't', but the query reads 'u'"):
        OFFSETS.of_topics({"u": ID}, reads, fail_on_data_loss=True)
    with pytest.raises(InvalidCallError, match="topic 't' was deleted and created again"):
        OFFSETS.of_topics({"t": OTHER}, Subscription(("t",)), fail_on_data_loss=True)


def test_a_topic_of_a_pattern_that_was_deleted_is_lost_records() -> None:
    """The lost records end the stream, or it continues without them."""
    reads, left = Subscription(pattern="[tu]"), {"u": OTHER}
    with pytest.raises(OffsetOutOfRangeError, match="topic 't' was deleted: its records are lost"):
        SEVERAL.of_topics(left, reads, fail_on_data_loss=True)
    found = SEVERAL.of_topics(left, reads, fail_on_data_loss=False)
    assert found == StreamOffsets(left, {("u", 0): Position(2)})


def test_a_position_knows_the_epoch_of_the_record_before_it() -> None:
    log = bounds(10, 50, None, (1, 0), (4, 30))
    assert log.position(31) == Position(31, 4)
    assert log.position(30) == Position(30, 1)
    assert log.position(10) == Position(10)  # there is no previous record


LOST_BELOW = (Position(5, 1), bounds(20, 50), 20)
TRUNCATED = (Position(40, 5), bounds(0, 35, None, (1, 0), (6, 30)), 30)
SHORTER = (Position(40), bounds(0, 35), 35)
TRUNCATED_AND_RETAINED = (Position(40, 5), bounds(32, 35, None, (1, 0), (6, 30)), 32)


@pytest.mark.parametrize(("position", "log", "going_on"), [LOST_BELOW, TRUNCATED, SHORTER, TRUNCATED_AND_RETAINED])
def test_lost_records_end_the_stream_or_are_left_out(position: Position, log: LogBounds, going_on: int) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: .*failOnDataLoss = false"):
        resume(position, log, fail_on_data_loss=True)
    assert resume(position, log, fail_on_data_loss=False) == going_on


def test_a_truncation_shows_where_the_histories_part() -> None:
    """KIP-320, "Consumer Handling": the consumer gets the offset up to which it has read the log's records."""
    with pytest.raises(LogTruncationError, match="truncated to offset 30") as caught:
        resume(TRUNCATED[0], TRUNCATED[1], fail_on_data_loss=True)
    assert caught.value.divergent_offset == 30


@pytest.mark.parametrize(
    ("position", "log"),
    [
        (Position(20, 1), bounds(20, 50)),
        (Position(50, 1), bounds(20, 50)),
        (Position(30, 1), bounds(0, 35, None, (1, 0), (6, 30))),  # the epoch ends exactly there
        (Position(45, 1), bounds(0, 40, 45)),  # a new leader does not know yet how much is committed
    ],
)
def test_a_stream_continues_at_its_place_while_nothing_is_lost(position: Position, log: LogBounds) -> None:
    assert resume(position, log, fail_on_data_loss=True) == position.offset


@pytest.mark.parametrize("fail", [True, False])
def test_a_planned_batch_is_the_same_range_whatever_was_appended_since(fail: bool) -> None:
    log = bounds(0, 500, None, (1, 0), (2, 90))
    start, end = Position(10, 1), Position(90, 1)
    assert planned_range(start, end, log, fail_on_data_loss=fail) == (10, 90)


@pytest.mark.parametrize(
    ("log", "left"),
    [
        (bounds(40, 500, None, (0, 0)), (40, 90)),
        (bounds(200, 500, None, (0, 0)), (200, 200)),
        (bounds(0, 60, None, (0, 0), (7, 50)), (10, 50)),
        (bounds(0, 60, None, (0, 0), (7, 5)), (5, 5)),
    ],
)
def test_a_planned_batch_is_read_without_what_was_lost_since_only_if_that_may_be(
    log: LogBounds, left: tuple[int, int]
) -> None:
    start, end = Position(10, 0), Position(90, 0)
    with pytest.raises(OffsetOutOfRangeError):
        planned_range(start, end, log, fail_on_data_loss=True)
    assert planned_range(start, end, log, fail_on_data_loss=False) == left


def test_a_partition_of_which_nothing_is_read_cannot_lose_anything() -> None:
    assert planned_range(Position(5, 1), Position(5, 1), bounds(20, 50), fail_on_data_loss=True) == (5, 5)

"""Planned reads and ListOffsets over both tiers (KIP-405, KIP-734, KIP-1023)."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StringType

from stratalog.engine.reading.bounds import Bound, Committed
from stratalog.engine.reading.positions import FirstAt
from stratalog.partitions.errors import (
    GroupIdNotFoundError,
    InvalidCallError,
    InvalidGroupIdError,
    OffsetOutOfRangeError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.offsets import FoundOffset, OffsetSpec, UnknownOffset
from tests.unit.cluster_harness import LiveCluster
from tests.unit.faulty_store import Faults

START = datetime(2024, 1, 1, tzinfo=UTC)


def minute(number: int) -> int:
    """That minute of 2024, in milliseconds."""
    return round((START + timedelta(minutes=number)).timestamp() * 1000)


def built(folder: Path) -> LiveCluster:
    """``t``-0: offset n has the time of minute n; [0, 4) are in the remote tier alone, [4, 5) in both, [5, 8)
    local, 8 above the high watermark. ``t``-1 is empty.
    """
    made = LiveCluster(folder)
    made.tiered(partitions=2)
    for number in range(5):
        made.append([f"v{number}"], at_ms=minute(number))
    made.tier_and_drop()
    for number in range(5, 8):
        made.append([f"v{number}"], at_ms=minute(number))
    made.append(["v8"], at_ms=minute(8), acks="leader")
    return made


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    return built(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LiveCluster:
    """``live``, with two empty topics and a group in addition, for tests that change nothing."""
    made = built(tmp_path_factory.mktemp("shared"))
    made.topic("trips")
    made.cluster.topics.create("typed", partitions=1, value=StringType())
    made.cluster.groups.commit("dashboard", {("t", 0): 3}).raise_for_failures()
    return made


def values(*numbers: int) -> list[str]:
    return [f"v{number}" for number in numbers]


# ---------------------------------------------------------------------------------------- read


@pytest.mark.slow
def test_a_read_takes_each_offset_from_one_tier_up_to_the_high_watermark(shared: LiveCluster) -> None:
    """Contract: "over local and remote files at once, up to the high watermark"."""
    plan = shared.cluster.plan_read("t")
    assert [(part.start, part.end, part.remote) for part in plan] == [
        *((n, n + 1, True) for n in range(4)),
        *((n, n + 1, False) for n in range(4, 8)),
    ]
    assert shared.read() == {0: values(*range(8))}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        pytest.param({0: 2}, {0: 6}, range(2, 6), id="offsets, across the tiers"),
        pytest.param({0: 3}, {0: 4, 1: 0}, range(3, 4), id="offsets by partition"),
        pytest.param({1: 0}, None, range(8), id="partitions that are not named are read whole"),
        pytest.param(OffsetSpec.EARLIEST_LOCAL, None, range(4, 8), id="from the earliest local offset"),
        pytest.param(None, OffsetSpec.EARLIEST_LOCAL, range(4), id="what is not local any more"),
        pytest.param(OffsetSpec.LATEST, None, range(0), id="nothing"),
        pytest.param("earliest", "latest", range(8), id="names of positions"),
        pytest.param({0: "earliest-local"}, None, range(4, 8), id="names by partition"),
        pytest.param(FirstAt(START + timedelta(minutes=2, seconds=30)), None, range(3, 8), id="a look-up by time"),
        pytest.param({0: "2024-01-01T00:03"}, None, range(3, 8), id="a look-up by time, by partition"),
        pytest.param(START + timedelta(minutes=2, seconds=30), None, range(3, 8), id="from a time on"),
        pytest.param("2024-01-01T00:02:30", "2024-01-01T01:05+01:00", range(3, 5), id="times as text"),
        pytest.param(
            {0: 4}, START + timedelta(minutes=6), range(4, 6), id="from an offset on, of a stretch of time"
        ),
        pytest.param(START, START + timedelta(minutes=5), range(5), id="a stretch of time"),
        pytest.param(START + timedelta(days=1), None, range(0), id="a time that has not come"),
    ],
)
def test_a_read_may_begin_and_end_at(shared: LiveCluster, start: Bound, end: Bound, expected: range) -> None:
    assert shared.read(start=start, end=end).get(0, []) == values(*expected)


def test_a_small_range_needs_few_files(shared: LiveCluster) -> None:
    """Contract: "without reading data that cannot match"."""
    assert [(p.start, p.end) for p in shared.cluster.plan_read("t", 3, 5, [0])] == [(3, 4), (4, 5)]


@pytest.mark.slow
def test_a_plan_is_pinned(live: LiveCluster) -> None:
    """Contract: "pinned to the state at planning"."""
    plan = live.cluster.plan_read("t")
    live.cluster.replicate().raise_for_failures()
    live.append(["later"])
    assert [value for part in plan for _, value in live.records(part)] == values(*range(8))
    assert live.read() == {0: [*values(*range(9)), "later"]}


@pytest.mark.slow
def test_records_that_change_tiers_while_a_read_is_planned_are_read_once(tmp_path: Path) -> None:
    """Another driver tiers and drops between any two looks of the driver that plans."""
    faults = Faults()
    live = LiveCluster(tmp_path, through=faults.wrap)
    live.tiered()
    live.fill("abcdef")
    other = live.driver()
    done: list[str] = []

    def tier_and_drop(uri: str, what: str, name: str) -> None:
        if what == "list" and "/t-" in name:
            faults.none()
            done.append(name)
            other.tier().raise_for_failures()
            for _ in range(2):
                other.retain().raise_for_failures()

    faults.after = tier_and_drop
    assert sum(part.end - part.start for part in live.cluster.plan_read("t")) == 6
    assert done
    live.fill("gh")
    other.tier().raise_for_failures()
    done.clear()
    faults.before = tier_and_drop
    assert live.read() == {0: list("abcdefgh")}
    assert done


NOW = START + timedelta(days=9999)
"""A time after the clock of the tests."""


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"start": 9}, OffsetOutOfRangeError, r"t-0: start 9 is above the high watermark: readers see \[0, 8\)"),
        ({"end": 9}, OffsetOutOfRangeError, r"t-0: end 9 is above the high watermark: readers see \[0, 8\)"),
        ({"start": {0: 100}}, OffsetOutOfRangeError, "t-0: start 100 is above the high watermark"),
        ({"start": -1}, OffsetOutOfRangeError, "start is -1: offsets start at 0; to read the last n"),
        ({"end": {0: -5}}, OffsetOutOfRangeError, "end of partition 0 is -5: offsets start at 0"),
        ({"start": 6, "end": 5}, OffsetOutOfRangeError, "t-0: start 6 is after end 5"),
        (
            {"start": START + timedelta(minutes=5), "end": START},
            InvalidCallError,
            "start = 2024-01-01 00:05:00.00:00 is after end = 2024-01-01",
        ),
        (
            {"start": FirstAt(NOW)},
            InvalidCallError,
            "start = first-at:.* is in the future; it is now",
        ),
        ({"end": {0: FirstAt(NOW)}}, InvalidCallError, "end = first-at:.* is in the future"),
        ({"start": datetime(2024, 1, 1)}, InvalidCallError, "start = 2024-01-01 00:00:00 has no time zone"),
        (
            {"end": START, "last": 2},
            InvalidCallError,
            r"last = 2 and end = .*counts records by offset.*end=FirstAt\(",
        ),
        ({"start": 1, "last": 2}, InvalidCallError, "last = 2 and start = 1: give only one of them"),
        ({"last": 0}, InvalidCallError, "last = 0: give a whole number from 1 on"),
        ({"last": True}, InvalidCallError, "last = True: give a whole number from 1 on"),
        ({"start": True}, InvalidCallError, "start = True: give an offset, a time"),
        ({"end": "lattest"}, InvalidCallError, "end = 'lattest': give .*; did you mean 'latest'?"),
        ({"end": "2013-13-01"}, InvalidCallError, "end = '2013-13-01' is not a time: write it as 2013-06-01"),
        ({"start": date(2013, 6, 1)}, InvalidCallError, "start = datetime.date.*: give an offset, a time"),
        ({"start": "17"}, InvalidCallError, "start = '17': give an offset"),
        ({"start": 1.5}, InvalidCallError, r"start = 1\.5: give an offset"),
        ({"start": {0: "1"}}, InvalidCallError, "start of partition 0 = '1': give an offset, a position"),
        ({"start": {"0": 1}}, InvalidCallError, "start names '0': a partition is a number, or"),
        ({"start": {("u", 0): 1}}, UnknownTopicOrPartitionError, "start names topic 'u', which is not read"),
        ({"start": {7: 1}}, UnknownTopicOrPartitionError, "'t' has no partition 7: it has 2, numbered from 0"),
        ({"end": {7: 1}}, UnknownTopicOrPartitionError, "'t' has no partition 7"),
        ({"partitions": []}, InvalidCallError, "partitions is empty: name some, or omit it"),
        ({"partitions": [0, 2]}, UnknownTopicOrPartitionError, "'t' has no partition 2: it has 2"),
        ({"topic": "trps"}, UnknownTopicOrPartitionError, "'trps' does not exist, .* did you mean 'trips'?"),
        ({"topic": ["t", "tripz"]}, UnknownTopicOrPartitionError, "did you mean 'trips'?"),
        (
            {"topic": ["t", "trips"], "start": {0: 1}},
            InvalidCallError,
            r"2 topics are read: write it as \('t', 0\)",
        ),
        ({"topic": ["t", "typed"]}, InvalidCallError, "'t' and 'typed' cannot be read in one frame: their values"),
        ({"topic": None}, InvalidCallError, "give either topics, or a pattern"),
        ({"topic": "t", "pattern": "t"}, InvalidCallError, "give either topics, or a pattern"),
        ({"topic": None, "pattern": "x.*"}, UnknownTopicOrPartitionError, r"no topic matches the pattern 'x\.\*'"),
        ({"topic": None, "pattern": "t("}, InvalidCallError, r"pattern 't\(' is not a regular expression"),
        ({"start": Committed("dashbord")}, GroupIdNotFoundError, "'dashbord' does not exist.* 'dashboard'?"),
        ({"start": Committed("")}, InvalidGroupIdError, "group"),
        (
            {"start": OffsetSpec.MAX_TIMESTAMP},
            OffsetOutOfRangeError,
            "MAX_TIMESTAMP is not known: the log is empty",
        ),
    ],
)
def test_a_wrong_read_is_one_clear_error(
    shared: LiveCluster, asked: dict[str, Any], error: type[StratalogError], message: str
) -> None:
    """Bad input: before anything is read, with the wrong value and the right ones."""
    with shared.unchanged(), pytest.raises(error, match=message):
        shared.cluster.plan_read(**{"topic": "t", **asked})


def test_unknown_topics_and_partitions_are_named(live: LiveCluster) -> None:
    """Bad input: "unknown or deleted topic; partition out of range"."""
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'u' does not exist, or was deleted"):
        live.cluster.plan_read("u")
    with pytest.raises(UnknownTopicOrPartitionError, match="'t' has no partition 2: it has 2"):
        live.cluster.plan_read("t", partitions=[0, 2])
    with pytest.raises(UnknownTopicOrPartitionError, match="'t' has no partition 7"):
        live.cluster.plan_read("t", end={7: 1})
    live.cluster.topics.delete("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="'t' does not exist, or was deleted"):
        live.cluster.plan_read("t")


def test_a_dataframe_needs_a_session(shared: LiveCluster) -> None:
    with pytest.raises(InvalidCallError, match="needs a Spark session"):
        shared.cluster.read("t")


# --------------------------------------------------------------------------------- ListOffsets


@pytest.mark.parametrize(
    ("spec", "of_0", "of_1"),
    [
        (OffsetSpec.EARLIEST, 0, 0),
        (OffsetSpec.EARLIEST_LOCAL, 4, 0),
        (OffsetSpec.LAST_TIERED, 4, None),
        (OffsetSpec.EARLIEST_PENDING_UPLOAD, 5, 0),
        (OffsetSpec.LATEST, 8, 0),
    ],
)
def test_named_offsets_are_found_in_each_partition(
    shared: LiveCluster, spec: OffsetSpec, of_0: int, of_1: int | None
) -> None:
    """KIP-405 and KIP-1023, "ListOffsets API". LATEST is the high watermark."""
    answers = shared.cluster.offsets("t", spec)
    assert [a.offset if isinstance(a, FoundOffset) else None for a in answers.values()] == [of_0, of_1]


@pytest.mark.parametrize(
    ("minutes", "found"), [(-5, 0), (0, 0), (0.5, 1), (3, 3), (3.01, 4), (6.5, 7), (7, 7), (7.5, None)]
)
def test_offsets_by_time_in_either_tier(shared: LiveCluster, minutes: float, found: int | None) -> None:
    """offsetsForTimes: the first record at or after the time, below the high watermark; its time and leader
    epoch."""
    answers = shared.cluster.offsets("t", START + timedelta(minutes=minutes))
    if found is None:
        assert isinstance(answers[0], UnknownOffset)
    else:
        assert answers[0] == FoundOffset(found, minute(found) * 1000, 1)
    assert isinstance(answers[1], UnknownOffset)


def test_the_largest_timestamp_may_be_in_the_remote(tmp_path: Path) -> None:
    """KIP-734: the first record that has it."""
    live = LiveCluster(tmp_path)
    live.tiered()
    for at in (1, 9, 9, 4):
        live.append(["x"], at_ms=at)
    live.tier_and_drop()
    live.append(["x"], at_ms=8)
    live.append(["x"], at_ms=99, acks="leader")
    assert live.cluster.offsets("t", OffsetSpec.MAX_TIMESTAMP) == {0: FoundOffset(1, 9_000, 1)}


def test_a_topic_that_is_not_tiered_has_no_tiered_offsets(tmp_path: Path) -> None:
    live = LiveCluster(tmp_path)
    live.topic()
    live.append(["a"])
    for spec in (OffsetSpec.LAST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD):
        assert live.cluster.offsets("t", spec) == {0: UnknownOffset("the topic is not tiered")}


@pytest.mark.slow
def test_the_leader_epoch_of_an_offset_is_the_one_that_wrote_it(live: LiveCluster) -> None:
    """KIP-320. Broker 1 votes, so the test loses the leader of another partition."""
    p = 1
    old = live.leader(partition=p)
    assert old != 1
    live.append({p: ["a"]}, at_ms=minute(0))
    live.wipe(old)
    live.cluster.bootstrap(old).raise_for_failures()
    live.append({p: ["b"]}, at_ms=minute(1))
    assert live.cluster.offsets("t", START)[p] == FoundOffset(0, minute(0) * 1000, 1)
    assert live.cluster.offsets("t", START + timedelta(minutes=1))[p] == FoundOffset(1, minute(1) * 1000, 2)

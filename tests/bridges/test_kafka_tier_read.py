"""A read of a Kafka cluster's tier equals the records of its consumers, and an error names everything else."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stratalog.bridges.kafka_tier import reading
from stratalog.bridges.kafka_tier.layout import IndexKind
from stratalog.bridges.kafka_tier.segment import SegmentState
from stratalog.bridges.kafka_tier.segment_states import PartitionDeletion
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.engine.reading.positions import FirstAt
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from tests.bridges.kafka_tier_data import (
    AIVEN,
    FOLDERS,
    LOCAL,
    MAIN,
    Tier,
    got,
    opened,
    real,
    rows_of,
    with_changed,
)

pytestmark = real


def bounds_of(truth: dict[str, Any], partition: int) -> tuple[int, int]:
    """The earliest offset, and the offset after the last tiered one, as the brokers reported at the end."""
    moments = [truth[name].get(str(partition)) for name in truth if name.startswith("offsets")]
    moments = [moment for moment in moments if moment is not None]
    return moments[-1]["earliest"]["offset"], moments[-1]["latestTiered"]["offset"] + 1


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.filterwarnings("ignore:left out")
def test_exactly_the_records_that_consumers_got_are_read(folder: str) -> None:
    data, seen = Tier(folder), 0
    for name in data.topics():
        if "." in name:  # the name is that of an earlier moment of a topic
            continue
        found = data.truth(name)
        for part in found["partitions"]:
            number = part["partition"]
            start, end = bounds_of(found, number)
            tier = opened(folder, log_starts={(name, number): start})
            records = [row for row in data.records(f"{name}-{number}") if start <= row[0] < end]
            assert got(tier, name, number) == records
            seen += len(records)
    assert seen == {MAIN: 19_817, FOLDERS[1]: 1_800, FOLDERS[2]: 7_080}.get(folder, 3_500)


@pytest.mark.sample(3)
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.filterwarnings("ignore:left out")
def test_committed_records_are_those_of_consumers_up_to_the_first_open_transaction(folder: str) -> None:
    data = Tier(folder)
    for name in data.topics():
        if "." in name:
            continue
        seen = data.truth(name)
        for part in seen["partitions"]:
            number = part["partition"]
            start, end = bounds_of(seen, number)
            tier = opened(folder, log_starts={(name, number): start})
            found = got(tier, name, number, isolation="read_committed")
            plan = tier.plan(name, partitions=[number], isolation="read_committed")
            [note] = plan.notes if name == "txn" and plan.notes else [None]
            if note is not None:
                assert "has not ended in the tier" in note
                end = int(note.partition("[")[2].partition(",")[0])
            ranges = part["readCommittedRanges"]
            kept = [one for one in data.records(f"{name}-{number}") if start <= one[0] < end]
            assert found == [one for one in kept if any(a <= one[0] <= b for a, b in ranges)]


def test_an_open_transaction_is_left_to_the_brokers() -> None:
    tier = opened(MAIN)
    with pytest.warns(UserWarning, match=r"left out: txn-0 offsets \[1033, 1594\).*has not ended in the tier"):
        assert got(tier, "txn", isolation="read_committed")[-1][0] == 1031
    with pytest.raises(LogGapError, match=r"txn-0 offsets \[1033, 1594\)"):
        tier.read_arrow("txn", end=1594, partitions=[0], isolation="read_committed")
    assert got(tier, "txn", end=1033, isolation="read_committed")


def test_a_transaction_that_may_end_in_a_hole_is_unclear() -> None:
    """The marker of such a transaction may be in a missing segment. Reading continues after the hole."""
    tier = opened(MAIN)
    segments = tier.states.of(tier.topic_id("txn"), 0)
    hole = segments[2]
    tier.states.segments[hole.segment_id] = replace(hole, state=SegmentState.DELETE_SEGMENT_STARTED)
    plan = tier.plan("txn", partitions=[0], isolation="read_committed")
    assert plan.notes[0].startswith("txn-0 offsets [420, 818): the transaction of producer 3 from offset 420 on")
    assert "its deletion has begun" in plan.notes[1]
    assert [task.piece.end for task in plan.tasks] == [420]
    with pytest.raises(LogGapError, match=f"segment {hole.segment_id}: its deletion has begun"):
        got(tier, "txn")
    with pytest.warns(UserWarning, match="left out"):
        rows = got(tier, "txn", fail_on_data_loss=False)
    hidden = range(hole.start_offset, hole.next_offset)
    assert rows == [row for row in Tier(MAIN).records("txn-0") if row[0] < 1594 and row[0] not in hidden]


@pytest.mark.parametrize("topic", ["retention-refused", "retention-partly"])
def test_a_segment_whose_deletion_has_begun_does_not_count(topic: str) -> None:
    tier = opened(MAIN)
    with pytest.warns(UserWarning, match=rf"{topic}-0 offsets \[0, 300\): segment .*: its deletion has begun"):
        assert got(tier, topic)[0][0] == 300
    with pytest.raises(LogGapError, match="its deletion has begun"):
        got(tier, topic, start=299)
    assert got(tier, topic, start=300)[0][0] == 300


def test_uploads_that_stopped_half_way_do_not_count() -> None:
    tier = opened(f"{LOCAL}/half-way/1-killed")
    for topic in ("stops-in-log", "stops-in-index", "stops-in-timeindex", "stops-in-last"):
        with pytest.warns(UserWarning, match=rf"{topic}-0 offsets \[300, 590\): .*its upload has not finished"):
            assert len(got(tier, topic)) == 300
        with pytest.raises(LogGapError, match="its upload has not finished"):
            got(tier, topic, end=301)


BEGIN = FirstAt(datetime(2001, 1, 1, tzinfo=UTC))
LATE = FirstAt(datetime(2101, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 10), (0, None), (100, None), (None, 10), (None, None), (BEGIN, None), (LATE, None), (None, BEGIN)],
)
def test_a_partition_without_one_certain_offset_is_not_an_empty_one(start: Any, end: Any) -> None:
    unfinished = opened(MAIN)
    for one in unfinished.states.of(unfinished.topic_id("txn"), 0):
        unfinished.states.segments[one.segment_id] = replace(one, state=SegmentState.COPY_SEGMENT_STARTED)
    with pytest.raises(LogGapError, match="its upload has not finished"):
        got(unfinished, "txn", start=start, end=end)
    with pytest.warns(UserWarning, match="left out: .*its upload has not finished"):
        assert got(unfinished, "txn", start=start, end=end, fail_on_data_loss=False) == []
    damaged = with_changed(IndexKind.TRANSACTION, 1, lambda data: data[:-1])
    if not isinstance(start, FirstAt) and not isinstance(end, FirstAt):
        if end == 10:  # no transaction that begins before it ends in the damaged segment
            read = got(damaged, "txn", start=start, end=end, isolation="read_committed")
            assert read == got(opened(MAIN), "txn", start=start, end=end, isolation="read_committed")
            return
        with pytest.raises(LogGapError, match="not a multiple of 34"):
            got(damaged, "txn", start=start, end=end, isolation="read_committed")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_reader_at_the_certain_end_waits_for_uploads(isolation: str) -> None:
    tier = opened(f"{LOCAL}/half-way/1-killed")
    with pytest.warns(UserWarning, match=r"left out: stops-in-log-0 offsets \[300, 590\)"):
        assert got(tier, "stops-in-log", start=300, isolation=isolation) == []


def test_an_unclean_election_leaves_two_histories_and_one_counts() -> None:
    data, tier = Tier(MAIN), opened(MAIN)
    present = [row for row in data.records("unclean-0") if row[0] < 1375]
    assert got(tier, "unclean") == present
    assert sum("abandoned history" in why for why in tier._plan_of("unclean", 0).left_out.values()) == 3
    lost = opened(MAIN, epochs={("unclean", 0): [(0, 0)]})
    assert got(lost, "unclean") == [row for row in data.records("unclean-0.lost-lineage") if row[0] < 1100]
    by_hand = opened(MAIN, epochs={("unclean", 0): [(0, 0), (2, 500)]})
    assert got(by_hand, "unclean") == present
    elsewhere = opened(MAIN, epochs={("unclean", 0): [(0, 0), (2, 450)]})
    with pytest.raises(StratalogError, match="part of it belongs to an abandoned history"):
        got(elsewhere, "unclean")
    with pytest.raises(CorruptionError, match="are not in ascending order"):
        got(opened(MAIN, epochs={("unclean", 0): [(2, 0), (0, 9)]}), "unclean")


def test_a_topic_recreated_under_its_name_is_the_newer_one() -> None:
    tier = opened(MAIN)
    assert len(tier.states.topic_ids("gone")) == 2
    assert tier.topic_id("gone") == Tier(MAIN).truth("gone")["topicId"]


def test_a_partition_whose_deletion_has_begun_does_not_count() -> None:
    tier = opened(MAIN)
    tier.states.apply(PartitionDeletion(tier.topic_id("plain"), "plain", 0, 0))
    with pytest.raises(LogGapError, match=r"plain-0 offsets \[0, .*the deletion of its partition has begun"):
        got(tier, "plain")
    assert got(tier, "plain", 1)
    newer = tier.topic_id("gone")
    for partition in tier.partitions("gone"):
        tier.states.apply(PartitionDeletion(newer, "gone", partition, 0))
    [older] = tier.states.topic_ids("gone").keys() - {newer}
    alive = tier.states.of(older, 0)[0]
    tier.states.segments[alive.segment_id] = replace(alive, state=SegmentState.COPY_SEGMENT_FINISHED)
    assert tier.topic_id("gone") == older


def test_bounds_are_offsets_by_partition_or_for_all() -> None:
    tier, data = opened(MAIN), Tier(MAIN)
    for start, end in ((0, 1), (479, 481), (700, 1311), (2039, 2040), (5, 5)):
        rows = got(tier, "plain", 1, start=start, end=end)
        assert rows == [row for row in data.records("plain-1") if start <= row[0] < end]
    both = rows_of(tier.read_arrow("plain", start={0: 2400, 1: 2000}).read_all())
    assert [row[0] for row in both] == [*range(2400, 2430), *range(2000, 2040)]
    with pytest.raises(LogGapError, match=r"plain-1 offsets \[2040, 2050\): the tier ends before them"):
        got(tier, "plain", 1, start=2000, end=2050)
    late = opened(MAIN, log_starts={("plain", 1): 600})
    with pytest.raises(LogGapError, match=r"plain-1 offsets \[7, 600\): the tier begins after them"):
        got(late, "plain", 1, start=7)


def test_mistakes_are_named() -> None:
    tier = opened(MAIN)
    for call, message in (
        (lambda: tier.plan("plane"), "topic 'plane' has no segments in the tier.*plain"),
        (lambda: tier.plan("plain", partitions=[7]), r"no segments of its partitions \[7\]"),
        (lambda: opened(MAIN, epochs={("plane", 0): [(0, 0)]}), "'plane'"),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match=message):
            call()
    for bound, message in (
        ({"start": "latest"}, "give an offset"),
        ({"isolation": "committed"}, "read_committed"),
    ):
        with pytest.raises(InvalidCallError, match=message):
            tier.plan("plain", **bound)  # type: ignore[arg-type]
    with pytest.raises(InvalidCallError, match="key 'k' cannot be read"):
        KafkaTier.open("/x", layout="aiven", metadata="/y", keys={"k": "/nowhere/key.pem"})


@pytest.mark.sample(2)
@pytest.mark.parametrize("topic", ["times-create", "times-append", "times-mixed", "plain"])
def test_times_are_those_of_the_records(topic: str) -> None:
    """The records are in any order of time, one is far ahead, and one is at 1 ms."""
    tier, data = opened(MAIN), Tier(MAIN)
    _, end = bounds_of(data.truth(topic), 0)
    records = [row for row in data.records(f"{topic}-0") if row[0] < end]
    draw = random.Random(topic)
    times = sorted({row[1] for row in records})
    for _ in range(25):
        low, high = sorted(draw.choices([*times, times[0] - 1, times[len(times) // 2] + 1], k=2))
        span = {"start": _at(low), "end": _at(high)}
        assert got(tier, topic, **span) == [row for row in records if low <= row[1] < high]
        assert got(tier, topic, start=_at(low)) == [row for row in records if low <= row[1]]
        first = next((row[0] for row in records if row[1] >= low), end)
        last = next((row[0] for row in records if row[1] >= high), end)
        found = got(tier, topic, start=FirstAt(_at(low)), end=FirstAt(_at(high)))
        assert found == [row for row in records if first <= row[0] < last]


def _at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def test_a_narrow_read_takes_a_part_of_the_bytes() -> None:
    tier = opened(f"{AIVEN}/plain-chunks")
    store = tier.store
    before = store.counts.snapshot()
    assert len(got(tier, "docs", 0, start=600, end=605)) == 5
    spent = store.counts - before
    assert spent.reads <= 6


@pytest.mark.parametrize("read_bytes", [1, 64, 1000, 5000])
def test_batches_may_be_larger_than_a_read(read_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that ends inside a batch is followed by a read from the start of the batch, which gets all of it."""
    records = got(opened(MAIN), "plain")
    monkeypatch.setattr(reading, "READ_BYTES", read_bytes)
    monkeypatch.setattr(reading, "_LEAST_READ_BYTES", read_bytes)
    tier = opened(MAIN)
    plan = tier.plan("plain", partitions=[0])
    before = tier.store.counts.snapshot()
    assert got(tier, "plain") == records
    size = sum(task.piece.segment.size_bytes for task in plan.tasks)
    assert (tier.store.counts - before).read_bytes <= 3 * size

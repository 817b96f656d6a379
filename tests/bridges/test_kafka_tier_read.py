"""A read of a Kafka cluster's tier equals what its consumers got, and everything else is named."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import google_crc32c
import pytest

from stratalog.bridges.kafka_tier import reading
from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.batches import batches_of
from stratalog.bridges.kafka_tier.layout import IndexKind
from stratalog.bridges.kafka_tier.reading import read_task
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from stratalog.bridges.kafka_tier.segment_states import PartitionDeletion
from stratalog.bridges.kafka_tier.tier import KafkaTier
from stratalog.engine.reading.positions import FirstAt
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
    SourceChangedError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.store.memory import MemoryStore
from tests.bridges.kafka_tier_data import AIVEN, FOLDERS, LOCAL, MAIN, Row, Tier, opened, real, rows_of

pytestmark = real


def got(tier: KafkaTier, topic: str, partition: int = 0, **bounds: Any) -> list[Row]:
    return rows_of(tier.read_arrow(topic, partitions=[partition], **bounds).read_all())


def bounds_of(said: dict[str, Any], partition: int) -> tuple[int, int]:
    """Earliest, and behind the last tiered offset, as the brokers said at the end."""
    moments = [said[name].get(str(partition)) for name in said if name.startswith("offsets")]
    moments = [moment for moment in moments if moment is not None]
    return moments[-1]["earliest"]["offset"], moments[-1]["latestTiered"]["offset"] + 1


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.filterwarnings("ignore:left out")
def test_every_record_that_consumers_got_is_read_and_none_beside(folder: str) -> None:
    data, seen = Tier(folder), 0
    for name in data.topics():
        if "." in name:  # an earlier moment of a topic
            continue
        said = data.truth(name)
        for part in said["partitions"]:
            number = part["partition"]
            start, end = bounds_of(said, number)
            tier = opened(folder, log_starts={(name, number): start})
            records = [row for row in data.records(f"{name}-{number}") if start <= row[0] < end]
            assert got(tier, name, number) == records
            seen += len(records)
    assert seen == {MAIN: 19_817, FOLDERS[1]: 1_800, FOLDERS[2]: 7_080}.get(folder, 3_500)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.filterwarnings("ignore:left out")
def test_committed_records_are_those_of_consumers_up_to_the_first_open_transaction(folder: str) -> None:
    data = Tier(folder)
    for name in data.topics():
        if "." in name:
            continue
        said = data.truth(name)
        for part in said["partitions"]:
            number = part["partition"]
            start, end = bounds_of(said, number)
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
    """Its marker may be in a segment that is missing. Behind the hole reading goes on."""
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
    damaged = lying(IndexKind.TRANSACTION, 1, lambda data: data[:-1])
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
    with pytest.raises(StratalogError, match="a part of it belongs to an abandoned history"):
        got(elsewhere, "unclean")
    with pytest.raises(CorruptionError, match="do not ascend"):
        got(opened(MAIN, epochs={("unclean", 0): [(2, 0), (0, 9)]}), "unclean")


def test_a_topic_made_again_under_its_name_is_the_newer_one() -> None:
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
    for call, said in (
        (lambda: tier.plan("plane"), "topic 'plane' has no segments in the tier.*plain"),
        (lambda: tier.plan("plain", partitions=[7]), r"no segments of its partitions \[7\]"),
        (lambda: opened(MAIN, epochs={("plane", 0): [(0, 0)]}), "'plane'"),
    ):
        with pytest.raises(UnknownTopicOrPartitionError, match=said):
            call()
    for bound, said in (({"start": "latest"}, "give an offset"), ({"isolation": "committed"}, "read_committed")):
        with pytest.raises(InvalidCallError, match=said):
            tier.plan("plain", **bound)  # type: ignore[arg-type]
    with pytest.raises(InvalidCallError, match="key 'k' cannot be read"):
        KafkaTier.open("/x", layout="aiven", metadata="/y", keys={"k": "/nowhere/key.pem"})


@pytest.mark.parametrize("topic", ["times-create", "times-append", "times-mixed", "plain"])
def test_times_are_those_of_the_records(topic: str) -> None:
    """Whatever their order in the log, and one far ahead, and one at 1 ms."""
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


# ---------------------------------------------------------------------------------------------- tampering


def in_memory(folder: str, change: Callable[[str, bytes], bytes | None], only: str = "") -> KafkaTier:
    """The tier with other bytes in its objects; None: without the object."""
    tier, data = opened(folder), Tier(folder)
    store = MemoryStore("memory://tampered", ManualClock())
    for name in sorted(data.store.names("")):
        if only not in name:
            continue
        changed = change(name, data.store.read(name))
        if changed is not None:
            store.create(name, changed)
    tier.store = store
    return tier


def segment_of(tier: KafkaTier, topic: str, at: int) -> RemoteLogSegment:
    return tier.states.of(tier.topic_id(topic), 0)[at]


def test_a_segment_that_vanishes_is_named() -> None:
    tier = in_memory(MAIN, lambda name, data: data)
    plan = tier.read_arrow("plain", partitions=[0])
    segment = segment_of(tier, "plain", 2)
    tier.store.delete([tier.layout.objects(segment)["log"]])
    with pytest.raises(SourceChangedError, match=f"{segment.segment_id}.*not in the storage"):
        plan.read_all()


def lying(kind: IndexKind, at: int, change: Callable[[bytes], bytes], topic: str = "txn") -> KafkaTier:
    names = opened(MAIN)
    name = names.layout.objects(segment_of(names, topic, at))[kind]
    return in_memory(MAIN, lambda one, data: change(data) if one == name else data)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (IndexKind.OFFSET, lambda data: data[:-1], "not a multiple of 8"),
        (IndexKind.OFFSET, lambda data: data[::-1][: len(data) // 8 * 8], "offset index"),
        (IndexKind.OFFSET, lambda data: data[8:] + data[:8], "do not ascend"),
        (
            IndexKind.OFFSET,
            lambda data: data[:4] + data[12:16] + data[8:12] + data[20:24] + data[16:],
            "offset index",
        ),
        (IndexKind.OFFSET, lambda data: b"\x7f" + data[1:], "leads out of the segment"),
        (IndexKind.OFFSET, lambda data: data[:7] + bytes([data[7] + 1]) + data[8:16], "at byte"),
    ],
)
def test_an_offset_index_that_lies_is_named(kind: IndexKind, change: Any, said: str) -> None:
    tier = lying(kind, 1, change)
    start = segment_of(tier, "txn", 1).start_offset
    with pytest.raises(CorruptionError, match=said):
        [got(tier, "txn", start=begin, end=begin + 3) for begin in range(start + 1, start + 400, 30)]


@pytest.mark.parametrize("read_bytes", [1, 64, 1000, 5000])
def test_batches_may_be_larger_than_a_read(read_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that ends inside a batch is followed by one from its beginning, which has all of it."""
    records = got(opened(MAIN), "plain")
    monkeypatch.setattr(reading, "READ_BYTES", read_bytes)
    monkeypatch.setattr(reading, "_LEAST_READ_BYTES", read_bytes)
    tier = opened(MAIN)
    plan = tier.plan("plain", partitions=[0])
    before = tier.store.counts.snapshot()
    assert got(tier, "plain") == records
    size = sum(task.piece.segment.size_bytes for task in plan.tasks)
    assert (tier.store.counts - before).read_bytes <= 3 * size


def test_an_entry_of_the_offset_index_may_span_the_batches_of_an_append() -> None:
    """Older brokers write one entry for an append: its last offset, and the position of its first batch."""
    names = opened(MAIN)
    segment = segment_of(names, "plain", 0)
    batches = list(batches_of(names.store.read(names.layout.objects(segment)["log"]), 0, "s"))
    assert len(batches) > 6
    entries = b"".join(
        (last.last_offset - segment.start_offset).to_bytes(4, "big") + first.position.to_bytes(4, "big")
        for first, last in zip(batches[1::3], batches[3::3], strict=False)
    )
    tier = lying(IndexKind.OFFSET, 0, lambda data: entries, "plain")
    records = Tier(MAIN).records("plain-0")
    for start in range(segment.start_offset, segment.next_offset, 7):
        assert got(tier, "plain", start=start, end=start + 9) == [
            row for row in records if start <= row[0] < start + 9
        ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"", "has no transaction for the abort"),
        (lambda data: data[34:], "has no transaction for the abort"),
        (lambda data: data[:17] + bytes([data[17] + 1]) + data[18:], "has a transaction from"),
        (lambda data: data[:25] + bytes([data[25] ^ 1]) + data[26:], "transaction index"),
        (lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], "transaction index"),
    ],
)
def test_a_transaction_index_that_lies_is_named(change: Any, said: str) -> None:
    tier = lying(IndexKind.TRANSACTION, 1, change)
    with pytest.raises(CorruptionError, match=said):
        got(tier, "txn", end=1000, isolation="read_committed")


@pytest.mark.parametrize(
    "change",
    [lambda data: b"", lambda data: data[34:], lambda data: data[:17] + bytes([data[17] + 6]) + data[18:]],
    ids=["missing", "without its first entry", "with a later first offset"],
)
def test_a_transaction_index_that_lies_is_named_from_the_middle_of_a_segment(change: Any) -> None:
    """Which transactions are open there is unknown, but a record that the reader has seen belongs to one."""
    tier, segment = lying(IndexKind.TRANSACTION, 1, change), segment_of(opened(MAIN), "txn", 1)
    with pytest.raises(CorruptionError, match="the abort at offset 511, whose first record is at"):
        got(tier, "txn", start=segment.start_offset + 70, end=700, isolation="read_committed")


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[34:], lambda data: data[:-34]])
@pytest.mark.filterwarnings("ignore:left out")
def test_no_task_returns_an_aborted_record_because_an_index_was_lost(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task alone: the marker may be in another part of the segment, or in a later segment."""
    monkeypatch.setattr(tier_tasks, "TASK_BYTES", 8000)
    good = opened(MAIN)
    truth = {number: got(good, "txn", number, isolation="read_committed") for number in (0, 1)}
    indexes = [
        name
        for one in good.states.segments.values()
        if one.topic == "txn"
        and not one.txn_index_empty
        and (name := good.layout.objects(one)[IndexKind.TRANSACTION]) in set(good.store.names(""))
    ]
    refused = across = 0
    for lost in indexes:
        tier = in_memory(MAIN, lambda one, data, lost=lost: change(data) if one == lost else data, "txn-")
        for task in tier.plan("txn", isolation="read_committed").tasks:
            if task.partition not in truth:
                continue
            try:
                rows = [row for batch in read_task(task) for row in rows_of(batch)]
            except CorruptionError as error:
                refused += 1
                marker = re.search(r"for the abort at offset (\d+)", str(error))
                across += marker is not None and int(marker[1]) >= task.piece.end
                continue
            expected = [row for row in truth[task.partition] if task.piece.start <= row[0] < task.piece.end]
            assert rows == expected
    assert len(indexes) > 3
    assert refused
    assert across


def test_a_transaction_index_of_impossible_entries_makes_offsets_unclear() -> None:
    for change, said in (
        (lambda data: data[:-1], "not a multiple of 34"),
        (lambda data: b"\x00\x01" + data[2:], "version 1"),
        (lambda data: data[:10] + b"\x7f" + data[11:], "transaction from"),
    ):
        tier = lying(IndexKind.TRANSACTION, 1, change)
        with pytest.raises(LogGapError, match=said):
            got(tier, "txn", start=0, end=1000, isolation="read_committed")


def test_a_snapshot_that_lies_leaves_its_segment_out() -> None:
    good = opened(MAIN)
    last = len(good.states.of(good.topic_id("txn"), 1)) - 1
    segment = good.states.of(good.topic_id("txn"), 1)[last]
    name = good.layout.objects(segment)[IndexKind.PRODUCER_SNAPSHOT]
    for change, said in (
        (lambda data: data[:5], "cut off"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
        (lambda data: b"\x00\x02" + data[2:], "version 2"),
    ):
        tier = in_memory(MAIN, lambda one, data, change=change: change(data) if one == name else data)
        plan = tier.plan("txn", partitions=[1], isolation="read_committed")
        assert said in plan.notes[0]
        assert max(task.piece.end for task in plan.tasks) <= segment.start_offset


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"1" + data[1:], "version"),
        (lambda data: data + b"x", "damaged"),
        (lambda data: b"", "version"),
        (lambda data: b"0\n1\n7 0\n", "differ from those of its metadata"),
    ],
)
def test_leader_epochs_that_lie_are_named(change: Any, said: str) -> None:
    names = opened(MAIN)
    segment = names.states.of(names.topic_id("epochs"), 0)[-1]
    name = names.layout.objects(segment)[IndexKind.LEADER_EPOCH]
    tier = in_memory(MAIN, lambda one, data: change(data) if one == name else data)
    with pytest.raises(StratalogError, match=said):
        got(tier, "epochs")


def test_leader_epochs_are_not_those_of_a_segment_that_does_not_count() -> None:
    names = opened(MAIN)
    segment = names.states.of(names.topic_id("plain"), 0)[-1]
    name = names.layout.objects(segment)[IndexKind.LEADER_EPOCH]
    tier = in_memory(MAIN, lambda one, data: b"" if one == name else data)
    tier.states.contradictory[segment.segment_id] = "it has two different descriptions"
    with pytest.warns(UserWarning, match="are contradictory: it has two different descriptions"):
        assert len(got(tier, "plain")) == segment.start_offset


def rewritten(data: bytes, number: int, change: Callable[[bytearray], None]) -> bytes:
    """One batch of a segment changed, with a right checksum."""
    batch = list(batches_of(data, 0, "s"))[number]
    size = 61 + len(batch.payload)
    one = bytearray(data[batch.position : batch.position + size])
    change(one)
    one[17:21] = google_crc32c.value(bytes(one[21:])).to_bytes(4, "big")
    return data[: batch.position] + bytes(one) + data[batch.position + size :]


def _set(at: int, value: int, size: int) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[at : at + size] = value.to_bytes(size, "big")

    return change


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda data: data[:-1], CorruptionError, "bytes, but its metadata say"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 4]) + data[5001:], CorruptionError, "checksum|byte"),
        (lambda data: rewritten(data, 3, _set(0, 1 << 40, 8)), LogGapError, "batches are missing"),
        (lambda data: rewritten(data, 3, _set(0, 0, 8)), LogGapError, "batches are missing"),
        (lambda data: rewritten(data, 3, _set(12, 7, 4)), CorruptionError, "leader epoch 7, but the history has"),
        (lambda data: bytes(len(data)), CorruptionError, "no record batch|format 0|length"),
        (lambda data: data[7:] + data[:7], CorruptionError, "byte 0"),
    ],
)
def test_a_hostile_segment_is_named(change: Any, kind: type[StratalogError], said: str) -> None:
    names = opened(MAIN)
    segment = segment_of(names, "plain", 0)
    name = names.layout.objects(segment)["log"]
    tier = in_memory(MAIN, lambda one, data: change(data) if one == name else data)
    with pytest.raises((kind, InvalidCallError), match=said) as caught:
        got(tier, "plain")
    assert segment.segment_id in str(caught.value)


@pytest.mark.parametrize("folder", [MAIN, f"{AIVEN}/zstd"])
@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.long("reads a topic with damage again and again")
def test_damage_anywhere_gives_the_truth_or_an_error_of_ours(folder: str) -> None:
    """An index that a read does not need may be damaged. A log may not: its batches have checksums."""
    draw = random.Random(f"damage {folder}")
    good = opened(folder)
    rows = {level: got(good, "txn", isolation=level) for level in ("read_uncommitted", "read_committed")}
    data = Tier(folder)
    names = [name for name in sorted(data.store.names("")) if "txn-" in name]
    outcomes = {"the same": 0, "refused": 0}
    for _ in range(60):
        name = draw.choice(names)
        content = bytearray(data.store.read(name))
        for _ in range(draw.choice([1, 1, 8])):
            content[draw.randrange(len(content))] = draw.choice([0, 0xFF, draw.randrange(256)])
        if draw.random() < 0.2:
            del content[draw.randrange(len(content)) :]
        changed = bytes(content)
        tier = in_memory(
            folder, lambda one, data, name=name, changed=changed: changed if one == name else data, "txn-"
        )
        level = draw.choice(["read_uncommitted", "read_committed"])
        try:
            found = got(tier, "txn", isolation=level)
        except StratalogError:
            outcomes["refused"] += 1
            continue
        assert found == rows[level][: len(found)]
        if level == "read_uncommitted":
            assert found == rows[level]
        outcomes["the same"] += 1
    assert min(outcomes.values()) > 5

"""Objects of a Kafka cluster's tier that vanished, are damaged or contradict each other: an error names them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest

from stratalog.bridges.kafka_tier import tasks as tier_tasks
from stratalog.bridges.kafka_tier.batches import batches_of
from stratalog.bridges.kafka_tier.layout import IndexKind
from stratalog.bridges.kafka_tier.reading import read_task
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
    SourceChangedError,
    StratalogError,
)
from tests.bridges.kafka_tier_data import (
    AIVEN,
    MAIN,
    Tier,
    got,
    in_memory,
    opened,
    real,
    rows_of,
    segment_of,
    with_changed,
)

pytestmark = real


def test_a_segment_that_vanishes_is_named() -> None:
    tier = in_memory(MAIN, lambda name, data: data)
    plan = tier.read_arrow("plain", partitions=[0])
    segment = segment_of(tier, "plain", 2)
    tier.store.delete([tier.layout.objects(segment)["log"]])
    with pytest.raises(SourceChangedError, match=f"{segment.segment_id}.*not in the storage"):
        plan.read_all()


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (IndexKind.OFFSET, lambda data: data[:-1], "not a multiple of 8"),
        (IndexKind.OFFSET, lambda data: data[::-1][: len(data) // 8 * 8], "offset index"),
        (IndexKind.OFFSET, lambda data: data[8:] + data[:8], "not in ascending order"),
        (
            IndexKind.OFFSET,
            lambda data: data[:4] + data[12:16] + data[8:12] + data[20:24] + data[16:],
            "offset index",
        ),
        (IndexKind.OFFSET, lambda data: b"\x7f" + data[1:], "points outside the segment"),
        (IndexKind.OFFSET, lambda data: data[:7] + bytes([data[7] + 1]) + data[8:16], "at byte"),
    ],
)
def test_a_false_offset_index_is_named(kind: IndexKind, change: Any, message: str) -> None:
    tier = with_changed(kind, 1, change)
    start = segment_of(tier, "txn", 1).start_offset
    with pytest.raises(CorruptionError, match=message):
        [got(tier, "txn", start=begin, end=begin + 3) for begin in range(start + 1, start + 400, 30)]


def test_an_entry_of_the_offset_index_may_span_the_batches_of_an_append() -> None:
    """Older brokers write one entry per append: its last offset, and the position of its first batch."""
    names = opened(MAIN)
    segment = segment_of(names, "plain", 0)
    batches = list(batches_of(names.store.read(names.layout.objects(segment)["log"]), 0, "s"))
    assert len(batches) > 6
    entries = b"".join(
        (last.last_offset - segment.start_offset).to_bytes(4, "big") + first.position.to_bytes(4, "big")
        for first, last in zip(batches[1::3], batches[3::3], strict=False)
    )
    tier = with_changed(IndexKind.OFFSET, 0, lambda data: entries, "plain")
    records = Tier(MAIN).records("plain-0")
    for start in range(segment.start_offset, segment.next_offset, 7):
        assert got(tier, "plain", start=start, end=start + 9) == [
            row for row in records if start <= row[0] < start + 9
        ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "lists no transaction for the abort"),
        (lambda data: data[34:], "lists no transaction for the abort"),
        (lambda data: data[:17] + bytes([data[17] + 1]) + data[18:], "lists a transaction that starts at"),
        (lambda data: data[:25] + bytes([data[25] ^ 1]) + data[26:], "transaction index"),
        (lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], "transaction index"),
    ],
)
def test_a_false_transaction_index_is_named(change: Any, message: str) -> None:
    tier = with_changed(IndexKind.TRANSACTION, 1, change)
    with pytest.raises(CorruptionError, match=message):
        got(tier, "txn", end=1000, isolation="read_committed")


@pytest.mark.parametrize(
    "change",
    [lambda data: b"", lambda data: data[34:], lambda data: data[:17] + bytes([data[17] + 6]) + data[18:]],
    ids=["missing", "without its first entry", "with a later first offset"],
)
def test_a_false_transaction_index_is_named_from_the_middle_of_a_segment(change: Any) -> None:
    """The open transactions are unknown there, but a record that the reader has seen belongs to one."""
    tier, segment = with_changed(IndexKind.TRANSACTION, 1, change), segment_of(opened(MAIN), "txn", 1)
    with pytest.raises(
        CorruptionError, match="abort at offset 511, but the aborted transaction has its first record at"
    ):
        got(tier, "txn", start=segment.start_offset + 70, end=700, isolation="read_committed")


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[34:], lambda data: data[:-34]])
@pytest.mark.filterwarnings("ignore:left out")
def test_no_task_returns_an_aborted_record_because_an_index_was_lost(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task reads alone: the marker may be in another part of the segment, or in a later segment."""
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
    for change, message in (
        (lambda data: data[:-1], "not a multiple of 34"),
        (lambda data: b"\x00\x01" + data[2:], "version 1"),
        (lambda data: data[:10] + b"\x7f" + data[11:], "transaction from"),
    ):
        tier = with_changed(IndexKind.TRANSACTION, 1, change)
        with pytest.raises(LogGapError, match=message):
            got(tier, "txn", start=0, end=1000, isolation="read_committed")


def test_a_false_snapshot_leaves_its_segment_out() -> None:
    good = opened(MAIN)
    last = len(good.states.of(good.topic_id("txn"), 1)) - 1
    segment = good.states.of(good.topic_id("txn"), 1)[last]
    name = good.layout.objects(segment)[IndexKind.PRODUCER_SNAPSHOT]
    for change, message in (
        (lambda data: data[:5], "cut off"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
        (lambda data: b"\x00\x02" + data[2:], "version 2"),
    ):
        tier = in_memory(MAIN, lambda one, data, change=change: change(data) if one == name else data)
        plan = tier.plan("txn", partitions=[1], isolation="read_committed")
        assert message in plan.notes[0]
        assert max(task.piece.end for task in plan.tasks) <= segment.start_offset


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"1" + data[1:], "version"),
        (lambda data: data + b"x", "damaged"),
        (lambda data: b"", "version"),
        (lambda data: b"0\n1\n7 0\n", "differ from those of its metadata"),
    ],
)
def test_false_leader_epochs_are_named(change: Any, message: str) -> None:
    names = opened(MAIN)
    segment = names.states.of(names.topic_id("epochs"), 0)[-1]
    name = names.layout.objects(segment)[IndexKind.LEADER_EPOCH]
    tier = in_memory(MAIN, lambda one, data: change(data) if one == name else data)
    with pytest.raises(StratalogError, match=message):
        got(tier, "epochs")


def test_leader_epochs_are_not_those_of_a_segment_that_does_not_count() -> None:
    names = opened(MAIN)
    segment = names.states.of(names.topic_id("plain"), 0)[-1]
    name = names.layout.objects(segment)[IndexKind.LEADER_EPOCH]
    tier = in_memory(MAIN, lambda one, data: b"" if one == name else data)
    tier.states.contradictory[segment.segment_id] = "it has two different descriptions"
    with pytest.warns(UserWarning, match="is contradictory: it has two different descriptions"):
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
    ("change", "kind", "message"),
    [
        (lambda data: data[:-1], CorruptionError, "bytes, but its metadata says"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 4]) + data[5001:], CorruptionError, "checksum|byte"),
        (lambda data: rewritten(data, 3, _set(0, 1 << 40, 8)), LogGapError, "batches are missing"),
        (lambda data: rewritten(data, 3, _set(0, 0, 8)), LogGapError, "batches are missing"),
        (lambda data: rewritten(data, 3, _set(12, 7, 4)), CorruptionError, "leader epoch 7, but the history has"),
        (lambda data: bytes(len(data)), CorruptionError, "no record batch|format 0|length"),
        (lambda data: data[7:] + data[:7], CorruptionError, "byte 0"),
    ],
)
def test_a_hostile_segment_is_named(change: Any, kind: type[StratalogError], message: str) -> None:
    names = opened(MAIN)
    segment = segment_of(names, "plain", 0)
    name = names.layout.objects(segment)["log"]
    tier = in_memory(MAIN, lambda one, data: change(data) if one == name else data)
    with pytest.raises((kind, InvalidCallError), match=message) as caught:
        got(tier, "plain")
    assert segment.segment_id in str(caught.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("folder", [MAIN, f"{AIVEN}/zstd"])
@pytest.mark.filterwarnings("ignore:left out")
@pytest.mark.long("reads a topic with damage again and again")
def test_damage_anywhere_gives_the_truth_or_a_stratalog_error(folder: str) -> None:
    """An index that a read does not need may be damaged. A log may not, because its batches have checksums."""
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


def test_a_damaged_partition_hides_no_other_from_the_descriptions() -> None:
    good = opened(MAIN)
    tier = with_changed(IndexKind.LEADER_EPOCH, -1, lambda data: b"9\n" + data)
    for report, same in ((tier.describe(), good.describe()), (tier.segments("txn"), good.segments("txn"))):
        assert [failure.item for failure in report.failures] == ["txn-0"]
        assert list(report.rows) == [
            row for row in same.rows if (row.get("topic", "txn"), row["partition"]) != ("txn", 0)
        ]

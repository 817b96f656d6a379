"""Segments that Kafka has tiered: their metadata, and the layouts of two plugins, on real segments."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratalog.bridges.kafka_tier import layout as layouts
from stratalog.bridges.kafka_tier import reading
from stratalog.bridges.kafka_tier.layout import IndexKind, LayoutOptions, OpenSegment, open_layout
from stratalog.bridges.kafka_tier.local import LocalTieredStorageLayout
from stratalog.bridges.kafka_tier.metadata_log import messages_of
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from stratalog.bridges.kafka_tier.segment_states import (
    PartitionDeletion,
    SegmentStates,
    SegmentUpdate,
    folded,
    parse_message,
)
from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    CorruptionError,
    InvalidCallError,
    LogGapError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.store import Store
from stratalog.partitions.store.memory import MemoryStore
from tests.bridges.kafka_tier_data import AIVEN, FOLDERS, MAIN, PREFIXED, Tier, batch_bytes, keys, real
from tests.bridges.kafka_tier_made import Batch

ID, OTHER = "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ"
FINISHED = SegmentState.COPY_SEGMENT_FINISHED


def finished(tier: Tier) -> list[RemoteLogSegment]:
    return [one for one in tier.states().segments.values() if one.state is FINISHED]


@real
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_metadata_are_those_that_kafkas_own_classes_decode(folder: str) -> None:
    lines = (Tier(folder).path / "remote-log-metadata" / "decoded.jsonl").read_text().splitlines()
    expected = Counter()
    for line in lines:
        answer = json.loads(line)
        expected[
            answer["topicId"], answer["partition"], answer["segmentId"], answer["state"], answer["customMetadata"]
        ] += 1
    states = Tier(folder).states()
    assert (states.contradictory, states.unknown) == ({}, {})
    last = {key[2]: key for key in expected}
    for one in states.segments.values():
        key = (one.topic_id, one.partition, one.segment_id)
        assert any(kept[:3] == key and kept[3] == one.state.name for kept in expected)
        assert one.segment_id in last
    for line in lines:
        answer = json.loads(line)
        if answer["apiKey"]:
            continue
        one = states.segments[answer["segmentId"]]
        epochs = tuple((int(epoch), start) for epoch, start in answer["segmentLeaderEpochs"].items())
        assert (one.topic, one.topic_id, one.start_offset, one.end_offset) == (
            *(answer["topic"], answer["topicId"], answer["startOffset"], answer["endOffset"]),
        )
        assert (one.max_timestamp_ms, one.size_bytes, one.leader_epochs, one.txn_index_empty) == (
            *(answer["maxTimestampMs"], answer["segmentSizeInBytes"], epochs, answer["isTxnIdxEmpty"]),
        )


@real
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_segment_is_read_whole_and_in_ranges(folder: str) -> None:
    tier = Tier(folder)
    for segment in finished(tier)[:6]:
        opened = tier.layout.open(tier.store, segment)
        whole = opened.read(0, opened.size_bytes)
        assert len(whole) == segment.size_bytes
        for start, end in ((0, 1), (9_999, 30_001), (16_384, 16_385), (len(whole) - 5, len(whole) + 5), (7, 7)):
            assert opened.read(start, end) == whole[start:end]
        for kind in IndexKind:
            assert opened.index(kind) or kind in (IndexKind.TRANSACTION, IndexKind.OFFSET)
        assert (opened.index(IndexKind.TRANSACTION) == b"") == segment.txn_index_empty


@real
def test_a_range_of_a_chunked_segment_is_one_request_for_its_chunks() -> None:
    tier = Tier(f"{AIVEN}/encrypted")
    store = tier.store
    opened = tier.layout.open(store, finished(tier)[0])
    before = store.counts.snapshot()
    opened.read(20_000, 40_000)
    spent = store.counts - before
    assert (spent.reads, spent.read_bytes) == (1, 2 * 16_412)


def open_with(tier: Tier, segment: RemoteLogSegment, changed: bytes) -> OpenSegment:
    """The segment, with another manifest."""
    store = MemoryStore("memory://m", ManualClock())
    name = tier.layout.objects(segment)["rsm-manifest"]
    store.create(name, changed)
    return tier.layout.open(store, segment)


def manifest(tier: Tier, segment: RemoteLogSegment) -> dict[str, object]:
    text = tier.store.read(tier.layout.objects(segment)["rsm-manifest"])
    return dict(json.loads(text))


def edit(metadata: dict[str, object], path: str, value: object) -> bytes:
    at = metadata
    *parents, last = path.split(".")
    for parent in parents:
        inner = at[parent]
        assert isinstance(inner, dict)
        at = inner
    at[last] = value
    return json.dumps(metadata).encode()


@real
@pytest.mark.parametrize(
    ("folder", "path", "value", "kind", "message"),
    [
        ("plain", "version", "2", InvalidCallError, "version '2'"),
        ("plain", "version", None, InvalidCallError, "version None"),
        ("plain", "chunkIndex.type", "elastic", InvalidCallError, "'elastic'"),
        ("plain", "chunkIndex.originalChunkSize", 0, CorruptionError, "chunks of 0 bytes"),
        ("plain", "chunkIndex.originalChunkSize", 7, CorruptionError, "chunks"),
        ("plain", "chunkIndex.originalFileSize", 1 << 40, CorruptionError, "bytes of log"),
        ("plain", "chunkIndex.finalTransformedChunkSize", 1, CorruptionError, "add up"),
        ("plain", "chunkIndex.finalTransformedChunkSize", None, CorruptionError, "without the sizes"),
        ("plain", "segmentIndexes.offset.size", 1 << 40, CorruptionError, "offset index"),
        ("plain", "segmentIndexes.offset.position", -1, CorruptionError, "offset index"),
        ("plain", "remoteLogSegmentMetadata.startOffset", 1, CorruptionError, "another segment"),
        ("plain", "compression", "yes", CorruptionError, "bool"),
        ("zstd", "chunkIndex.transformedChunks", "KLUv", CorruptionError, "chunk sizes"),
        ("zstd", "chunkIndex.transformedChunks", "?", CorruptionError, "chunk sizes"),
        (
            "encrypted",
            "encryption.dataKey",
            "key-9:AAAA",
            InvalidCallError,
            "'key-9', which is not among the given keys",
        ),
        ("encrypted", "encryption.dataKey", "test-key-2:AAAA", CorruptionError, "does not decrypt"),
        ("encrypted", "encryption.dataKey", "AAAA", CorruptionError, "without a key id"),
        ("encrypted", "encryption.aad", "?", CorruptionError, "base64"),
    ],
)
def test_a_manifest_with_unknown_or_contradictory_fields_is_refused_by_the_name_of_its_segment(
    folder: str, path: str, value: object, kind: type[StratalogError], message: str
) -> None:
    tier = Tier(f"{AIVEN}/{folder}")
    segment = finished(tier)[0]
    with pytest.raises(kind, match=message) as caught:
        open_with(tier, segment, edit(manifest(tier, segment), path, value))
    assert segment.segment_id in str(caught.value)


@real
def test_bytes_that_were_changed_after_encryption_are_found() -> None:
    tier = Tier(f"{AIVEN}/encrypted")
    segment = finished(tier)[0]
    names = tier.layout.objects(segment)
    store = MemoryStore("memory://m", ManualClock())
    for name in names.values():
        data = bytearray(tier.store.read(name))
        if name.endswith((".log", ".indexes")):
            data[len(data) // 2] ^= 1
        store.create(name, bytes(data))
    opened = tier.layout.open(store, segment)
    with pytest.raises(CorruptionError, match="changed after it was encrypted"):
        opened.read(0, opened.size_bytes)
    broken = 0
    for kind in IndexKind:
        try:
            opened.index(kind)
        except CorruptionError:
            broken += 1
    assert broken == 1


@real
def test_keys_may_change_and_a_wrong_one_is_refused() -> None:
    tier = Tier(f"{AIVEN}/encrypted")
    segment = finished(tier)[0]
    both = keys()
    used = str(manifest(tier, segment)["encryption"]).split("'dataKey': '")[1].partition(":")[0]
    swapped = open_layout(
        "aiven", LayoutOptions(keys={used: both["test-key-2" if used[-1] == "1" else "test-key-1"]})
    )
    with pytest.raises(CorruptionError, match="does not decrypt"):
        swapped.open(tier.store, segment)
    with pytest.raises(InvalidCallError, match="is not among the given keys"):
        open_layout("aiven", LayoutOptions()).open(tier.store, segment)
    public = (tier.path.parent / "test-keys" / "test-key-1.TEST-ONLY.public.spki.der").read_bytes()
    for data, message in ((b"no key", "is not an RSA key"), (public, "is a public key")):
        with pytest.raises(InvalidCallError, match=message):
            open_layout("aiven", LayoutOptions(keys={"k": data}))
    assert "BEGIN" not in repr(LayoutOptions(keys=both))


@real
def test_an_object_that_is_gone_is_named() -> None:
    for folder in (MAIN, f"{AIVEN}/plain"):
        tier = Tier(folder)
        segment = replace(finished(tier)[0], segment_id=ID)
        with pytest.raises(SourceChangedError, match=rf"{ID}.*is not in the storage"):
            tier.layout.open(tier.store, segment)


@real
def test_custom_metadata_name_the_objects_wherever_they_are() -> None:
    tier = Tier(PREFIXED)
    segment = finished(tier)[0]
    assert tier.layout.objects(segment)["log"].startswith("some/prefix-")
    bare = replace(segment, custom_metadata=None)
    assert not tier.layout.objects(bare)["log"].startswith("some/")
    named = open_layout("aiven", LayoutOptions(prefix="some/prefix-"))
    assert named.objects(bare) == named.objects(segment)
    for hostile in (
        b"\x01\x02\x05\x04../",
        b"\x01\x02\x09\x08../x/y/",
        b"\x01\x01\x03\x02\x00",
        b"\x7f",
        b"\x01\x02\x7f",
    ):
        with pytest.raises(CorruptionError, match="custom metadata"):
            tier.layout.objects(replace(segment, custom_metadata=hostile))


def segment_of(**changes: object) -> RemoteLogSegment:
    one = RemoteLogSegment(ID, "t", 0, ID, 0, 9, 5, 100, ((0, 0),))
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": ".."},
        {"topic": "a/b"},
        {"topic_id": "../../../../../../../.."},
        {"segment_id": "x"},
        {"start_offset": -1},
        {"end_offset": -1},
        {"size_bytes": -1},
        {"partition": -1},
        {"leader_epochs": ()},
        {"leader_epochs": ((1, 0), (0, 5))},
        {"leader_epochs": ((1, 5),)},
    ],
    ids=str,
)
def test_metadata_that_no_broker_writes_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptionError, match="the metadata of remote segment"):
        segment_of(**changes)


def test_the_states_of_a_segment_follow_one_another_as_in_kafka() -> None:
    def states(*numbers: int) -> SegmentStates:
        updates = [SegmentUpdate(ID, "t", 0, ID, SegmentState(number), None) for number in numbers]
        return folded([segment_of(), *updates])

    for numbers in ((1,), (1, 2, 3), (2, 3), (1, 1, 2, 2, 3, 3)):
        found = states(*numbers)
        assert (found.segments[ID].state, found.contradictory) == (numbers[-1], {})
    for numbers in ((1, 0), (3,), (1, 3), (1, 2, 1), (1, 2, 3, 1)):
        assert ID in states(*numbers).contradictory
    assert OTHER in folded([SegmentUpdate(ID, "t", 0, OTHER, FINISHED, None)]).unknown
    assert folded([SegmentUpdate(ID, "t", 3, OTHER, FINISHED, None)]).notes() == [
        "the metadata topic has no description of these segments of t-3, so their offsets are unknown: " + OTHER
    ]
    gone = SegmentUpdate(ID, "t", 3, OTHER, SegmentState.DELETE_SEGMENT_FINISHED, None)
    assert folded([gone]).notes() == []
    assert folded([PartitionDeletion(ID, "t", 0, 0)]).deleted_partitions == {(ID, 0)}
    moved = folded([segment_of(), SegmentUpdate(OTHER, "t", 0, ID, FINISHED, None)])
    assert "another partition" in moved.contradictory[ID]
    assert ID in folded([segment_of(), segment_of(end_offset=10)]).contradictory


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, CorruptionError),
        (b"", CorruptionError),
        (b"\x02\x00\x00", InvalidCallError),
        (b"\x01\x03\x00", InvalidCallError),
        (b"\x01\x00\x01", InvalidCallError),
        (b"\x01\x00\x00\xff\xff\xff\xff\xff", CorruptionError),
        (b"\x01\x00\x00\x03\xff\xff", CorruptionError),
    ],
)
def test_messages_that_are_not_known_are_named(value: bytes | None, kind: type[StratalogError]) -> None:
    with pytest.raises(kind, match="message 7"):
        parse_message(value, "message 7")


def log(*files: tuple[str, bytes]) -> Store:
    store = MemoryStore("memory://m", ManualClock())
    for name, data in files:
        store.create(name, data)
    return store


@real
def test_files_of_the_metadata_topic_have_to_join() -> None:
    source = Tier(MAIN).path / "remote-log-metadata" / "__remote_log_metadata-0" / f"{0:020d}.log"
    data = Path(source).read_bytes()
    size = 12 + int.from_bytes(data[8:12], "big")
    first, rest = data[:size], data[size:]
    name = "x/__remote_log_metadata-0/{:020d}.log"
    notes: list[str] = []
    whole = list(messages_of(log((name.format(0), data)), notes))
    assert list(messages_of(log((name.format(0), first), (name.format(1), rest)), notes)) == whole
    assert notes == []
    with pytest.raises(LogGapError, match="ends at 1"):
        list(messages_of(log((name.format(0), first), (name.format(2), rest)), notes))
    with pytest.raises(CorruptionError, match="middle of a batch"):
        list(messages_of(log((name.format(0), first[:-1]), (name.format(1), rest)), notes))
    with pytest.raises(InvalidCallError, match="has no files of __remote_log_metadata"):
        list(messages_of(log(), notes))
    assert list(messages_of(log((name.format(0), data[:-1])), notes)) == whole[:-1]
    assert "ends in the middle of a batch" in notes.pop()
    assert list(messages_of(log((name.format(1), rest)), notes)) == whole[1:]
    assert "begins at offset 1" in notes.pop()
    other = name.format(0).replace("-0/", "-2/")
    assert len(list(messages_of(log((name.format(0), data), (other, b"")), notes))) == len(whole)
    assert "no files of its partitions [1]" in notes.pop()
    with pytest.raises(InvalidCallError, match="frame version"):
        list(messages_of(log((name.format(0), batch_bytes([(None, b"\x09\x00\x00", [])]))), notes))


def test_a_layout_is_named_and_others_are_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidCallError, match=r"unknown layout 'aivn'.*aiven"):
        open_layout("aivn", LayoutOptions())

    class Point:
        name = "mine"

        @staticmethod
        def load() -> type[LocalTieredStorageLayout]:
            return LocalTieredStorageLayout

    monkeypatch.setattr(layouts, "entry_points", lambda group: [Point] if group == layouts.GROUP else [])
    assert open_layout("mine", LayoutOptions()).name == "local"
    with pytest.raises(InvalidCallError, match="no encryption"):
        open_layout("local", LayoutOptions(keys={"k": b""}))


@pytest.mark.parametrize("size", [100, 3000, 5000, 7900, 20_000])
@pytest.mark.parametrize("first", [True, False])
def test_large_batches_are_read_about_once(monkeypatch: pytest.MonkeyPatch, size: int, first: bool) -> None:
    """A read that ends in a large batch shows how much the next one must take."""
    monkeypatch.setattr(reading, "READ_BYTES", 8000)
    monkeypatch.setattr(reading, "_LEAST_READ_BYTES", 300)
    count = 200_000 // size
    log = b"".join(Batch(base, (b"x" * size,), 0).data() for base in range(count))
    spent: list[int] = []

    def read(start: int, end: int) -> bytes:
        spent.append(len(log[start:end]))
        return log[start:end]

    segment = SimpleNamespace(start_offset=0, next_offset=count, size_bytes=len(log))
    task: Any = SimpleNamespace(
        opened=SimpleNamespace(read=read),
        piece=SimpleNamespace(segment=segment, start=0, end=count),
        epochs=SimpleNamespace(run_at=lambda _: (0, count)),
    )
    found = [batch for part in reading._batches(task, "t", first=first) for batch in part]
    assert [batch.base_offset for batch in found] == list(range(count))
    assert sum(spent) <= (1.35 if size == 3000 else 1.1) * len(log)
    assert len(spent) <= count + 3

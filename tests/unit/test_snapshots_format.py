"""A snapshot's file: written content is read back, and damage is detected (KIP-630, "Snapshot Format")."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InconsistentClusterIdError,
    InvalidCallError,
    SourceChangedError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import CheckpointName, DataName, parse_name
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.footer import CHECKSUM_KEY
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from stratalog.snapshots import layout, reader
from stratalog.snapshots.layout import MARK_KEY, Mark, footer_row, header_row
from stratalog.snapshots.reader import latest_usable, read_snapshot
from stratalog.snapshots.snapshot_id import SnapshotId
from stratalog.snapshots.writer import SnapshotWriter
from tests.unit.segments import records, write_segment
from tests.unit.snapshot_files import (
    FOLDER,
    ID,
    LATER,
    LINEAGE,
    OWNER,
    PARTITION,
    TIMESTAMP_MS,
    names,
    read,
    stored,
    write,
    writer,
)

# -------------------------------------------------------------------------------------- the name


def test_the_name_is_end_offset_and_epoch() -> None:
    """KIP-630, "Snapshot Format": "stored in the topic partition directory and will have a name of
    <SnapshotId.EndOffset>-<SnapshotId.Epoch>.checkpoint"."""
    store = MemoryStore()
    write(store, [b"a"], SnapshotId(20, 2))
    assert names(store) == ["00000000000000000020-0000000002.checkpoint"]
    assert parse_name(names(store)[0]) == CheckpointName(20, 2)


def test_the_epoch_orders_snapshots_before_the_end_offset() -> None:
    """KIP-630, "Snapshot Format": "The snapshot epoch will be used when ordering snapshots"."""
    assert SnapshotId(10, 3) > SnapshotId(20, 2) > SnapshotId(19, 2)


# ------------------------------------------------------------------------------------- round trip


def test_records_are_read_back_and_control_records_are_not_among_them() -> None:
    """KIP-630, "Snapshot Control Records": "without affecting the Kafka Controller and Metadata Cache"."""
    store = MemoryStore()
    write(store, [b"a", b"", b"c"])
    snapshot = read(store)
    assert list(snapshot.values()) == [b"a", b"", b"c"]
    [batch] = snapshot.batches()
    assert batch.schema.names == ["timestamp", "key", "value", "headers"]
    assert (snapshot.records, snapshot.snapshot_id) == (3, ID)


def test_header_and_footer_are_the_first_and_the_last_record() -> None:
    """KIP-630, "Snapshot Control Records": "SnapshotHeaderRecord will always be the first record batch in a
    snapshot ... SnapshotFooterRecord will be the last"; their fields Version and LastContainedLogTimestamp."""
    store = MemoryStore()
    rows = pq.read_table(io.BytesIO(store.read(write(store, [b"a"]).name))).to_pylist()
    assert [row["control"] for row in rows] == [3, None, 4]
    assert [(row["key"], row["value"]) for row in rows] == [(None, None), (None, b"a"), (None, None)]
    assert rows[0]["headers"] == [
        {"key": "control", "value": b"snapshot-header"},
        {"key": "version", "value": b"0"},
        {"key": "last-contained-log-timestamp", "value": b"%d" % TIMESTAMP_MS},
    ]
    assert rows[2]["headers"] == [
        {"key": "control", "value": b"snapshot-footer"},
        {"key": "version", "value": b"0"},
    ]
    assert read(store).last_contained_log_timestamp_ms == TIMESTAMP_MS


def test_a_state_of_nothing_is_a_snapshot_too() -> None:
    store = MemoryStore()
    write(store, [])
    assert (list(read(store).values()), list(read(store).batches()), read(store).records) == ([], [], 0)


def test_offsets_are_the_snapshot_s_own() -> None:
    """KIP-630, "Snapshot Format": "there is no requirement to use valid BaseOffset and OffsetDelta"."""
    store = MemoryStore()
    table = pq.read_table(io.BytesIO(store.read(write(store, [b"a"] * 3).name)))
    assert table.column("offset").to_pylist() == [0, 1, 2, 3, 4]


def test_the_lineage_goes_up_to_the_end_offset_only() -> None:
    """Protocol section 5: "A snapshot carries the lineage up to its end"."""
    store = MemoryStore()
    write(store, [b"a"], SnapshotId(20, 2))
    write(store, [b"a"], SnapshotId(30, 2))
    assert read(store, SnapshotId(20, 2)).lineage == Lineage([(1, 0), (2, 10)])
    assert read(store, SnapshotId(30, 2)).lineage == Lineage([(1, 0), (2, 10)])


def test_typed_topics_keep_their_types() -> None:
    value = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("price", pa.decimal128(20, 4))])
    schema = physical_schema(key=pa.string(), value=value)
    batch = records(
        [{"id": 1, "price": Decimal("1.5000")}, None],
        keys=["k", "gone"],
        headers=[[{"key": "control", "value": b"snapshot-footer"}], None],
        schema=schema,
    )
    store = MemoryStore()
    with SnapshotWriter(
        store,
        FOLDER,
        ID,
        owner=OWNER,
        partition=PARTITION,
        lineage=LINEAGE,
        last_contained_log_timestamp_ms=0,
        schema=schema,
        clock=ManualClock(),
        producers={"p": ProducerEntry(1, 2, 3, 4, 5)},
    ) as target:
        target.write(batch)
        assert target.freeze()
    snapshot = read(store)
    [found] = snapshot.batches()
    assert found.to_pylist() == batch.to_pylist()
    assert dict(snapshot.producers) == {"p": ProducerEntry(1, 2, 3, 4, 5)}


def test_records_are_compressed() -> None:
    """KIP-630, "Snapshot Format": "will allow the Kafka Controllers and Metadata Cache to compress records"."""
    store = MemoryStore()
    assert write(store, [b"the same again"] * 10_000).size_bytes < 10_000


def test_a_snapshot_that_is_too_large_to_hold_is_read_row_group_by_row_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    with writer(store) as target:
        for _ in range(5):
            target.append([random.Random(1).randbytes(500)] * 100)
        assert target.freeze()
    held = list(read(store).values())
    monkeypatch.setattr(reader, "HELD_BYTES", 100)
    assert list(read(store).values()) == held
    assert len(held) == 500


def test_a_small_snapshot_is_one_request() -> None:
    store = MemoryStore()
    listed = write(store, [b"a"] * 1000)
    before = store.counts.snapshot()
    list(read_snapshot(store, FOLDER, listed, owner=OWNER, partition=PARTITION).values())
    spent = store.counts - before
    assert (spent.requests, spent.read_bytes) == (1, listed.size_bytes)


# ----------------------------------------------------------------------------------------- damage


def damaged(data: bytes) -> MemoryStore:
    store = MemoryStore()
    store.create(f"{FOLDER}/{ID.name}", data)
    return store


def intact() -> bytes:
    store = MemoryStore()
    return store.read(write(store, [b"one", b"two", b"three"]).name)


@pytest.mark.slow
def test_a_flip_of_any_byte_is_found_before_anything_is_returned() -> None:
    """KIP-630, "Snapshot Format": "identify corrupted records in the snapshot"; every byte, one bit each."""
    data = intact()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(CorruptSegmentError, match=str(ID.name)):
            read(damaged(bytes(flipped)))


def test_a_flip_is_found_in_a_snapshot_that_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "HELD_BYTES", 100)
    data = intact()
    for position in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(CorruptSegmentError):
            read(damaged(bytes(flipped)))


def test_a_snapshot_that_was_cut_anywhere_is_found() -> None:
    """KIP-630, "Changes to Leader Election", 5.1: "All snapshot chunks are fetched"."""
    data = intact()
    for length in range(0, len(data), 5):
        with pytest.raises(CorruptSegmentError):
            read(damaged(data[:length]))


def resealed(data: bytes, old: bytes, new: bytes) -> bytes:
    """The file with another text in its footer, and a right checksum."""
    assert len(old) == len(new)
    assert data.count(old) == 1
    data = data.replace(old, new)
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = bytearray(data[footer_at:-8])
    at = footer.rfind(CHECKSUM_KEY) + len(CHECKSUM_KEY) + 2
    footer[at : at + 8] = b"0" * 8
    footer[at : at + 8] = b"%08x" % zlib.crc32(footer)
    return data[:footer_at] + bytes(footer) + data[-8:]


def test_a_later_version_is_distinguished_from_damage() -> None:
    later = resealed(intact(), b'"version":0,"end_offset":20', b'"version":1,"end_offset":20')
    with pytest.raises(CorruptionError, match="of version 1, but this release reads version 0") as refused:
        read(damaged(later))
    assert not isinstance(refused.value, CorruptSegmentError)


def test_a_name_that_is_not_the_snapshot_s_is_found() -> None:
    other = resealed(intact(), b'"end_offset":20', b'"end_offset":19')
    with pytest.raises(CorruptSegmentError, match="claims to be snapshot 19-2, which its name contradicts"):
        read(damaged(other))


def test_a_snapshot_of_another_owner_is_refused() -> None:
    store = MemoryStore()
    listed = write(store, [b"a"])
    with pytest.raises(InconsistentClusterIdError, match=r"checkpoint is a snapshot of 'f+', not of 'e+'"):
        read_snapshot(store, FOLDER, listed, owner="e" * 32, partition=PARTITION)


def test_a_snapshot_of_another_partition_is_refused() -> None:
    store = MemoryStore()
    listed = write(store, [b"a"])
    with pytest.raises(CorruptionError, match="a snapshot of partition 3, in the folder of partition 4"):
        read_snapshot(store, FOLDER, listed, owner=OWNER, partition=4)


def test_a_data_file_of_the_log_is_no_snapshot() -> None:
    store = MemoryStore()
    data = store.read(write_segment(store, DataName(0, None, 2), [records([b"a"])]).object.name)
    with pytest.raises(CorruptSegmentError, match="a data file of a log, not a snapshot"):
        read(damaged(data))


Row = Callable[[pa.Schema], pa.RecordBatch]
HEADER: Row = lambda schema: header_row(schema, 1)  # noqa: E731
FOOTER: Row = footer_row
RECORD: Row = lambda schema: records([b"a"])  # noqa: E731


def NO_TEXT(schema: pa.Schema) -> pa.RecordBatch:  # noqa: N802 - as those above
    """A header with a name that is not UTF-8."""
    header = header_row(schema, 1)
    names = pa.array([b"\xd4\x00"], pa.binary()).view(pa.string())
    field = schema.field("headers")
    pairs = pa.StructArray.from_arrays([names, pa.array([b""], pa.binary())], fields=list(field.type.value_type))
    odd = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs).cast(field.type)
    return header.set_column(header.schema.get_field_index("headers"), field, odd)


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([HEADER], "it has 1 row"),
        ([HEADER, RECORD], "the control record snapshot-footer is missing"),
        ([RECORD, FOOTER], "the control record snapshot-header is missing"),
        ([RECORD, RECORD], "the control record snapshot-header is missing"),
        ([FOOTER, HEADER], "the control record snapshot-header is missing"),
        ([NO_TEXT, FOOTER], "a name in its control records is not a string"),
        ([HEADER, FOOTER, FOOTER], r"control records have the types \[3, 4, 4\]"),
    ],
)
def test_a_snapshot_without_its_control_records_is_not_whole(rows: list[Row], complaint: str) -> None:
    """KIP-630, "Snapshot Control Records": the header is always the first, the footer the last record."""
    with pytest.raises(CorruptSegmentError, match=complaint):
        read(handmade(rows))


def handmade(rows: list[Row], lineage: Lineage = Lineage([(2, 0)])) -> MemoryStore:  # noqa: B008 - immutable
    """A file of these rows with right checksums."""
    target = io.BytesIO()
    sink = layout.ChecksummedSink(target)
    segment = SegmentWriter(sink, physical_schema(), topic_id=OWNER, partition=PARTITION, base_offset=0)  # type: ignore[arg-type]
    for row in rows:
        segment.write(row(physical_schema()))
    segment.close(
        lineage=lineage,
        producers=lambda _: {},
        created_ms=0,
        metadata=lambda: layout.encode_mark(
            Mark(end_offset=20, epoch=2, record_bytes=sink.passed_bytes, record_crc=sink.crc)
        ),
    )
    return damaged(target.getvalue())


def test_a_lineage_that_does_not_end_with_the_snapshot_s_epoch_is_found() -> None:
    with pytest.raises(CorruptSegmentError, match="does not end with epoch 2"):
        read(handmade([HEADER, FOOTER], Lineage([(1, 0)])))


def test_the_mark_holds_what_the_file_says_of_itself() -> None:
    metadata = pq.read_metadata(io.BytesIO(intact())).metadata
    mark = msgspec.json.decode(metadata[MARK_KEY], type=Mark)
    assert (mark.version, mark.end_offset, mark.epoch) == (0, 20, 2)


def test_a_snapshot_that_is_gone_has_changed_and_is_not_corrupt() -> None:
    store = MemoryStore()
    listed = write(store, [b"a"])
    store.delete([listed.name])
    with pytest.raises(SourceChangedError):
        read_snapshot(store, FOLDER, listed, owner=OWNER, partition=PARTITION)


def test_snapshots_are_read_only_in_the_folder_and_under_a_snapshot_name() -> None:
    store = MemoryStore()
    listed = write(store, [b"a"])
    with pytest.raises(InvalidCallError, match="is not in folder 'elsewhere'"):
        read_snapshot(store, "elsewhere", listed, owner=OWNER, partition=PARTITION)
    store.create(f"{FOLDER}/other", b"")
    other = next(one for one in store.list(FOLDER) if one.name.endswith("other"))
    with pytest.raises(InvalidCallError, match="does not have the name of a snapshot"):
        read_snapshot(store, FOLDER, other, owner=OWNER, partition=PARTITION)


# ------------------------------------------------------------------------------ the latest usable


def test_the_greatest_snapshot_is_used() -> None:
    store = MemoryStore()
    write(store, [b"early"])
    write(store, [b"late"], LATER)
    usable = latest_usable(store, FOLDER, store.list(FOLDER), owner=OWNER, partition=PARTITION)
    assert usable.snapshot is not None
    assert (usable.snapshot.snapshot_id, usable.damaged) == (LATER, ())


def test_the_one_before_a_damaged_one_is_used_and_the_damage_is_reported() -> None:
    """The previous one plus the log after it have the same content."""
    store = MemoryStore()
    write(store, [b"early"])
    late = write(store, [b"late"], LATER)
    flip(store, late.name)
    usable = latest_usable(store, FOLDER, store.list(FOLDER), owner=OWNER, partition=PARTITION)
    assert usable.snapshot is not None
    assert list(usable.snapshot.values()) == [b"early"]
    [(which, error)] = usable.damaged
    assert which.name == late.name
    assert str(LATER.name) in str(error)


def test_no_snapshot_is_used_where_all_are_damaged_or_none_is_there() -> None:
    store = MemoryStore()
    assert latest_usable(store, FOLDER, [], owner=OWNER, partition=PARTITION).snapshot is None
    flip(store, write(store, [b"a"]).name)
    usable = latest_usable(store, FOLDER, store.list(FOLDER), owner=OWNER, partition=PARTITION)
    assert (usable.snapshot, len(usable.damaged)) == (None, 1)


def test_another_owner_s_snapshot_is_no_damage_that_an_older_snapshot_repairs() -> None:
    store = MemoryStore()
    write(store, [b"a"])
    with pytest.raises(InconsistentClusterIdError):
        latest_usable(store, FOLDER, store.list(FOLDER), owner="e" * 32, partition=PARTITION)


def flip(store: Store, name: str) -> None:
    data = bytearray(store.read(name))
    data[len(data) // 3] ^= 4
    store.delete([name])
    store.create(name, bytes(data))


def test_on_a_file_system_it_is_the_same(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    write(store, [b"a", b"b"])
    assert list(read(store).values()) == [b"a", b"b"]
    flip(store, stored(store).name)
    with pytest.raises(CorruptSegmentError):
        read(store)

"""The writers of snapshots, their content, and their names (KIP-630, "Overview", "Snapshot Format")."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import CorruptSegmentError, InvalidCallError, InvalidRecordError, StorageError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.records import physical_schema
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.snapshots.reader import stage_snapshot
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId, check_may_snapshot
from stratalog.snapshots.writer import SnapshotWriter
from tests.unit.faulty_store import FaultyStore
from tests.unit.segments import records
from tests.unit.snapshot_files import FOLDER, ID, LINEAGE, OWNER, PARTITION, names, read, write, writer


def test_nothing_is_seen_until_it_is_frozen() -> None:
    """KIP-630, "Response Handling": a snapshot is written under another name, and moved atomically."""
    store = MemoryStore()
    target = writer(store)
    target.append([b"a"])
    assert names(store) == []
    assert target.freeze()
    assert names(store) == [str(ID.name)]


def test_a_snapshot_is_never_changed() -> None:
    """The first writer of an id wins."""
    store = MemoryStore()
    write(store, [b"first"])
    second = writer(store)
    second.append([b"second"])
    assert not second.freeze()
    assert list(read(store).values()) == [b"first"]


def test_an_aborted_write_leaves_nothing() -> None:
    store = MemoryStore()
    target = writer(store)
    target.append([b"a"])
    target.abort()
    target.abort()
    with writer(store) as unfinished:
        unfinished.append([b"a"])
    assert names(store) == []


def test_a_writer_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="nonsense"):
        SnapshotWriter(
            LocalStore(str(tmp_path)),
            FOLDER,
            ID,
            owner=OWNER,
            partition=PARTITION,
            lineage=LINEAGE,
            last_contained_log_timestamp_ms=0,
            schema=physical_schema(),
            clock=ManualClock(),
            compression="nonsense",
        )
    assert list((tmp_path / ".staging").iterdir()) == []


@pytest.mark.parametrize("end", ["freeze", "abort"])
def test_after_its_end_a_writer_takes_nothing_more(end: str) -> None:
    target = writer(MemoryStore())
    getattr(target, end)()
    for call in (lambda: target.append([b"a"]), lambda: target.write(records([b"a"])), target.freeze):
        with pytest.raises(InvalidCallError, match=r"checkpoint was already frozen or discarded"):
            call()
    target.abort()


def test_records_of_other_columns_are_refused_and_nothing_is_lost() -> None:
    store = MemoryStore()
    target = writer(store)
    with pytest.raises(InvalidRecordError, match=r"checkpoint: column 'headers' is missing"):
        target.write(records([b"a"]).drop_columns(["headers"]))
    target.append([b"b"])
    assert target.freeze()
    assert list(read(store).values()) == [b"b"]


def test_control_records_cannot_be_smuggled_in() -> None:
    store = MemoryStore()
    target = writer(store)
    batch = records([b"a"])
    target.write(batch.append_column("control", records([b"4"]).column("value").cast("string").cast("int32")))
    assert target.freeze()
    assert list(read(store).values()) == [b"a"]


def test_rows_of_keys_and_values_are_read_back() -> None:
    store = MemoryStore()
    target = writer(store)
    rows = [(b"k", b"v"), (b"gone", None), (None, b"")]
    target.append_rows(rows)
    assert target.freeze()
    assert list(read(store).rows()) == rows


@pytest.mark.parametrize(
    "wrong", [SnapshotId(20, 1), SnapshotId(10, 2), SnapshotId(30, 4), SnapshotId(0, 0), EMPTY]
)
def test_the_epoch_is_that_of_the_last_record_contained(wrong: SnapshotId) -> None:
    """KIP-630, "Terminology": SnapshotId is "the epoch and end offset of the records in the replicated log
    included in the snapshot"."""
    store = MemoryStore()
    with pytest.raises(InvalidCallError, match=r"no snapshot .* can be taken"):
        writer(store, wrong)
    assert names(store) == []


def test_a_freeze_that_storage_refuses_leaves_nothing_and_another_may_follow() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)

    def refuse(what: str, name: str, call: Callable[[], Any]) -> Any:
        if what == "commit":
            raise StorageError("full")
        return call()

    store.hook = refuse
    with pytest.raises(StorageError), writer(store) as target:
        target.freeze()
    assert names(inner) == []
    write(inner, [b"a"])


def test_the_same_state_at_the_same_time_gives_the_same_bytes() -> None:
    """KIP-630, "Overview": "Snapshots will be consistent because the logs are consistent across replicas"."""
    stores = [MemoryStore(), MemoryStore()]
    for store in stores:
        with writer(store, clock=ManualClock(5)) as target:
            target.append([b"a", b"b"])
            target.freeze()
    assert read(stores[0]).segment.crc32 == read(stores[1]).segment.crc32
    assert read(stores[0]).created_ms == 5


LOG: dict[str, Any] = {
    "lineage": LINEAGE,
    "log_start": 10,
    "high_watermark": 35,
    "is_boundary": True,
    "latest": SnapshotId(15, 2),
}


@pytest.mark.parametrize(
    ("snapshot_id", "changes", "complaint"),
    [
        pytest.param(SnapshotId(20, 2), {}, None, id="in the middle"),
        pytest.param(SnapshotId(35, 4), {}, None, id="up to the high watermark"),
        pytest.param(SnapshotId(36, 4), {}, "the high watermark is 35", id="above the high watermark"),
        pytest.param(SnapshotId(20, 2), {"is_boundary": False}, "a batch spans", id="inside a batch"),
        pytest.param(SnapshotId(20, 4), {}, "has epoch 2", id="with another epoch"),
        pytest.param(SnapshotId(30, 4), {}, "has epoch 2", id="with the epoch of the record after it"),
        pytest.param(SnapshotId(15, 2), {}, "a new snapshot must be later", id="of the latest again"),
        pytest.param(SnapshotId(12, 2), {}, "a new snapshot must be later", id="before the latest"),
        pytest.param(SnapshotId(9, 1), {"latest": EMPTY}, "the log starts at 10", id="below the log start"),
        pytest.param(SnapshotId(0, 0), {"latest": EMPTY}, "it would be empty", id="of nothing"),
        pytest.param(SnapshotId(20, 2), {"lineage": Lineage()}, "has epoch None", id="of a log without epochs"),
    ],
)
def test_a_snapshot_is_made_at_given_offsets_only(
    snapshot_id: SnapshotId, changes: dict[str, Any], complaint: str | None
) -> None:
    """KIP-630, "Loading State and Frequency of Compaction": "the snapshot can include up to the high watermark".
    Also: it ends at a batch boundary, carries the epoch of its last record, and never goes back."""
    if complaint is None:
        check_may_snapshot(snapshot_id, **{**LOG, **changes})
        return
    with pytest.raises(InvalidCallError, match=complaint):
        check_may_snapshot(snapshot_id, **{**LOG, **changes})


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_of_a_snapshot_has_every_byte_that_was_verified(seed: int) -> None:
    """A bit flips between the check of the snapshot and the copy; no listing shows it."""
    source, target = MemoryStore(), MemoryStore()
    write(source, [b"%d" % number for number in range(50)])
    snapshot = read(source)
    staged = stage_snapshot(source, snapshot, target, "copy")
    assert staged.commit()
    stored, good = source._objects[snapshot.stored.name]
    dice = random.Random(seed)
    flipped = bytearray(good)
    flipped[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
    source._objects[stored.name] = stored, bytes(flipped)
    with pytest.raises(CorruptSegmentError, match=str(ID.name)):
        stage_snapshot(source, snapshot, target, "bad copy")
    assert target.read("copy") == good
    assert [one.name for one in target.list("")] == ["copy"]

"""The records of a segment from files of other writers: in any order, and in bounded memory."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.errors import CorruptionError, CorruptSegmentError
from stratalog.partitions.records import TIMESTAMP, physical_schema
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from stratalog.tiering import foreign_files
from stratalog.tiering.foreign_files import Range, records_in

SCHEMA = physical_schema()
WANTED = Range(3, 100, 200, "here")


def rows(offsets: Iterable[int], partition: int = 3) -> pa.Table:
    """Records as others write them: columns in another order, and without those that are null everywhere."""
    given = list(offsets)
    return pa.table(
        {
            "partition": pa.array([partition] * len(given), pa.int32()),
            "value": pa.array([b"v%d" % offset for offset in given], pa.binary()),
            "key": pa.array([None if offset % 3 else b"k" for offset in given], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}]] * len(given), SCHEMA.field("headers").type),
            "timestamp": pa.array(given, pa.int64()).cast(TIMESTAMP),
            "offset": pa.array(given, pa.int64()),
        }
    )


def put(store: Store, files: Sequence[pa.Table], **options: Any) -> list[Any]:
    for number, table in enumerate(files):
        sink = io.BytesIO()
        pq.write_table(table, sink, **options)
        store.create(f"part-{number}.parquet", sink.getvalue())
    return list(store.list(""))


def read(store: Store, files: Sequence[Any], wanted: Range = WANTED) -> pa.Table:
    return pa.Table.from_batches(list(records_in(store, files, wanted, SCHEMA)), SCHEMA)


def shuffled(*bounds: int) -> list[int]:
    offsets = list(range(*bounds))
    random.Random(1).shuffle(offsets)
    return offsets


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 7, "compression": "zstd"},
        {"write_statistics": False, "row_group_size": 40},
        {"use_deprecated_int96_timestamps": True, "compression": "none"},
        {"use_dictionary": False, "write_page_index": True},
    ],
    ids=str,
)
def test_records_are_read_from_files_in_any_order(options: dict[str, Any]) -> None:
    """The table has other partitions and other offsets, too."""
    store = MemoryStore()
    both = pa.concat_tables([rows(shuffled(60, 150)), rows(range(120, 130), 4)])
    files = put(store, [rows(range(150, 260)), both, rows(range(300, 310)), rows(range(100, 200), 2)], **options)
    found = read(store, files)
    assert found.schema == SCHEMA
    assert found["offset"].to_pylist() == list(range(100, 200))
    assert found["value"].to_pylist() == [b"v%d" % offset for offset in range(100, 200)]
    assert found["key"].to_pylist() == [None if offset % 3 else b"k" for offset in range(100, 200)]
    assert found["headers"].to_pylist() == [[{"key": "h", "value": b"x"}]] * 100
    assert found["timestamp"].cast(pa.int64()).to_pylist() == list(range(100, 200))
    assert set(found["partition"].to_pylist()) == {3}
    assert found["control"].null_count == 100


@pytest.mark.parametrize(
    "files",
    [
        [range(100, 150), range(151, 200)],
        [range(100, 150), range(149, 200)],
        [range(101, 200)],
        [range(100, 199)],
        [],
    ],
    ids=["a hole", "one twice", "no first", "no last", "none"],
)
@pytest.mark.parametrize("size", [5, 1000])
def test_records_that_are_missing_once_each_are_refused(
    files: list[range], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_files, "MOST_WAITING_BYTES", 1000)
    store = MemoryStore()
    with pytest.raises(
        CorruptionError, match="here: the files of the table do not contain each of these records exactly once"
    ):
        read(store, put(store, [rows(each) for each in files], row_group_size=size))


def test_records_wait_no_longer_than_others_may_come_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group and a few records more are in memory; completely unordered records have to fit."""
    monkeypatch.setattr(foreign_files, "MOST_WAITING_BYTES", 2000)
    ordered, mixed = MemoryStore(), MemoryStore()
    files = put(ordered, [rows(range(100, 200))], row_group_size=10)
    batches = records_in(ordered, files, WANTED, SCHEMA)
    assert next(batches)["offset"].to_pylist()[-1] < 150, "before all of them are read"
    assert read(ordered, files).num_rows == 100
    with pytest.raises(CorruptionError, match="sorting them would exceed the memory limit"):
        read(mixed, put(mixed, [rows(shuffled(100, 200))], row_group_size=10))


def test_a_file_of_a_few_bytes_whose_records_take_gigabytes_is_not_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = pa.DictionaryArray.from_arrays(
        pa.array([0] * 2000, pa.int32()), pa.array([bytes(1 << 20)], pa.binary())
    )
    table = rows(range(100, 2100)).set_column(1, "value", long)
    store = MemoryStore()
    files = put(store, [table], compression="zstd", store_schema=False)
    assert files[0].size_bytes < 100_000
    with pytest.raises(CorruptSegmentError, match=r"part-0\.parquet.* bytes in memory"):
        read(store, files, Range(3, 100, 2100, "here"))


def test_a_footer_without_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "part-0.parquet").open("wb") as file:
        os.truncate(file.fileno(), 1_600_000_000)
        file.seek(0, io.SEEK_END)
        file.write((1_500_000_000).to_bytes(4, "little") + b"PAR1")
    store = LocalStore(str(tmp_path))
    with pytest.raises(CorruptSegmentError, match="its Parquet footer has 1500000008 bytes"):
        read(store, list(store.list("")))


@pytest.mark.parametrize("name", ["offset", "value"])
def test_a_column_of_another_type_is_named(name: str) -> None:
    store = MemoryStore()
    table = rows(range(100, 200))
    table = table.set_column(table.schema.get_field_index(name), name, pa.array([{"a": 1}] * 100))
    with pytest.raises(CorruptSegmentError, match=r"part-0\.parquet cannot be read"):
        read(store, put(store, [table]))


def test_column_chunks_that_are_behind_the_footer_are_refused() -> None:
    """No reader looks for them there."""
    store = MemoryStore()
    put(store, [rows(range(100, 200))])
    data = store.read("part-0.parquet")
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
    store.create("short.parquet", b"PAR1" + footer)
    with pytest.raises(CorruptSegmentError, match=r"short\.parquet cannot be read: its column .* is at bytes"):
        read(store, [one for one in store.list("") if one.name == "short.parquet"])

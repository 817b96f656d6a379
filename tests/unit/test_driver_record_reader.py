"""Row groups with one ranged request each, and records of several files as one table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.engine.driver.record_reader import READ_COLUMNS, RecordReader
from stratalog.partitions.errors import CorruptSegmentError, LogGapError, SourceChangedError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments.reader import read_row_group, read_segment
from stratalog.partitions.store import StoreOptions, open_store
from stratalog.partitions.store.local import LocalStore
from tests.s3_server import S3Endpoint
from tests.unit.harness import OnePartition
from tests.unit.segments import records, write_segment


def piece_of(one: OnePartition, start: int | None = None, end: int | None = None) -> FileSlice:
    """The only file of broker 1."""
    (link,) = one.replicas.leader.log().chain
    return FileSlice(one.stores[1], link.file, link.start if start is None else start, end or link.end)


def test_a_row_group_is_what_arrow_reads(tmp_path: Path) -> None:
    one = OnePartition(stores=[LocalStore(str(tmp_path))])
    one.append([f"{number}" for number in range(1000)])
    piece = piece_of(one)
    segment = read_segment(piece.store, piece.file)
    before = piece.store.counts.snapshot()
    table = read_row_group(piece.store, segment, 0)
    assert (piece.store.counts - before).reads == 1
    assert table.column("offset").to_pylist() == list(range(1000))
    assert [value.decode() for value in table.column("value").to_pylist()] == [f"{n}" for n in range(1000)]


def test_a_flipped_byte_of_a_page_is_found(tmp_path: Path) -> None:
    one = OnePartition(stores=[LocalStore(str(tmp_path))])
    one.append([f"{number}" for number in range(1000)])
    piece = piece_of(one)
    segment = read_segment(piece.store, piece.file)
    column = segment.parquet.row_group(0).column(4)
    path = tmp_path / piece.file.object.name
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    (link,) = one.replicas.leader.log(fresh=True).chain
    damaged = read_segment(piece.store, DataFile(link.name, link.file.object))
    with pytest.raises(CorruptSegmentError, match=path.name):
        read_row_group(piece.store, damaged, 0)


def test_a_file_that_is_gone_is_distinguished_from_a_damaged_one(tmp_path: Path) -> None:
    one = OnePartition(stores=[LocalStore(str(tmp_path))])
    one.append(["a"])
    piece = piece_of(one)
    segment = read_segment(piece.store, piece.file)
    (tmp_path / piece.file.object.name).unlink()
    with pytest.raises(SourceChangedError):
        read_row_group(piece.store, segment, 0)


def test_a_file_that_ends_too_early_leaves_no_gap() -> None:
    one = OnePartition()
    one.append(["a", "b"])
    with pytest.raises(LogGapError, match="ends at offset 2, and no file has the offsets from there to 3"):
        RecordReader().read("t-0", [piece_of(one, end=3)], 0, 10**6)


def test_a_part_of_a_file_is_read_as_that_part() -> None:
    one = OnePartition()
    one.append("abcdef")
    found = RecordReader().read("t-0", [piece_of(one, 1, 5)], 0, 10**6)
    assert found is not None
    assert found.column("offset").to_pylist() == [1, 2, 3, 4]
    assert found.schema.names == [*READ_COLUMNS, "control"]
    assert RecordReader().read("t-0", [piece_of(one, 1, 5)], 5, 10**6) is None
    assert RecordReader().read("t-0", [], 0, 1) is None


def test_fields_newer_than_a_file_are_null_in_it(tmp_path: Path) -> None:
    """The schema of a topic grows; a fetch across the change returns one table."""
    store = LocalStore(str(tmp_path))
    old = physical_schema(value=pa.struct([("a", pa.int64())]))
    new = physical_schema(value=pa.struct([("a", pa.int64()), ("b", pa.string())]))
    files = [
        write_segment(store, DataName(0, 1, 1), [records([{"a": 1}], schema=old)], schema=old),
        write_segment(store, DataName(1, 2, 1), [records([{"a": 2, "b": "x"}], schema=new)], schema=new),
    ]
    pieces = [FileSlice(store, file, index, index + 1) for index, file in enumerate(files)]
    found = RecordReader().read("t-0", pieces, 0, 10**6)
    assert found is not None
    assert found.column("value").to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


@pytest.mark.s3
def test_on_s3_a_row_group_is_one_ranged_get(s3_endpoint: S3Endpoint, tmp_path: Path) -> None:
    options = StoreOptions(endpoint_url=s3_endpoint.url, region=s3_endpoint.region)
    store = open_store(f"s3://{s3_endpoint.bucket}/{tmp_path.name}", options)
    one = OnePartition(stores=[store])
    one.append([f"{number}" for number in range(10_000)])
    piece, reader = piece_of(one), RecordReader()
    read_segment(piece.store, piece.file)
    before = store.counts.snapshot()
    found = reader.read("t-0", [piece], 5000, 10**6)
    assert found is not None
    assert found.column("offset")[0].as_py() == 5000
    used = store.counts - before
    assert (used.requests, used.reads) == (1, 1)
    assert used.read_bytes < piece.file.object.size_bytes

"""A data file: written content is read back, and has the specified form (design section 4)."""

from __future__ import annotations

import gc
import io
import random
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName
from stratalog.partitions.producers import ProducerEntry
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments import reader as segment
from stratalog.partitions.segments.check import check_segment, verify_segment
from stratalog.partitions.segments.reader import read_batches, read_row_group, read_segment
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.reader import RangeReader
from tests.unit.segments import BASE, BINARY, EVERYTHING, read, records, write_segment

# -------------------------------------------------------------------------------- round trip


def test_records_are_read_back_with_partition_and_consecutive_offsets() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a", b"b"]), records([]), records([b"c"])])
    table = read(store, file)
    assert table.column("value").to_pylist() == [b"a", b"b", b"c"]
    assert table.column("offset").to_pylist() == [100, 101, 102]
    assert table.column("partition").to_pylist() == [3, 3, 3]
    assert table.schema.names == BINARY.names


VALUE = pa.struct(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(20, 4)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("lines", pa.list_(pa.field("element", pa.struct([("sku", pa.string()), ("n", pa.int16())])))),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("inner", pa.struct([("flag", pa.bool_()), ("ratio", pa.float64()), ("small", pa.int8())])),
        pa.field("f", pa.float32()),
    ]
)
TYPED = physical_schema(key=pa.string(), value=VALUE)
FULL_VALUE = {
    "id": 1,
    "name": "größe",
    "price": Decimal("12345.6789"),
    "day": date(2024, 2, 29),
    "at": datetime(2024, 2, 29, 12, 0, 0, 1, UTC),
    "local": datetime(1969, 12, 31),
    "tags": ["x", None, ""],
    "lines": [{"sku": "s", "n": 1}, None],
    "counts": [("a", 1), ("b", None)],
    "inner": {"flag": True, "ratio": 0.1, "small": -128},
    "f": 0.5,
}
EMPTY_VALUE = dict.fromkeys(VALUE.names) | {"id": 2, "tags": [], "lines": [], "counts": []}


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "uncompressed"])
def test_typed_keys_and_values_are_read_back(compression: str) -> None:
    store = MemoryStore()
    batch = records([FULL_VALUE, EMPTY_VALUE, None], keys=["k", None, ""], schema=TYPED)
    file = write_segment(store, BASE, [batch], schema=TYPED, compression=compression)
    table = read(store, file)
    assert table.schema.equals(TYPED)
    for name in ("timestamp", "key", "value", "headers"):
        assert table.column(name).combine_chunks().equals(batch.column(name)), name


def test_headers_and_null_timestamps_are_read_back() -> None:
    store = MemoryStore()
    headers = [[{"key": "trace", "value": b"\x00\xff"}, {"key": "trace", "value": None}], [], None]
    file = write_segment(store, BASE, [records([b"a", None, b""], timestamps_us=[5, None, -5], headers=headers)])
    table = read(store, file)
    assert table.column("headers").to_pylist() == headers
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [5, None, -5]
    assert table.column("value").to_pylist() == [b"a", None, b""]


def test_producer_ids_and_control_records_may_be_given() -> None:
    batch = (
        records([b"a"])
        .append_column("producer_id", pa.array(["p"]))
        .append_column("control", pa.array([1], pa.int32()))
    )
    store = MemoryStore()
    file = write_segment(store, BASE, [batch])
    table = read(store, file)
    assert (table.column("producer_id").to_pylist(), table.column("control").to_pylist()) == (["p"], [1])


batches_of_values = st.lists(
    st.lists(st.one_of(st.none(), st.binary(max_size=60)), max_size=12), min_size=1, max_size=6
)


@pytest.mark.slow
@settings(max_examples=40)
@given(batches_of_values.filter(any), st.integers(1, 400), st.integers(-2, 80), st.integers(-2, 80))
def test_any_slice_is_read_back_whatever_the_row_groups(
    batches: list[list[bytes | None]], row_group_bytes: int, start: int, length: int
) -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records(values) for values in batches], row_group_bytes=row_group_bytes)
    everything = [value for values in batches for value in values]
    low, high = 100 + start, 100 + start + length
    wanted = [(100 + i, value) for i, value in enumerate(everything) if low <= 100 + i < high]
    rows = [
        row
        for batch in read_batches(store, file, low, high)
        for row in zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    ]
    assert rows == wanted
    assert verify_segment(store, file).footer.records == len(everything)


def test_columns_can_be_picked() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a", b"b"])])
    [batch] = read_batches(store, file, *EVERYTHING, columns=["offset"])
    assert batch.schema.names == ["offset"]


# ------------------------------------------------------------------------------------ footer


def test_the_footer_shows_what_a_listing_cannot() -> None:
    store = MemoryStore()
    state = {"p": ProducerEntry(1, 2, 100, 103, 77)}
    file = write_segment(
        store,
        BASE,
        [records([b"a", b"b"], timestamps_us=[7, 3]), records([b"c"], timestamps_us=[7])],
        lineage=[(1, 0), (4, 100)],
        producers=state,
    )
    footer = read_segment(store, file).footer
    assert (footer.topic_id, footer.partition) == ("f" * 32, 3)
    assert (footer.base_offset, footer.next_offset, footer.records) == (100, 103, 3)
    assert Lineage(footer.lineage) == Lineage([(1, 0), (4, 100)])
    assert footer.producers == state
    assert (footer.min_timestamp_us, footer.max_timestamp_us, footer.max_timestamp_offset) == (3, 7, 100)
    assert footer.uncompressed_bytes > 0
    assert footer.created_ms == 1_000


def test_the_largest_timestamp_is_found_across_batches_nulls_and_times_before_1970() -> None:
    store = MemoryStore()
    times: list[list[int | None]] = [[None, -9], [-3, -7], [-3, None]]
    file = write_segment(store, BASE, [records([b"x"] * 2, timestamps_us=t) for t in times])
    footer = read_segment(store, file).footer
    assert (footer.min_timestamp_us, footer.max_timestamp_us, footer.max_timestamp_offset) == (-9, -3, 102)


def test_a_file_without_timestamps_says_so() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a"], timestamps_us=[None])])
    assert read_segment(store, file).footer.max_timestamp_offset is None


def test_timestamps_of_another_unit_are_noted_as_they_are_stored() -> None:
    store = MemoryStore()
    batch = records([b"a"], timestamps_us=[1_500])
    index = batch.schema.get_field_index("timestamp")
    nanos = batch.column(index).cast(pa.timestamp("ns", "UTC"))
    file = write_segment(store, BASE, [batch.set_column(index, "timestamp", nanos)])
    assert read_segment(store, file).footer.max_timestamp_us == 1_500


def test_a_segment_is_never_empty() -> None:
    writer = SegmentWriter(io.BytesIO(), BINARY, topic_id="f" * 32, partition=0, base_offset=0)
    writer.write(records([]))
    with pytest.raises(ValueError, match="at least one record"):
        writer.close(lineage=Lineage(), producers=lambda _: {}, created_ms=0)


def test_a_footer_is_one_ranged_read() -> None:
    store = MemoryStore()
    file = write_segment(
        store, BASE, [records([bytes([i % 256]) * 100_000 for i in range(20)])], compression="none"
    )
    before = store.counts.snapshot()
    read_segment(store, file)
    spent = store.counts - before
    assert (spent.reads, spent.read_bytes) == (1, 64 * 1024)


def test_a_footer_longer_than_the_first_read_is_read_whole() -> None:
    store = MemoryStore()
    producers = {f"{i:032x}": ProducerEntry(1, i, i, i + 1, i) for i in range(2_000)}
    file = write_segment(store, BASE, [records([b"a"])], producers=producers)
    assert read_segment(store, file).footer.producers == producers


def test_footers_are_remembered_by_what_they_take_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The footers of wide segments are thousands of times as large as those of small appends."""
    store = MemoryStore()
    wide = [records([b"%d" % i]) for i in range(40)]
    files = [write_segment(store, DataName(40 * i, 40 * i + 40, 1), wide, row_group_bytes=1) for i in range(4)]
    small = write_segment(store, BASE, [records([b"a"])])
    sizes = [read_segment(store, file).memory_bytes for file in files]
    assert sizes[0] > 10 * read_segment(store, small).memory_bytes
    monkeypatch.setattr(segment, "_remembered", BoundedCache(3 * max(sizes)))

    def reads(*looked_at: DataFile) -> int:
        before = store.counts.snapshot()
        for file in looked_at:
            read_segment(store, file)
        return (store.counts - before).reads

    assert reads(*files[:3]) == 3
    assert reads(*files[:3]) == 0
    assert reads(files[3]) == 1
    assert reads(*files[1:]) == 0
    assert reads(files[0]) == 1


# ----------------------------------------------------------------------------- physical form


def test_row_groups_are_bounded_also_when_a_batch_is_larger() -> None:
    store = MemoryStore()
    values = [bytes(1_000)] * 500
    file = write_segment(store, BASE, [records(values), records(values[:3])], row_group_bytes=50_000)
    metadata = read_segment(store, file).parquet
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(sizes) == 503
    assert max(sizes) <= 50
    assert len(sizes) <= 12, "and are not crumbs either"


def test_small_batches_share_a_row_group() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a"])] * 100)
    assert read_segment(store, file).parquet.num_row_groups == 1


def test_offsets_are_delta_encoded_and_pages_have_an_index_and_checksums() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a"] * 10_000)])
    group = read_segment(store, file).parquet.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert "DELTA_BINARY_PACKED" in columns["timestamp"].encodings
    assert columns["offset"].total_compressed_size < 1_000, "ten thousand offsets cost next to nothing"
    assert all(column.has_column_index and column.has_offset_index for column in columns.values())
    assert columns["offset"].statistics.max == 10_099
    assert not columns["value"].has_dictionary_page, "opaque values do not try dictionaries"


def test_a_dictionary_ends_where_it_no_longer_pays() -> None:
    schema = physical_schema(
        key=pa.int64(), value=pa.struct([pa.field("city", pa.string()), pa.field("r", pa.float64())])
    )
    rng = random.Random(1)
    values = [{"city": f"city-{number % 500}", "r": rng.random()} for number in range(200_000)]
    store = MemoryStore()
    file = write_segment(store, BASE, [records(values, keys=range(200_000), schema=schema)], schema=schema)
    group = read_segment(store, file).parquet.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "PLAIN" in columns["key"].encodings
    assert columns["value.r"].total_uncompressed_size < 1.1 * 8 * 200_000
    assert columns["value.city"].total_uncompressed_size < 2.5 * 200_000, "500 cities: an index each"


def test_any_parquet_reader_reads_a_segment() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a", b"b"])])
    table = pq.read_table(io.BytesIO(store.read(file.object.name)))
    assert table.column("value").to_pylist() == [b"a", b"b"]


def test_the_same_records_give_the_same_bytes() -> None:
    """Replicas agree if their listings agree in names and sizes; runs repeat exactly."""
    one, two = MemoryStore(), MemoryStore()
    for store in (one, two):
        write_segment(store, BASE, [records([b"a", b"b"])])
    assert one.read(str(BASE)) == two.read(str(BASE))


# ------------------------------------------------------------------------------------ memory


@pytest.mark.slow
def test_memory_is_bounded_by_a_row_group_however_large_the_file(tmp_path: Path) -> None:
    """Design section 5: streaming record batches into one Parquet file per partition."""
    store = LocalStore(str(tmp_path))
    values = pa.array([random.Random(1).randbytes(64 * 1024)] * 32)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(100):  # 100 batches of 2 MiB
            yield records([None] * 32).set_column(2, "value", pa.concat_arrays([values]))

    before = pa.total_allocated_bytes()
    peaks: list[int] = []

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches():
            peaks.append(pa.total_allocated_bytes() - before)
            yield batch

    file = write_segment(store, BASE, watched(), row_group_bytes=8 << 20)
    assert read_segment(store, file).footer.uncompressed_bytes > 200 << 20
    assert max(peaks) < 32 << 20
    for _ in read_batches(store, file, *EVERYTHING):
        peaks.append(pa.total_allocated_bytes() - before)
    assert max(peaks) < 48 << 20


@pytest.mark.parametrize("sequence", [1.0, True, np.int64(1)], ids=repr)
def test_a_footer_that_nobody_could_read_is_not_written(sequence: Any) -> None:
    """This is the last check: after one such file, the partition could not be read or appended to any more."""
    store = MemoryStore()
    with pytest.raises(InvalidCallError, match="could not be read back"):
        write_segment(store, BASE, [records([b"a"])], producers={"p": ProducerEntry(0, sequence, 0, 1, 0)})
    assert not store.names("")


def test_a_file_that_fails_at_its_end_leaves_nothing_for_the_garbage_collector(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Arrow would write the rest of the file into a sink that is closed by then."""
    sink = io.BytesIO()
    writer = SegmentWriter(sink, BINARY, topic_id="t", partition=0, base_offset=0)
    writer.write(records([b"a"]))

    def refuse(next_offset: int) -> dict[str, ProducerEntry]:
        raise InvalidCallError("no")

    with pytest.raises(InvalidCallError, match="no"):
        writer.close(lineage=Lineage(), producers=refuse, created_ms=0)
    sink.close()
    del writer
    gc.collect()
    assert capfd.readouterr().err == ""


class Watched:
    """A store that records which threads release the data read from its files."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.threads: set[int] = set()

    def open(self, source_object: StoredObject) -> BinaryIO:
        data = self.inner.read(source_object.name)

        threads = self.threads

        class Noted(bytes):
            def __del__(self) -> None:
                threads.add(threading.get_ident())

        def fetch(start: int, end: int) -> bytes:
            return Noted(data[start:end])

        return RangeReader(len(data), fetch).as_file()

    def uri_of(self, name: str) -> str:
        return self.inner.uri_of(name)


@pytest.mark.parametrize(
    "way",
    [
        lambda store, file: list(read_batches(store, file, *EVERYTHING)),
        lambda store, file: read_row_group(store, read_segment(store, file), 0),
        lambda store, file: check_segment(store, file),
    ],
    ids=["batches", "a row group", "a check"],
)
def test_no_thread_but_the_callers_holds_what_is_read(way: Callable[[Watched, DataFile], object]) -> None:
    """An Arrow thread that still holds Python bytes when the process ends aborts it: "terminate called without an
    active exception", status 134, after all work was done."""
    store = MemoryStore()
    values = [random.Random(n).randbytes(200) for n in range(2000)]
    file = write_segment(store, BASE, [records(values, keys=values)])
    watched = Watched(store)
    way(watched, file)
    assert watched.threads == {threading.get_ident()}

"""A data file: what is written is read back, and no damage passes unseen (design section 4)."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitions.errors import CorruptSegmentError, SourceChangedError
from partitions.lineage import Lineage
from partitions.listing import DataFile
from partitions.paths import DataName
from partitions.producers import ProducerEntry
from partitions.records import physical_schema
from partitions.segment import read_batches, read_segment
from partitions.segment_check import verify_segment
from partitions.segment_footer import CHECKSUM_KEY, FOOTER_KEY
from partitions.segment_writer import SegmentWriter
from partitions.store.local import LocalStore
from partitions.store.memory import MemoryStore
from partitions.store.protocol import Store
from tests.unit.segments import BINARY, listed, records, write_segment

BASE = DataName(100, None, 1)
EVERYTHING = (0, 2**62)


def read(store: Store, file: DataFile, start: int = 0, end: int = 2**62) -> pa.Table:
    return pa.Table.from_batches(read_batches(store, file, start, end))


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


def test_the_footer_tells_what_a_listing_cannot() -> None:
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


def test_any_parquet_reader_reads_a_segment() -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a", b"b"])])
    table = pq.read_table(io.BytesIO(store.read(file.object.name)))
    assert table.column("value").to_pylist() == [b"a", b"b"]


def test_the_same_records_give_the_same_bytes() -> None:
    """Replicas agree where their listings agree in names and sizes; runs repeat exactly."""
    one, two = MemoryStore(), MemoryStore()
    for store in (one, two):
        write_segment(store, BASE, [records([b"a", b"b"])])
    assert one.read(str(BASE)) == two.read(str(BASE))


# ------------------------------------------------------------------------------------ damage


def damaged(data: bytes) -> tuple[MemoryStore, DataFile]:
    store = MemoryStore()
    store.create(str(BASE), data)
    return store, listed(store, BASE)


def intact(values: int = 300) -> tuple[bytes, pa.Table]:
    """A file of several row groups and its records."""
    store = MemoryStore()
    dice = random.Random(5)
    batch = records(
        [dice.randbytes(200) for _ in range(values)],
        keys=[b"k%d" % (i % 7) for i in range(values)],
        headers=[[{"key": "h", "value": b"%d" % i}] for i in range(values)],
    )
    file = write_segment(store, BASE, [batch], row_group_bytes=20_000)
    return store.read(file.object.name), read(store, file)


def regions(data: bytes) -> dict[str, range]:
    """Where the classes of bytes of a Parquet file lie."""
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    index_at = int(pq.read_metadata(io.BytesIO(data)).metadata[CHECKSUM_KEY][16:], 16)
    return {
        "leading magic": range(4),
        "pages": range(4, index_at),
        "page index": range(index_at, footer_at),
        "footer": range(footer_at, len(data) - 8),
        "footer length": range(len(data) - 8, len(data) - 4),
        "trailing magic": range(len(data) - 4, len(data)),
    }


def flips(region: str, data: bytes, count: int = 150) -> Iterator[bytes]:
    """The file with one bit flipped, at sampled places of a region."""
    dice = random.Random(f"{region} 2024")
    where = regions(data)[region]
    for position in sorted(dice.sample(where, min(count, len(where)))):
        flipped = bytearray(data)
        flipped[position] ^= 1 << dice.randrange(8)
        yield bytes(flipped)


@pytest.mark.parametrize("region", ["footer", "footer length", "trailing magic"])
def test_a_flipped_bit_in_the_file_s_end_is_found_by_the_first_look(region: str) -> None:
    """Parquet has no checksum of its footer; ours holds statistics, lineage, and producers."""
    data, _ = intact()
    for flipped in flips(region, data):
        with pytest.raises(CorruptSegmentError, match=r"00000000000000000100\.0000000001\.parquet"):
            read_segment(*damaged(flipped))


def test_a_flipped_bit_in_a_page_is_found_by_reading_it_or_changes_nothing() -> None:
    """Page bodies have checksums; a page's header has fields that nobody looks at."""
    data, table = intact()
    found = 0
    for flipped in flips("pages", data, 400):
        store, file = damaged(flipped)
        try:
            assert read(store, file).equals(table)
        except CorruptSegmentError:
            found += 1
    assert found > 300


@pytest.mark.parametrize("region", ["leading magic", "page index"])
def test_a_flipped_bit_where_only_other_readers_look_is_found_by_verifying(region: str) -> None:
    """Spark skips pages by the page index: a wrong one would hide records."""
    data, table = intact()
    for flipped in flips(region, data):
        store, file = damaged(flipped)
        with pytest.raises(CorruptSegmentError):
            verify_segment(store, file)
        if region == "page index":
            assert read(store, file).equals(table), "we do not look there"


def test_an_intact_file_verifies() -> None:
    data, table = intact()
    assert verify_segment(*damaged(data)).footer.records == table.num_rows


def test_records_that_carry_other_offsets_are_found_by_verifying() -> None:
    """All checksums fit; a writer with a bug has made it."""
    store = MemoryStore()
    file = write_segment(store, DataName(7, None, 1), [records([b"a"])])
    renamed = store.read(file.object.name).replace(
        b'"base_offset":7,"next_offset":8', b'"base_offset":6,"next_offset":7'
    )
    other = DataName(6, None, 1)
    store.create(str(other), resealed(renamed))
    assert read_segment(store, listed(store, other)).footer.base_offset == 6
    with pytest.raises(CorruptSegmentError, match="have other offsets"):
        verify_segment(store, listed(store, other))


def resealed(data: bytes) -> bytes:
    """The file with the footer's checksum computed anew."""
    footer_at = regions(data)["footer"].start
    footer = bytearray(data[footer_at:-8])
    at = footer.rfind(CHECKSUM_KEY) + len(CHECKSUM_KEY) + 2
    footer[at : at + 8] = b"0" * 8
    footer[at : at + 8] = b"%08x" % zlib.crc32(footer)
    return data[:footer_at] + bytes(footer) + data[-8:]


def test_a_truncated_file_is_found_at_every_length() -> None:
    data, _ = intact()
    lengths = {
        0,
        1,
        3,
        4,
        7,
        8,
        11,
        12,
        13,
        len(data) // 2,
        len(data) - 1,
        len(data) - 4,
        len(data) - 8,
        len(data) - 9,
    }
    for region in regions(data).values():
        lengths |= {region.start, region.start + 1, region.stop - 1}
    for length in sorted(lengths - {len(data)}):
        with pytest.raises(CorruptSegmentError):
            read_segment(*damaged(data[:length]))


def test_a_file_with_bytes_behind_its_end_is_found() -> None:
    data, _ = intact()
    for extra in (b"\0", b"PAR1", data):
        store, file = damaged(data + extra)
        with pytest.raises(CorruptSegmentError):
            verify_segment(store, file)


def parquet(metadata: dict[bytes, bytes]) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, pa.schema([("offset", pa.int64())])) as writer:
        writer.write_table(pa.table({"offset": [100]}))
        writer.add_key_value_metadata(metadata)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(b"{}", "truncated", id="tiny"),
        pytest.param(b"{" + b" " * 5_000 + b"}", "truncated, or foreign", id="no Parquet"),
        pytest.param(
            b"PAR1" + b"\xff" * 20 + b"\xff\xff\xff\x7fPAR1", "longer than the file", id="endless footer"
        ),
        pytest.param(b"PAR1" + b"\xff" * 20 + b"\x10\0\0\0PAR1", "cannot be read", id="footer of noise"),
        pytest.param(parquet({}), "lacks log.segment", id="foreign Parquet"),
        pytest.param(parquet({FOOTER_KEY: b"{}"}), "no checksum", id="without a checksum"),
        pytest.param(
            resealed(parquet({FOOTER_KEY: b"{}", CHECKSUM_KEY: b"0" * 32})), "cannot be read", id="empty footer"
        ),
    ],
)
def test_what_is_no_segment_is_refused_with_the_reason(data: bytes, complaint: str) -> None:
    with pytest.raises(CorruptSegmentError, match=complaint):
        read_segment(*damaged(data))


@pytest.mark.parametrize(
    "name", [DataName(99, None, 1), DataName(100, 103, 1), DataName(100, 101, 1), DataName(99, 102, 1)]
)
def test_a_name_that_does_not_fit_the_footer_is_corruption(name: DataName) -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a", b"b"])])
    store.create(str(name), store.read(file.object.name))
    with pytest.raises(CorruptSegmentError, match=r"\[100, 102\), its name does not"):
        read_segment(store, listed(store, name))


def test_a_merged_name_that_fits_is_accepted() -> None:
    store = MemoryStore()
    name = DataName(100, 102, 1)
    assert read_segment(store, write_segment(store, name, [records([b"a", b"b"])])).footer.next_offset == 102


# --------------------------------------------------------------------------- deleted, replaced

readers: list[Callable[[Store, DataFile], object]] = [
    read_segment,
    verify_segment,
    lambda store, file: list(read_batches(store, file, *EVERYTHING)),
]


@pytest.mark.parametrize("reader", readers, ids=["read_segment", "verify_segment", "read_batches"])
def test_a_file_that_is_gone_has_changed_and_is_not_corrupt(reader: Callable[[Store, DataFile], object]) -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a"])])
    store.delete([file.object.name])
    with pytest.raises(SourceChangedError):
        reader(store, file)


@pytest.mark.parametrize("reader", readers, ids=["read_segment", "verify_segment", "read_batches"])
def test_v2_another_file_of_the_same_name_is_not_the_listed_one(
    reader: Callable[[Store, DataFile], object],
) -> None:
    """Rule 3: a deleted name is free again; what is read is the object that was listed."""
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"ours"])])
    store.delete([file.object.name])
    write_segment(store, BASE, [records([b"zombies"])])
    with pytest.raises(SourceChangedError):
        reader(store, file)


# ------------------------------------------------------------------------------------ memory


def test_memory_is_bounded_by_a_row_group_however_large_the_file(tmp_path: Path) -> None:
    """Design section 5: streaming record batches into one Parquet file per partition."""
    store = LocalStore(str(tmp_path))
    values = pa.array([random.Random(1).randbytes(64 * 1024)] * 32)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(100):  # of 2 MiB
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

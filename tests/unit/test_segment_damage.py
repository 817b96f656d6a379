"""A data file: all damage is detected (design section 4); deleted or replaced files are not damage."""

from __future__ import annotations

import errno
import io
import random
import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.columns import numbers
from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError, StorageError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.paths import DataName
from stratalog.partitions.segments import check as segment_check
from stratalog.partitions.segments import parquet_decoding
from stratalog.partitions.segments.check import check_copy, check_segment, verify_bytes, verify_segment
from stratalog.partitions.segments.footer import CHECKSUM_KEY, FOOTER_KEY, NO_CHECKSUMS
from stratalog.partitions.segments.parquet_decoding import is_of_this_process
from stratalog.partitions.segments.reader import read_batches, read_row_group, read_segment
from stratalog.partitions.store.memory import MemoryStore
from stratalog.partitions.store.protocol import Store
from tests.unit.segments import BASE, EVERYTHING, in_memory, listed, read, records, write_segment


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
    """The places of the classes of bytes in a Parquet file."""
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    index_at = int(pq.read_metadata(io.BytesIO(data)).metadata[CHECKSUM_KEY][16:32], 16)
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
    """Parquet has no checksum of its footer; the log's footer contains statistics, lineage, and producers."""
    data, _ = intact()
    for flipped in flips(region, data):
        with pytest.raises(CorruptSegmentError, match=r"00000000000000000100\.0000000001\.parquet"):
            read_segment(*in_memory(flipped))


@pytest.mark.slow
def test_a_flipped_bit_in_a_page_is_found_by_reading_it_or_changes_nothing() -> None:
    """Page bodies have checksums; a page's header has fields that no reader uses."""
    data, table = intact()
    found = 0
    for flipped in flips("pages", data, 400):
        store, file = in_memory(flipped)
        try:
            assert read(store, file).equals(table)
        except CorruptSegmentError:
            found += 1
    assert found > 300


@pytest.mark.slow
@pytest.mark.parametrize("region", ["leading magic", "page index"])
def test_a_flipped_bit_where_only_other_readers_look_is_found_by_verifying(region: str) -> None:
    """Spark skips pages by the page index: a wrong one would hide records."""
    data, table = intact()
    for flipped in flips(region, data):
        store, file = in_memory(flipped)
        with pytest.raises(CorruptSegmentError):
            verify_segment(store, file)
        if region == "page index":
            assert read(store, file).equals(table), "we do not look there"


def test_an_intact_file_verifies() -> None:
    data, table = intact()
    assert verify_segment(*in_memory(data)).footer.records == table.num_rows
    assert verify_bytes(*in_memory(data)).crc32 == zlib.crc32(data), "its end tells what all of it comes to"


@pytest.mark.parametrize("region", ["leading magic", "pages", "page index", "footer", "footer length"])
def test_every_flipped_bit_is_found_without_decoding_a_record(region: str) -> None:
    """A page's header, which readers ignore, is covered, too: every byte has a checksum."""
    data, _ = intact()
    for flipped in flips(region, data):
        with pytest.raises(CorruptSegmentError):
            verify_bytes(*in_memory(flipped))


@pytest.mark.parametrize("region", ["leading magic", "pages", "page index", "footer", "footer length"])
def test_every_flipped_bit_is_found_when_a_file_is_copied(region: str) -> None:
    """The source's footer may have been read when it was intact, and be cached."""
    data, _ = intact()
    segment = read_segment(*in_memory(data))
    for flipped in flips(region, data):
        (source, file), target = in_memory(flipped), MemoryStore()
        copy = target.stage_copy(source, file.object, "copy")
        with pytest.raises(CorruptSegmentError, match=r"00000000000000000100\.0000000001\.parquet is damaged"):
            check_copy(source, segment, copy)
    good, file = in_memory(data)
    check_copy(good, segment, MemoryStore().stage_copy(good, file.object, "copy"))


def fails(error: Exception) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise error

    return fail


OF_THIS_PROCESS = [
    pa.ArrowMemoryError("malloc of size 65536000 failed"),
    MemoryError(),
    pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    OSError(errno.EAGAIN, "Resource temporarily unavailable"),
    OSError("Couldn't deserialize thrift: std::bad_alloc"),
]


@pytest.mark.parametrize("error", OF_THIS_PROCESS, ids=repr)
def test_an_error_of_the_process_is_not_reported_as_damage_of_the_file(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is reported as damaged is replaced, and its replica leaves the ISR."""
    store, file = in_memory(intact()[0])
    segment = read_segment(store, file)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", fails(error))
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fails(error))
    for reader in (
        lambda: verify_segment(store, file),
        lambda: list(read_batches(store, file, *EVERYTHING)),
        lambda: read_row_group(store, segment, 0),
    ):
        with pytest.raises(StorageError, match="the file itself may be intact") as raised:
            reader()
        assert raised.value.__cause__ is error
    monkeypatch.setattr(pq, "read_metadata", fails(error))
    with pytest.raises(StorageError) as raised:
        read_segment(store, file, remembered=False)
    assert raised.value.__cause__ is error


def test_a_check_in_pieces_finds_offsets_that_are_not_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record at a time: the result does not depend on the pieces."""
    monkeypatch.setattr(parquet_decoding, "_PIECE_BYTES", 1)
    store, file = in_memory(intact()[0])
    assert check_segment(store, file).bad == ()
    monkeypatch.setattr(segment_check, "numbers", lambda first, end: numbers(first + 1, end + 1))
    assert "have wrong offsets" in str(check_segment(store, file).bad[0].error)


@pytest.mark.slow
def test_all_that_arrow_says_of_damaged_bytes_is_damage() -> None:
    """Each bit is flipped, without the log's own checksums, which would be checked first."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": range(300), "b": ["x"] * 300}), sink, write_page_checksum=True)
    data = sink.getvalue()
    messages = []
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        try:
            pq.ParquetFile(pa.BufferReader(bytes(flipped)), page_checksum_verification=True).read()
        except (pa.ArrowException, OSError, ValueError) as error:
            messages.append(error)
    assert {type(error) for error in messages} >= {OSError, pa.ArrowInvalid}
    assert [error for error in messages if is_of_this_process(error)] == []


def test_records_that_carry_other_offsets_are_found_by_verifying() -> None:
    """All checksums are right, because a writer with a bug has made the file."""
    store = MemoryStore()
    file = write_segment(store, DataName(7, None, 1), [records([b"a"])])
    renamed = store.read(file.object.name).replace(
        b'"base_offset":7,"next_offset":8', b'"base_offset":6,"next_offset":7'
    )
    other = DataName(6, None, 1)
    store.create(str(other), resealed(renamed))
    assert read_segment(store, listed(store, other)).footer.base_offset == 6
    with pytest.raises(CorruptSegmentError, match="have wrong offsets"):
        verify_segment(store, listed(store, other))


def resealed(data: bytes) -> bytes:
    """The file with a new checksum of its footer."""
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
            read_segment(*in_memory(data[:length]))


def test_a_file_with_bytes_behind_its_end_is_found() -> None:
    data, _ = intact()
    for extra in (b"\0", b"PAR1", data):
        store, file = in_memory(data + extra)
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
            resealed(parquet({FOOTER_KEY: b"{}", CHECKSUM_KEY: b"0" * 32})),
            "states checksums that cannot be read",
            id="too few checksums",
        ),
        pytest.param(
            resealed(parquet({FOOTER_KEY: b"{}", CHECKSUM_KEY: NO_CHECKSUMS})),
            "the footer log.segment cannot be read",
            id="empty footer",
        ),
    ],
)
def test_a_file_that_is_no_segment_is_refused_with_the_reason(data: bytes, complaint: str) -> None:
    with pytest.raises(CorruptSegmentError, match=complaint):
        read_segment(*in_memory(data))


@pytest.mark.parametrize(
    "name", [DataName(99, None, 1), DataName(100, 103, 1), DataName(100, 101, 1), DataName(99, 102, 1)]
)
def test_a_name_that_does_not_fit_the_footer_is_corruption(name: DataName) -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a", b"b"])])
    store.create(str(name), store.read(file.object.name))
    with pytest.raises(CorruptSegmentError, match=r"\[100, 102\), which its name contradicts"):
        read_segment(store, listed(store, name))


def test_a_merged_name_that_fits_is_accepted() -> None:
    store = MemoryStore()
    name = DataName(100, 102, 1)
    assert read_segment(store, write_segment(store, name, [records([b"a", b"b"])])).footer.next_offset == 102


# --------------------------------------------------------------------------- deleted, replaced


readers: list[Callable[[Store, DataFile], object]] = [
    read_segment,
    verify_segment,
    verify_bytes,
    lambda store, file: list(read_batches(store, file, *EVERYTHING)),
]


@pytest.mark.parametrize("reader", readers, ids=["read_segment", "verify_segment", "verify_bytes", "read_batches"])
def test_a_file_that_is_gone_has_changed_and_is_not_corrupt(reader: Callable[[Store, DataFile], object]) -> None:
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"a"])])
    store.delete([file.object.name])
    with pytest.raises(SourceChangedError):
        reader(store, file)


@pytest.mark.parametrize("reader", readers, ids=["read_segment", "verify_segment", "verify_bytes", "read_batches"])
def test_v2_another_file_of_the_same_name_is_not_the_listed_one(
    reader: Callable[[Store, DataFile], object],
) -> None:
    """Rule 3: a deleted name is free again; only the listed object is read."""
    store = MemoryStore()
    file = write_segment(store, BASE, [records([b"ours"])])
    store.delete([file.object.name])
    write_segment(store, BASE, [records([b"zombies"])])
    with pytest.raises(SourceChangedError):
        reader(store, file)

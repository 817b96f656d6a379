"""Hostile segments with right checksums: refused, or read in bounded memory; the process survives."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from stratalog.partitions.errors import CorruptSegmentError, RecordTooLargeError
from stratalog.partitions.paths import DataName
from stratalog.partitions.records import physical_schema
from stratalog.partitions.segments import parquet_pages
from stratalog.partitions.segments.check import check_segment, verify_segment
from stratalog.partitions.segments.footer import check_tail
from stratalog.partitions.segments.reader import Segment, check_held, read_batches, read_row_group, read_segment
from stratalog.partitions.segments.writer import MOST_RECORD_BYTES, memory_bytes
from stratalog.partitions.store.local import LocalStore
from stratalog.partitions.store.memory import MemoryStore
from stratalog.tiering.statistics import statistics_json
from tests.unit import hostile_parquet as hostile
from tests.unit.segments import BASE, EVERYTHING, in_memory, listed, read, records, write_segment

MEGABYTE = 1024 * 1024


def segment(data: bytes) -> Segment:
    return read_segment(*in_memory(data))


def test_a_segment_that_is_taken_apart_and_put_together_again_is_sound() -> None:
    """Otherwise the tests below would prove nothing."""
    data = hostile.Taken(hostile.honest()).sealed()
    store, file = in_memory(data)
    assert verify_segment(store, file).footer.records == 20
    assert read(store, file).column("value").to_pylist() == [b"v%d" % row for row in range(20)]


@pytest.mark.slow
@pytest.mark.parametrize("make", hostile.EVERY, ids=lambda make: make.__name__)
def test_every_reader_of_its_records_refuses_a_hostile_segment(make: Callable[[bytes], bytes]) -> None:
    store, file = in_memory(make(hostile.honest(2_000)))
    with pytest.raises(CorruptSegmentError, match=r"00000000000000000100\.0000000001\.parquet") as raised:
        list(read_batches(store, file, *EVERYTHING))
    assert raised.value.file == str(BASE)
    with pytest.raises(CorruptSegmentError):
        read_row_group(store, read_segment(store, file), 0)
    with pytest.raises(CorruptSegmentError):
        verify_segment(store, file)


@pytest.mark.slow
@pytest.mark.parametrize("make", hostile.FOOTERS, ids=lambda make: make.__name__)
def test_a_hostile_footer_is_refused_before_anything_is_made_of_it(make: Callable[[bytes], bytes]) -> None:
    found = make(hostile.honest())
    with pytest.raises(CorruptSegmentError):
        statistics_json(segment(found))


def test_a_wrong_histogram_of_levels_ends_no_process() -> None:
    """Arrow never gets a request for the description of a column chunk, because it would abort."""
    data = hostile.wrong_level_histogram(hostile.honest())
    store, file = in_memory(data)
    checked = check_segment(store, file)
    assert [(bad.start, bad.end) for bad in checked.bad] == [(100, 120)]
    assert '"numRecords":20' in statistics_json(checked.segment)


@pytest.mark.slow
def test_a_row_group_of_a_dictionary_takes_what_its_values_come_to() -> None:
    """One long value among any number of short ones is no bomb."""
    store = MemoryStore()
    keys = [b"x" * MEGABYTE, *(b"k%d" % (row % 9) for row in range(60_000))]
    file = write_segment(store, BASE, [records([b""] * len(keys), keys=keys)])
    assert read(store, file).column("key").to_pylist() == keys
    headers = [[{"key": key.decode(), "value": key}] for key in keys[:20_000]]
    other = write_segment(store, DataName(7, None, 1), [records([b""] * len(headers), headers=headers)])
    assert read(store, other).column("headers").to_pylist() == headers


@pytest.mark.slow
def test_dictionary_indices_are_counted_as_arrow_decodes_them() -> None:
    """The count is right for runs and packed bits, with nulls and in lists: never too low, and never above the
    number that the nulls allow.
    """
    keys: list[bytes | None] = [b"a" * (row % 300) for row in range(3_000)] + [b"b"] * 4_000 + [None] * 500
    headers = [[{"key": "h" * (row % 5), "value": b"v" * (row % 40)}] * (row % 4) for row in range(len(keys))]
    store = MemoryStore()
    file = write_segment(store, BASE, [records([None] * len(keys), keys=keys, headers=headers)])
    found = read_segment(store, file)
    data = store.read(file.object.name)
    group = found.row_groups[0]
    for number, leaf in enumerate(found.layout.leaves):
        if leaf.path[0] not in ("key", "headers"):
            continue
        column = parquet_pages._pages(leaf, group.chunks[number], lambda start, end: data[start:end])
        counted = parquet_pages._by_places(column, lambda start, end: data[start:end])
        values = keys if leaf.path[0] == "key" else [one[leaf.path[-1]] for some in headers for one in some]
        lengths = [len(value) for value in values if value is not None]
        assert sum(lengths) <= counted <= sum(lengths) + 7 * max(lengths) * len(column.pages), leaf.path


@pytest.mark.slow
def test_a_value_of_64_mib_is_written_and_read() -> None:
    store = MemoryStore()
    value = b"x" * (64 * MEGABYTE)
    file = write_segment(store, BASE, [records([b"a", value, b"b"])], compression="uncompressed")
    batches = list(read_batches(store, file, *EVERYTHING))
    assert [value.as_buffer().size for batch in batches for value in batch["value"]] == [1, 64 * MEGABYTE, 1]


@pytest.mark.slow
def test_a_record_that_readers_have_no_room_for_is_refused_by_the_writer() -> None:
    with pytest.raises(RecordTooLargeError, match="nothing was appended"):
        write_segment(MemoryStore(), BASE, [records([b"a", bytes(MOST_RECORD_BYTES)])])


@pytest.mark.slow
def test_records_of_unequal_size_are_cut_so_that_no_row_group_is_too_large() -> None:
    store = MemoryStore()
    values = [bytes(60 * MEGABYTE), bytes(60 * MEGABYTE), *[b"x"] * 2_000]
    file = write_segment(store, BASE, [records(values)])
    found = read_segment(store, file)
    assert len(found.row_groups) > 1
    for group in found.row_groups:
        assert sum(len(value) for value in values[group.first : group.end]) <= MOST_RECORD_BYTES


def test_empty_lists_count_too() -> None:
    """A null list takes Arrow levels in each column below it."""
    wide = pa.struct(
        [(f"f{number}", pa.list_(pa.struct([("a", pa.int8()), ("b", pa.int8())]))) for number in range(50)]
    )
    schema = physical_schema(value=wide)
    batch = records([None] * 1000, schema=schema)
    assert memory_bytes(batch) >= batch.nbytes + 1000 * 100 * parquet_pages.LEVELS_BYTES
    store = MemoryStore()
    assert read(store, write_segment(store, BASE, [batch], schema=schema)).num_rows == 1000


def test_a_footer_without_end_is_not_read(tmp_path: Path) -> None:
    """The footer claims 1.5 GB, in a file with a hole."""
    with (tmp_path / str(BASE)).open("wb") as file:
        file.truncate(1_600_000_000)
        file.seek(0, 2)
        file.write((1_500_000_000).to_bytes(4, "little") + b"PAR1")
    with (tmp_path / str(BASE)).open("r+b") as file:
        file.write(b"PAR1")
    store = LocalStore(str(tmp_path))
    for reader in (read_segment, lambda store, file: check_tail(store, file.object)):
        before = store.counts.read_bytes
        with pytest.raises(CorruptSegmentError, match="footer"):
            reader(store, listed(store, BASE))
        assert store.counts.read_bytes - before < MEGABYTE


@pytest.mark.parametrize("make", [hostile.dictionary_bomb, hostile.unpacking_bomb, hostile.rows_bomb])
def test_a_hostile_batch_of_metadata_is_refused(make: Callable[[bytes], bytes]) -> None:
    """Every driver decodes the values of such a batch completely."""
    column = "key" if make is hostile.dictionary_bomb else "value"
    with pytest.raises(CorruptSegmentError, match="the batch"):
        check_held(make(hostile.honest(2_000)), column, 160 * MEGABYTE, "the batch")
    check_held(hostile.honest(2_000), column, 160 * MEGABYTE, "the batch")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_changed_footer_or_page_with_checksums_made_right_is_damage_or_harmless(seed: int) -> None:
    """Bytes are changed, removed and inserted, including changes that would make Arrow end the process."""
    dice = random.Random(seed)
    data = hostile.honest(
        300,
        schema=physical_schema(value=pa.struct([("a", pa.int64()), ("b", pa.string())])),
        values=[{"a": row, "b": "x" * (row % 9)} for row in range(300)],
    )
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    spoilt = 0
    for _ in range(150):
        body, footer = bytearray(data[:footer_at]), bytearray(data[footer_at:-8])
        some = dice.choice([body, footer, footer])
        until = len(some) if some is body else len(footer) - 600
        for _ in range(dice.choice([1, 1, 2, 5])):
            at = dice.randrange(4, until)
            some[at : at + dice.choice([0, 1, 1, 1, 3])] = dice.randbytes(dice.choice([0, 1, 1, 1, 4]))
        try:
            store, file = in_memory(hostile.sealed(bytes(body), bytes(footer)))
            spoilt += bool(check_segment(store, file).bad)
            for batch in read_batches(store, file, *EVERYTHING):
                batch.validate(full=True)
            statistics_json(read_segment(store, file))
        except CorruptSegmentError:
            spoilt += 1
    assert spoilt > 75

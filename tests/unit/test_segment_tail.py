"""The end of a data file; a reader that checks only pages trusts it."""

from __future__ import annotations

import pytest

from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.segments.footer import check_tail
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.segments import BASE, in_memory, records, write_segment
from tests.unit.test_segment_damage import flips, intact, regions


@pytest.mark.parametrize("region", ["page index", "footer", "footer length", "trailing magic"])
def test_a_flipped_bit_in_the_tail_is_found_by_a_look_at_the_tail(region: str) -> None:
    data, _ = intact()
    for flipped in flips(region, data):
        store, file = in_memory(flipped)
        with pytest.raises(CorruptSegmentError, match=r"00000000000000000100\.0000000001\.parquet"):
            check_tail(store, file.object)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 400], ids=["short", "longer than the first look"])
def test_a_good_tail_passes_and_no_page_is_read(groups: int) -> None:
    store = MemoryStore()
    file = write_segment(
        store, BASE, [records([bytes(20_000)]) for _ in range(groups)], compression="none", row_group_bytes=20_000
    )
    tail = len(store.read(file.object.name)) - regions(store.read(file.object.name))["page index"].start
    before = store.counts.snapshot()
    check_tail(store, file.object)
    spent = store.counts - before
    assert spent.read_bytes <= max(64 * 1024, 2 * tail)
    assert (tail > 64 * 1024) == (groups > 1)


def test_a_truncated_file_is_corrupt_and_a_missing_file_has_changed() -> None:
    data, _ = intact()
    store, file = in_memory(data[:-200])
    with pytest.raises(CorruptSegmentError, match="truncated"):
        check_tail(store, file.object)
    store.delete([file.object.name])
    with pytest.raises(SourceChangedError):
        check_tail(store, file.object)

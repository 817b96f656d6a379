"""Leader epochs and where they start (protocol section 1; KIP-101, KIP-279)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import EpochStart, Lineage
from stratalog.partitions.register import sealed

lineages = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=8).map(
    lambda steps: Lineage(
        (sum(s[0] for s in steps[: i + 1]), sum(s[1] for s in steps[:i])) for i in range(len(steps))
    )
)


def test_the_epoch_of_an_offset_is_that_of_the_last_entry_at_or_below_it() -> None:
    """Section 1: ``epoch_at(offset)``."""
    lineage = Lineage([(1, 0), (3, 10), (4, 20)])
    assert [lineage.epoch_at(offset) for offset in (0, 9, 10, 19, 20, 99)] == [1, 1, 3, 3, 4, 4]


def test_an_epoch_that_wrote_nothing_owns_no_offset() -> None:
    assert Lineage([(1, 0), (2, 5), (3, 5)]).epoch_at(5) == 3


def test_no_epoch_wrote_what_is_below_the_first_entry() -> None:
    assert Lineage([(4, 10)]).epoch_at(9) is None
    assert Lineage().epoch_at(0) is None


def test_an_epoch_ends_where_the_first_greater_one_starts() -> None:
    lineage = Lineage([(1, 0), (3, 10), (4, 20)])
    assert [lineage.end_of(epoch) for epoch in (1, 3)] == [10, 20]
    assert lineage.end_of(4) is None


def test_an_epoch_that_left_the_lineage_ends_all_the_same() -> None:
    """Section 1 (!), V11: the end of e is defined whether or not e is in the lineage."""
    lineage = Lineage([(1, 0), (3, 4)])
    assert lineage.end_of(2) == 4
    assert lineage.end_of(0) == 0
    assert lineage.end_of(7) is None


@pytest.mark.slow
@given(lineages, st.integers(0, 50))
def test_an_offset_is_between_the_starts_of_its_epoch_and_of_the_next(lineage: Lineage, offset: int) -> None:
    epoch = lineage.epoch_at(offset)
    if epoch is None:
        assert all(entry.start_offset > offset for entry in lineage)
    else:
        end = lineage.end_of(epoch)
        assert dict(lineage)[epoch] <= offset
        assert end is None or offset < end


def test_two_histories_that_are_one_below_an_offset_are_equal_there() -> None:
    one, two = Lineage([(1, 0), (2, 5), (3, 9)]), Lineage([(1, 0), (2, 5), (4, 7)])
    assert one.below(7) == two.below(7) == Lineage([(1, 0), (2, 5)])
    assert one.below(8) != two.below(8)
    assert one.below(0) == Lineage()


def test_taking_over_drops_the_entries_that_start_at_or_above_the_log_end() -> None:
    """Section 2, Take over: the present lineage without the entries at or above LEO, plus [e, LEO]."""
    lineage = Lineage([(1, 0), (2, 5), (3, 5)])
    assert lineage.continued_by(4, 5) == Lineage([(1, 0), (4, 5)])
    assert lineage.continued_by(4, 6) == Lineage([(1, 0), (2, 5), (3, 5), (4, 6)])
    assert Lineage().continued_by(1, 0) == Lineage([(1, 0)])


@pytest.mark.slow
@given(lineages, st.integers(0, 50))
def test_a_new_leader_changes_no_epoch_below_its_log_end(lineage: Lineage, log_end: int) -> None:
    """Taking over changes the epoch of no offset below the log end: the log stays live."""
    continued = lineage.continued_by(lineage.latest_epoch + 1, log_end)
    for offset in range(log_end):
        assert continued.epoch_at(offset) == lineage.epoch_at(offset)
    assert continued.epoch_at(log_end) == lineage.latest_epoch + 1


@given(lineages, st.integers(0, 50))
def test_a_lineage_truncated_from_its_start_keeps_the_epoch_of_every_later_offset(
    lineage: Lineage, log_start: int
) -> None:
    """Kafka's epoch cache: entries entirely below the log start are removed."""
    left = lineage.truncated_from_start(log_start)
    assert left.latest_epoch == lineage.latest_epoch
    assert all(left.epoch_at(offset) == lineage.epoch_at(offset) for offset in range(log_start, 60))
    assert sum(entry.start_offset <= log_start for entry in left) <= 1


@pytest.mark.parametrize("entries", [[(2, 0), (1, 5)], [(1, 0), (1, 5)], [(1, 5), (2, 4)]])
def test_a_lineage_that_does_not_ascend_is_corrupt(entries: list[tuple[int, int]]) -> None:
    with pytest.raises(CorruptionError, match="not in ascending order"):
        Lineage(entries)


@given(lineages)
def test_a_lineage_is_read_back_from_its_file(lineage: Lineage) -> None:
    again = Lineage.from_json(lineage.to_json(), "1.epoch")
    assert again == lineage
    assert hash(again) == hash(lineage)
    assert again.latest_epoch == max((entry.epoch for entry in lineage), default=0)


def test_the_file_is_a_line_of_json_and_its_checksum() -> None:
    line, checksum = Lineage([(1, 0), (2, 7)]).to_json().split(b"\n")
    assert line == b"[[1,0],[2,7]]"
    assert checksum == b"%08x" % zlib.crc32(line)


def test_no_flipped_bit_makes_another_lineage() -> None:
    """Most changes of a digit still give valid JSON."""
    content = Lineage([(1, 0), (2, 7)]).to_json()
    for at in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptionError, match=r"0000000002\.epoch"):
            Lineage.from_json(bytes(flipped), "0000000002.epoch")


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b"5", b"{}", b"null", b"[[1]]", b"[[1,0,0]]", b'["12"]', b'[["1","0"]]', b"[[1.5,0]]",
     b"[[2,0],[1,0]]", b"\xff\xfe", b'[[1,"\xff"]]'],
)  # fmt: skip
def test_any_other_content_is_corruption_and_names_the_file(content: bytes) -> None:
    with pytest.raises(CorruptionError, match=r"0000000001\.epoch"):
        Lineage.from_json(sealed(content), "0000000001.epoch")


class Counted(tuple[EpochStart, ...]):
    """Entries that count how often one of them is read."""

    looked_at = 0

    def __getitem__(self, index: Any) -> Any:
        Counted.looked_at += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[EpochStart]:
        for entry in super().__iter__():
            Counted.looked_at += 1
            yield entry


@pytest.mark.slow
def test_the_end_of_an_epoch_is_looked_up_however_many_there_are() -> None:
    """A foreign register may have a million entries, and each high watermark looks one up."""
    lineage = Lineage((epoch, epoch) for epoch in range(1, 10_001))
    lineage.entries = Counted(lineage.entries)
    assert lineage.end_of(9_998) == 9_999
    assert lineage.end_of(0) == 1
    assert lineage.end_of(10_000) is None
    assert Counted.looked_at < 100

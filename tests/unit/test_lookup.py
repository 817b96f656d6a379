"""Look-up by time: offsetsForTimes (KIP-79) and MAX_TIMESTAMP (KIP-734), without reading files that cannot
match."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import CorruptSegmentError, SourceChangedError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.lookup import FileSlice, first_at_or_after, largest_timestamp
from stratalog.partitions.offsets import Answer, FoundOffset, UnknownOffset
from stratalog.partitions.paths import DataName
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.store.memory import MemoryStore
from tests.unit.segments import records, write_segment

Timestamps = Sequence[int | None]


def segment(store: MemoryStore, base: int, timestamps_us: Timestamps, row_group_rows: int = 10**6) -> DataFile:
    """A file of records with these timestamps and values of some kilobytes, in row groups of that size."""
    batch = records([bytes(4_000)] * len(timestamps_us), timestamps_us=timestamps_us)
    name, row_group_bytes = DataName(base, None, 1), 4_050 * row_group_rows
    return write_segment(store, name, [batch], row_group_bytes=row_group_bytes, compression="none")


def pieces_of(files: Sequence[Timestamps], row_group_rows: int = 10**6) -> tuple[MemoryStore, list[FileSlice]]:
    """A log of files with these timestamps, from offset 0 on."""
    store = MemoryStore()
    pieces: list[FileSlice] = []
    base = 0
    for timestamps in files:
        end = base + len(timestamps)
        pieces.append(FileSlice(store, segment(store, base, timestamps, row_group_rows), base, end))
        base = end
    return store, pieces


def test_the_first_record_at_or_after_a_time_is_found() -> None:
    _, pieces = pieces_of([[10, 30, 20], [40, 50]])
    assert first_at_or_after(pieces, 0) == FoundOffset(0, 10)
    assert first_at_or_after(pieces, 20) == FoundOffset(1, 30), "the first by offset, not by time"
    assert first_at_or_after(pieces, 31) == FoundOffset(3, 40)
    assert first_at_or_after(pieces, 51) == UnknownOffset("all records are older")


def test_the_first_record_with_the_largest_timestamp_is_found() -> None:
    _, pieces = pieces_of([[10, 50, 20], [50, 40]])
    assert largest_timestamp(pieces) == FoundOffset(1, 50)


@pytest.mark.parametrize("files", [[], [[None, None]]])
def test_a_log_without_timestamps_has_no_such_position(files: list[Timestamps]) -> None:
    _, pieces = pieces_of(files)
    assert isinstance(largest_timestamp(pieces), UnknownOffset)
    assert isinstance(first_at_or_after(pieces, -(10**9)), UnknownOffset)


def test_only_the_piece_of_a_file_counts() -> None:
    """A file's records below the log start, or at and above the high watermark, do not count."""
    store, [whole] = pieces_of([[90, 10, 20, 80]])
    piece = FileSlice(store, whole.file, 1, 3)
    assert largest_timestamp([piece]) == FoundOffset(2, 20)
    assert first_at_or_after([piece], 15) == FoundOffset(2, 20)
    assert isinstance(first_at_or_after([piece], 50), UnknownOffset)


def bound(timestamps: Timestamps, slack: int | None) -> int | None:
    largest = max((time for time in timestamps if time is not None), default=0)
    return None if slack is None else largest + slack


times = st.one_of(st.none(), st.integers(-5, 12))
logs = st.lists(st.lists(times, min_size=1, max_size=6), max_size=4)
slacks = st.lists(st.one_of(st.none(), st.integers(0, 4)), min_size=4, max_size=4)
"""The distance between the known bound of each file's timestamps and the largest one; None if there is
no bound.
"""


@given(logs, slacks, st.integers(-7, 14), st.integers(1, 4), st.integers(0, 8), st.integers(0, 24))
def test_answers_are_those_of_a_naive_list(
    files: list[list[int | None]],
    slack: list[int | None],
    wanted: int,
    row_group_rows: int,
    start: int,
    length: int,
) -> None:
    store, whole = pieces_of(files, row_group_rows)
    pieces = [
        FileSlice(store, p.file, max(p.start, start), min(p.end, start + length), bound(file, above))
        for p, file, above in zip(whole, files, slack, strict=False)
        if max(p.start, start) < min(p.end, start + length)
    ]
    flat = [time for file in files for time in file]
    seen = [(i, time) for i, time in enumerate(flat) if start <= i < start + length and time is not None]
    late = [FoundOffset(i, time) for i, time in seen if time >= wanted]
    found = first_at_or_after(pieces, wanted)
    assert found == late[0] if late else isinstance(found, UnknownOffset)
    largest = largest_timestamp(pieces)
    if seen:
        peak = max(time for _, time in seen)
        assert largest == FoundOffset(next(i for i, time in seen if time == peak), peak)
    else:
        assert isinstance(largest, UnknownOffset)


# ------------------------------------------------------------------------------ what is read


def test_files_that_are_too_early_are_not_opened_once_their_footers_are_known() -> None:
    store, pieces = pieces_of([list(range(i * 100, i * 100 + 100)) for i in range(10)])
    for piece in pieces:
        read_segment(store, piece.file)
    before = store.counts.snapshot()
    assert first_at_or_after(pieces, 950) == FoundOffset(950, 950)
    one_file = store.counts - before
    before = store.counts.snapshot()
    assert first_at_or_after(pieces[9:], 950) == FoundOffset(950, 950)
    assert store.counts - before == one_file


@pytest.mark.parametrize(
    ("look", "answer", "opened"),
    [
        (lambda log: first_at_or_after(log, 5), FoundOffset(0, 10), [0]),
        (lambda log: first_at_or_after(log, 11), FoundOffset(1, 40), [1]),
        (lambda log: first_at_or_after(log, 41), FoundOffset(2, 50), [1, 2]),
        (lambda log: first_at_or_after(log, 51), UnknownOffset("all records are older"), [2]),
        (largest_timestamp, FoundOffset(2, 50), [2]),
        (lambda log: largest_timestamp(log[:2]), FoundOffset(1, 40), [1]),
        (lambda log: largest_timestamp(log[3:]), FoundOffset(3, 30), [3, 4]),
    ],
)
def test_files_that_are_known_to_be_too_early_are_not_opened(
    look: Callable[[Sequence[FileSlice]], Answer], answer: Answer, opened: list[int]
) -> None:
    """One record each, with a bound of its time; the third has no bound. The last two have the same time: the
    first by offset counts.
    """
    log = []
    for offset, (time, at_most) in enumerate([(10, 10), (40, 45), (50, None), (30, 30), (30, 31)]):
        store = MemoryStore()  # one store for each file, which counts its calls
        file = segment(store, offset, [time])
        log.append(FileSlice(store, file, offset, offset + 1, at_most))
    before = [piece.store.counts.reads for piece in log]
    assert look(log) == answer
    assert [n for n, piece in enumerate(log) if piece.store.counts.reads > before[n]] == opened


def test_row_groups_that_cannot_match_are_not_read() -> None:
    """Statistics exclude the other files, at no cost for any number of them."""
    store, [many] = pieces_of([list(range(1_000))], row_group_rows=20)
    assert read_segment(store, many.file).parquet.num_row_groups >= 40
    before = store.counts.snapshot()
    assert first_at_or_after([many], 990) == FoundOffset(990, 990)
    reads = (store.counts - before).reads
    before = store.counts.snapshot()
    assert first_at_or_after([many], 0) == FoundOffset(0, 0)
    assert reads == (store.counts - before).reads <= 2, "one row group either way"


def test_only_the_timestamps_are_read() -> None:
    """The values are four kilobytes each."""
    store, [piece] = pieces_of([list(range(500))])
    read_segment(store, piece.file)
    before = store.counts.snapshot()
    first_at_or_after([piece], 499)
    assert (store.counts - before).read_bytes < 10_000


def test_the_largest_timestamp_comes_from_the_footer() -> None:
    store, [piece] = pieces_of([[3, 9, 4]])
    read_segment(store, piece.file)
    before = store.counts.snapshot()
    assert largest_timestamp([piece]) == FoundOffset(1, 9)
    assert (store.counts - before).requests == 0


def test_times_beyond_the_calendar_are_numbers_like_others() -> None:
    """A producer that writes nanoseconds as microseconds is in the year 50,000."""
    far = 1_700_000_000_000_000_000
    _, pieces = pieces_of([[5, far, far + 1]], row_group_rows=1)
    assert first_at_or_after(pieces, far + 1) == FoundOffset(2, far + 1)


# ---------------------------------------------------------------------------------- failures


def test_a_file_that_is_gone_has_changed() -> None:
    store, [piece] = pieces_of([[1, 2]])
    read_segment(store, piece.file)
    store.delete([piece.file.object.name])
    with pytest.raises(SourceChangedError):
        first_at_or_after([piece], 2)


def test_damaged_timestamps_are_corruption() -> None:
    store, [piece] = pieces_of([list(range(500))])
    data = bytearray(store.read(piece.file.object.name))
    columns = read_segment(store, piece.file).parquet.row_group(0)
    column = next(c for c in map(columns.column, range(8)) if c.path_in_schema == "timestamp")
    data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    other = MemoryStore()
    other.create(piece.file.object.name, bytes(data))
    [stored] = other.list("")
    with pytest.raises(CorruptSegmentError):
        first_at_or_after([FileSlice(other, DataFile(piece.file.name, stored), 0, 500)], 400)

"""Look-up by time, without reading data that cannot match: footers, row-group statistics, one column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from partitions.errors import SourceChangedError
from partitions.listing import DataFile
from partitions.offsets import Answer, FoundOffset, UnknownOffset
from partitions.segment import Segment, read_segment
from partitions.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Piece:
    """A file's part ``[start, end)`` of a log, in either tier."""

    store: Store
    file: DataFile
    start: int
    end: int

    @property
    def segment(self) -> Segment:
        """The file's footers."""
        return read_segment(self.store, self.file)


def first_at_or_after(pieces: Iterable[Piece], timestamp_us: int) -> Answer:
    """The first record, by offset, whose timestamp is at or above ``timestamp_us`` (offsetsForTimes).

    ``pieces`` is the log in order, remote then local.
    """
    for piece in pieces:
        if piece.segment.footer.max_timestamp_us < timestamp_us:
            continue
        found = _first_in(piece, timestamp_us)
        if found is not None:
            return found
    return UnknownOffset("no record is that late")


def largest_timestamp(pieces: Iterable[Piece]) -> Answer:
    """The first record that has the largest timestamp (KIP-734's MAX_TIMESTAMP)."""
    best: FoundOffset | None = None
    for piece in pieces:
        found = _largest_in(piece)
        if found is not None and (best is None or (found.timestamp_us or 0) > (best.timestamp_us or 0)):
            best = found
    return UnknownOffset("the log is empty") if best is None else best


def _largest_in(piece: Piece) -> FoundOffset | None:
    footer = piece.segment.footer
    if piece.start <= footer.max_timestamp_offset < piece.end:
        return FoundOffset(footer.max_timestamp_offset, footer.max_timestamp_us)
    best: FoundOffset | None = None  # the footer's record is cut off: look at the rest
    for first, timestamps in _timestamps(piece, minimum_us=None):
        largest = pc.max(timestamps).as_py()
        if largest is not None and (best is None or largest > (best.timestamp_us or 0)):
            best = FoundOffset(first + pc.index(timestamps, largest).as_py(), largest)
    return best


def _first_in(piece: Piece, timestamp_us: int) -> FoundOffset | None:
    for first, timestamps in _timestamps(piece, minimum_us=timestamp_us):
        late_enough = pc.greater_equal(timestamps, timestamp_us)
        index = pc.index(late_enough, True).as_py()
        if index >= 0:
            return FoundOffset(first + index, timestamps[index].as_py())
    return None


def _timestamps(piece: Piece, minimum_us: int | None) -> Iterable[tuple[int, pa.Array]]:
    """``(first offset, timestamps in microseconds)`` of each row group that may hold a match."""
    metadata = piece.segment.parquet
    first = piece.file.name.base_offset
    try:
        with piece.store.open(piece.file.object) as source:
            parquet = pq.ParquetFile(source, metadata=metadata)
            for group in range(metadata.num_row_groups):
                rows = metadata.row_group(group).num_rows
                start, end = max(first, piece.start), min(first + rows, piece.end)
                if start < end and not _too_early(metadata, group, minimum_us):
                    table = parquet.read_row_group(group, columns=["timestamp"])
                    values = table.column(0).combine_chunks().cast(pa.int64())
                    yield start, values.slice(start - first, end - start)
                first += rows
    except FileNotFoundError as error:
        raise SourceChangedError(
            f"{piece.store.uri_of(piece.file.object.name)} was deleted since it was listed"
        ) from error


def _too_early(metadata: pq.FileMetaData, group: int, minimum_us: int | None) -> bool:
    if minimum_us is None:
        return False
    chunk = metadata.row_group(group)
    for index in range(chunk.num_columns):
        if chunk.column(index).path_in_schema == "timestamp":
            statistics = chunk.column(index).statistics
            if statistics is None or not statistics.has_min_max:
                return False
            return _micros(statistics.max) < minimum_us
    return False


def _micros(value: object) -> int:
    return int(pa.scalar(value, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py())

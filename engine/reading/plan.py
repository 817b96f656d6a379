"""The plan of a read: the exact files that hold ``[start, end)`` of a partition. Pure.

Pinned to the state at planning: records appended later are not in it, and what retention removes later
stays readable for ``file.delete.delay.ms``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitions.errors import LogGapError, OffsetOutOfRangeError
from partitions.lookup import Piece


@dataclass(frozen=True, slots=True)
class FileRange:
    """The part ``[start, end)`` of a file that itself holds ``[file_start, file_end)``."""

    uri: str
    partition: int
    start: int
    end: int
    file_start: int
    file_end: int
    size_bytes: int
    remote: bool

    @property
    def whole(self) -> bool:
        """Whether all records of the file count."""
        return self.start == self.file_start and self.end == self.file_end


@dataclass(frozen=True, slots=True)
class PartitionPieces:
    """A readable partition: its pieces in order, remote then local, contiguous over
    ``[log_start, high_watermark)``.
    """

    topic: str
    partition: int
    log_start: int
    high_watermark: int
    pieces: Sequence[Piece]
    remote_until: int
    """Pieces below this offset are remote."""


def readable_pieces(
    what: str, remote: Sequence[Piece], local: Sequence[Piece], log_start: int, high_watermark: int
) -> list[Piece]:
    """The pieces of both tiers over ``[log_start, high_watermark)``: local where the local log holds it,
    remote below that.

    Raises: LogGapError when neither tier holds a part of it.
    """
    local_start = local[0].start if local else high_watermark
    chosen: list[Piece] = []
    position = log_start
    for pieces, until in ((remote, min(local_start, high_watermark)), (local, high_watermark)):
        for piece in pieces:
            upper = min(piece.end, until)
            if upper <= position:
                continue
            if piece.start > position:
                break
            whole = piece.start == position and piece.end == upper  # as nearly all are: no second object for each
            chosen.append(piece if whole else Piece(piece.store, piece.file, position, upper))
            position = upper
    if position < high_watermark:
        raise LogGapError(
            f"{what}: offsets from {position} on (of [{log_start}, {high_watermark})) are neither in the local "
            "log nor in the remote one; verify the partition"
        )
    return chosen


def file_ranges(partition: PartitionPieces, start: int, end: int) -> list[FileRange]:
    """The files that hold ``[start, end)`` of the partition.

    Raises: OffsetOutOfRangeError outside ``[log_start, high_watermark]``.
    """
    low, high = partition.log_start, partition.high_watermark
    if not low <= start <= end <= high:
        raise OffsetOutOfRangeError(
            f"{partition.topic}-{partition.partition}: offsets [{start}, {end}) are not in [{low}, {high}), "
            "the log start offset and the high watermark"
        )
    ranges = []
    for piece in partition.pieces:
        if piece.start < end and piece.end > start:
            name = piece.file.name
            file_end = piece.segment.footer.next_offset if name.next_offset is None else name.next_offset
            ranges.append(
                FileRange(
                    uri=piece.store.uri_of(piece.file.object.name),
                    partition=partition.partition,
                    start=max(piece.start, start),
                    end=min(piece.end, end),
                    file_start=name.base_offset,
                    file_end=file_end,
                    size_bytes=piece.file.object.size_bytes,
                    remote=piece.end <= partition.remote_until,
                )
            )
    return ranges

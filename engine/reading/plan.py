"""Selects the files of a read: exactly the files that contain ``[start, end)`` of a partition, from either tier
and a replica. Pure, except that it reads the footers of appends, because their names do not give the end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter

import msgspec

from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.partitions.errors import CorruptSegmentError, LogGapError, OffsetOutOfRangeError
from stratalog.partitions.listing import missing_file
from stratalog.partitions.lookup import FileSlice, TimeRange
from stratalog.partitions.paths import DataName
from stratalog.partitions.segments.reader import end_of_file

_START, _END = attrgetter("start"), attrgetter("end")
_A_TIME = 1_000_000_000
"""An offset that is out of range and at least this large may be meant as a time: seconds or milliseconds since
1970.
"""


class FileRange(msgspec.Struct, frozen=True, gc=False):
    """The part ``[start, end)`` of a file that holds ``[file_start, file_end)``. There may be 100,000 such
    objects, so the garbage collector does not track them.
    """

    uri: str
    partition: int
    start: int
    end: int
    file_start: int
    file_end: int
    size_bytes: int
    remote: bool
    broker: int | None = None
    """The broker of the replica; None for a remote file, or if unknown."""
    marked: bool = False
    """Whether the file may contain markers, gaps and aborted records; the file's column ``control`` shows them."""

    @property
    def whole(self) -> bool:
        """Whether the part is the complete file."""
        return self.start == self.file_start and self.end == self.file_end


@dataclass(frozen=True, slots=True)
class PartitionPieces:
    """A readable partition: its pieces in order, remote pieces first, contiguous over ``[log_start,
    high_watermark)``.
    """

    topic: str
    partition: int
    log_start: int
    high_watermark: int
    pieces: Sequence[FileSlice]
    remote_until: int
    """Pieces below this offset are remote."""
    hidden: frozenset[DataName] = frozenset()
    """Files in which the reader sees no record: markers, and appends of aborted transactions."""
    marked_below: int = 0
    """Merged and remote files that begin below this offset may be ``FileRange.marked``."""
    gaps: frozenset[DataName] = frozenset()
    """Other files that may be ``FileRange.marked``, because they have gaps."""

    def is_remote(self, piece: FileSlice) -> bool:
        """Whether the piece is in the remote tier."""
        return piece.end <= self.remote_until

    def hides(self, piece: FileSlice) -> bool:
        """Whether the reader sees nothing of the piece."""
        return piece.file.name in self.hidden and not self.is_remote(piece)

    def may_be_marked(self, piece: FileSlice) -> bool:
        """Whether the piece may hold hidden records; the column ``control`` shows them."""
        name = piece.file.name
        return (
            name in self.gaps
            or bool(name.generation)
            or (name.base_offset < self.marked_below and (name.merged or self.is_remote(piece)))
        )


@dataclass(frozen=True, slots=True)
class NearPieces:
    """The pieces of the follower to read from, in order of offsets. The follower serves no records from ``until``
    on."""

    pieces: Sequence[FileSlice]
    until: int


def readable_pieces(
    what: str,
    remote: Sequence[FileSlice],
    local: Sequence[FileSlice],
    log_start: int,
    high_watermark: int,
    near: NearPieces | None = None,
) -> list[FileSlice]:
    """The pieces that cover ``[log_start, high_watermark)`` in both tiers. Local pieces come from the near replica
    if it serves them. If it does not, they come from the leader (``local``). Offsets below the start of both logs
    come from the remote tier.

    Raises: LogGapError when no source has a part of that range.
    """
    layers = [(local, high_watermark)]
    if near is not None and near.pieces:
        layers = [(local, near.pieces[0].start), (near.pieces, near.until), *layers]
    local_start = min((pieces[0].start for pieces, _ in layers if pieces), default=high_watermark)
    chosen: list[FileSlice] = []
    position = log_start
    for piece in remote:
        upper = min(piece.end, local_start, high_watermark)
        if upper <= position:
            continue
        if piece.start > position:
            break
        # true for nearly all pieces, so no second object is made for each
        whole = piece.start == position and piece.end == upper
        chosen.append(piece if whole else replace(piece, start=position, end=upper))
        position = upper
    for pieces, until in layers:
        if some := _of_log(pieces, position, min(until, high_watermark)):
            chosen += some
            position = some[-1].end
    if position < high_watermark:
        raise LogGapError(
            f"{what}: offsets from {position} on (of [{log_start}, {high_watermark})) are neither in the local "
            "nor in the remote log; verify the partition"
        )
    return chosen


def _of_log(pieces: Sequence[FileSlice], start: int, end: int) -> list[FileSlice]:
    """The part ``[start, end)`` of the pieces of a log, which have no gaps; empty if the log begins after that
    part.
    """
    some = [*pieces[bisect_right(pieces, start, key=_END) : bisect_left(pieces, end, key=_START)]]
    if not some or some[0].start > start:
        return []
    if some[0].start < start:
        some[0] = replace(some[0], start=start)
    if some[-1].end > end:
        some[-1] = replace(some[-1], end=end)
    return some


def file_ranges(
    partition: PartitionPieces,
    start: int,
    end: int,
    brokers: Mapping[str, int] | None = None,
    times: TimeRange | None = None,
) -> list[FileRange]:
    """The files with the records of ``[start, end)`` that the reader gets; with ``times``, only files that may
    have records of these times. ``brokers``: the broker of each store, by address.

    Raises: OffsetOutOfRangeError outside ``[log_start, high_watermark]``; LogGapError when a file ends too early;
        errors from reading a footer.
    """
    what = f"{partition.topic}-{partition.partition}"
    check_range(what, start, end, partition.log_start, partition.high_watermark)
    ranges = []
    first = bisect_right(partition.pieces, start, key=_END)
    for piece in islice(partition.pieces, first, None):
        if piece.start >= end:
            break
        remote, name = partition.is_remote(piece), piece.file.name
        if max(piece.start, start) >= min(piece.end, end) or partition.hides(piece):
            continue
        if times is None or piece.may_hold(times):
            ranges.append(
                FileRange(
                    uri=piece.store.uri_of(piece.file.object.name),
                    partition=partition.partition,
                    start=max(piece.start, start),
                    end=min(piece.end, end),
                    file_start=name.base_offset,
                    file_end=check_end(what, piece),
                    size_bytes=piece.file.object.size_bytes,
                    remote=remote,
                    broker=None if remote or brokers is None else brokers.get(piece.store.uri),
                    marked=partition.may_be_marked(piece),
                )
            )
    return ranges


def check_range(what: str, start: int, end: int, log_start: int, high_watermark: int) -> None:
    """Raises: OffsetOutOfRangeError unless ``log_start <= start <= end <= high_watermark``."""
    held = f"readers see [{log_start}, {high_watermark}), from the log start offset to the high watermark"
    if max(start, end) >= _A_TIME:
        held += "; a number is an offset: give a time as a datetime, or as text such as 2013-06-01"
    if start > high_watermark:
        raise OffsetOutOfRangeError(f"{what}: start {start} is above the high watermark: {held}")
    if end > high_watermark:
        raise OffsetOutOfRangeError(f"{what}: end {end} is above the high watermark: {held}")
    if start > end:
        raise OffsetOutOfRangeError(f"{what}: start {start} is after end {end}")
    if start < log_start:
        raise OffsetOutOfRangeError(
            f"{what}: start {start} is below the log start: {held}; the records below it "
            "were deleted: fail_on_data_loss=False reads the rest"
        )


def check_end(what: str, piece: FileSlice) -> int:
    """Check the end of the file of a piece. The footer of an append must match the end inferred from the next
    file, because otherwise records would silently be missing.

    Raises: LogGapError; CorruptSegmentError naming the partition and its offsets.
    """
    try:
        end = end_of_file(piece.store, piece.file)
    except CorruptSegmentError as error:
        raise with_remedy(unreadable(what, piece.start, piece.end, error)) from error
    if end < piece.end:
        raise missing_file(f"{what}: {piece.store.uri_of(piece.file.object.name)}", end, piece.end)
    return end

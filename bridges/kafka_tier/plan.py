"""Plans the segments to read for a range of a partition, and finds the unclear offsets. Pure.

A segment is used under these conditions: its upload has finished; its deletion and its partition's deletion have
not begun; its messages do not contradict one another; and its leader epochs belong to the current history. Uploads
may overlap, because a new leader uploads again. At each offset the plan takes the segment that extends farthest.
The plan lists offsets that no segment covers as unclear, and gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.bridges.kafka_tier.lineage import LeaderEpochs
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState

_WHY = {
    SegmentState.COPY_SEGMENT_STARTED: "its upload has not finished",
    SegmentState.DELETE_SEGMENT_STARTED: "its deletion has begun",
    SegmentState.DELETE_SEGMENT_FINISHED: "it was deleted",
}


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Offsets ``[start, end)`` to read from one segment."""

    segment: RemoteLogSegment
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unclear:
    """Unclear offsets ``[start, end)`` of a partition."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets [{self.start}, {self.end}): {self.reason}"


@dataclass(frozen=True, slots=True)
class TierPartition:
    """The pieces to read of a partition, by offset, and the unclear offsets of ``[start, end)``."""

    topic: str
    partition: int
    epochs: LeaderEpochs
    start: int
    end: int
    pieces: tuple[SegmentRange, ...]
    unclear: tuple[Unclear, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The reason why a segment, or a part of it, is left out, by the segment's id."""

    def runs(self) -> list[tuple[SegmentRange, ...]]:
        """The pieces, grouped into runs without gaps."""
        found: list[list[SegmentRange]] = []
        for piece in self.pieces:
            if found and found[-1][-1].end == piece.start:
                found[-1].append(piece)
            else:
                found.append([piece])
        return [tuple(run) for run in found]


def within(pieces: Sequence[SegmentRange], start: int | None, end: int | None) -> list[SegmentRange]:
    """The parts of the pieces with offsets ``[start, end)``; None means no bound."""
    cut = [
        replace(
            piece,
            start=piece.start if start is None else max(piece.start, start),
            end=piece.end if end is None else min(piece.end, end),
        )
        for piece in pieces
    ]
    return [piece for piece in cut if piece.start < piece.end]


def plan_partition(
    topic: str,
    partition: int,
    segments: Sequence[RemoteLogSegment],
    refused: Mapping[str, str],
    epochs: LeaderEpochs,
    log_start: int | None = None,
) -> TierPartition:
    """The plan for the whole tier. ``refused``: segments to ignore in any state, by id, with the reason.
    ``log_start``: the log start, if known; records below it were deleted, even if a segment still has them.
    """
    good: list[SegmentRange] = []
    bad: list[tuple[RemoteLogSegment, str]] = []
    for segment in segments:
        if segment.segment_id in refused:
            bad.append((segment, refused[segment.segment_id]))
        elif segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
            bad.append((segment, _WHY[segment.state]))
        elif ranges := epochs.ranges_of(segment):
            good += [SegmentRange(segment, start, end) for start, end in ranges]
            if ranges != [(segment.start_offset, segment.next_offset)]:
                bad.append((segment, "part of it belongs to an abandoned history"))
        else:
            bad.append((segment, "it belongs to an abandoned history"))
    present = [one for one, _ in bad if one.state < SegmentState.DELETE_SEGMENT_FINISHED and epochs.ranges_of(one)]
    firsts = [piece.start for piece in good] + [one.start_offset for one in present]
    lasts = [piece.end for piece in good] + [epochs.ranges_of(one)[-1][1] for one in present]
    start = min(firsts, default=0) if log_start is None else log_start
    end = max([start, *lasts])
    pieces, unclear = _walk(topic, partition, sorted(good, key=lambda p: (p.start, p.end)), bad, start, end)
    left_out = {one.segment_id: why for one, why in bad}
    return TierPartition(topic, partition, epochs, start, end, tuple(pieces), tuple(unclear), left_out)


def _walk(
    topic: str,
    partition: int,
    good: Sequence[SegmentRange],
    bad: Sequence[tuple[RemoteLogSegment, str]],
    start: int,
    end: int,
) -> tuple[list[SegmentRange], list[Unclear]]:
    pieces: list[SegmentRange] = []
    unclear: list[Unclear] = []
    at, next_one, best = start, 0, None
    while at < end:
        while next_one < len(good) and good[next_one].start <= at:
            if best is None or good[next_one].end > best.end:
                best = good[next_one]
            next_one += 1
        if best is not None and best.end > at:
            pieces.append(SegmentRange(best.segment, at, min(best.end, end)))
            at = best.end
            continue
        until = min(good[next_one].start if next_one < len(good) else end, end)
        unclear.append(Unclear(topic, partition, at, until, _reason(bad, at, until)))
        at = until
    return pieces, unclear


def _reason(bad: Sequence[tuple[RemoteLogSegment, str]], start: int, end: int) -> str:
    reasons = [
        f"segment {one.segment_id}: {why}"
        for one, why in bad
        if one.start_offset < end and one.next_offset > start
    ]
    return "; ".join(reasons[:3]) if reasons else "no segment with a finished upload has these offsets"


def is_missed(one: Unclear, plan: TierPartition, low: int | None, high: int | None) -> bool:
    """Whether a read of ``[low, high)`` misses these offsets. Before the first and after the last piece, only a
    read with an explicit bound misses them. Without pieces there is no clear offset at which to begin or end, so
    every read misses them.
    """
    first = plan.pieces[0].start if plan.pieces else plan.start
    last = plan.pieces[-1].end if plan.pieces else plan.end
    begin = first if low is None else low
    end = last if high is None else high
    return one.start < end and one.end > begin


def is_open_ended(one: Unclear, plan: TierPartition, low: int | None, high: int | None) -> bool:
    """Whether these offsets are beyond an open bound of the read."""
    if not plan.pieces:
        return False
    return low is None if one.end <= plan.pieces[0].start else high is None

"""Resolves bounds that are times, by segments' latest times, time indexes, and a part of one segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.bridges.kafka_tier.indexes import parse_time_index
from stratalog.bridges.kafka_tier.layout import IndexKind, OpenSegment
from stratalog.bridges.kafka_tier.plan import SegmentRange, TierPartition
from stratalog.bridges.kafka_tier.reading import TierTask, read_task
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment
from stratalog.partitions.lookup import TimeRange


def may_hold(segment: RemoteLogSegment, times: TimeRange | None) -> bool:
    """Whether a segment may hold records of these times. (The metadata has the latest time of a segment, but not
    the earliest.)
    """
    if times is None:
        return True
    return not times.is_empty and (times.start_us is None or segment.max_timestamp_ms * 1000 >= times.start_us)


def start_of_times(opened: OpenSegment, piece: SegmentRange, times: TimeRange | None) -> int:
    """The offset from which a piece may have records of these times, by its time index; at least its start.

    Raises: see ``OpenSegment.index``, ``parse_time_index``.
    """
    if times is None or times.start_us is None:
        return piece.start
    index = parse_time_index(opened.index(IndexKind.TIMESTAMP), piece.segment)
    first = index.first_at(-(-times.start_us // 1000))
    return piece.start if first is None else max(piece.start, first)


def end_at(plan: TierPartition, opened: Callable[[SegmentRange], OpenSegment], timestamp_us: int) -> int:
    """The first offset whose record has this time or a later one; the end of the last piece if there is none.

    Raises: see ``read_task``.
    """
    times = TimeRange(timestamp_us, None)
    for piece in plan.pieces:
        if not may_hold(piece.segment, times):
            continue
        start = start_of_times(opened(piece), piece, times)
        if start >= piece.end:
            continue
        task = TierTask(opened(piece), replace(piece, start=start), plan.epochs, None, times)
        for rows in read_task(task, first=True):
            found: pa.Scalar = pc.min(rows.column("offset"))
            return int(found.as_py())
    return plan.pieces[-1].end if plan.pieces else plan.start

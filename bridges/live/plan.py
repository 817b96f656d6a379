"""A read of a mirrored topic and its source, pinned by offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from stratalog.bridges.live.boundary import Boundary, LiveTopic
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import Bound, OffsetBound, ReadQuery
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.plan_read import plan_read
from stratalog.engine.reading.read_plan import PartitionPlan, ReadPlan
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from stratalog.partitions.lookup import TimeRange
from stratalog.partitions.offsets import OffsetSpec

PIECE_OFFSETS = 250_000
"""The number of offsets of a partition that one task reads from the source."""


NO_EPOCHS: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SourcePiece:
    """The offsets ``[start, end)`` of a partition, to be read from the source."""

    partition: int
    start: int
    end: int
    leader_epoch: int | None
    """The leader epoch of the record before ``start``, if known."""


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Each record of the range once: from the log here, or from the source."""

    live: LiveTopic
    log: ReadPlan
    pieces: tuple[SourcePiece, ...]
    times: TimeRange | None
    notes: tuple[str, ...]
    """Notes about lost offsets that the caller accepts."""


def plan_live(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    live: LiveTopic,
    start: Bound,
    end: Bound,
    *,
    partitions: Collection[int] | None = None,
    epochs: Mapping[int, int] = NO_EPOCHS,
    fail_on_data_loss: bool = True,
) -> LivePlan:
    """Plan a read of the offsets, or the times, ``[start, end)`` of some partitions of the topic; see
    ``Cluster.read_live``. ``epochs`` are the source's leader epochs of the records before ``start``, if known.

    Raises: OffsetOutOfRangeError for offsets beyond the end, or that neither side has, unless lost offsets are
    accepted; UnknownTopicOrPartitionError; InvalidCallError for any other bound; see ``plan_read``.
    """
    name = live.topic.name
    query = ReadQuery(topics=(name,), start=start, end=end)
    if query.times is not None and (query.first is not None or query.until is not None):
        raise InvalidCallError(f"start = {start!r}, end = {end!r}: bound a live read by offsets or by times")
    query.check_times(clock.now_ms())
    ranges = {
        partition: _range(f"{name}-{partition}", boundary, first, until)
        for partition, boundary in live.boundaries.items()
        if partitions is None or partition in partitions
        for first in [_offset(query.first, partition, live, "start")]
        for until in [_offset(query.until, partition, live, "end")]
    }
    notes = [
        note
        for partition, (first, until) in ranges.items()
        if (note := _lost(f"{name}-{partition}", live.boundaries[partition], first, until)) is not None
    ]
    if notes and fail_on_data_loss:
        raise OffsetOutOfRangeError(f"{notes[0]}; fail_on_data_loss=False reads the rest")
    log = _plan_here(metadata, storage, clock, memory, live, ranges, query, fail_on_data_loss=fail_on_data_loss)
    pieces = tuple(
        piece
        for partition, (first, until) in sorted(ranges.items())
        for piece in _pieces(partition, live.boundaries[partition], first, until, epochs.get(partition))
    )
    return LivePlan(live, log, pieces, query.times, tuple(notes))


def _offset(bound: OffsetBound, partition: int, live: LiveTopic, what: str) -> int | None:
    """The offset of a bound; None without a bound."""
    if isinstance(bound, Mapping):
        unknown = [key for key in bound if key not in live.boundaries]
        if unknown:
            raise UnknownTopicOrPartitionError(f"{what}: topic {live.topic.name!r} has no partition {unknown[0]}")
        bound = bound.get(partition)
    if bound is None or (isinstance(bound, int) and not isinstance(bound, OffsetSpec)):
        return bound
    raise InvalidCallError(f"{what} = {bound!r}: a live read is bounded by offsets or by times")


def _range(what: str, boundary: Boundary, start: int | None, end: int | None) -> tuple[int | None, int]:
    """The range ``[start, end)``; a start of None is the log start here. Raises: OffsetOutOfRangeError."""
    until = boundary.end if end is None else end
    if until > boundary.end or (start is not None and start > until):
        raise OffsetOutOfRangeError(
            f"{what}: the read is of [{start}, {until}), but committed records end at {boundary.end} in Kafka, "
            f"and at {boundary.offset} here"
        )
    return start, until


def _lost(what: str, boundary: Boundary, start: int | None, end: int) -> str | None:
    if boundary.lost is None:
        return None
    low, high = max(boundary.lost[0], start or 0), min(boundary.lost[1], end)
    if low >= high:
        return None
    return (
        f"{what}: Kafka's retention had deleted the offsets [{low}, {high}) before they were mirrored: mirror "
        "more often, or keep records in Kafka for longer"
    )


def _plan_here(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    live: LiveTopic,
    ranges: Mapping[int, tuple[int | None, int]],
    query: ReadQuery,
    *,
    fail_on_data_loss: bool,
) -> ReadPlan:
    at = {one.partition: live.boundaries[one.partition].offset for one in live.topic.partitions}
    here = {partition: ranges[partition] for partition in at if partition in ranges}
    if not here:  # only the source has these partitions: an empty frame with the right columns
        partition, offset = next(iter(at.items()))
        here = {partition: (offset, offset)}
    if query.times is None:
        starts = {
            partition: min(at[partition], first) for partition, (first, _) in here.items() if first is not None
        }
        ends = {partition: min(at[partition], until) for partition, (_, until) in here.items()}
        query = replace(query, start=starts or None, end=ends, fail_on_data_loss=fail_on_data_loss)
    query = replace(query, partitions=list(here))
    plan = plan_read(metadata, storage, clock, memory, query, client_metadata(storage.file, None, None))
    return replace(plan, partitions=tuple(_below(one, at[one.partition]) for one in plan.partitions))


def _below(plan: PartitionPlan, boundary: int) -> PartitionPlan:
    """The plan without records that another mirror has appended since the boundary was determined."""
    if plan.end <= boundary:
        return plan
    files = tuple(
        file if file.end <= boundary else msgspec.structs.replace(file, end=boundary)
        for file in plan.files
        if file.start < boundary
    )
    return replace(plan, end=boundary, start=min(plan.start, boundary), files=files)


def _pieces(
    partition: int, boundary: Boundary, start: int | None, end: int, before: int | None
) -> list[SourcePiece]:
    low = max(boundary.offset, boundary.there.log_start, start or 0)
    epoch = boundary.leader_epoch if low == boundary.offset else before if low == start else None
    return [
        SourcePiece(partition, first, min(first + PIECE_OFFSETS, end), epoch if first == low else None)
        for first in range(low, end, PIECE_OFFSETS)
    ]

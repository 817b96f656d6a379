"""ListOffsets: named positions of partitions, and positions by time, in both tiers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from engine.context import Context
from engine.operations.reading.look import PartitionState, SeenLeader, look
from partitions.errors import InvalidCallError
from partitions.lookup import first_at_or_after, largest_timestamp
from partitions.offsets import Answer, FoundOffset, OffsetSpec, UnknownOffset, named_offset
from partitions.transactions import Isolation, isolation_of


def list_offsets(
    context: Context,
    topic: str,
    spec: OffsetSpec | datetime,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
) -> dict[int, Answer]:
    """ListOffsets: a named position, or the first record at or after a time, of each partition, as a reader of
    that isolation level sees it.

    Raises: UnknownTopicOrPartitionError, InvalidCallError for a time without a zone and an unknown level.
    """
    level = isolation_of(isolation)
    _, states = look(context, topic, takes_remote=lambda seen: takes_remote(seen, spec))
    return {state.view.partition: position(state, spec, level) for state in states}


def takes_remote(seen: SeenLeader, spec: OffsetSpec | datetime) -> bool:
    """Whether the leader alone cannot tell the position."""
    if isinstance(spec, datetime) or spec is OffsetSpec.MAX_TIMESTAMP:
        return seen.view.log_start_offset < seen.log.local_start
    return spec in (OffsetSpec.LAST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD)


def position(
    state: PartitionState, spec: OffsetSpec | datetime, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> Answer:
    """The answer for one partition, with the leader epoch of the offset. For readers of committed records LATEST
    is the last stable offset, and a look-up by time finds nothing from there on (KIP-98, "ListOffsetRequest").
    """
    end = state.end(isolation)
    if isinstance(spec, datetime):
        found = first_at_or_after(state.readable.pieces, micros(spec))
    elif spec is OffsetSpec.MAX_TIMESTAMP:
        found = largest_timestamp(state.readable.pieces)
    else:
        found = named_offset(replace(state.positions, high_watermark=end), spec)
    if isinstance(found, FoundOffset) and found.timestamp_us is not None and found.offset >= end:
        found = UnknownOffset(f"what became of offset {found.offset} is not decided yet: a transaction is open")
    if isinstance(found, FoundOffset):
        return FoundOffset(found.offset, found.timestamp_us, state.log.lineage.epoch_at(found.offset))
    return found


def micros(time: datetime) -> int:
    """Microseconds since the epoch. Raises: InvalidCallError for a time without a zone."""
    if time.tzinfo is None:
        raise InvalidCallError(f"{time} has no time zone: give one, e.g. datetime(2013, 1, 1, tzinfo=UTC)")
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds

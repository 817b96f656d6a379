"""ListOffsets: the named positions of a partition, and positions by time (KIP-405, KIP-1023).

Pure: the bounds of the log and the remote log are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class OffsetSpec(IntEnum):
    """Kafka's special timestamps of a ListOffsets request."""

    LATEST = -1
    """The high watermark: the offset after the last record that readers see."""
    EARLIEST = -2
    """The log start offset, in whichever tier it is."""
    MAX_TIMESTAMP = -3
    """The first record that has the largest timestamp."""
    EARLIEST_LOCAL = -4
    """The first offset in the leader's local log."""
    LAST_TIERED = -5
    """The last offset in the remote log."""
    EARLIEST_PENDING_UPLOAD = -6
    """The first offset that is not in the remote log yet (KIP-1023)."""


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """A position: the offset and, if known, its leader epoch. If the request was for a time, a position also has
    the timestamp of the record in microseconds.
    """

    offset: int
    timestamp_us: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class UnknownOffset:
    """The reason why a position does not exist or is unknown."""

    reason: str


Answer = FoundOffset | UnknownOffset


@dataclass(frozen=True, slots=True)
class Positions:
    """The bounds of a partition on its leader: ``log_start`` and ``local_start`` are at most ``high_watermark``,
    which is at most ``log_end``. The log start is above the local start while deleted records are still on the
    leader. The remote log ends at ``remote_end``; None if nothing is tiered.
    """

    log_start: int
    local_start: int
    high_watermark: int
    log_end: int
    remote_end: int | None
    tiered: bool


def named_offset(positions: Positions, spec: OffsetSpec) -> Answer:
    """The answer for a named position, except ``MAX_TIMESTAMP``, which is a lookup by time."""
    match spec:
        case OffsetSpec.LATEST:
            return FoundOffset(positions.high_watermark)
        case OffsetSpec.EARLIEST:
            return FoundOffset(positions.log_start)
        case OffsetSpec.EARLIEST_LOCAL:
            return FoundOffset(max(positions.local_start, positions.log_start))
        case OffsetSpec.LAST_TIERED:
            if positions.remote_end is None:
                return UnknownOffset("nothing is tiered yet" if positions.tiered else "the topic is not tiered")
            return FoundOffset(positions.remote_end - 1)
        case OffsetSpec.EARLIEST_PENDING_UPLOAD:
            return _earliest_pending_upload(positions)
        case OffsetSpec.MAX_TIMESTAMP:
            raise ValueError("for MAX_TIMESTAMP call stratalog.partitions.lookup")


def _earliest_pending_upload(positions: Positions) -> Answer:
    if not positions.tiered:
        return UnknownOffset("the topic is not tiered")
    if positions.remote_end is not None:
        return FoundOffset(max(positions.remote_end, positions.log_start))
    if positions.log_start >= positions.local_start:
        # KIP-1023, "ReplicaFetcher Changes": if no segments were uploaded, all of the log is local and pending.
        return FoundOffset(positions.log_start)
    return UnknownOffset("the remote log was not read")

"""The answer to a fetch at an offset, from the logs of replica and leader (KIP-392, "Out of range handling").
Pure.

A follower may have an outdated log end, high watermark and log start. In Kafka, a follower answers from these,
with OFFSET_NOT_AVAILABLE or OFFSET_OUT_OF_RANGE, and the consumer then asks the leader. Here a reader has listed
the leader before any other replica, so the reader gets the true answer immediately. Records that the replica
cannot serve are read from the leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class FetchAnswer(Enum):
    FROM_REPLICA = auto()
    """The replica holds the record, and the replica's high watermark is above it."""
    FROM_LEADER = auto()
    """The replica lacks the record, or its high watermark is too low; the leader has the record, and the leader's
    high watermark is above it.
    """
    NOTHING_YET = auto()
    """The end of the committed records: no records, and no error."""
    OFFSET_NOT_AVAILABLE = auto()
    """The record is also above the high watermark of the leader, which was elected recently."""
    BELOW_LOG_START = auto()
    """OFFSET_OUT_OF_RANGE: the record is deleted, even if a replica still has it."""
    BEYOND_LOG_END = auto()
    """OFFSET_OUT_OF_RANGE."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one replica's log: ``log_start <= high_watermark <= log_end``."""

    log_start: int
    """The first offset that readers get from the replica; for the leader, from either tier."""
    high_watermark: int
    log_end: int


def fetch_answer(offset: int, replica: Bounds, leader: Bounds) -> FetchAnswer:
    """The answer for a reader of a replica, which may be the leader itself."""
    if offset < leader.log_start:
        return FetchAnswer.BELOW_LOG_START
    if offset > leader.log_end:
        return FetchAnswer.BEYOND_LOG_END
    if offset > leader.high_watermark:
        return FetchAnswer.OFFSET_NOT_AVAILABLE
    if offset == leader.high_watermark:
        return FetchAnswer.NOTHING_YET
    if replica.log_start <= offset < replica.high_watermark:
        return FetchAnswer.FROM_REPLICA
    return FetchAnswer.FROM_LEADER

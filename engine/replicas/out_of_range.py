"""The answer to a fetch at an offset, from the logs of replica and leader (KIP-392, "Out of range handling").
Pure.

A follower may not know the leader's log end, committed records and log start. In Kafka it answers from its own
knowledge, with OFFSET_NOT_AVAILABLE or OFFSET_OUT_OF_RANGE, and the consumer then asks the leader. Here a reader
has listed the leader before any other replica, so it gets the true answer immediately. It reads from the leader
the records that the replica cannot serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class FetchAnswer(Enum):
    """The answer to a fetch."""

    FROM_REPLICA = auto()
    """The replica holds the record, and knows that it is committed."""
    FROM_LEADER = auto()
    """The replica lacks the record, or does not know that it is committed; the leader has the record and knows
    that it is committed."""
    NOTHING_YET = auto()
    """The end of the committed records: no records, and no error."""
    OFFSET_NOT_AVAILABLE = auto()
    """Even the leader, recently elected, does not know that the record is committed."""
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

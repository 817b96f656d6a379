"""The answer to a fetch at an offset, from the logs of replica and leader (KIP-392, "Out of range handling").
Pure.

A replica knows less than its leader: of the end of the log, of what is committed, and of where the log starts, for
each drops old records by itself. In Kafka it answers for itself, OFFSET_NOT_AVAILABLE or OFFSET_OUT_OF_RANGE,
and the consumer finds out at the leader what is true. Here a reader has listed the leader before any other
replica, so the answer is the true one at once, and whatever the replica cannot serve is the leader's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class FetchAnswer(Enum):
    """The answer to a fetch."""

    FROM_REPLICA = auto()
    """It holds the record, and knows that it is committed."""
    FROM_LEADER = auto()
    """It does not hold the record, or does not know that it is committed; the leader does."""
    NOTHING_YET = auto()
    """The end of what is committed: no records, and no error."""
    OFFSET_NOT_AVAILABLE = auto()
    """Not even the recently elected leader knows the record to be committed."""
    BELOW_LOG_START = auto()
    """OFFSET_OUT_OF_RANGE: deleted, wherever a replica may still have it."""
    BEYOND_LOG_END = auto()
    """OFFSET_OUT_OF_RANGE."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the log of one replica: ``log_start <= high_watermark <= log_end``."""

    log_start: int
    """The first offset that readers get of it, in either tier where it is the leader's."""
    high_watermark: int
    log_end: int


def fetch_answer(offset: int, replica: Bounds, leader: Bounds) -> FetchAnswer:
    """The answer for a reader of a replica, or, where both are the same, of the leader."""
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

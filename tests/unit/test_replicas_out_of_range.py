"""KIP-392, "Out of range handling": the four cases of a fetch at a follower, a moved start, a new leader."""

from __future__ import annotations

import pytest

from stratalog.engine.replicas.out_of_range import Bounds, FetchAnswer, fetch_answer

LEADER = Bounds(log_start=10, high_watermark=60, log_end=70)
IN_SYNC = Bounds(log_start=10, high_watermark=50, log_end=70)
"""A follower with all records, but not the latest high watermark."""
BEHIND = Bounds(log_start=10, high_watermark=40, log_end=40)
"""A follower out of sync: the high watermark is above its log end."""
STARTS_LATER = Bounds(log_start=30, high_watermark=60, log_end=70)
STARTS_SOONER = Bounds(log_start=0, high_watermark=60, log_end=70)
ELECTED = Bounds(log_start=10, high_watermark=20, log_end=70)
"""The leader itself, before it knows the commits under the previous leader."""

F = FetchAnswer


@pytest.mark.parametrize(
    ("case", "offset", "replica", "leader", "answer"),
    [
        ("available", 10, IN_SYNC, LEADER, F.FROM_REPLICA),
        ("available", 49, IN_SYNC, LEADER, F.FROM_REPLICA),
        ("1: uncommitted there, committed by the leader's word", 50, IN_SYNC, LEADER, F.FROM_LEADER),
        ("1: uncommitted there, committed by the leader's word", 59, IN_SYNC, LEADER, F.FROM_LEADER),
        ("1: the end of what is committed", 60, IN_SYNC, LEADER, F.NOTHING_YET),
        ("1: uncommitted by the leader's word, too", 61, IN_SYNC, LEADER, F.OFFSET_NOT_AVAILABLE),
        ("1: uncommitted by the leader's word, too", 70, IN_SYNC, LEADER, F.OFFSET_NOT_AVAILABLE),
        ("2: beyond its log end, committed", 40, BEHIND, LEADER, F.FROM_LEADER),
        ("2: beyond its log end, committed", 59, BEHIND, LEADER, F.FROM_LEADER),
        ("3: below its log start, in the log", 10, STARTS_LATER, LEADER, F.FROM_LEADER),
        ("3: below its log start, in the log", 29, STARTS_LATER, LEADER, F.FROM_LEADER),
        ("3: at its log start", 30, STARTS_LATER, LEADER, F.FROM_REPLICA),
        ("3: the log start moved, and it has not dropped them yet", 9, STARTS_SOONER, LEADER, F.BELOW_LOG_START),
        ("3: below every log start", -1, STARTS_SOONER, LEADER, F.BELOW_LOG_START),
        ("4: beyond every log end", 71, IN_SYNC, LEADER, F.BEYOND_LOG_END),
        ("4: beyond every log end", 71, BEHIND, LEADER, F.BEYOND_LOG_END),
        ("the leader", 59, LEADER, LEADER, F.FROM_REPLICA),
        ("the leader", 60, LEADER, LEADER, F.NOTHING_YET),
        ("a new leader", 19, ELECTED, ELECTED, F.FROM_REPLICA),
        ("a new leader", 20, ELECTED, ELECTED, F.NOTHING_YET),
        ("a new leader: committed under the one before", 21, ELECTED, ELECTED, F.OFFSET_NOT_AVAILABLE),
        ("a new leader, of a follower that knows better", 40, IN_SYNC, ELECTED, F.OFFSET_NOT_AVAILABLE),
        ("an empty log", 0, Bounds(0, 0, 0), Bounds(0, 0, 0), F.NOTHING_YET),
        ("an empty follower", 10, Bounds(0, 0, 0), LEADER, F.FROM_LEADER),
    ],
)
def test_a_fetch_is_answered_by_the_bounds_of_replica_and_leader(
    case: str, offset: int, replica: Bounds, leader: Bounds, answer: FetchAnswer
) -> None:
    assert fetch_answer(offset, replica, leader) is answer

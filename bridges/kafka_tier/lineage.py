"""Finds the offsets of a segment that belong to the current leader's history, by leader epochs. Pure.

A leader epoch has one leader, and so one history. After an unclean election the storage has segments of both
histories, until the brokers delete one of them. Epochs distinguish them (KIP-405, "Truncation and unclean leader
election").
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass

from stratalog.bridges.kafka_tier.indexes import check_epochs
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """The leader epochs of a log, each with its first offset, ascending. Raises: CorruptionError otherwise."""

    starts: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        check_epochs(self.starts, "leader epochs")

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the offset; None before the first epoch."""
        at = bisect_right(self.starts, offset, key=lambda one: one[1]) - 1
        return None if at < 0 else self.starts[at][0]

    def run_at(self, offset: int) -> tuple[int | None, int]:
        """The epoch of the offset, as ``epoch_at``, and the next offset at which the epoch may change."""
        at = bisect_right(self.starts, offset, key=lambda one: one[1])
        until = self.starts[at][1] if at < len(self.starts) else sys.maxsize
        return self.starts[at - 1][0] if at else None, until

    def ranges_of(self, segment: RemoteLogSegment) -> list[tuple[int, int]]:
        """The offsets of the segment that belong to this history, as ranges ``[start, end)`` that do not touch."""
        its = segment.leader_epochs
        ends = {
            epoch: self.starts[at + 1][1] if at + 1 < len(self.starts) else None
            for at, (epoch, _) in enumerate(self.starts)
        }
        starts = dict(self.starts)
        found: list[tuple[int, int]] = []
        for at, (epoch, first) in enumerate(its):
            if epoch not in starts:
                continue
            start = max(first, segment.start_offset, starts[epoch])
            end = its[at + 1][1] if at + 1 < len(its) else segment.next_offset
            limit = ends[epoch]
            end = end if limit is None else min(end, limit)
            if start >= end:
                continue
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found

"""How a leader answers a fetch: what is asked for may be in a snapshot only (KIP-630, "Handling Fetch Request";
KIP-595). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitions.errors import CorruptionError
from partitions.lineage import Lineage
from snapshots.snapshot_id import SnapshotId


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """The log of a leader. ``log_start`` is 0 or the end of a snapshot."""

    log_start: int
    log_end: int
    lineage: Lineage
    latest: SnapshotId
    """Its latest snapshot; ``EMPTY`` when it has none."""

    def __post_init__(self) -> None:
        if self.log_start > self.latest.end_offset:
            raise CorruptionError(f"a log starts at {self.log_start}, and its latest snapshot is {self.latest}")


@dataclass(frozen=True, slots=True)
class InLog:
    """The leader has the records from the fetch offset on, and the same ones before it."""

    offset: int


@dataclass(frozen=True, slots=True)
class Diverging:
    """The logs part ways below the fetch offset: ``epoch`` is the leader's greatest one up to the follower's, and
    ends at ``end_offset``. The follower truncates, and asks again.
    """

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class InSnapshot:
    """Fetch this snapshot first, and go on from its end."""

    snapshot_id: SnapshotId


FetchAnswer = InLog | Diverging | InSnapshot


def answer_fetch(leader: LeaderLog, fetch_offset: int, last_epoch: int) -> FetchAnswer:
    """Where a follower goes on that has the records ``[0, fetch_offset)``, the last one of ``last_epoch``. Both
    are 0 for one that has none; one that has only a snapshot says that one's.
    """
    if fetch_offset < leader.log_start:
        return InSnapshot(leader.latest)
    if fetch_offset == 0:
        return InLog(0)
    before_start = leader.lineage.epoch_at(leader.log_start - 1) if leader.log_start > 0 else None
    # Where the log parted ways from the leader's below its start, no offset is left to truncate to.
    if before_start is not None and (
        last_epoch < before_start or (fetch_offset == leader.log_start and last_epoch != before_start)
    ):
        return InSnapshot(leader.latest)
    epoch = max((entry.epoch for entry in leader.lineage if entry.epoch <= last_epoch), default=0)
    following = leader.lineage.end_of(epoch)
    end = leader.log_end if following is None else min(following, leader.log_end)
    return InLog(fetch_offset) if epoch == last_epoch and fetch_offset <= end else Diverging(epoch, end)

"""Computes the start of a log with snapshots, and the snapshots to delete (KIP-630, "When to Increase the
LogStartOffset", "When to Delete Snapshots", "Validation of Snapshot and Log"). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stratalog.partitions.errors import CorruptionError
from stratalog.snapshots.snapshot_id import SnapshotId


@dataclass(frozen=True, slots=True)
class FrozenSnapshot:
    """A snapshot in a replica's folder."""

    snapshot_id: SnapshotId
    frozen_ms: int
    """The creation time by the clock of the storage (``StoredObject.modified_ms``)."""


def leader_start_offset(
    log_start: int,
    snapshots: Iterable[FrozenSnapshot],
    fetched: Collection[int],
    *,
    now_ms: int | None,
    lag_time_max_ms: int,
) -> int:
    """The greatest allowed log start of the leader: the end of its greatest snapshot that all live replicas have
    fetched past, or that is ``lag_time_max_ms`` old (``metadata.start.offset.lag.time.max.ms``); ``log_start`` if
    there is no such snapshot. ``now_ms`` None: the ages are unknown.

    ``fetched`` are the log end offsets of the live replicas except the leader: unfenced followers, and any known
    observers. A driver that only reads is not known and not waited for: it loads the snapshot.
    """
    slowest = min(fetched, default=None)
    allowed = (
        frozen.snapshot_id.end_offset
        for frozen in snapshots
        if slowest is None
        or frozen.snapshot_id.end_offset <= slowest
        or (now_ms is not None and now_ms - frozen.frozen_ms >= lag_time_max_ms)
    )
    return max(log_start, *allowed, 0)


def follower_start_offset(log_start: int, leader_log_start: int, snapshots: Iterable[SnapshotId]) -> int:
    """The greatest allowed log start of a follower: its leader's, but never beyond its own greatest snapshot."""
    own = max((snapshot.end_offset for snapshot in snapshots), default=0)
    return max(log_start, min(leader_log_start, own))


def to_delete(snapshots: Iterable[SnapshotId], log_start: int) -> list[SnapshotId]:
    """The snapshots that end below the log start, in order, without the latest one."""
    ordered = sorted(snapshots)
    return [snapshot for snapshot in ordered[:-1] if snapshot.end_offset < log_start]


def check_invariant(log_start: int, high_watermark: int, snapshots: Iterable[SnapshotId], what: str) -> None:
    """Check the invariant of every replica: if a log does not start at 0, a snapshot ends between its start and
    the high watermark.

    Raises: CorruptionError, which names ``what``.
    """
    ends = [snapshot.end_offset for snapshot in snapshots]
    if log_start > 0 and not any(log_start <= end <= high_watermark for end in ends):
        raise CorruptionError(
            f"{what}: the log starts at {log_start} and is committed up to {high_watermark}, "
            f"but no snapshot ends in this range (existing: {sorted(ends) or 'none'}): the "
            f"state below {log_start} cannot be restored from here"
        )

"""Decides when to take a snapshot (KIP-630, "When to Snapshot"; KIP-876). Pure."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from stratalog.partitions.errors import InvalidConfigError
from stratalog.snapshots.snapshot_id import SnapshotId

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPolicy:
    """The conditions. Raises: InvalidConfigError for a ratio outside [0, 1], or a negative number."""

    min_changed_records_ratio: float = 0.5
    """``metadata.snapshot.min.changed_records.ratio``."""
    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    """``metadata.log.max.record.bytes.between.snapshots``."""
    max_snapshot_interval_ms: int = 60 * 60 * 1000
    """``metadata.log.max.snapshot.interval.ms``; 0: age alone never makes a snapshot due."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_changed_records_ratio <= 1:
            raise InvalidConfigError(
                f"metadata.snapshot.min.changed_records.ratio = {self.min_changed_records_ratio}: use 0 to 1"
            )
        if self.max_record_bytes_between_snapshots < 0:
            raise InvalidConfigError(
                f"metadata.log.max.record.bytes.between.snapshots = {self.max_record_bytes_between_snapshots}: "
                "use 0 or more"
            )
        if self.max_snapshot_interval_ms < 0:
            raise InvalidConfigError(
                f"metadata.log.max.snapshot.interval.ms = {self.max_snapshot_interval_ms}: use 0 (never) or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceSnapshot:
    """The changes since the latest snapshot."""

    latest: SnapshotId
    """The latest snapshot; ``EMPTY`` before the first one."""
    next: SnapshotId
    """The id of a new snapshot: the greatest batch boundary up to the high watermark."""
    log_bytes: int
    """Size of the log between the two."""
    snapshot_records: int
    """The number of records in the latest snapshot; 0 before the first one."""
    changed_records: int
    """The number of snapshot records that have since been changed or deleted: see ``changed_records``."""
    age_ms: int
    """The age of the latest snapshot; before the first one, the age of the log."""


def reason_to_wait(policy: SnapshotPolicy, since: SinceSnapshot, *, by_hand: bool = False) -> str | None:
    """The reason not to take a snapshot now; None if one is due. If there are new records, a snapshot is due when
    it is requested by hand, when enough of the log *and* of the state has changed (KIP-630, both conditions), or
    when the latest one is old (KIP-876).
    """
    if since.next <= since.latest or since.next.end_offset <= since.latest.end_offset:
        return f"nothing has been committed since snapshot {since.latest}"
    if by_hand or is_old(policy, since.age_ms):
        return None
    if since.log_bytes < policy.max_record_bytes_between_snapshots:
        return (
            f"{since.log_bytes} bytes of log since snapshot {since.latest}, below "
            f"metadata.log.max.record.bytes.between.snapshots = {policy.max_record_bytes_between_snapshots}"
        )
    if since.changed_records < policy.min_changed_records_ratio * since.snapshot_records:
        return (
            f"{since.changed_records} of {since.snapshot_records} records of snapshot {since.latest} have "
            f"changed, below metadata.snapshot.min.changed_records.ratio = {policy.min_changed_records_ratio:g}"
        )
    return None


def is_old(policy: SnapshotPolicy, age_ms: int) -> bool:
    """Whether the age of the latest snapshot alone makes the next one due (KIP-876)."""
    return 0 < policy.max_snapshot_interval_ms <= age_ms


def counts_as_changed(touched: int, *, held: bool) -> bool:
    """Whether a record that the log has written or deleted ``touched`` times since the latest snapshot counts
    as changed, ``held`` by that snapshot or not. A new record does not; a new record that was then changed or
    deleted does.
    """
    return touched > 0 if held else touched > 1


def changed_records(held: Container[Key], touched: Iterable[Key]) -> int:
    """The number of changed records: ``held`` are the keys of the latest snapshot, ``touched`` the keys that the
    log has since written or deleted, in any order and with repetitions. Each record counts once.
    """
    times: dict[Key, int] = {}
    for key in touched:
        times[key] = times.get(key, 0) + 1
    return sum(counts_as_changed(count, held=key in held) for key, count in times.items())

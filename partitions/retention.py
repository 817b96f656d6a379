"""Retention: the offset below which a log's records may be deleted. Pure; other modules delete the files.

Total retention (``retention.ms``, ``retention.bytes``) moves the log start offset of the partition. Local
retention (``local.retention.*``) moves the local log start of one replica of a tiered topic, but never beyond the
end of the remote log (KIP-405). As in Kafka, the last file expires like any other: a log that has expired
completely holds no file, and its local start equals its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stratalog.partitions.amounts import bytes_text, span_text
from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.discarded import HiddenBy, discarded
from stratalog.partitions.listing import Listing, ReplicaLog, litter, old_watermarks

UNLIMITED = -1
UNKNOWN_MS = 2**63 // 1000 + 1
"""The value for an unknown largest timestamp of a file: above the timestamp of any record."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A local or remote file of a log, with the data that retention needs: offsets ``[start, end)``."""

    start: int
    end: int
    size_bytes: int
    max_timestamp: int | Callable[[], int]
    """The largest timestamp in ms, or a function that reads it, which may cost a request."""
    written_ms: int = 2**63 - 1
    """The time of writing by the clock of the storage; by default unknown."""

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp of its records."""
        return self.max_timestamp if isinstance(self.max_timestamp, int) else self.max_timestamp()

    def latest_ms(self, now_ms: int) -> int:
        """The time from which the age of the file is measured: its largest timestamp. If that timestamp is in the
        future, the age is measured from the time of writing, because no record can be that young.
        """
        max_timestamp_ms = self.max_timestamp_ms
        return max_timestamp_ms if max_timestamp_ms <= now_ms else min(max_timestamp_ms, self.written_ms)


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The amount to keep: milliseconds by the records' own timestamps, and bytes; -1 is unlimited."""

    retention_ms: int
    retention_bytes: int

    @property
    def by_size(self) -> RetentionLimits:
        """The limits that need no clock."""
        return replace(self, retention_ms=UNLIMITED)


def retained_from(extents: Sequence[LogFile], limits: RetentionLimits, now_ms: int) -> int | None:
    """The offset from which the limits keep the log; None if they keep all of it.

    ``extents`` is the log in order. As in Kafka, whole files expire, oldest first, including the last: by time
    while the largest timestamp of the next file is too old; by size while at least ``retention_bytes`` would
    remain without the next file. (In Kafka a timestamp in the future keeps its segment, and all later segments,
    until then.)
    """
    keep_from: int | None = None
    remaining = sum(extent.size_bytes for extent in extents)
    by_time = by_size = True
    for extent in extents:
        remaining -= extent.size_bytes
        by_time = (
            by_time
            and limits.retention_ms != UNLIMITED
            and (now_ms - extent.latest_ms(now_ms) > limits.retention_ms)
        )
        by_size = by_size and limits.retention_bytes != UNLIMITED and remaining >= limits.retention_bytes
        if not by_time and not by_size:
            break
        keep_from = extent.end
    return keep_from


def why_kept(extents: Sequence[LogFile], limits: RetentionLimits, now_ms: int) -> str:
    """A readable reason why the limits keep all of this log."""
    if not extents:
        return "no records"
    size = bytes_text(sum(extent.size_bytes for extent in extents))
    by_size = limits.retention_bytes != UNLIMITED
    above = f"above {bytes_text(limits.retention_bytes)}" if by_size else ""
    if limits.retention_ms == UNLIMITED:
        return f"{size}: the first file is deleted {above}" if by_size else f"{size}: no limit is set"
    age = span_text(now_ms - extents[0].latest_ms(now_ms))
    after = f"after {span_text(limits.retention_ms)}{f', or {above}' if by_size else ''}"
    return f"{size}, {age}: the first file is deleted {after}"


def next_expiry_ms(extents: Sequence[LogFile], limits: RetentionLimits, now_ms: int) -> int:
    """The earliest time at which the limits may keep less of this log than they do now."""
    if limits.retention_ms == UNLIMITED:
        return FOREVER_MS
    for extent in extents:
        expires_ms = extent.latest_ms(now_ms) + limits.retention_ms + 1
        if expires_ms > now_ms:
            return expires_ms
    return FOREVER_MS


def in_future(extents: Sequence[LogFile], keep_from: int, now_ms: int) -> LogFile | None:
    """The first file with a timestamp in the future. If timestamps have to be read, only the files up to the first
    kept file, and the last file, are checked: the other files are checked when they are the next to expire.
    """
    for extent in extents:
        cheap = isinstance(extent.max_timestamp, int) or extent.start <= keep_from or extent is extents[-1]
        if cheap and now_ms < (at_ms := extent.max_timestamp_ms) < UNKNOWN_MS:
            return replace(extent, max_timestamp=at_ms)
    return None


def local_start_for(log: ReplicaLog, wanted: int) -> int:
    """The offset for a ``.local`` register: the greatest file boundary of the chain at or below ``wanted`` and the
    high watermark, but at least the current local start. So no live append straddles the local start.
    """
    bound = min(wanted, log.high_watermark)
    boundaries = [link.end for link in log.chain if link.end <= bound]
    return max([log.local_start, *boundaries])


KEPT_EPOCHS = 17
"""The number of leader epoch registers to keep: the last one, which is in effect, and earlier ones, which show
whether the last one is foreign.
"""


def removable(log: ReplicaLog, now_ms: int, delay_ms: int, leader_epoch: int | None = None) -> list[str]:
    """The names that a vacuum of this replica may delete now (V6, V10, V11 of the attack on the protocol), if the
    committed leader epoch of its partition is ``leader_epoch`` or later.

    - Files that left the log at least ``delay_ms`` ago (``discarded`` has the time): files below the local start,
      files hidden by a merged segment, and files of another history. A file of another history must be below the
      high watermark, because a file above it may become live again.
    - Registers of local starts below a start that is at least as old as the delay. So a start that moves more
      often does not keep files forever.
    - Superseded high watermarks (``litter``).
    - Registers of leader epochs up to the committed epoch that are at least as old as the delay, except the last
      ``KEPT_EPOCHS`` of these. (A register above the committed epoch belongs to no leader.)
    """
    listing = log.listing
    lasting = _lasting_local_start(listing, now_ms - delay_ms)
    names = [
        str(each.file.name)
        for each in discarded(log)
        if (at := each.deletable_ms(delay_ms)) is not None and at <= now_ms
    ]
    needed = {str(name) for name, _ in listing.local_starts if name.offset >= lasting}
    epochs = _old_epochs(listing, now_ms - delay_ms, leader_epoch) if leader_epoch is not None else []
    return [*names, *(name for name in litter(listing) if name not in needed), *epochs]


def _old_epochs(listing: Listing, until_ms: int, leader_epoch: int) -> list[str]:
    """The registers of leader epochs that are no longer needed."""
    joined = sorted((name, stored) for name, stored in listing.epochs if name.epoch <= leader_epoch)
    lasting = [name for name, stored in joined if stored.modified_ms <= until_ms]
    return [str(name) for name in lasting[:-KEPT_EPOCHS]]


def next_removal_ms(log: ReplicaLog, now_ms: int, delay_ms: int) -> int:
    """The time before which nothing more becomes ``removable``, if the log does not change."""
    found = [at for each in discarded(log) if (at := each.deletable_ms(delay_ms)) is not None]
    found += [stored.modified_ms + delay_ms for _, stored in log.listing.local_starts]
    if len(log.listing.epochs) > KEPT_EPOCHS:
        found += [stored.modified_ms + delay_ms for _, stored in log.listing.epochs]
    return min((at_ms for at_ms in found if at_ms > now_ms), default=FOREVER_MS)


def superseded(log: ReplicaLog, now_ms: int, delay_ms: int) -> list[str]:
    """The part of ``removable`` that appends and merges leave behind: files that merged segments have hidden for
    at least ``delay_ms``, and outdated high watermarks."""
    hidden = [
        str(each.file.name)
        for each in discarded(log)
        if isinstance(each.why, HiddenBy) and (at := each.deletable_ms(delay_ms)) is not None and at <= now_ms
    ]
    return [*hidden, *(str(mark) for mark in old_watermarks(log.listing))]


def _lasting_local_start(listing: Listing, until_ms: int) -> int:
    """The greatest local start that was written at or before ``until_ms``; 0 if there is none."""
    written = (name.offset for name, stored in listing.local_starts if stored.modified_ms <= until_ms)
    return max(written, default=0)

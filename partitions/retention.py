"""Retention: the offset up to which records may leave a log. Pure; the deletion itself is elsewhere.

Total retention (``retention.ms``, ``retention.bytes``) moves the log start offset of the partition.
Local retention (``local.retention.*``) moves the local log start of one replica of a tiered topic, and
never past what is safely in the remote log (KIP-405). The last file goes like any other, as in Kafka: a log of
which all has expired holds no file, and its local start is its end.
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
"""The largest timestamp of a file of which nobody has said one: above that of every record."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log for the purpose of retention, local or remote: offsets ``[start, end)``."""

    start: int
    end: int
    size_bytes: int
    max_timestamp: int | Callable[[], int]
    """In ms, or how to read it, which may cost a request."""
    written_ms: int = 2**63 - 1
    """When the file was written, by the clock of its storage; the default: nobody knows."""

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp of its records."""
        return self.max_timestamp if isinstance(self.max_timestamp, int) else self.max_timestamp()

    def latest_ms(self, now_ms: int) -> int:
        """How old the file is for the purpose of retention: its largest timestamp, unless that is in the future.
        Then no record of it can be as young as it says, and it counts as from when it was written.
        """
        max_timestamp_ms = self.max_timestamp_ms
        return max_timestamp_ms if max_timestamp_ms <= now_ms else min(max_timestamp_ms, self.written_ms)


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How much to keep: milliseconds by the records' own time, and bytes; -1 is unlimited."""

    retention_ms: int
    retention_bytes: int

    @property
    def by_size(self) -> RetentionLimits:
        """Of these, what needs no clock."""
        return replace(self, retention_ms=UNLIMITED)


def retained_from(extents: Sequence[LogFile], limits: RetentionLimits, now_ms: int) -> int | None:
    """The offset from which on the limits keep the log; None when they keep all of it.

    ``extents`` is the log in order. As in Kafka, whole files go, from the oldest on, and the last one too: by
    time while the next one's largest timestamp is too old; by size while what stays without it is still at least
    ``retention_bytes``. (In Kafka a timestamp in the future keeps its segment, and all that comes after it, until
    then.)
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
    """Why the limits keep all of this log, for people."""
    if not extents:
        return "no records"
    size = bytes_text(sum(extent.size_bytes for extent in extents))
    by_size = limits.retention_bytes != UNLIMITED
    above = f"above {bytes_text(limits.retention_bytes)}" if by_size else ""
    if limits.retention_ms == UNLIMITED:
        return f"{size}: the first file goes {above}" if by_size else f"{size}: there is no limit"
    age = span_text(now_ms - extents[0].latest_ms(now_ms))
    after = f"after {span_text(limits.retention_ms)}{f', or {above}' if by_size else ''}"
    return f"{size}, {age}: the first file goes {after}"


def next_expiry_ms(extents: Sequence[LogFile], limits: RetentionLimits, now_ms: int) -> int:
    """Before that time the limits keep of this log what they keep now."""
    if limits.retention_ms == UNLIMITED:
        return FOREVER_MS
    for extent in extents:
        expires_ms = extent.latest_ms(now_ms) + limits.retention_ms + 1
        if expires_ms > now_ms:
            return expires_ms
    return FOREVER_MS


def in_future(extents: Sequence[LogFile], keep_from: int, now_ms: int) -> LogFile | None:
    """The first file with a timestamp that is yet to come. Where timestamps have to be read, only of files up to
    the first one that stays, and of the last one: the others are looked at when it is their turn.
    """
    for extent in extents:
        cheap = isinstance(extent.max_timestamp, int) or extent.start <= keep_from or extent is extents[-1]
        if cheap and now_ms < (at_ms := extent.max_timestamp_ms) < UNKNOWN_MS:
            return replace(extent, max_timestamp=at_ms)
    return None


def local_start_for(log: ReplicaLog, wanted: int) -> int:
    """The greatest file boundary of the chain at or below ``wanted`` (and the high watermark), at least
    the present local start: where a ``.local`` register may stand so that no live append straddles it.
    """
    bound = min(wanted, log.high_watermark)
    boundaries = [link.end for link in log.chain if link.end <= bound]
    return max([log.local_start, *boundaries])


KEPT_EPOCHS = 17
"""Registers of leader epochs that stay: the last one, which counts, and those that tell whether it is foreign."""


def removable(log: ReplicaLog, now_ms: int, delay_ms: int, leader_epoch: int | None = None) -> list[str]:
    """Names that a vacuum of this replica may delete now (V6, V10, V11 of the attack on the protocol), of a
    partition whose committed leader epoch is ``leader_epoch``, or later.

    - files that left the log ``delay_ms`` ago (``discarded`` tells when): below the local start, hidden by a
      merged segment, or of another history; of these only files below the high watermark: above it they may
      come alive again;
    - registers that say nothing any more: of local starts those below one that is as old as the delay, so
      that a start that moves on more often than that does not keep files without end; of leader epochs those
      before the last ``KEPT_EPOCHS`` up to the committed one, all of them as old as the delay. (One above it is
      nobody's, and makes up for none.)
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
    """The registers of leader epochs that nobody needs any more."""
    joined = sorted((name, stored) for name, stored in listing.epochs if name.epoch <= leader_epoch)
    lasting = [name for name, stored in joined if stored.modified_ms <= until_ms]
    return [str(name) for name in lasting[:-KEPT_EPOCHS]]


def next_removal_ms(log: ReplicaLog, now_ms: int, delay_ms: int) -> int:
    """Before that time nothing more is ``removable`` than now, if the log stays as it is."""
    found = [at for each in discarded(log) if (at := each.deletable_ms(delay_ms)) is not None]
    found += [stored.modified_ms + delay_ms for _, stored in log.listing.local_starts]
    if len(log.listing.epochs) > KEPT_EPOCHS:
        found += [stored.modified_ms + delay_ms for _, stored in log.listing.epochs]
    return min((at_ms for at_ms in found if at_ms > now_ms), default=FOREVER_MS)


def superseded(log: ReplicaLog, now_ms: int, delay_ms: int) -> list[str]:
    """Of ``removable``, what appends and merges leave behind: files that merged segments have hidden ``delay_ms``
    ago, and high watermarks that say nothing any more."""
    hidden = [
        str(each.file.name)
        for each in discarded(log)
        if isinstance(each.why, HiddenBy) and (at := each.deletable_ms(delay_ms)) is not None and at <= now_ms
    ]
    return [*hidden, *(str(mark) for mark in old_watermarks(log.listing))]


def _lasting_local_start(listing: Listing, until_ms: int) -> int:
    """The greatest local start that was written up to ``until_ms``; 0 without one."""
    written = (name.offset for name, stored in listing.local_starts if stored.modified_ms <= until_ms)
    return max(written, default=0)

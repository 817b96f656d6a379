"""Files that a replica still holds but its log does not use: the reason, and the time. Pure.

A file leaves a log in three ways: the local log start passes it, a merged segment covers it, or another history
replaces it (a truncation, which does not delete the file). Deletion is delayed in each case
(``file.delete.delay.ms``); a file of a lost history is deleted only when it can never become live again.

The lineage is checked first: a file of another history is truncated, wherever the log starts, because a replica
that follows a tiered history starts again above its former log.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog
from stratalog.partitions.paths import DataName


@dataclass(frozen=True, slots=True)
class BelowLocalStart:
    """The local log start offset has passed the file."""

    local_start: int

    def __str__(self) -> str:
        return f"below the local log start {self.local_start}"


@dataclass(frozen=True, slots=True)
class HiddenBy:
    """Merged segments, including the segment ``name``, hold the records of the file."""

    name: DataName

    def __str__(self) -> str:
        return f"hidden by {self.name}"


@dataclass(frozen=True, slots=True)
class Truncated:
    """From ``offset`` on, the history of this replica has a different epoch than the file. The file extends beyond
    ``offset``, and the log has none of the file's records from there on.
    """

    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"truncated by epoch {self.epoch} at offset {self.offset}"


Why = BelowLocalStart | HiddenBy | Truncated


@dataclass(frozen=True, slots=True)
class Discarded:
    """A data file that the log does not use."""

    file: DataFile
    why: Why
    since_ms: int | None
    """The start of the deletion delay, in ms. None while the file must be kept: under a later leader, a file above
    the high watermark may become live again, or the segment that covers it may be truncated.
    """

    def deletable_ms(self, delay_ms: int) -> int | None:
        """The time from which retention may delete the file; None if unknown."""
        return None if self.since_ms is None else self.since_ms + delay_ms


def discarded(log: ReplicaLog) -> list[Discarded]:
    """The files of a replica that its log does not use, by name. (Files after a gap are not included: they are
    evidence.)
    """
    starts, first_hidden_ms = [link.start for link in log.chain], _first_hidden_ms(log)
    found = [_dead(log, file) for file in log.dead]
    found += [_hidden(log, starts, file, first_hidden_ms) for file in log.hidden]
    return sorted(found, key=lambda each: each.file.name)


def _dead(log: ReplicaLog, file: DataFile) -> Discarded:
    decides = _epoch_offset(file.name)
    epoch = log.lineage.epoch_at(decides)
    if epoch == file.name.epoch or (epoch is None and decides < log.local_start):
        # The delay starts with the first register that starts the log above the file; later registers make no
        # difference.
        written = [stored.modified_ms for name, stored in log.listing.local_starts if decides < name.offset]
        return Discarded(file, BelowLocalStart(log.local_start), min(written, default=None))
    why = _truncation(log.lineage, file.name)
    if decides >= log.high_watermark:
        return Discarded(file, why, None)
    # The file left the log no later than when the replica joined the epoch whose lineage omits it.
    return Discarded(file, why, max(file.object.modified_ms, log.listing.joined_ms))


def truncated_by(listing: Listing, lineage: Lineage) -> list[Discarded]:
    """The files of a former replica that are not part of ``lineage``, the leader's history, by name. The caller
    sets the time.
    """
    found = [
        Discarded(file, _truncation(lineage, file.name), None)
        for file in listing.data
        if lineage.epoch_at(_epoch_offset(file.name)) not in (file.name.epoch, None)
    ]
    return sorted(found, key=lambda each: each.file.name)


def _truncation(lineage: Lineage, name: DataName) -> Truncated:
    """The point where a history diverges from the history of a dead file: the start of the first epoch above the
    file's. If the file ends before that start, this history never had the file's epoch, and diverges at the file's
    base offset.
    """
    later = next((entry for entry in lineage if entry.epoch > name.epoch), None)
    if later is not None and later.start_offset <= _epoch_offset(name):
        return Truncated(later.epoch, later.start_offset)
    return Truncated(lineage.epoch_at(_epoch_offset(name)) or 0, name.base_offset)


def _first_hidden_ms(log: ReplicaLog) -> dict[DataName, int]:
    """The time since which appends are hidden by a merged segment that is itself hidden. A tail of small appends
    is merged again and again. If each merge restarted the delay of the appends, the delay would never end.
    """
    appends = [file for file in log.hidden if not file.name.merged]
    bases = [file.name.base_offset for file in appends]
    since: list[int | None] = [None] * len(appends)
    merges = [
        (file.object.modified_ms, file.name.base_offset, file.name.next_offset)
        for file in log.hidden
        if file.name.next_offset is not None
    ]
    for at_ms, base_offset, next_offset in sorted(merges, reverse=True):
        first, end = bisect_left(bases, base_offset), bisect_left(bases, next_offset)
        since[first:end] = [at_ms] * (end - first)
    return {file.name: at_ms for file, at_ms in zip(appends, since, strict=True) if at_ms is not None}


def _hidden(
    log: ReplicaLog, starts: list[int], file: DataFile, first_hidden_ms: Mapping[DataName, int]
) -> Discarded:
    """A file that merged segments hide. ``starts`` are the start offsets of the chain."""
    name = file.name
    first = max(bisect_right(starts, name.base_offset) - 1, 0)
    covering = log.chain[first : bisect_left(starts, name.least_end)]
    since = None
    if covering and covering[-1].end <= log.high_watermark:
        since = max(link.file.object.modified_ms for link in covering)
        since = min(since, first_hidden_ms.get(name, since))
    return Discarded(file, HiddenBy(covering[0].name if covering else name), since)


def _epoch_offset(name: DataName) -> int:
    """The offset whose epoch decides whether the file is live. The decision is final once the offset is below the
    high watermark.
    """
    return name.least_end - 1

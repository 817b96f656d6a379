"""When a log is compacted, and up to which offset: Kafka's conditions (KIP-58, KIP-354). Pure.

The *clean* part of a log consists of the files that its last removal rule has rewritten, and the *dirty* part
consists of the sealed segments after those files. The active tail, and everything above the last stable offset,
remain unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stratalog.partitions.amounts import span_text
from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.retention import LogFile
from stratalog.partitions.rewrites.merge import MergePolicy, next_merge_ms, oldest_by, sealed_runs, sealing
from stratalog.partitions.transactions import FooterOf, LogTransactions


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """The settings for compaction (min.cleanable.dirty.ratio, min.compaction.lag.ms, max.compaction.lag.ms,
    delete.retention.ms)."""

    min_dirty_ratio: float
    min_lag_ms: int
    max_lag_ms: int
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The part of a log that may be compacted now."""

    bound: int
    """The end of the dirty part; at most the start of the last file."""
    clean_bytes: int
    dirty_bytes: int
    oldest_ms: int | None
    """The time (ms) of the first append of the dirty part; None if there is no dirty part."""

    next_ms: int = FOREVER_MS
    """The time (ms) before which a log that is not due does not become due, if it does not change."""

    @property
    def dirty_ratio(self) -> float:
        """The fraction of the bytes that has never been compacted."""
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, policy: CompactionPolicy, now_ms: int) -> bool:
        """Whether the log must be compacted."""
        if self.oldest_ms is None:
            return False
        return self.dirty_ratio >= policy.min_dirty_ratio or now_ms - self.oldest_ms > policy.max_lag_ms

    def why_not(self, merging: MergePolicy, policy: CompactionPolicy) -> str:
        """A readable reason why the log is not compacted."""
        if self.oldest_ms is None:
            lag = f", and older than {span_text(policy.min_lag_ms)}" if policy.min_lag_ms else ""
            return f"no segment to compact: {sealing(merging)}{lag}, and the last file stays"
        return f"{self.dirty_ratio:.0%} dirty: compaction starts at {policy.min_dirty_ratio:.0%}"


def dirty_from(log: ReplicaLog, compacted_to: int) -> int:
    """The first offset of the brokers' files that was never compacted. Files that an erasure has rewritten may
    extend above ``compacted_to``, the bound of the last compaction.
    """
    return max(min(log.removed_to, compacted_to), log.local_start)


def cleanable(
    log: ReplicaLog,
    merging: MergePolicy,
    policy: CompactionPolicy,
    transactions: LogTransactions,
    now_ms: int,
    footer: FooterOf,
    *,
    cold: Iterable[LogFile] = (),
    compacted_to: int = 0,
    until: int | None = None,
) -> Cleanable:
    """The part of a log that may be compacted. The log's last rule, up to offset ``compacted_to``, has been
    applied. ``now_ms`` is a time on which clocks agree. ``cold`` are the remote files that begin below the local
    start, in order. Files that end above ``until`` are left out.
    """
    start = dirty_from(log, compacted_to)
    clean = sum(link.file.object.size_bytes for link in log.over(log.local_start, start))
    oldest_ms: Callable[[Link], int] = oldest_by(footer)
    oldest, young = None, False
    dirty: list[tuple[int, int]] = []  # end and bytes of each file
    for file in cold:
        if min(file.end, log.local_start) <= compacted_to:
            clean += file.size_bytes
            continue
        young = bool(policy.min_lag_ms) and now_ms - file.latest_ms(now_ms) < policy.min_lag_ms
        if young:
            break
        oldest = file.written_ms if oldest is None else oldest
        dirty.append((min(file.end, log.local_start), file.size_bytes))
    sealed = [] if young else sealed_runs(log, merging, start, now_ms, transactions, oldest_ms=oldest_ms)
    tail = log.over(sealed[-1].end if sealed else start, log.log_end)
    for run in sealed:
        links = run.links[:-1] if run.end >= log.log_end else run.links
        young = bool(policy.min_lag_ms) and any(
            now_ms - footer(link.file).latest_ms < policy.min_lag_ms for link in links
        )
        if young or not links:
            break
        if until is not None and links[-1].end > until:
            break
        oldest = oldest_ms(links[0]) if oldest is None else oldest
        dirty += [(link.end, link.file.object.size_bytes) for link in links]
    while dirty and dirty[-1][0] >= log.log_end:
        dirty.pop()
    oldest = oldest if dirty else None
    next_ms = min(
        next_merge_ms(log, merging, now_ms),
        # The tail is sealed by its first append, which may be older than its first file.
        next_seal_ms
        if tail and (next_seal_ms := oldest_ms(tail[0]) + merging.segment_ms) > now_ms
        else FOREVER_MS,
        FOREVER_MS if oldest is None else oldest + policy.max_lag_ms,
    )
    return Cleanable(
        bound=max(dirty[-1][0] if dirty else start, compacted_to),
        clean_bytes=clean,
        dirty_bytes=sum(size_bytes for _, size_bytes in dirty),
        oldest_ms=oldest,
        next_ms=min(next_ms, now_ms + policy.min_lag_ms) if policy.min_lag_ms else next_ms,
    )

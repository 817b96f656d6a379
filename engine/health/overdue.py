"""Findings about overdue compaction and retention, and the figures of Kafka's cleaner. Listings show which
partitions may be overdue. Only these partitions are examined further, by reading some of their footers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.engine.replication.removal import members_behind
from stratalog.partitions.clock import FOREVER_MS
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog, chain_of
from stratalog.partitions.removal import Rule, carried_out
from stratalog.partitions.retention import UNLIMITED
from stratalog.partitions.rewrites.compaction import cleanable, dirty_from
from stratalog.partitions.rewrites.merge import made_ms, sealed_runs
from stratalog.partitions.transactions import transactions_of
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

COMPACTION = "compaction-lag"
_NOT_CARRIED_OUT = "the last compaction has not ended on all members of the ISR"
_DUE = "compaction has been due for longer than health.upkeep.max.delay.ms"


@dataclass(frozen=True, slots=True)
class _Compacted:
    """A partition of a compacted topic whose leader's folder was listed."""

    seen: SeenPartition
    config: TopicConfig
    log: ReplicaLog
    """The log, as the names of its files show it."""
    remote: RemoteLog | None
    """The remote log of the topic; None: the topic is not tiered."""

    def uploaded(self, until_ms: int) -> Sequence[RemoteSegment]:
        """The segments of the remote log at that time; later compactions may have replaced some of them."""
        segments = () if self.remote is None else self.remote.of_partition(self.seen.view.partition)
        return [*takewhile(lambda segment: segment.modified_ms <= until_ms, segments)]

    def cold(self, until_ms: int) -> Sequence[RemoteSegment]:
        """The segments that begin below the local log start."""
        return [one for one in self.uploaded(until_ms) if one.base_offset < self.log.local_start]

    def compacts_to(self, until_ms: int) -> int | None:
        """The end of the remote log at that time, above which nothing is compacted; None: no limit."""
        if self.remote is None:
            return None
        return max((segment.next_offset for segment in self.uploaded(until_ms)), default=0)

    def __str__(self) -> str:
        return str(self.seen)


@dataclass(frozen=True, slots=True)
class _Late:
    """The reason why a partition is overdue, and the time since which it is overdue, if known."""

    what: str
    since_ms: int | None


def compaction_findings(
    storage: Storage, sight: Sight, run: OperationRun, remotes: Mapping[str, RemoteLog]
) -> tuple[list[HealthFinding], dict[str, int | None]]:
    """Find the partitions whose compaction has been due or unfinished for longer than
    ``health.upkeep.max.delay.ms``. Also return the figures of Kafka's cleaner. A partition that cannot be examined
    is a failure. ``remotes`` are the remote logs that could be read, by topic id.
    """
    compacted, unknown = _compacted(sight, remotes)
    then_ms = sight.now_ms - sight.max_delay_ms

    def late(one: _Compacted) -> _Late | None:
        return _late(storage, one, then_ms)

    suspects = [one for one in compacted if _may_be_late(one, then_ms)]
    findings = [
        HealthFinding(
            severity=Severity.ERROR,
            kind=COMPACTION,
            subjects=(str(one),),
            what=found.what,
            do=sight.commands("compact", topics=[one.seen.view.topic]),
            since_ms=found.since_ms,
        )
        for one, found in run.done(storage.threads.run(late, suspects))
        if found is not None
    ]
    if not compacted and not unknown:
        return findings, {}
    last_ms = sight.times.steps.get("compact")
    failing = sight.times.failing.get("compact")
    dirty = None if unknown else round(100 * max(map(_dirty_ratio, compacted), default=0))
    return findings, {
        "max-dirty-percent": dirty,
        "time-since-last-run-ms": None if last_ms is None else max(0, sight.now_ms - last_ms),
        "uncleanable-partitions-count": None if last_ms is None else 0 if failing is None else failing.failures,
    }


def _compacted(sight: Sight, remotes: Mapping[str, RemoteLog]) -> tuple[list[_Compacted], int]:
    """Return the partitions of compacted topics, and the number of such partitions whose leader or remote log is
    unknown. Protected topics are left out, because they are not compacted."""
    found, unknown = [], 0
    for seen in sight.partitions:
        config = seen.config
        if config is None or not config.compacts or config.is_protected(sight.now_ms):
            continue
        remote = remotes.get(seen.view.topic_id) if config.remote_storage_enable else None
        unread = config.remote_storage_enable and remote is None
        if unread or seen.leader is None or seen.view.leader is None or not sight.usable(seen.view.leader):
            unknown += 1
        else:
            found.append(_Compacted(seen, config, _by_names(seen.leader), remote))
    return found, unknown


def _by_names(listing: Listing) -> ReplicaLog:
    """Return the log, judging by file names alone. The result includes files of other histories, and counts one
    offset for the last file."""
    start = listing.local_start
    live = [file for file in listing.data if file.name.least_end > start]
    chain = tuple(chain_of(live, start, lambda file: file.name.base_offset + 1))
    end = chain[-1].end if chain else start
    high_watermark = min(end, max((mark.offset for mark in listing.watermarks), default=start))
    return ReplicaLog(listing, Lineage(), chain, start, end, high_watermark, high_watermark, (), (), ())


def _may_be_late(one: _Compacted, then_ms: int) -> bool:
    """Whether the partition may have been due at that time, judging by file names."""
    rules = one.seen.view.rules
    if rules and rules[-1].committed_ms <= then_ms and any(_behind(one)):
        return True
    policy = one.config.compaction
    start, until = dirty_from(one.log, one.seen.view.compacted_to), one.compacts_to(then_ms)
    dirty = any(
        made_ms(link) <= then_ms and (until is None or link.end <= until)
        for link in one.log.over(start, one.log.log_end)[:-1]
    )
    dirty = dirty or any(segment.next_offset > one.seen.view.compacted_to for segment in one.cold(then_ms))
    return dirty and (policy.max_lag_ms < FOREVER_MS or _dirty_ratio(one) >= policy.min_dirty_ratio)


def _behind(one: _Compacted) -> Iterator[bool]:
    """For the remote log and each listed member of the ISR: whether the last rule has not been applied there
    yet."""
    rule = one.seen.view.rules[-1].rule
    yield _remote_is_behind(one, rule)
    for broker in one.seen.view.isr:
        listing = one.seen.replicas.get(broker)
        if isinstance(listing, Listing):
            yield not carried_out(_by_names(listing), rule)


def _remote_is_behind(one: _Compacted, rule: Rule) -> bool:
    return one.remote is not None and one.remote.generation(one.seen.view.partition) < rule.generation


def _dirty_ratio(one: _Compacted) -> float:
    """Return the fraction of the sealed bytes that was never compacted, judging by file names."""
    start = dirty_from(one.log, one.seen.view.compacted_to)
    compacted_to, until = one.seen.view.compacted_to, one.compacts_to(FOREVER_MS)
    end = one.log.log_end if until is None else min(until + 1, one.log.log_end)
    clean = sum(link.file.object.size_bytes for link in one.log.over(one.log.local_start, start))
    sealed = sealed_runs(one.log, one.config.merging, start, FOREVER_MS)
    dirty = sum(link.file.object.size_bytes for run in sealed for link in run.links if link.end < end)
    for segment in one.cold(FOREVER_MS):
        if min(segment.next_offset, one.log.local_start) <= compacted_to:
            clean += segment.size_bytes
        else:
            dirty += segment.size_bytes
    return dirty / (clean + dirty) if dirty else 0.0


def _late(storage: Storage, one: _Compacted, then_ms: int) -> _Late | None:
    """Raises: errors from reading the leader, or a member of the ISR."""
    replicas = storage.replicas(one.seen.view)
    leader, rules = replicas.leader, replicas.view.rules
    log = leader.log()
    if rules:
        last = rules[-1]
        if last.committed_ms <= then_ms and (
            _remote_is_behind(one, last.rule)
            or not carried_out(log, last.rule)
            or members_behind(replicas, last.rule)
        ):
            return _Late(_NOT_CARRIED_OUT, last.committed_ms)
    before = _as_of(log, then_ms)
    found = cleanable(
        before,
        one.config.merging,
        one.config.compaction,
        transactions_of(log, leader.footer),
        then_ms,
        leader.footer,
        cold=(segment.extent for segment in one.cold(then_ms)),
        compacted_to=replicas.view.compacted_to,
        until=one.compacts_to(then_ms),
    )
    if not found.is_due(one.config.compaction, then_ms):
        return None
    due_ms = (found.oldest_ms or 0) + one.config.compaction.max_lag_ms
    return _Late(_DUE, due_ms if due_ms <= then_ms else None)


def _as_of(log: ReplicaLog, then_ms: int) -> ReplicaLog:
    """Return the log up to, but not including, the first file that was made after that time."""
    later = next((at for at, link in enumerate(log.chain) if made_ms(link) > then_ms), len(log.chain))
    chain = log.chain[:later]
    return replace(log, chain=chain, log_end=chain[-1].end if chain else log.local_start)


@dataclass(frozen=True, slots=True)
class _Old:
    """The first file of a leader's log, if it is old enough to have expired."""

    seen: SeenPartition
    file: DataFile
    limit_ms: int

    def __str__(self) -> str:
        return str(self.seen)


def expiry_findings(storage: Storage, sight: Sight, run: OperationRun) -> list[HealthFinding]:
    """Find the partitions whose oldest records expired more than ``health.upkeep.max.delay.ms`` ago."""

    def expired_ms(old: _Old) -> int | None:
        footer = storage.replicas(old.seen.view).leader.footer(old.file)
        dated = footer.max_timestamp_offset is not None
        if not dated:
            return None
        return max(footer.max_timestamp_us // 1000 + old.limit_ms, old.file.object.modified_ms)

    olds = [old for seen in sight.partitions if (old := _old(sight, seen)) is not None]
    return [
        HealthFinding(
            severity=Severity.ERROR,
            kind="retention-lag",
            subjects=(str(old),),
            what="the oldest records have expired, but are still on the leader",
            do=sight.commands("retain", topics=[old.seen.view.topic]),
            since_ms=at_ms,
        )
        for old, at_ms in run.done(storage.threads.run(expired_ms, olds))
        if at_ms is not None and sight.now_ms - at_ms > sight.max_delay_ms
    ]


def _old(sight: Sight, seen: SeenPartition) -> _Old | None:
    config, leader = seen.config, seen.leader
    if config is None or leader is None or config.snapshots:
        return None
    held = (file for file in leader.data if file.name.base_offset >= leader.local_start)
    files = sorted(held, key=lambda file: file.name)
    if len(files) < 2:  # the last file is the end of the log
        return None
    first, following = files[:2]
    limit_ms = config.retention(sight.now_ms).retention_ms
    if config.remote_storage_enable:  # records that are not tiered yet must stay
        entry = sight.entries.get(seen.view.key)
        end = following.name.base_offset
        limit_ms = config.local_retention_ms if entry is not None and (entry.remote_end or 0) >= end else UNLIMITED
    if limit_ms == UNLIMITED or sight.now_ms - first.object.modified_ms <= limit_ms + sight.max_delay_ms:
        return None
    return _Old(seen, first, limit_ms)

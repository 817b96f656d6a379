"""Findings about upkeep: overdue steps, and steps that failed, whether ``maintain`` or a person ran them. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from stratalog.engine.health.finding import REMOTE_TIER, Cause, HealthFinding, Severity
from stratalog.engine.health.sight import Sight
from stratalog.engine.upkeep.memory.runs import VERIFY
from stratalog.engine.upkeep.memory.trouble import DAMAGE, ListedFailure

_BROKER = re.compile(r"\bbroker (\d+)\b")
_EVERY_RUN = ("replicate", "tier")
_OF_REMOTE = (REMOTE_TIER, "restore point")


@dataclass(frozen=True, slots=True)
class CoveredProblems:
    """Problems that already have another finding."""

    damaged: Collection[str]
    tables: Collection[str]
    uploads: Collection[str]
    remote_is_away: bool

    def has(self, step: str, failed: ListedFailure) -> bool:
        """Whether another finding covers this failure of a step."""
        if failed.code in DAMAGE and failed.is_of(self.damaged):
            return True
        if failed.item in self.tables and not self.remote_is_away:
            return True
        topics = {name.rpartition("-")[0] for name in self.uploads}
        of_uploads = failed.item in _OF_REMOTE or failed.is_of(self.uploads) or failed.item in topics
        return step == "tier" and bool(self.uploads) and of_uploads and not self.remote_is_away


def upkeep_findings(sight: Sight, covered: CoveredProblems) -> Iterator[HealthFinding]:
    """Findings about failures, and about overdue steps that ``maintain`` has begun at least once. (Other steps may
    be scheduled as jobs.)
    """
    yield from _failing(sight, covered)
    if not sight.remembered:
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="upkeep",
            subjects=("maintain",),
            what="no run is recorded: schedule maintain (--every 30s), or the jobs that maintain replaces",
            do=sight.commands("maintain"),
        )
        return
    intervals = _intervals(sight)
    late: dict[str, int] = {}
    for step, last_ms in sorted(sight.times.steps.items()):
        due_ms = last_ms + intervals.get(step, 0)
        if step in intervals and sight.now_ms - due_ms > sight.max_delay_ms:
            late[step] = due_ms
    if late:
        yield HealthFinding(
            severity=Severity.ERROR,
            kind="upkeep",
            subjects=tuple(late),
            what=(
                "these steps of maintain are overdue by more than health.upkeep.max.delay.ms: check that "
                "maintain is still scheduled, and that its budget is large enough"
            ),
            do=sight.commands("maintain"),
            since_ms=min(late.values()),
        )
    scrubbed = _scrubbed(sight)
    due_ms = min(scrubbed.values(), default=sight.now_ms) + sight.config.scrub_interval_ms
    if sight.now_ms - due_ms > sight.max_delay_ms and not late:
        interval_ms = sight.config.scrub_interval_ms
        overdue = [name for name, last_ms in scrubbed.items() if sight.now_ms - last_ms > interval_ms]
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="upkeep",
            subjects=tuple(overdue),
            what=(
                "the bytes of these partitions have not been verified for longer than scrub.interval.ms: raise "
                "scrub.max.bytes, the limit of each run"
            ),
            do=sight.commands("maintain", "--only", "scrub"),
            since_ms=due_ms,
        )


def _failing(sight: Sight, covered: CoveredProblems) -> Iterator[HealthFinding]:
    """Find the failed steps, without the failures that other findings cover."""
    topics = {topic.name for topic in sight.image.topics.values()}
    causes = _causes(sight, covered)
    for step, trouble in sorted(sight.times.failing.items()):
        failed = [one for one in trouble.listed if not covered.has(step, one)]
        if not failed:
            continue
        away = [_away(sight, causes, one) for one in failed]
        other = [one for one, names in zip(failed, away, strict=True) if not names]
        because = frozenset[Cause]() if other else frozenset[Cause]().union(*away)
        failed = other or failed
        first, more = failed[0], trouble.failures - (len(trouble.listed) - len(failed)) - 1
        do = sight.commands(VERIFY) if step == VERIFY else sight.commands("maintain", "--only", step)
        if first.code in DAMAGE:
            of = [one.item.partition(" ")[0] for one in failed if one.code in DAMAGE]
            names = {name if name in topics else name.rpartition("-")[0] for name in of}
            do = sight.commands("heal", topics=names & topics)
        yield HealthFinding(
            severity=Severity.ERROR,
            kind="upkeep-failing",
            subjects=(step,),
            what=f"its last run failed: {first.item}: {first.code}: {first.message}"
            + (f" (and {more:,} more)" if more else ""),
            do=do,
            since_ms=trouble.since_ms,
            because=because,
        )


def _causes(sight: Sight, covered: CoveredProblems) -> dict[str, frozenset[Cause]]:
    """Return the causes that block work, by partition, topic, and part of the remote tier."""
    causes: dict[str, frozenset[Cause]] = {}
    if covered.remote_is_away:
        tiered = [one for one in sight.partitions if one.config is not None and one.config.remote_storage_enable]
        names = {*map(str, tiered), *(one.view.topic for one in tiered), *_OF_REMOTE}
        causes = dict.fromkeys(names, frozenset({REMOTE_TIER}))
    offline = {str(seen): sight.keeping_offline(seen.view) for seen in sight.partitions}
    return causes | {name: brokers for name, brokers in offline.items() if brokers}


def _away(sight: Sight, causes: Mapping[str, frozenset[Cause]], failed: ListedFailure) -> frozenset[Cause]:
    """Return the cause of a failure, if the cause is unreachable: the broker that the failure names, the brokers
    that cause a missing leader, or the remote tier.
    """
    named = _BROKER.search(failed.item)
    if named is not None and int(named[1]) in sight.image.brokers and not sight.usable(int(named[1])):
        return frozenset({int(named[1])})
    return causes.get(failed.item, causes.get(failed.item.partition(" ")[0], frozenset()))


def upkeep_figures(sight: Sight) -> dict[str, int | None]:
    """Return, in ms, the time since each step last began, and how long bytes have been due to be read again."""
    oldest_ms = min(_scrubbed(sight).values(), default=None)
    late_ms = None if oldest_ms is None else max(0, sight.now_ms - oldest_ms - sight.config.scrub_interval_ms)
    return {
        "scrub-lag-ms": late_ms,
        **{
            f"{step}-age-ms": max(0, sight.now_ms - last_ms)
            for step, last_ms in sorted(sight.times.steps.items())
            if not step.startswith("__")
        },
    }


def _scrubbed(sight: Sight) -> dict[str, int]:
    """Return the time of the last full read of each partition that had one. (The stored times may include
    partitions that were deleted since.)
    """
    times = sight.times.scrubbed
    return {str(seen): times[seen.view.key] for seen in sight.partitions if seen.view.key in times}


def _intervals(sight: Sight) -> dict[str, int]:
    """Return the interval of each step. The scrub is scheduled per partition."""
    config = sight.config
    intervals = {
        **dict.fromkeys(_EVERY_RUN, 0),
        **dict.fromkeys(("merge", "compact", "retain", "snapshot"), config.log_retention_check_interval_ms),
        "vacuum": config.vacuum_interval_ms,
    }
    if config.auto_leader_rebalance_enable:
        intervals["elect"] = config.leader_imbalance_check_interval_seconds * 1000
    return intervals

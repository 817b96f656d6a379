"""Upkeep: what failed in the last run of ``maintain``, and what has not run for too long. Pure, of the look."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import Sight
from stratalog.engine.upkeep.memory.trouble import DAMAGE, Told

_BROKER = re.compile(r"\bbroker (\d+)\b")
_EVERY_RUN = ("replicate", "tier")


def upkeep_findings(sight: Sight, damaged: Collection[str], tables: Collection[str]) -> Iterator[HealthFinding]:
    """Steps that a run of ``maintain`` has begun at least once. Others may be jobs of their own. ``damaged``:
    partitions whose damage is a finding already; ``tables``: topics whose remote tables are.
    """
    if not sight.remembered:
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="upkeep",
            subjects=("maintain",),
            what="no run of it is remembered: schedule it (--every 30s), or the jobs that it stands for",
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
            what="maintain has not begun these steps, overdue by more than health.upkeep.max.delay.ms: is "
            "it still scheduled, and is its budget large enough?",
            do=sight.commands("maintain"),
            since_ms=min(late.values()),
        )
    scrubbed = sight.times.scrubbed
    oldest_ms = min(scrubbed.values(), default=sight.now_ms)
    due_ms = oldest_ms + sight.config.scrub_interval_ms
    if sight.now_ms - due_ms > sight.max_delay_ms and not late:
        overdue = [
            str(seen)
            for seen in sight.partitions
            if sight.now_ms - scrubbed.get(seen.view.key, sight.now_ms) > sight.config.scrub_interval_ms
        ]
        yield HealthFinding(
            severity=Severity.WARNING,
            kind="upkeep",
            subjects=tuple(overdue),
            what="their bytes were not read for longer than scrub.interval.ms: each run may read scrub.max.bytes, "
            "let it be more",
            do=sight.commands("maintain", "--only", "scrub"),
            since_ms=due_ms,
        )
    yield from _failing(sight, damaged, tables)


def _failing(sight: Sight, damaged: Collection[str], tables: Collection[str]) -> Iterator[HealthFinding]:
    """Steps whose last run had failures, but for those by damage of ``damaged`` partitions, and by ``tables``."""
    topics = {topic.name for topic in sight.image.topics.values()}
    offline = {str(seen): sight.keeping_offline(seen.view) for seen in sight.partitions}
    for step, trouble in sorted(sight.times.failing.items()):
        told = [
            one
            for one in trouble.told
            if one.item not in tables and (one.code not in DAMAGE or not one.is_of(damaged))
        ]
        if not told or not trouble.is_there:
            continue
        away = [_away(sight, offline, one) for one in told]
        other = [one for one, brokers in zip(told, away, strict=True) if not brokers]
        because = frozenset[int]() if other else frozenset[int]().union(*away)
        told = other or told
        first, more = told[0], trouble.failures - (len(trouble.told) - len(told)) - 1
        do = sight.commands("maintain", "--only", step)
        if first.code in DAMAGE:
            of = [one.item.partition(" ")[0] for one in told if one.code in DAMAGE]
            names = {name if name in topics else name.rpartition("-")[0] for name in of}
            do = sight.commands("heal", topics=names & topics)
        yield HealthFinding(
            severity=Severity.ERROR,
            kind="upkeep-failing",
            subjects=(step,),
            what=f"it failed when it last ran: {first.item}: {first.code}: {first.message}"
            + (f" (and {more:,} more)" if more else ""),
            do=do,
            since_ms=trouble.since_ms,
            because=because,
        )


def _away(sight: Sight, offline: Mapping[str, frozenset[int]], told: Told) -> frozenset[int]:
    """The brokers whose absence explains a failure, if any: that of a broker or a replica, or of a partition that
    nobody leads.
    """
    named = _BROKER.search(told.item)
    if named is not None and int(named[1]) in sight.image.brokers and not sight.usable(int(named[1])):
        return frozenset({int(named[1])})
    return offline.get(told.item.partition(" ")[0], frozenset())


def upkeep_figures(sight: Sight) -> dict[str, int | None]:
    """How long ago each step was begun, and since when bytes should have been read again, in ms."""
    oldest_ms = min(sight.times.scrubbed.values(), default=None)
    late_ms = None if oldest_ms is None else max(0, sight.now_ms - oldest_ms - sight.config.scrub_interval_ms)
    return {
        "scrub-lag-ms": late_ms,
        **{
            f"{step}-age-ms": max(0, sight.now_ms - last_ms)
            for step, last_ms in sorted(sight.times.steps.items())
            if not step.startswith("__")
        },
    }


def _intervals(sight: Sight) -> dict[str, int]:
    """How long after it was begun each step is due again; the scrub goes by partitions."""
    config = sight.config
    intervals = {
        **dict.fromkeys(_EVERY_RUN, 0),
        **dict.fromkeys(("merge", "retain", "snapshot"), config.log_retention_check_interval_ms),
        "vacuum": config.vacuum_interval_ms,
    }
    if config.auto_leader_rebalance_enable:
        intervals["elect"] = config.leader_imbalance_check_interval_seconds * 1000
    return intervals

"""Upkeep: what failed in the last run of ``maintain``, and what has not run for too long. Pure, of the look."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import Sight

_EVERY_RUN = ("replicate", "tier")


def upkeep_findings(sight: Sight) -> Iterator[HealthFinding]:
    """Steps that a run of ``maintain`` has begun at least once. Others may be jobs of their own."""
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
    for step, trouble in sorted(sight.times.failing.items()):
        if trouble.is_there and step != "scrub":  # of which the partitions are told
            more = f" (and {trouble.failures - 1:,} more)" if trouble.failures > 1 else ""
            yield HealthFinding(
                severity=Severity.ERROR,
                kind="upkeep-failing",
                subjects=(step,),
                what=f"it failed when it last ran: {trouble.item}: {trouble.code}: {trouble.message}{more}",
                do=sight.commands("maintain", "--only", step),
                since_ms=trouble.since_ms,
            )


def upkeep_figures(sight: Sight) -> dict[str, int | None]:
    """How long ago each step was begun, in ms."""
    return {
        f"{step}-age-ms": max(0, sight.now_ms - last_ms)
        for step, last_ms in sorted(sight.times.steps.items())
        if not step.startswith("__")
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

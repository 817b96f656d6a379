"""The operation ``health``: observes the cluster once, and lists its problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.brokers import broker_findings, clock_findings, folder_findings, quorum_findings
from stratalog.engine.health.cause import by_cause
from stratalog.engine.health.compaction import compaction_findings
from stratalog.engine.health.expiry import expiry_findings
from stratalog.engine.health.finding import (
    HealthFinding,
    HealthReport,
    failures_of,
    figures_of,
    grouped,
)
from stratalog.engine.health.partitions import (
    DAMAGED,
    copies_findings,
    erasure_findings,
    isr_findings,
    lost_findings,
)
from stratalog.engine.health.remote import OFFLINE, REMOTE_TABLE, UPLOADS, remote_findings
from stratalog.engine.health.sight import Sight, look
from stratalog.engine.health.state import group_findings, transaction_findings
from stratalog.engine.health.upkeep import CoveredProblems, upkeep_figures, upkeep_findings
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.state.consumer_offsets import GroupState
from stratalog.tiering.remote_log import RemoteLog


@dataclass(frozen=True, slots=True)
class Examined:
    """The report, and the observed state behind it."""

    report: HealthReport
    sight: Sight
    remotes: Mapping[str, RemoteLog]
    """The remote logs of tiered topics whose tables could be read, by topic id."""
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    """The groups that could be read, by name."""


def health(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> HealthReport:
    """Return the report of ``examine``."""
    return examine(metadata, storage, execution, memory).report


def examine(metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory) -> Examined:
    """Examine the cluster, and list its problems, one finding per row, the most urgent first. Errors are also
    failures of the report, and so are objects that could not be examined. ``totals`` has the figures, under
    Kafka's names if Kafka has them. Writes nothing.

    Raises: see ``look``.
    """
    with execution.run("health") as run:
        sight = look(metadata, storage, execution.clock, run)
        isr, figures = isr_findings(sight)
        copies, lag = copies_findings(metadata, storage, execution, sight, run)
        damaged = {subject for one in copies if one.kind == DAMAGED for subject in one.subjects}
        remote, backlog, remotes = remote_findings(storage, sight)
        tables = {subject for one in remote if one.kind == REMOTE_TABLE for subject in one.subjects}
        uploads = {subject for one in remote if one.kind == UPLOADS for subject in one.subjects}
        remote_away = [one for one in remote if one.kind == OFFLINE]
        groups = group_findings(storage, execution.clock, memory, sight, run)
        of_brokers = list(broker_findings(sight))
        uncompacted, of_compaction = compaction_findings(storage, sight, run, remotes)
        late, transactions = transaction_findings(storage, execution.clock, memory, sight)
        others = [
            *quorum_findings(sight),
            *clock_findings(sight),
            *isr,
            *folder_findings(sight),
            *copies,
            *lost_findings(storage, sight),
            *erasure_findings(sight),
            *(one for one in remote if one.kind != OFFLINE),
            *expiry_findings(storage, sight, run),
            *uncompacted,
            *late,
            *groups.findings,
            *upkeep_findings(sight, CoveredProblems(damaged, tables, uploads, bool(remote_away))),
        ]
        found = grouped(by_cause([*of_brokers, *remote_away], others))
        figures |= {
            **_broker_figures(sight, of_brokers),
            **lag,
            **backlog,
            **groups.figures,
            **transactions,
            **of_compaction,
            **upkeep_figures(sight),
        }
    report = HealthReport(
        operation="health",
        rows=[one.row() for one in found],
        failures=[*failures_of(found), *run.failures],
        totals=figures_of(figures),
        seconds=run.measure.seconds,
        counts=run.measure.counts,
        findings=tuple(found),
        unread=tuple(run.failures),
        lags=groups.lags,
        used_ratios={b: of.space.used_ratio for b, of in sight.folders.items() if of.space is not None},
        now_ms=sight.now_ms,
    )
    return Examined(report, sight, remotes, groups.groups)


def _broker_figures(sight: Sight, found: Sequence[HealthFinding]) -> dict[str, int | None]:
    """Return the figures about brokers. A broker whose root does not answer does not count as active, even before
    a run has fenced it.
    """
    active = sum(map(sight.usable, sight.image.brokers))
    offline = "OfflineLogDirectoryCount"
    return {
        "ActiveBrokerCount": active,
        "FencedBrokerCount": len(sight.image.brokers) - active,
        offline: sum(len(one.subjects) for one in found if one.kind == offline),
        "number-of-voters": len(sight.quorum.voters),
        "high-watermark": sight.quorum.end,
        "current-epoch": sight.quorum.epoch,
    }

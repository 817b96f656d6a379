"""The operation ``health``: observes the cluster once, and lists its problems. Each cause is one finding: the
effects of an unreachable broker or remote tier become part of that broker's or tier's finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.brokers import broker_findings, clock_findings, folder_findings, quorum_findings
from stratalog.engine.health.finding import (
    CURRENT_LEADER,
    Cause,
    HealthFinding,
    HealthReport,
    Severity,
    failures_of,
    figures_of,
    grouped,
)
from stratalog.engine.health.overdue import compaction_findings, expiry_findings
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
        copies, lag = copies_findings(metadata, storage, sight, run)
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


_EFFECTS = {
    "OfflinePartitionsCount": (
        "{n} partition{s} {have} no leader, so {them} cannot be read or appended to (if the storage is "
        "permanently lost: elect --unclean)"
    ),
    "UnderMinIsrPartitionCount": "{n} partition{s} {have} fewer members of the ISR than min.insync.replicas: "
    "acks=all is refused",
    "UnderReplicatedPartitions": "{n} partition{s} {lack} the broker's copies",
    "state-unread": "{n} partition{s} of the engine's own topics cannot be read",
    "RemoteCopyErrorsPerSec": "uploads of {n} partition{s} fail",
    "remote-table": "{n} table{s} cannot be read",
    "damaged-replicas": "records of {n} partition{s} are missing in the remote tier",
    "upkeep-failing": "{n} upkeep job{s} {fail}",
    "offline-voter": "the broker does not vote",
}
"""The kinds of findings that may be effects of other findings, in the order in which a text lists them."""
_ORDER = [*Severity]


def by_cause(away: Sequence[HealthFinding], others: Iterable[HealthFinding]) -> list[HealthFinding]:
    """Return the findings that are not effects of other findings. Each effect (``HealthFinding.because``) is
    listed in ``affected`` of its causes instead. If no majority of the voters answers, this is the only finding
    about the brokers that do not answer. ``away``: a finding for each cause.
    """
    causes = {_cause(one): one for one in away}
    rest: list[HealthFinding] = []
    for one in others:
        if one.kind == CURRENT_LEADER or not one.because & causes.keys():
            rest.append(one)
            continue
        for named in one.because & causes.keys():
            causes[named] = _with(causes[named], one)
    findings: list[HealthFinding] = []
    for one in rest:
        if one.kind == CURRENT_LEADER:
            for named in sorted(one.because & causes.keys(), key=str):
                cause = causes.pop(named)
                one = replace(one, affected=_joined(one.affected, {cause.kind: cause.subjects, **cause.affected}))
        findings.append(_with_effects(one))
    return [*map(_with_effects, causes.values()), *findings]


def _cause(of: HealthFinding) -> Cause:
    kind, _, number = of.subjects[0].partition(" ")
    return int(number) if kind == "broker" else of.subjects[0]


def _with(cause: HealthFinding, effect: HealthFinding) -> HealthFinding:
    """Return the cause with the effect added, at the higher severity of the two."""
    severity = min(cause.severity, effect.severity, key=_ORDER.index)
    return replace(cause, severity=severity, affected=_joined(cause.affected, {effect.kind: effect.subjects}))


def _joined(
    one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(dict.fromkeys((*one.get(kind, ()), *other.get(kind, ())))) for kind in {**one, **other}}


def _with_effects(one: HealthFinding) -> HealthFinding:
    """Return the finding with its effects added to its sentence."""
    effects = [
        text.format(
            n=f"{n:,}",
            s="" if n == 1 else "s",
            have="has" if n == 1 else "have",
            lack="lacks" if n == 1 else "lack",
            fail="fails" if n == 1 else "fail",
            them="it" if n == 1 else "them",
        )
        for kind, text in _EFFECTS.items()
        if (n := len(one.affected.get(kind, ()))) and (kind != "offline-voter" or one.kind != CURRENT_LEADER)
    ]
    return replace(one, what=f"{one.what}. Until then {'; '.join(effects)}") if effects else one

"""Reports each cause as one finding: the effects of an unreachable broker or remote tier become part of that
broker's or tier's finding. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stratalog.engine.health.finding import CURRENT_LEADER, Cause, HealthFinding, Severity

_EFFECTS = {
    "OfflinePartitionsCount": (
        "{n} partition{s} {have} no leader, so {them} cannot be read or appended to (if the storage is lost for "
        "good: elect --unclean)"
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
    listed in ``affected`` of its causes instead. If no majority of the voters answers, the missing majority is the
    only finding about the brokers that cause it. ``away``: a finding for each cause.
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

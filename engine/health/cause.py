"""One cause is one finding: what hangs on a broker that is away is part of the finding of that broker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stratalog.engine.health.finding import CURRENT_LEADER, HealthFinding, Severity

_EFFECTS = {
    "OfflinePartitionsCount": (
        "{n} partition{s} {have} no leader, and nothing of {them} is read or appended (where it is lost for good: "
        "elect --unclean)"
    ),
    "UnderMinIsrPartitionCount": "{n} partition{s} {have} fewer members of the ISR than min.insync.replicas: "
    "acks=all is refused",
    "UnderReplicatedPartitions": "{n} partition{s} {lack} its copies",
    "state-unread": "{n} partition{s} of the engine's own topics cannot be read",
    "RemoteCopyErrorsPerSec": "uploads of {n} partition{s} fail",
    "upkeep-failing": "{n} step{s} of maintain {fail}",
    "offline-voter": "it does not vote",
}
"""The kinds of findings that may hang on a broker, in the order in which they are said."""
_ORDER = [*Severity]


def by_cause(of_brokers: Sequence[HealthFinding], others: Iterable[HealthFinding]) -> list[HealthFinding]:
    """The findings without those that are effects of others (``HealthFinding.because``): these are ``affected`` of
    their causes, and said there. Where no majority of the voters answers, that is the one finding of the brokers
    that keep it from answering.
    """
    causes = {int(one.subjects[0].removeprefix("broker ")): one for one in of_brokers}
    rest: list[HealthFinding] = []
    for one in others:
        if one.kind == CURRENT_LEADER or not one.because & causes.keys():
            rest.append(one)
            continue
        for broker_id in one.because & causes.keys():
            causes[broker_id] = _with(causes[broker_id], one)
    told: list[HealthFinding] = []
    for one in rest:
        if one.kind == CURRENT_LEADER:
            for broker_id in sorted(one.because & causes.keys()):
                cause = causes.pop(broker_id)
                one = replace(one, affected=_joined(one.affected, {cause.kind: cause.subjects, **cause.affected}))
        told.append(_said(one))
    return [*map(_said, causes.values()), *told]


def _with(cause: HealthFinding, effect: HealthFinding) -> HealthFinding:
    """The cause with an effect. It is as severe as the worse of both."""
    severity = min(cause.severity, effect.severity, key=_ORDER.index)
    return replace(cause, severity=severity, affected=_joined(cause.affected, {effect.kind: effect.subjects}))


def _joined(
    one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    return {kind: tuple(dict.fromkeys((*one.get(kind, ()), *other.get(kind, ())))) for kind in {**one, **other}}


def _said(one: HealthFinding) -> HealthFinding:
    """The finding, whose sentence tells what hangs on it."""
    said = [
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
    return replace(one, what=f"{one.what}. Until then {'; '.join(said)}") if said else one

"""Metadata changes that follow from the probed state of the brokers' roots. Pure.

The last member of an ISR stays in it when fenced, so the order of the commits matters to a partition whose entire
ISR is affected at the same time. Brokers that have certainly lost data are removed first, then brokers with a
foreign root, then brokers whose root merely does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from stratalog.engine.metadata.commands import (
    Command,
    Decision,
    FenceBroker,
    RegisterBroker,
    Together,
    UnfenceBroker,
)
from stratalog.engine.metadata.image import BrokerImage, ClusterImage
from stratalog.partitions.errors import StaleBrokerError, StratalogError


@dataclass(frozen=True, slots=True)
class Same:
    """The root is the registered one, whether or not this driver can write to it."""


@dataclass(frozen=True, slots=True)
class Another:
    """The root is another incarnation: it was wiped, moved, or restored from a copy."""

    registration: RegisterBroker


@dataclass(frozen=True, slots=True)
class NotOurs:
    """The root belongs to another cluster, another broker, or an unknown owner."""

    error: StratalogError


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The root does not exist, holds no ``broker.json``, or has not answered in time."""

    error: StratalogError
    lacks: Literal["folder", "broker.json"] | None = None
    """The missing part, if the volume is not mounted or the root is lost. None if the root did not answer."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The root is the registered one, but no driver can create a file in it."""

    error: StratalogError


Finding = Same | Another | NotOurs | Unreachable | Blocked


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a broker's root, under one registration of the broker."""

    broker_id: int
    broker_epoch: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class ProbedMetadata:
    """The metadata after committing the results of the probe; ``notes`` describe abnormal results."""

    image: ClusterImage
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ApplyProbe:
    """Fence, register and unfence brokers by the state of their roots; brokers that were fenced by hand are not
    changed. Changes nothing unless a majority of the metadata voters is unchanged: a driver that does not reach
    the voters is isolated, and moved or restored metadata needs an operator.
    """

    found: tuple[Found, ...]

    def decide(self, image: ClusterImage) -> Decision[ProbedMetadata]:
        """Raises: StaleBrokerError when a broker has been registered again or unregistered since the probe."""
        for each in self.found:
            broker = image.brokers.get(each.broker_id)
            if broker is None or broker.broker_epoch != each.broker_epoch:
                raise StaleBrokerError(
                    f"broker {each.broker_id} is no longer registered with broker epoch {each.broker_epoch}: "
                    "probe its root again"
                )
        refusal = _not_trustworthy(image, self.found)
        if refusal is not None:
            return Decision((), ProbedMetadata(image, (refusal,)))
        steps = [_step(image.brokers[each.broker_id], each.finding) for each in self.found]
        commands = [step.command for step in sorted(steps, key=lambda step: step.turn) if step.command is not None]
        decided = Together(tuple(commands)).decide(image)
        notes = tuple(step.note for step in steps if step.note is not None)
        return Decision(decided.records, ProbedMetadata(decided.answer, notes))


@dataclass(frozen=True, slots=True)
class _Step:
    """The change for one broker, and its order: the smallest ``turn`` first."""

    turn: int = 0
    command: Command[object] | None = None
    note: str | None = None


def _step(broker: BrokerImage, finding: Finding) -> _Step:
    who = f"broker {broker.broker_id}"
    if broker.fenced_by_hand:
        return _Step(note=f"{who} was fenced by hand, and remains fenced{_also(finding)}")
    match finding:
        case Same():
            if not broker.fenced:
                return _Step()
            unfence = UnfenceBroker(broker.broker_id, broker.broker_epoch)
            return _Step(1, unfence, f"{who} is unfenced: its root is back")
        case Another(registration):
            note = f"{who} is registered again: {_what_another_is(broker, registration)}; it has left every ISR"
            return _Step(0, registration, note)
        case NotOurs(error):
            turn = 2
        case Unreachable(error) | Blocked(error):
            turn = 3
        case _:
            assert_never(finding)
    why = f"{error.code}: {error}"
    if broker.fenced:
        return _Step(note=f"{who} remains fenced: {why}")
    return _Step(turn, FenceBroker(broker.broker_id, broker.broker_epoch), f"{who} is fenced: {why}")


def _also(finding: Finding) -> str:
    match finding:
        case Same():
            return ""
        case Another():
            return "; its root is not the registered one"
        case NotOurs(error) | Unreachable(error) | Blocked(error):
            return f"; {error.code}: {error}"
        case _:
            assert_never(finding)


def _what_another_is(broker: BrokerImage, registration: RegisterBroker) -> str:
    if registration.directory_id != broker.directory_id:
        return f"its root was formatted again (directory {registration.directory_id})"
    return "its root was restored from a copy, or moved"


def _not_trustworthy(image: ClusterImage, found: Sequence[Found]) -> str | None:
    """The reason why nothing may be committed on this probe; None if changes may be committed."""
    voters = {voter.broker_id for voter in image.voters}
    findings = {each.broker_id: each.finding for each in found}
    same = {broker for broker in voters if isinstance(findings.get(broker), Same)}
    if 2 * len(same) > len(voters):
        return None
    if any(isinstance(findings.get(broker), Another) for broker in voters):
        return (
            f"nothing was changed: roots of the metadata voters {_listed(voters)} were "
            "moved, or restored from a copy. If the roots are complete, bootstrap these brokers with "
            "--trust-copy. If they are older copies, commits after the copy may be lost: bootstrap the brokers "
            "without --trust-copy"
        )
    return (
        f"nothing was changed: this driver cannot reach the roots of a majority of the metadata voters "
        f"{_listed(voters)}; are their volumes mounted here?"
    )


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(brokers)))

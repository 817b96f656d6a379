"""Fences, unfences and decommissions brokers by hand.

A broker that is fenced by hand stays fenced, even if its root answers, until an operator unfences or registers it.
To move a root to another disk without leaving the ISRs: fence the broker, copy the root, change ``log_dir`` in the
cluster file, and ``bootstrap`` the broker with ``--trust-copy``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from stratalog.engine.brokers.probe import entry, probe_roots
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import Row
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.commands import (
    Command,
    Decision,
    FenceBroker,
    RegisterBroker,
    Together,
    UnfenceBroker,
    UnregisterBroker,
)
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionImage
from stratalog.engine.metadata.probed_roots import Another, Blocked, Found, NotOurs, Same, Unreachable
from stratalog.engine.quorum.client import MetadataClient
from stratalog.partitions.errors import InvalidCallError, StratalogError

_NAMED = 5


class FencedRow(Row, frozen=True, kw_only=True):
    """A fenced broker: the partitions that it led, their new leaders, and the partitions without a leader."""

    broker: int
    was: str
    led: int
    leaders_after: str
    without_leader: int
    partitions_without_leader: str
    left_isrs: int


class UnfencedRow(Row, frozen=True, kw_only=True):
    """An unfenced broker, and the number of partitions that it leads."""

    broker: int
    was: str
    now: str
    leads: int


class DecommissionedRow(Row, frozen=True, kw_only=True):
    broker: int
    now: str


def fence(
    metadata: MetadataClient,
    execution: Execution,
    brokers: Sequence[int],
    *,
    force: bool = False,
    dry_run: bool = False,
) -> Report:
    """Fence brokers by hand. They leave the ISRs in which they are not the last member, and other replicas lead
    their partitions. The report has one row per broker: the partitions that it led, their new leaders, and the
    partitions that have no leader now.

    Raises: UnknownBrokerError; InvalidCallError, without ``force``, when a partition would have no leader (a dry
        run only notes this); RetriableError kinds, OutcomeUnknownError.
    """
    with execution.run("brokers fence", dry_run=dry_run) as run:
        command = FenceByHand(tuple(dict.fromkeys(brokers)), force or dry_run)
        change = metadata.submit(command, dry_run=dry_run)
        run.add(_fenced(change, broker_id) for broker_id in command.brokers)
        refusal = _refusal(change)
    if dry_run and refusal and not force:
        run.notes.append(f"without --force this is refused: {refusal}")
    run.totals["without_leader"] = len(change.left_without_leader())
    return run.report()


@dataclass(frozen=True, slots=True)
class ImageChange:
    """The metadata before and after."""

    before: ClusterImage
    after: ClusterImage

    def of_partitions(self) -> Iterator[tuple[str, PartitionImage, PartitionImage]]:
        """Return every changed partition: its name, and its state before and after."""
        for topic_id, topic in self.before.topics.items():
            later = self.after.topics[topic_id].partitions
            if later is not topic.partitions:  # the fold keeps unchanged partitions as the same objects
                for old, new in zip(topic.partitions, later, strict=True):
                    if old is not new:
                        yield f"{topic.name}-{old.partition}", old, new

    def left_without_leader(self) -> list[str]:
        return [name for name, old, new in self.of_partitions() if old.leader is not None and new.leader is None]


@dataclass(frozen=True, slots=True)
class FenceByHand:
    """Fence these brokers in one command. Only with ``force`` may a partition lose its leader."""

    brokers: tuple[int, ...]
    force: bool

    def decide(self, image: ClusterImage) -> Decision[ImageChange]:
        """Raises: UnknownBrokerError, InvalidCallError."""
        decided = Together(tuple(FenceBroker(broker, by_hand=True) for broker in self.brokers)).decide(image)
        change = ImageChange(image, decided.answer)
        refusal = _refusal(change)
        if refusal is not None and not self.force:
            raise InvalidCallError(f"{refusal}; --force fences them anyway")
        return Decision(decided.records, change)


def _refusal(change: ImageChange) -> str | None:
    stranded = change.left_without_leader()
    if not stranded:
        return None
    some = ", ".join(stranded[:_NAMED]) + (f" and {len(stranded) - _NAMED} more" if len(stranded) > _NAMED else "")
    return f"{some} would be left without a leader, because no other member of their ISRs can lead"


def _fenced(change: ImageChange, broker_id: int) -> FencedRow:
    led = [(name, new.leader) for name, old, new in change.of_partitions() if old.leader == broker_id]
    leaders = Counter(leader for _, leader in led if leader is not None)
    stranded = [name for name, leader in led if leader is None]
    left = sum(broker_id in old.isr and broker_id not in new.isr for _, old, new in change.of_partitions())
    return FencedRow(
        broker=broker_id,
        was=state_of(change.before.brokers[broker_id]),
        led=len(led),
        leaders_after=", ".join(f"{leader}: {count}" for leader, count in sorted(leaders.items())),
        without_leader=len(stranded),
        partitions_without_leader=" ".join(stranded),
        left_isrs=left,
    )


def unfence(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    brokers: Sequence[int],
    *,
    dry_run: bool = False,
) -> Report:
    """Unfence brokers whose roots answer, including brokers fenced by hand, in one commit. A root that is a new
    incarnation is registered as such, and its replicas must catch up before they join an ISR. The report has one
    row per broker.

    Raises: UnknownBrokerError; StaleBrokerError if a broker is registered in the meantime; RetriableError kinds,
        OutcomeUnknownError. A root that does not answer, or belongs to another cluster or broker, is a failure in
        the report.
    """
    commands: dict[int, Command[object]] = {}
    with execution.run("brokers unfence", dry_run=dry_run) as run:
        for broker_id in brokers:
            entry(storage.file, broker_id)
        image = metadata.image()
        registered = [image.broker(broker_id) for broker_id in dict.fromkeys(brokers)]
        findings = {found.broker_id: found for found in probe_roots(storage, image, brokers)}
        for broker in registered:
            try:
                commands[broker.broker_id] = _bring_back(broker, findings[broker.broker_id])
            except StratalogError as error:
                run.fail(f"broker {broker.broker_id}", error)
        after = metadata.submit(Together(tuple(commands.values())), dry_run=dry_run)
        leads = Counter(one.leader for topic in after.topics.values() for one in topic.partitions)
        run.add(
            UnfencedRow(
                broker=broker_id,
                was=state_of(image.brokers[broker_id]),
                now=_outcome(image.brokers[broker_id], command),
                leads=leads[broker_id],
            )
            for broker_id, command in commands.items()
        )
    return run.report()


def _bring_back(broker: BrokerImage, found: Found) -> Command[object]:
    match found.finding:
        case Same():
            return UnfenceBroker(broker.broker_id, broker.broker_epoch)
        case Another(registration):
            return registration
        case Unreachable(error) | NotOurs(error) | Blocked(error):
            raise error
        case _:
            assert_never(found.finding)


def _outcome(broker: BrokerImage, command: Command[object]) -> str:
    if isinstance(command, RegisterBroker):
        return "registered again, because its root is a different incarnation"
    return "unfenced" if broker.fenced else "as before"


def decommission(
    metadata: MetadataClient, execution: Execution, brokers: Sequence[int], *, dry_run: bool = False
) -> Report:
    """Permanently remove brokers from the metadata: either all of them or none. Their roots are unchanged. Remove
    the brokers from the cluster file next.

    Raises: UnknownBrokerError; InvalidCallError if a broker has a replica of a partition, or is a metadata voter;
        RetriableError kinds, OutcomeUnknownError.
    """
    listed = tuple(dict.fromkeys(brokers))
    with execution.run("brokers decommission", dry_run=dry_run) as run:
        command = Together(tuple(UnregisterBroker(broker_id) for broker_id in listed))
        metadata.submit(command, dry_run=dry_run)
    run.add(DecommissionedRow(broker=broker_id, now="unregistered") for broker_id in listed)
    return run.report()


def state_of(broker: BrokerImage) -> str:
    """Return the state of a broker: unfenced, fenced, or fenced by hand."""
    if broker.fenced_by_hand:
        return "fenced by hand"
    return "fenced" if broker.fenced else "unfenced"

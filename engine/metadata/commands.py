"""Commands on the metadata: command + image -> records + answer. Pure.

``decide`` does the work of Kafka's controller: it checks the command against the image, and returns the records
that make the change. ``decide`` itself changes nothing; the quorum commits the records on exactly the image of the
decision, or decides again. A command that changes nothing has no records, but still an answer.

This module has the protocol of commands, and commands on brokers. ``topic_commands`` has commands on topics and
configs; the commands in ``partition_commands``, ``election_commands`` and ``reassignment_commands`` change
partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import BrokerImage, ClusterImage
from stratalog.engine.metadata.records import (
    FenceBrokerRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from stratalog.partitions.errors import InvalidCallError, LogDirError, StaleBrokerError
from stratalog.partitions.identity import is_id

Answer = TypeVar("Answer", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """The result of a command: ``answer`` is valid once ``records`` are committed at the image's end."""

    records: tuple[MetadataRecord, ...]
    answer: Answer

    def image_after(self, image: ClusterImage) -> ClusterImage:
        """The image after the records are committed, given the image of the decision."""
        return apply(image, image.next_offset, self.records)


class Command(Protocol[Answer]):
    """A request to the metadata; a frozen value."""

    def decide(self, image: ClusterImage) -> Decision[Answer]:
        """The records to commit, and the answer once they are committed.

        Raises: InvalidCallError or StaleMetadataError kinds when the image does not allow the command.
        """
        ...


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """Register a broker's root that was found for the first time, again, or as another incarnation. The root is
    another incarnation if its directory id differs, or if its ``root`` differs (a restored older copy) and no
    operator vouches for a faithful copy (``trusted``). The command always unfences the broker. Answer: the broker
    epoch.
    """

    broker_id: int
    directory_id: str
    rack: str | None
    log_dir: str
    root: str = ""
    """The identity of the root's ``broker.json`` as an object; empty if unknown."""
    trusted: bool = False

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Raises: InvalidCallError, LogDirError when another broker has that directory."""
        if self.broker_id < 0 or not is_id(self.directory_id):
            raise InvalidCallError(
                f"broker {self.broker_id} with directory id {self.directory_id!r}: a broker id "
                "must be 0 or more, a directory id 32 hexadecimal digits"
            )
        for other in image.brokers.values():
            if other.directory_id == self.directory_id and other.broker_id != self.broker_id:
                raise LogDirError(
                    f"log dir {self.log_dir} of broker {self.broker_id} is already the log dir of "
                    f"broker {other.broker_id} "
                    f"({other.log_dir}): two brokers cannot share one"
                )
        record = RegisterBrokerRecord(
            broker_id=self.broker_id,
            directory_id=self.directory_id,
            log_dir=self.log_dir,
            rack=self.rack,
            root=self.root,
            trusted=self.trusted,
        )
        return Decision((record,), answer=image.next_offset)


@dataclass(frozen=True, slots=True)
class FenceBroker:
    """Fence a broker that is unreachable. With ``by_hand``, the broker stays fenced until an operator unfences it.
    Changes nothing if the broker is already fenced in the same way.
    """

    broker_id: int
    broker_epoch: int | None = None
    """The registration that was found unreachable; None: the current one."""
    by_hand: bool = False

    def decide(self, image: ClusterImage) -> Decision[None]:
        """Raises: UnknownBrokerError, StaleBrokerError if the broker has since been registered again."""
        broker = image.broker(self.broker_id)
        if self.broker_epoch is not None:
            _check_registration(broker, self.broker_epoch)
        if broker.fenced and (broker.fenced_by_hand or not self.by_hand):
            return Decision((), None)
        return Decision((FenceBrokerRecord(broker_id=self.broker_id, by_hand=self.by_hand),), None)


@dataclass(frozen=True, slots=True)
class UnfenceBroker:
    """Unfence the broker registered with ``broker_epoch``, even if it was fenced by hand. Changes nothing if it is
    unfenced.
    """

    broker_id: int
    broker_epoch: int

    def decide(self, image: ClusterImage) -> Decision[None]:
        """Raises: UnknownBrokerError, StaleBrokerError if the broker has since been registered again."""
        broker = image.broker(self.broker_id)
        _check_registration(broker, self.broker_epoch)
        if not broker.fenced:
            return Decision((), None)
        record = UnfenceBrokerRecord(broker_id=self.broker_id, broker_epoch=self.broker_epoch)
        return Decision((record,), None)


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Permanently remove a broker that has no replicas and is not a metadata voter."""

    broker_id: int

    def decide(self, image: ClusterImage) -> Decision[None]:
        """Raises: UnknownBrokerError; InvalidCallError while a partition has a replica there, or while the broker
        is a metadata voter.
        """
        image.broker(self.broker_id)
        if any(voter.broker_id == self.broker_id for voter in image.voters):
            raise InvalidCallError(
                f"broker {self.broker_id} is a metadata voter: remove it from the voters before you unregister it"
            )
        held = [
            f"{topic.name}-{partition.partition}"
            for topic in image.topics.values()
            for partition in topic.partitions
            if self.broker_id in partition.replicas
        ]
        if held:
            some = ", ".join(held[:_NAMED]) + (f" and {len(held) - _NAMED} more" if len(held) > _NAMED else "")
            raise InvalidCallError(
                f"broker {self.broker_id} still has replicas of {some}: drain it with reassign first"
            )
        return Decision((UnregisterBrokerRecord(broker_id=self.broker_id),), None)


_NAMED = 5
"""The number of partitions that an error names."""


def _check_registration(broker: BrokerImage, broker_epoch: int) -> None:
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerError(
            f"broker {broker.broker_id} has broker epoch {broker.broker_epoch}, not {broker_epoch}: it was "
            "registered again; read the metadata again"
        )


@dataclass(frozen=True, slots=True)
class Together:
    """Apply all of these commands or none. Each command is decided on the result of the commands before it.
    Answer: the resulting image.
    """

    commands: tuple[Command[object], ...]

    def decide(self, image: ClusterImage) -> Decision[ClusterImage]:
        """Raises: errors of the commands."""
        records: list[MetadataRecord] = []
        for command in self.commands:
            decided = command.decide(image).records
            if decided:
                image = apply(image, image.next_offset, decided)
                records += decided
        return Decision(tuple(records), image)

"""What may be asked of the metadata: command + image -> records + answer. Pure.

A command's ``decide`` is the whole of Kafka's controller for it: it checks the command against the image,
and says which records would carry it out. Nothing is changed by deciding; the quorum commits the records
under the very image that they were decided on, or the command is decided again. A command that has nothing
to change decides on no records, and is answered all the same.

This module has the protocol and the life of brokers; topics and configs are in ``topic_commands``, the ISR
and what else drivers change of partitions in ``partition_commands``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine.metadata.image import ClusterImage
from engine.metadata.records import (
    FenceBrokerRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
)
from partitions.errors import InvalidCallError, LogDirError, StaleBrokerError
from partitions.identity import is_id

Answer = TypeVar("Answer", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[Answer]):
    """What a command comes to: ``answer`` holds once ``records`` are committed at the image's end."""

    records: tuple[MetadataRecord, ...]
    answer: Answer


class Command(Protocol[Answer]):
    """A request to the metadata; a frozen value."""

    def decide(self, image: ClusterImage) -> Decision[Answer]:
        """What to commit, and what to answer then.

        Raises: InvalidCallError or StaleMetadataError kinds when the image does not allow the command.
        """
        ...


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A broker's root was found, for the first time, again, or as another incarnation. Unfences it.
    Answer: its broker epoch.
    """

    broker_id: int
    directory_id: str
    rack: str | None
    log_dir: str

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Raises: InvalidCallError, LogDirError when another broker has that directory."""
        if self.broker_id < 0 or not is_id(self.directory_id):
            raise InvalidCallError(
                f"broker {self.broker_id} with directory id {self.directory_id!r}: a broker id is 0 or more, "
                "a directory id 32 hexadecimal digits"
            )
        for other in image.brokers.values():
            if other.directory_id == self.directory_id and other.broker_id != self.broker_id:
                raise LogDirError(
                    f"log dir {self.log_dir} of broker {self.broker_id} is that of broker {other.broker_id} "
                    f"({other.log_dir}): two brokers cannot share one"
                )
        record = RegisterBrokerRecord(
            broker_id=self.broker_id,
            directory_id=self.directory_id,
            log_dir=self.log_dir,
            rack=self.rack,
        )
        return Decision((record,), answer=image.next_offset)


@dataclass(frozen=True, slots=True)
class FenceBroker:
    """The broker is unreachable, or is to be left alone. Nothing to do when it is fenced already."""

    broker_id: int

    def decide(self, image: ClusterImage) -> Decision[None]:
        """Raises: UnknownBrokerError."""
        if image.broker(self.broker_id).fenced:
            return Decision((), None)
        return Decision((FenceBrokerRecord(broker_id=self.broker_id),), None)


@dataclass(frozen=True, slots=True)
class UnfenceBroker:
    """The broker, as registered with ``broker_epoch``, is there again. Nothing to do when it is unfenced."""

    broker_id: int
    broker_epoch: int

    def decide(self, image: ClusterImage) -> Decision[None]:
        """Raises: UnknownBrokerError, StaleBrokerError when it was registered anew since."""
        broker = image.broker(self.broker_id)
        if broker.broker_epoch != self.broker_epoch:
            raise StaleBrokerError(
                f"broker {self.broker_id} has broker epoch {broker.broker_epoch}, not {self.broker_epoch}"
            )
        if not broker.fenced:
            return Decision((), None)
        record = UnfenceBrokerRecord(broker_id=self.broker_id, broker_epoch=self.broker_epoch)
        return Decision((record,), None)

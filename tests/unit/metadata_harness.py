"""A metadata log without a quorum: decides and folds, for tests of commands and of the fold."""

from __future__ import annotations

from typing import TypeVar

from stratalog.engine.metadata.commands import Command, FenceBroker, RegisterBroker, UnfenceBroker
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.fold import apply
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.partition_commands import (
    AlterPartition,
    IsrProposal,
    Member,
    PartitionAnswer,
    RefusedPartition,
)
from stratalog.engine.metadata.reassignment_commands import AlterPartitionReassignments, Reassignment
from stratalog.engine.metadata.records import MetadataRecord, PartitionRecord, TopicRecord

Answer = TypeVar("Answer")


def an_id(number: int) -> str:
    """An id that shows its number."""
    return f"{number:032x}"


def refusal(answer: PartitionAnswer) -> Exception:
    """The error of an answer, which must be one."""
    assert isinstance(answer, RefusedPartition)
    return answer.error


class Metadata:
    """Brokers 1..n in racks a, b, ...; topic ``t`` with one partition that has a replica on each of them."""

    def __init__(self, brokers: int = 3) -> None:
        self.image = ClusterImage()
        self.log: list[MetadataRecord] = []
        for broker_id in range(1, brokers + 1):
            self.register(broker_id)
        replicas = tuple(range(1, brokers + 1))
        self.commit(
            TopicRecord(name="t", topic_id=an_id(99)),
            PartitionRecord(topic_id=an_id(99), partition=0, replicas=replicas, isr=replicas, leader=1),
        )

    def commit(self, *records: MetadataRecord) -> None:
        """Fold these records as one batch."""
        self.image = apply(self.image, self.image.next_offset, records)
        self.log += records

    def do(self, command: Command[Answer]) -> Answer:
        """Decide and commit."""
        decision = command.decide(self.image)
        self.commit(*decision.records)
        return decision.answer

    def register(self, broker_id: int, incarnation: int = 0, root: str = "", *, trusted: bool = False) -> int:
        """Register a broker's root; another ``incarnation`` has another directory id."""
        directory_id = an_id(1000 * incarnation + broker_id)
        rack, log_dir = chr(96 + broker_id), f"file:///{broker_id}"
        return self.do(RegisterBroker(broker_id, directory_id, rack, log_dir, root, trusted))

    def fence(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            self.do(FenceBroker(broker_id))

    def unfence(self, broker_id: int) -> None:
        self.do(UnfenceBroker(broker_id, self.image.brokers[broker_id].broker_epoch))

    @property
    def t(self) -> PartitionImage:
        return self.image.topic("t").partitions[0]

    def propose(self, isr: list[int], adding: list[int] | None = None, **changes: int) -> PartitionAnswer:
        """Propose AlterPartition for ``t``, with the current epochs unless ``changes`` has others."""
        (answer,) = self.do(AlterPartition((self.proposal(isr, adding, **changes),)))
        return answer

    def proposal(self, isr: list[int], adding: list[int] | None = None, **changes: int) -> IsrProposal:
        return IsrProposal(
            topic_id=an_id(99),
            partition=changes.get("partition", 0),
            leader_epoch=changes.get("leader_epoch", self.t.leader_epoch),
            partition_epoch=changes.get("partition_epoch", self.t.partition_epoch),
            isr=tuple(self.member(b) for b in isr),
            adding=tuple(self.member(b) for b in adding or ()),
        )

    def member(self, broker_id: int) -> Member:
        return Member(broker_id, self.image.brokers[broker_id].broker_epoch)

    def expand(self, *broker_ids: int) -> PartitionAnswer:
        """The two commits that take brokers into the ISR of ``t``; returns the second answer."""
        self.propose([*self.t.isr], adding=[*broker_ids])
        return self.propose([*self.t.isr, *broker_ids])

    def elect(
        self,
        leader: int | None = None,
        *,
        unclean: bool = False,
        resign: bool = False,
        partition_epoch: int | None = None,
    ) -> PartitionAnswer:
        """Elect a leader for ``t``."""
        election = Election(an_id(99), 0, leader, unclean, resign, partition_epoch)
        (answer,) = self.do(ElectLeaders((election,)))
        return answer

    def reassign(self, *target: int, force: bool = False) -> PartitionAnswer:
        (answer,) = self.do(AlterPartitionReassignments((Reassignment(an_id(99), 0, target, force),)))
        return answer

    def cancel(self, *, force: bool = False) -> PartitionAnswer:
        """Cancel the reassignment of ``t``."""
        (answer,) = self.do(AlterPartitionReassignments((Reassignment(an_id(99), 0, None, force),)))
        return answer


def with_newcomer() -> Metadata:
    """Three brokers: the ISR of ``t`` is 1 and 2, and 3 is being added."""
    metadata = Metadata()
    metadata.propose([1, 2])
    metadata.propose([1, 2], adding=[3])
    return metadata

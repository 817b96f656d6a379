"""Commands on partitions, in batches: one commit serves all partitions of a run.

Each partition that cannot be changed is refused individually, with an error that says what the proposer should do.
The other partitions are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stratalog.engine.config.settings import topic_config
from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionImage
from stratalog.engine.metadata.partition_changes import in_order, is_complete, replace_replicas
from stratalog.engine.metadata.records import PartitionChangeRecord, PartitionWrittenRecord, RemovalRuleRecord
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidCallError,
    InvalidUpdateVersionError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.removal import Rule, next_rule


@dataclass(frozen=True, slots=True)
class _Answer:
    topic_id: str
    partition: int

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


@dataclass(frozen=True, slots=True)
class Altered(_Answer):
    """The partition is as proposed, with this partition epoch."""

    partition_epoch: int


@dataclass(frozen=True, slots=True)
class RefusedPartition(_Answer):
    """The partition is unchanged; ``error`` has the reason, and the class of the error implies the remedy."""

    error: StratalogError


PartitionAnswer = Altered | RefusedPartition


class Request(Protocol):
    """A request for one partition."""

    @property
    def topic_id(self) -> str: ...
    @property
    def partition(self) -> int: ...


R = TypeVar("R", bound=Request)


def decide_each(
    image: ClusterImage,
    requests: Sequence[R],
    change: Callable[[ClusterImage, PartitionImage, R], PartitionChangeRecord | None],
) -> Decision[tuple[PartitionAnswer, ...]]:
    """Return one answer per request, in order. ``change`` returns the record for a request, or None if there is
    nothing to change, or raises the refusal. Of several requests for one partition, only the first is considered,
    because it makes the partition epoch of the other requests outdated.
    """
    records: dict[TopicIdPartition, PartitionChangeRecord | None] = {}
    answers: list[PartitionAnswer] = []
    for request in requests:
        key = TopicIdPartition(request.topic_id, request.partition)
        try:
            present = image.partition(*key)
            if key in records:
                raise InvalidUpdateVersionError(f"{request} is the second request for its partition in one batch")
            record = records[key] = change(image, present, request)
        except StratalogError as error:
            answers.append(RefusedPartition(*key, error))
            continue
        answers.append(Altered(*key, present.partition_epoch + (record is not None)))
    return Decision(tuple(record for record in records.values() if record is not None), tuple(answers))


def name_of(image: ClusterImage, request: Request) -> str:
    """The name of an existing partition for messages."""
    return f"partition {request.partition} of topic {image.topics[request.topic_id].name!r}"


@dataclass(frozen=True, slots=True)
class Member:
    """A broker, and the broker epoch under which its storage was seen (KIP-903, ``NewIsrWithEpochs``)."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A driver's proposal for one partition: its ISR, and the replicas being added."""

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    """The partition epoch of the view on which the proposal is based."""
    isr: tuple[Member, ...]
    adding: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """Shrink or expand ISRs (protocol section 4; KIP-497, KIP-903). One answer per proposal, in order:
    ``Altered``, or ``RefusedPartition`` with UNKNOWN_TOPIC_OR_PARTITION, FENCED_LEADER_EPOCH,
    INVALID_UPDATE_VERSION, INELIGIBLE_REPLICA, or INVALID_REQUEST.

    Expanding by F takes two commands: the first *adds* F, the second makes it a member. A proposal that leaves no
    *joining* replica outside the ISR also completes the reassignment, in the same record: the replicas become the
    target, and all other replicas leave the ISR and stop leading. Such a proposal may be for the current ISR.
    """

    proposals: tuple[IsrProposal, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Never raises; refusals are answers."""
        return decide_each(image, self.proposals, _change)


def _change(image: ClusterImage, present: PartitionImage, proposal: IsrProposal) -> PartitionChangeRecord | None:
    """The record that makes the proposed change; None when there is nothing to change."""
    what = name_of(image, proposal)
    if proposal.leader_epoch != present.leader_epoch:
        raise FencedLeaderEpochError(
            f"{what}: leader epoch {proposal.leader_epoch} was proposed, "
            f"but the current leader epoch is {present.leader_epoch}"
        )
    if proposal.partition_epoch != present.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{what}: partition epoch {proposal.partition_epoch} was proposed, "
            f"but the current partition epoch is {present.partition_epoch}"
        )
    isr = in_order(present.replicas, (member.broker_id for member in proposal.isr))
    adding = in_order(present.replicas, (member.broker_id for member in proposal.adding))
    if len(isr) + len(adding) != len(proposal.isr) + len(proposal.adding) or set(isr) & set(adding):
        raise InvalidCallError(f"{what}: {proposal} names a broker twice, or a broker without a replica")
    if present.leader is None or present.leader not in isr:
        raise InvalidCallError(f"{what}: its leader {present.leader} is not in the proposed ISR {isr}")
    if not set(isr) <= {*present.isr, *present.adding}:
        raise InvalidCallError(
            f"{what}: brokers {sorted(set(isr) - {*present.isr, *present.adding})} must first be *added* by a "
            "separate commit, before they join the ISR"
        )
    for member in (*proposal.isr, *proposal.adding):
        _check_eligible(image.brokers[member.broker_id], member, what)
    complete = is_complete(present, isr)
    return replace_replicas(
        image,
        proposal.topic_id,
        present,
        replicas=present.target if complete else present.replicas,
        isr=isr,
        adding=adding,
        target=() if complete else present.target,
        joining=() if complete else present.joining,
    )


def _check_eligible(broker: BrokerImage, member: Member, what: str) -> None:
    if broker.fenced or broker.broker_epoch != member.broker_epoch:
        state = "fenced" if broker.fenced else "registered"
        raise IneligibleReplicaError(
            f"{what}: broker {member.broker_id} was seen under broker epoch {member.broker_epoch}, and is "
            f"{state} with {broker.broker_epoch}"
        )


@dataclass(frozen=True, slots=True)
class LogStart:
    """The log start offset that a partition should reach."""

    topic_id: str
    partition: int
    log_start_offset: int
    leader_epoch: int | None = None
    """The epoch of the leader whose log contains this log start; None: the current leader epoch. After an unclean
    election, a log start of an earlier leader may be beyond the log, and appends would be below the log start.
    """
    generation: int | None = None
    """The generation of the snapshot that ends there; None: no snapshot is the reason. A snapshot from before an
    erasure must not move a log start (``stratalog.snapshots.erasure``).
    """


@dataclass(frozen=True, slots=True)
class AdvanceLogStart:
    """Move log starts, for total retention and DeleteRecords. Log starts never decrease: a smaller offset changes
    nothing. One answer per partition, in order; FENCED_LEADER_EPOCH if another leader has been elected;
    INVALID_UPDATE_VERSION if the snapshot does not follow the last erasure.
    """

    log_starts: tuple[LogStart, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Never raises; a missing partition is ``RefusedPartition``."""
        greatest: dict[TopicIdPartition, int] = {}
        found: list[PartitionImage | StratalogError] = []
        for wanted in self.log_starts:
            key = TopicIdPartition(wanted.topic_id, wanted.partition)
            try:
                found.append(_led_as_found(image, wanted))
                greatest[key] = max(wanted.log_start_offset, greatest.get(key, 0))
            except StratalogError as error:
                found.append(error)
        records: dict[TopicIdPartition, PartitionChangeRecord] = {}
        answers: list[PartitionAnswer] = []
        for wanted, present in zip(self.log_starts, found, strict=True):
            key = TopicIdPartition(wanted.topic_id, wanted.partition)
            if isinstance(present, StratalogError):
                answers.append(RefusedPartition(*key, present))
                continue
            grows = greatest[key] > present.log_start_offset
            if grows:
                records[key] = PartitionChangeRecord(
                    topic_id=key.topic_id, partition=key.partition, log_start_offset=greatest[key]
                )
            answers.append(Altered(*key, present.partition_epoch + grows))
        return Decision(tuple(records.values()), tuple(answers))


def _led_as_found(image: ClusterImage, wanted: LogStart) -> PartitionImage:
    present = image.partition(wanted.topic_id, wanted.partition)
    if wanted.leader_epoch not in (None, present.leader_epoch):
        raise FencedLeaderEpochError(
            f"{name_of(image, wanted)}: log start {wanted.log_start_offset} was found under "
            f"leader epoch {wanted.leader_epoch}, but the current leader epoch is {present.leader_epoch}; read "
            "the log of the new leader"
        )
    generation = image.generation_of(TopicIdPartition(wanted.topic_id, wanted.partition))
    if wanted.generation not in (None, generation):
        raise InvalidUpdateVersionError(
            f"{name_of(image, wanted)}: the snapshot that ends at {wanted.log_start_offset} follows erasure "
            f"{wanted.generation}, but the last one is {generation}; read the metadata again"
        )
    return present


@dataclass(frozen=True, slots=True)
class WantedRule:
    """A removal rule that a partition should get."""

    topic_id: str
    partition: int
    bound: int
    after: int
    """The generation of the previous rule, which every member of the ISR has applied; 0: there is none."""
    leader_epoch: int
    """The epoch of the leader whose log has the bound."""
    now_ms: int
    """The time on which the clocks agree (``agreed_time``). The rule removes tombstones that are old enough at
    this time.
    """
    committed_ms: int
    """The latest of the clocks' times, from which the ``delete.retention.ms`` of the previous rule is counted."""
    delete_retention_ms: int
    partition_epoch: int
    """The partition epoch of the view in which all members of the ISR, and all replicas being added, have applied
    the previous rule.
    """


@dataclass(frozen=True, slots=True)
class AddRules:
    """Give partitions their next removal rules. One answer per partition, in order: INVALID_UPDATE_VERSION if the
    partition has changed, or its topic is no longer compacted; FENCED_LEADER_EPOCH if another leader has been
    elected.
    """

    wanted: tuple[WantedRule, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Never raises; a missing partition is ``RefusedPartition``."""
        records: list[RemovalRuleRecord] = []
        answers: list[PartitionAnswer] = []
        named: set[TopicIdPartition] = set()
        for wanted in self.wanted:
            key = TopicIdPartition(wanted.topic_id, wanted.partition)
            try:
                present = self._present(image, wanted)
                if key in named:
                    raise InvalidUpdateVersionError(f"{name_of(image, wanted)} is named twice")
            except StratalogError as error:
                answers.append(RefusedPartition(*key, error))
                continue
            named.add(key)
            rules = image.rules_of(key)
            generation = image.generation_of(key) + 1
            rule = next_rule(rules, wanted.bound, wanted.now_ms, wanted.delete_retention_ms, generation)
            records.append(
                RemovalRuleRecord(
                    topic_id=key.topic_id, partition=key.partition, rule=rule, committed_ms=wanted.committed_ms
                )
            )
            answers.append(Altered(*key, present.partition_epoch + 1))
        return Decision(tuple(records), tuple(answers))

    def _present(self, image: ClusterImage, wanted: WantedRule) -> PartitionImage:
        present = image.partition(wanted.topic_id, wanted.partition)
        if wanted.leader_epoch != present.leader_epoch:
            raise FencedLeaderEpochError(
                f"{name_of(image, wanted)}: the bound {wanted.bound} was found under leader epoch "
                f"{wanted.leader_epoch}, but the current leader epoch is {present.leader_epoch}; read the log of "
                "the new leader"
            )
        rules = image.rules_of(TopicIdPartition(wanted.topic_id, wanted.partition))
        last = rules[-1].rule if rules else Rule(0, 0)
        generation = image.generation_of(TopicIdPartition(wanted.topic_id, wanted.partition))
        changed = wanted.partition_epoch != present.partition_epoch
        if changed or wanted.after != generation or wanted.bound < last.bound:
            raise InvalidUpdateVersionError(
                f"{name_of(image, wanted)}: the removal rule up to {wanted.bound} is out of date: it expects rule "
                f"generation {wanted.after} and partition epoch {wanted.partition_epoch}, but the current one is "
                f"{last}, the last generation is {generation}, and the partition epoch is "
                f"{present.partition_epoch}; read the logs again"
            )
        topic = image.topics[wanted.topic_id]
        config = topic_config(topic.configs, image.configs, f"topic {topic.name!r}")
        if not config.compacts:
            raise InvalidUpdateVersionError(
                f"{name_of(image, wanted)}: no rule can remove its records, because cleanup.policy is now "
                f"{config.cleanup_policy}; to remove records, set cleanup.policy to compact"
            )
        return present


@dataclass(frozen=True, slots=True)
class AdoptRules:
    """Give the partitions of a restored topic the rules that their remote logs have applied, except partitions
    that have a later rule. Answer: the number of rules given.
    """

    topic_id: str
    rules: tuple[tuple[int, Rule], ...]
    """Keyed by partition."""
    committed_ms: int

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Raises: UnknownTopicOrPartitionError."""
        records: list[RemovalRuleRecord] = []
        for partition, rule in self.rules:
            image.partition(self.topic_id, partition)
            present = image.rules_of(TopicIdPartition(self.topic_id, partition))
            if not present or present[-1].rule.generation < rule.generation:
                records.append(
                    RemovalRuleRecord(
                        topic_id=self.topic_id, partition=partition, rule=rule, committed_ms=self.committed_ms
                    )
                )
        return Decision(tuple(records), len(records))


@dataclass(frozen=True, slots=True)
class WrittenUpTo:
    """A high watermark of a partition, above its log start."""

    topic_id: str
    partition: int
    high_watermark: int
    leader_epoch: int
    """The epoch of the leader whose log has this offset."""


@dataclass(frozen=True, slots=True)
class MarkWritten:
    """Record that partitions have had records; returns the number of new marks. Partitions with another leader are
    skipped. This does not make any view outdated.
    """

    written: tuple[WrittenUpTo, ...]

    def decide(self, image: ClusterImage) -> Decision[int]:
        """Never raises."""
        records = tuple(
            PartitionWrittenRecord(
                topic_id=each.topic_id, partition=each.partition, high_watermark=each.high_watermark
            )
            for each in self.written
            if _is_news(image, each)
        )
        return Decision(records, len(records))


def _is_news(image: ClusterImage, written: WrittenUpTo) -> bool:
    if written.topic_id not in image.topics:
        return False
    present = image.partition(written.topic_id, written.partition)
    return written.leader_epoch == present.leader_epoch and written.high_watermark > present.written_to

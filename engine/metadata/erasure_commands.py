"""Commands that erase records at given offsets of partitions, and later forget these offsets
(``partitions.erasure``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stratalog.engine.config.settings import topic_config
from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.partition_commands import (
    Altered,
    PartitionAnswer,
    RefusedPartition,
    Request,
    name_of,
)
from stratalog.engine.metadata.records import ErasedEverywhereRecord, ErasureRecord, MetadataRecord
from stratalog.partitions.erasure import MOST_KEPT_RANGES, MOST_RANGES, Erasure, OffsetRange, are_ranges
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    InvalidCallError,
    InvalidUpdateVersionError,
    PolicyViolationError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition


@dataclass(frozen=True, slots=True)
class WantedErasure:
    """The offsets of one partition to erase."""

    topic_id: str
    partition: int
    offsets: tuple[OffsetRange, ...]
    """See ``Erasure``; at most ``MOST_RANGES``, below the last stable offset of the leader."""
    after: int
    """The generation of the previous rule, which every member of the ISR has carried out; 0: there is none."""
    leader_epoch: int
    """The epoch of the leader whose log has the records."""
    partition_epoch: int
    """The partition epoch of the view whose ISR, and the replicas being added, have carried out the previous rule.
    """
    remote: bool = False
    """Whether the remote log was also searched, and will be rewritten before the replicas."""


@dataclass(frozen=True, slots=True)
class AddErasures:
    """Give partitions their next erasures. One answer per partition, in order: INVALID_UPDATE_VERSION if the
    partition has changed; FENCED_LEADER_EPOCH if another leader has been elected; POLICY_VIOLATION for a topic
    from which no offsets can be erased, or if too many offsets wait for unreachable replicas.
    """

    wanted: tuple[WantedErasure, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Raises no error; a missing partition is ``RefusedPartition``."""
        return decide_erasures(image, self.wanted, _erasure)


@dataclass(frozen=True, slots=True)
class ErasedEverywhere:
    """The erasures of a partition that every replica has carried out."""

    topic_id: str
    partition: int
    generation: int
    """The generation up to which they have."""
    partition_epoch: int
    """The partition epoch of the view under which all replicas were checked."""


@dataclass(frozen=True, slots=True)
class ForgetErasures:
    """Forget the offsets of erasures that every replica has carried out. One answer per partition, in order:
    INVALID_UPDATE_VERSION if the partition has changed and so may have another replica.
    """

    erased: tuple[ErasedEverywhere, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Raises no error; a missing partition is ``RefusedPartition``."""
        return decide_erasures(image, self.erased, _forgotten)


R = TypeVar("R", bound=Request)


def decide_erasures(
    image: ClusterImage,
    requests: Sequence[R],
    records_of: Callable[[ClusterImage, R], tuple[Sequence[MetadataRecord], int]],
) -> Decision[tuple[PartitionAnswer, ...]]:
    """One answer per request, in order. ``records_of`` returns the records that carry a request out, and the
    partition epoch after them, or raises the refusal.
    """
    records: list[MetadataRecord] = []
    answers: list[PartitionAnswer] = []
    named: set[TopicIdPartition] = set()
    for request in requests:
        key = TopicIdPartition(request.topic_id, request.partition)
        try:
            of_request, partition_epoch = records_of(image, request)
            if key in named:
                raise InvalidUpdateVersionError(f"{name_of(image, request)} is named twice")
        except StratalogError as error:
            answers.append(RefusedPartition(*key, error))
            continue
        named.add(key)
        records += of_request
        answers.append(Altered(*key, partition_epoch))
    return Decision(tuple(records), tuple(answers))


def _erasure(image: ClusterImage, wanted: WantedErasure) -> tuple[Sequence[MetadataRecord], int]:
    key = TopicIdPartition(wanted.topic_id, wanted.partition)
    present = image.partition(*key)
    what = name_of(image, wanted)
    if wanted.leader_epoch != present.leader_epoch:
        raise FencedLeaderEpochError(
            f"{what}: the records were found under leader epoch {wanted.leader_epoch}, but the current one is "
            f"{present.leader_epoch}; search the log of the new leader"
        )
    generation = image.generation_of(key)
    if wanted.partition_epoch != present.partition_epoch or wanted.after != generation:
        raise InvalidUpdateVersionError(
            f"{what}: the erasure was planned for generation {wanted.after} and partition epoch "
            f"{wanted.partition_epoch}, but they are now {generation} and {present.partition_epoch}; plan it again"
        )
    if not wanted.offsets or not are_ranges(wanted.offsets) or len(wanted.offsets) > MOST_RANGES:
        raise InvalidCallError(
            f"{what}: an erasure needs 1 to {MOST_RANGES:,} ascending ranges of offsets, not "
            f"{len(wanted.offsets):,}"
        )
    topic = image.topics[wanted.topic_id]
    config = topic_config(topic.configs, image.configs, f"topic {topic.name!r}")
    if config.snapshots:
        raise PolicyViolationError(
            f"{what}: its topic got cleanup.policy=snapshot after the search for its records: run erase again"
        )
    if config.remote_storage_enable and not wanted.remote:
        raise PolicyViolationError(
            f"{what}: its topic became tiered after the search for its records: run erase again"
        )
    kept = sum(len(one.offsets) for one in image.erasures_of(key)) + len(wanted.offsets)
    if kept > MOST_KEPT_RANGES:
        raise PolicyViolationError(
            f"{what}: {kept:,} ranges of offsets would wait for replicas that have not carried out their erasure, "
            f"but the metadata keeps at most {MOST_KEPT_RANGES:,}: bring back the unreachable brokers, or "
            "reassign their replicas, then run erase again"
        )
    record = ErasureRecord(
        topic_id=key.topic_id, partition=key.partition, erasure=Erasure(generation + 1, wanted.offsets)
    )
    return (record,), present.partition_epoch + 1


def _forgotten(image: ClusterImage, erased: ErasedEverywhere) -> tuple[Sequence[MetadataRecord], int]:
    key = TopicIdPartition(erased.topic_id, erased.partition)
    present = image.partition(*key)
    if erased.partition_epoch != present.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{name_of(image, erased)}: its replicas were checked under partition epoch "
            f"{erased.partition_epoch}, but the current one is {present.partition_epoch}; check them again"
        )
    record = ErasedEverywhereRecord(topic_id=key.topic_id, partition=key.partition, generation=erased.generation)
    return (record,), present.partition_epoch

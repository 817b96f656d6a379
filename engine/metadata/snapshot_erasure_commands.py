"""Commands for erasures of partitions with snapshots (``stratalog.snapshots.erasure``)."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.config.settings import topic_config
from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.erasure_commands import decide_erasures
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.partition_commands import PartitionAnswer, name_of
from stratalog.engine.metadata.records import ErasureRecord, MetadataRecord, PartitionChangeRecord
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import (
    FencedLeaderEpochError,
    InvalidCallError,
    InvalidUpdateVersionError,
    PolicyViolationError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.snapshots.erasure import next_generation


@dataclass(frozen=True, slots=True)
class SnapshotErasure:
    """The erasure of one partition."""

    topic_id: str
    partition: int
    leader_epoch: int
    partition_epoch: int
    """The partition epoch of the view under which the run acts."""
    bound: int
    """The end of the snapshot from which the keys are erased."""
    published: bool = False
    """Whether the run also erases from the table in which the topic publishes its snapshots."""


@dataclass(frozen=True, slots=True)
class NumberSnapshotErasures:
    """Raise the partition epoch of each partition, so that its erasure gets a generation of its own. One answer
    per partition, in order; see ``AddSnapshotErasures`` for the refusals.
    """

    wanted: tuple[SnapshotErasure, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Raises no error; a missing partition is ``RefusedPartition``."""
        return decide_erasures(image, self.wanted, _numbered)


@dataclass(frozen=True, slots=True)
class AddSnapshotErasures:
    """Add the erasure of each partition, and move its log start to the bound. The leader, the ISR, and the
    replicas being added have the snapshot of the erasure. One answer per partition, in order:
    INVALID_UPDATE_VERSION if the partition has changed; FENCED_LEADER_EPOCH if another leader has been elected;
    POLICY_VIOLATION for a topic without snapshots, or one that publishes them (or no longer does) since the plan.
    """

    wanted: tuple[SnapshotErasure, ...]

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Raises no error; a missing partition is ``RefusedPartition``."""
        return decide_erasures(image, self.wanted, _added)


def _numbered(image: ClusterImage, wanted: SnapshotErasure) -> tuple[tuple[MetadataRecord, ...], int]:
    present = _checked(image, wanted)
    record = PartitionChangeRecord(topic_id=wanted.topic_id, partition=wanted.partition, isr=present.isr)
    return (record,), present.partition_epoch + 1


def _added(image: ClusterImage, wanted: SnapshotErasure) -> tuple[tuple[MetadataRecord, ...], int]:
    present = _checked(image, wanted)
    if wanted.bound < present.log_start_offset:
        raise InvalidUpdateVersionError(
            f"{name_of(image, wanted)}: its log start has moved beyond {wanted.bound}; plan the erasure again"
        )
    erasure = Erasure(next_generation(present.partition_epoch), ((0, wanted.bound),))
    added = ErasureRecord(topic_id=wanted.topic_id, partition=wanted.partition, erasure=erasure)
    if wanted.bound == present.log_start_offset:
        return (added,), present.partition_epoch + 1
    moved = PartitionChangeRecord(
        topic_id=wanted.topic_id, partition=wanted.partition, log_start_offset=wanted.bound
    )
    return (added, moved), present.partition_epoch + 2


def _checked(image: ClusterImage, wanted: SnapshotErasure) -> PartitionImage:
    """The partition. Raises: see ``AddSnapshotErasures``."""
    present, what = image.partition(wanted.topic_id, wanted.partition), name_of(image, wanted)
    if wanted.leader_epoch != present.leader_epoch:
        raise FencedLeaderEpochError(
            f"{what}: the erasure was planned under leader epoch {wanted.leader_epoch}, but the current one is "
            f"{present.leader_epoch}; plan it again"
        )
    if wanted.partition_epoch != present.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{what}: the erasure was planned for partition epoch {wanted.partition_epoch}, but the current one "
            f"is {present.partition_epoch}; plan it again"
        )
    if wanted.bound <= 0:
        raise InvalidCallError(f"{what}: an erasure needs a snapshot, and none ends at offset {wanted.bound}")
    topic = image.topics[wanted.topic_id]
    config = topic_config(topic.configs, image.configs, f"topic {topic.name!r}")
    if not config.snapshots or config.snapshot_table != wanted.published:
        raise PolicyViolationError(
            f"{what}: its configs have changed since the erasure was planned (cleanup.policy, "
            "remote.snapshot.table.enable): run erase again"
        )
    generation = image.generation_of(TopicIdPartition(wanted.topic_id, wanted.partition))
    if generation > present.partition_epoch:
        raise PolicyViolationError(
            f"{what}: its last removal rule has generation {generation}, above the partition epoch "
            f"{present.partition_epoch}, so its snapshots cannot be numbered: create another topic"
        )
    return present

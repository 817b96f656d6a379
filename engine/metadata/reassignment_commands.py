"""Reassignments: new replicas for a partition, which are added before the old replicas are removed (KIP-455)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.engine.metadata.commands import Decision
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.metadata.partition_changes import replace_replicas
from stratalog.engine.metadata.partition_commands import PartitionAnswer, decide_each, name_of
from stratalog.engine.metadata.records import PartitionChangeRecord
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.partitions.errors import InvalidReplicaAssignmentError, NoReassignmentInProgressError
from stratalog.partitions.identity import TopicIdPartition

THROTTLED_RATE = "follower.replication.throttled.rate"


@dataclass(frozen=True, slots=True)
class Reassignment:
    """The target replicas of one partition."""

    topic_id: str
    partition: int
    target: tuple[int, ...] | None
    """The brokers, in order of preference; None cancels the reassignment in progress."""
    force: bool = False
    """Reassign even if afterwards no replica is in sync, and the partition has no leader."""


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments:
    """Begin, replace or cancel reassignments. One answer per reassignment, in order: ``Altered``, or ``Refused``
    with UNKNOWN_TOPIC_OR_PARTITION, INVALID_REPLICA_ASSIGNMENT, BROKER_ID_NOT_REGISTERED,
    NO_REASSIGNMENT_IN_PROGRESS or INVALID_UPDATE_VERSION (the second reassignment of one partition in a batch).

    New replicas are *joining* until all of them are in the ISR; then ``AlterPartition`` completes the
    reassignment. A reassignment without new replicas completes immediately. Until a reassignment is complete, the
    partition has the original and the joining replicas, so a cancel restores the original replicas.
    """

    reassignments: tuple[Reassignment, ...]
    throttled_rate: int | None = None
    """The new ``follower.replication.throttled.rate``, in bytes per second; None leaves it unchanged."""

    def decide(self, image: ClusterImage) -> Decision[tuple[PartitionAnswer, ...]]:
        """Raises: InvalidConfigError for a rate below 1; other refusals are answers."""
        decided = decide_each(image, self.reassignments, _reassign)
        if self.throttled_rate is None:
            return decided
        throttled = AlterConfigs(None, {THROTTLED_RATE: str(self.throttled_rate)}).decide(image)
        return Decision((*throttled.records, *decided.records), decided.answer)


@dataclass(frozen=True, slots=True)
class EndThrottle:
    """Delete ``follower.replication.throttled.rate``, unless a reassignment is in progress."""

    def decide(self, image: ClusterImage) -> Decision[Mapping[str, str]]:
        """Answers with the cluster's configs. Never raises."""
        if THROTTLED_RATE not in image.configs or in_progress(image):
            return Decision((), image.configs)
        return AlterConfigs(None, {THROTTLED_RATE: None}).decide(image)


def in_progress(image: ClusterImage) -> bool:
    """Whether any partition is being reassigned."""
    return any(partition.target for topic in image.topics.values() for partition in topic.partitions)


def _reassign(image: ClusterImage, present: PartitionImage, wanted: Reassignment) -> PartitionChangeRecord | None:
    what = name_of(image, wanted)
    target: tuple[int, ...] = ()
    joining: tuple[int, ...] = ()
    if wanted.target is None:
        if not present.target:
            raise NoReassignmentInProgressError(f"{what}: there is no reassignment in progress to cancel")
        replicas = present.original
    else:
        _check_target(image, present, wanted.target, what)
        replicas = wanted.target
        newcomers = tuple(broker for broker in wanted.target if broker not in present.original)
        if not set(newcomers) <= set(present.isr):
            replicas, target, joining = present.original + newcomers, wanted.target, newcomers
    removed = [broker for broker in present.replicas if broker not in replicas]
    if removed and not set(present.isr) & set(replicas):
        _check_not_erasing(image, present, wanted, what)
        if not wanted.force:
            raise InvalidReplicaAssignmentError(
                f"{what}: removing {removed} would leave no in-sync replica (ISR {present.isr}). Bring another "
                f"replica into the ISR first, or use force and lose the records that only {removed} has"
            )
    return replace_replicas(
        image,
        wanted.topic_id,
        present,
        replicas=replicas,
        isr=present.isr,
        adding=present.adding,
        target=target,
        joining=joining,
    )


def _check_not_erasing(image: ClusterImage, present: PartitionImage, wanted: Reassignment, what: str) -> None:
    """Check that every replica has applied the erasures. A replica that has not may still have erased records, and
    no election would choose it. If only such replicas remained, the partition would never have a leader again.

    Raises: InvalidReplicaAssignmentError.
    """
    if any(one.offsets for one in image.erasures_of(TopicIdPartition(wanted.topic_id, wanted.partition))):
        raise InvalidReplicaAssignmentError(
            f"{what}: not every replica has applied an erasure yet, and no remaining replica would be in the ISR "
            f"{present.isr}, so none could lead, even by force: bring back a broker of the ISR, then reassign, or "
            "run `stratalog erase` again without keys; or delete the topic"
        )


def _check_target(image: ClusterImage, present: PartitionImage, target: tuple[int, ...], what: str) -> None:
    if not target or len(set(target)) != len(target):
        raise InvalidReplicaAssignmentError(
            f"{what}: {target} cannot be its replicas: give at least one broker, and no broker twice"
        )
    for broker_id in target:
        if image.broker(broker_id).fenced and broker_id not in present.replicas:
            raise InvalidReplicaAssignmentError(
                f"{what}: broker {broker_id} is fenced; it cannot get a replica until it is unfenced"
            )

"""The ISR changes that a driver proposes, in one commit for all partitions (protocol section 4).

If a change is refused with INELIGIBLE_REPLICA, INVALID_UPDATE_VERSION or FENCED_LEADER_EPOCH, the driver reads the
committed state and checks again. Partitions of deleted topics are skipped. ``stratalog.engine.quorum.client``
handles NOT_CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_commands import (
    Altered,
    AlterPartition,
    IsrProposal,
    Member,
    RefusedPartition,
)
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import Synced
from stratalog.partitions.errors import (
    CorruptionError,
    StaleMetadataError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.unwritable import UnwritableStorageError


def lags(behind_ms: float, lag_time_max_ms: int) -> bool:
    """Whether a replica that has been behind its leader for this long is out of sync. As in Kafka, the time must
    exceed ``replica.lag.time.max.ms``.
    """
    return behind_ms > lag_time_max_ms


@dataclass(frozen=True, slots=True)
class Missed:
    """A follower that did not reach its leader's log end in a sync."""

    error: StratalogError
    behind_since_ms: int | None
    """The write time of the oldest record that the follower may lack; None if it has all records."""

    def is_out(self, now_ms: int, lag_ms: int) -> bool:
        """Whether the follower is out of sync: damaged, or behind for longer than ``replica.lag.time.max.ms``. A
        follower whose root refuses writes is out of sync as soon as it is behind.
        """
        if isinstance(self.error, CorruptionError):
            return True
        if self.behind_since_ms is None:
            return False
        return isinstance(self.error, UnwritableStorageError) or lags(now_ms - self.behind_since_ms, lag_ms)


@dataclass(slots=True)
class Progressed:
    """One partition during a run: its logs, copies and errors so far."""

    replicas: PartitionReplicas
    min_insync_replicas: int
    copied_files: int = 0
    copied_bytes: int = 0
    avoided_bytes: int = 0
    joined_s: float | None = None
    """The time when followers joined the ISR, in seconds from the start of the run; None if no follower joined."""
    log_end: int = 0
    high_watermark: int = 0
    caught_up: dict[int, Synced] = field(default_factory=dict)
    missed: dict[int, Missed] = field(default_factory=dict)
    cut_off: set[int] = field(default_factory=set)
    """The followers in ``missed`` that only a budget stopped, which is not a failure."""
    leader_error: StratalogError | None = None
    """The error from listing the leader."""
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    again: bool = False
    """Whether the view has changed during the run, so that the remaining work needs another run."""

    @property
    def has_min_isr(self) -> bool:
        """Whether records on the ISR count as committed."""
        return self.replicas.view.has_min_isr(self.min_insync_replicas)

    def begin(self, replicas: PartitionReplicas) -> None:
        """Start again under another view; copies and notes stay."""
        self.replicas = replicas
        self.log_end = self.high_watermark = 0
        self.caught_up, self.missed, self.cut_off, self.failures = {}, {}, set(), []
        self.leader_error, self.again = None, False

    def fail(self, item: object, error: StratalogError) -> None:
        """Record an error. If the view is stale, it is read again."""
        self.failures.append(Failure.of(item, error))
        self.again = self.again or isinstance(error, StaleMetadataError)


def is_current(image: ClusterImage, view: PartitionView) -> bool:
    """Whether the partition still equals the view."""
    topic = image.topics.get(view.topic_id)
    return topic is not None and topic.partitions[view.partition].partition_epoch == view.partition_epoch


def behind_since_ms(log: ReplicaLog, held: int) -> int | None:
    """The write time of the oldest file of the leader's ``log`` that a replica lacks; None if it lacks no file.

    The replica has the records below ``held``. (Files have their write time, so no process has to watch a follower
    for ``replica.lag.time.max.ms``.)
    """
    return next((link.file.object.modified_ms for link in log.chain if link.end > held), None)


def isr_proposal(view: PartitionView, isr: Collection[int], adding: Collection[int]) -> IsrProposal:
    """The proposed ISR and *adding*, with the broker epochs under which the view's storage was seen (KIP-903)."""

    def seen(members: Iterable[int]) -> tuple[Member, ...]:
        return tuple(
            Member(broker, view.brokers[broker].broker_epoch) for broker in view.replicas if broker in members
        )

    return IsrProposal(
        topic_id=view.topic_id,
        partition=view.partition,
        leader_epoch=view.leader_epoch,
        partition_epoch=view.partition_epoch,
        isr=seen(isr),
        adding=seen(adding),
    )


def without(view: PartitionView, brokers: Collection[int]) -> IsrProposal:
    """The view's ISR and *adding* without these brokers (Shrink)."""
    return isr_proposal(view, set(view.isr) - set(brokers), set(view.adding) - set(brokers))


def adding(view: PartitionView, brokers: Collection[int]) -> IsrProposal:
    """The first commit of an expansion: from here on an append needs these brokers, too."""
    return isr_proposal(view, view.isr, {*view.adding, *brokers})


def joined(view: PartitionView, brokers: Collection[int]) -> IsrProposal:
    """The second commit of an expansion: these brokers become members."""
    return isr_proposal(view, {*view.isr, *brokers}, set(view.adding) - set(brokers))


def propose(
    metadata: MetadataClient,
    storage: Storage,
    states: Mapping[TopicIdPartition, Progressed],
    proposals: Collection[IsrProposal],
) -> set[TopicIdPartition]:
    """Commit the proposals for all partitions in one change, and store the resulting views. Returns the partitions
    that are now as proposed, with a view from which this driver may continue. The state of every other partition
    records the reason: a deletion, a later change or an error.
    """
    if not proposals:
        return set()
    answers = metadata.submit(AlterPartition(tuple(proposals)))
    image = metadata.image()
    done: set[TopicIdPartition] = set()
    for answer in answers:
        key = answer.key
        state = states[key]
        match answer:
            case Altered(_, _, partition_epoch):
                # Another driver may have changed the partition since, so the next step cannot rely on the answer.
                if key[0] in image.topics:
                    state.replicas = storage.replicas(image.view(*key))
                if (
                    is_current(image, state.replicas.view)
                    and state.replicas.view.partition_epoch == partition_epoch
                ):
                    done.add(key)
                else:
                    state.again = True
            case RefusedPartition(_, _, UnknownTopicOrPartitionError()):
                state.notes.append(f"{state.replicas}: the topic was deleted during the operation")
            case RefusedPartition(_, _, error):
                state.fail(state.replicas, error)
    return done

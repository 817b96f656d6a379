"""Finds the leaders that replicas' files decide: candidates for an unclean election, which are the stored replicas
of a partition whose ISR is lost, and preferred leaders without a short local log.

A leader must have the log from the log start on, or the remote tier or a snapshot must have the missing part. So a
replica that ends below the log start, the end of the remote log or the end of the snapshot can lead only after its
log has started over at the greatest of these offsets (KIP-405: a leader "with missing local segments" continues
from the remote; KIP-630, "Changes to Leader Election": "the latest epoch and end offset for a replica is the
latest snapshot or replicated log"). Starting over discards the replica's records that the tiered history lacks.
The tiered history has priority, because the remote tier has every offset once, and all its records were
acknowledged.

A replica has a short local log if it began at the earliest pending upload offset (KIP-1023). If it leads, reads of
the records that it lacks go to the remote tier. With ``leader.election.short.local.log.last.enable`` such replicas
are the last choice (KIP-1023, "Motivation"). This order affects only speed, so it applies only to elections that
an operator or a job requests: the election after a broker is fenced reads no storage, and the next ``elect``
corrects its choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_changes import first_candidate
from stratalog.engine.replicas.logs import DescribeWork, ListedLog, list_replicas
from stratalog.engine.replication.damage import check_whole
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.engine.replication.snapshots import snapshot_ahead
from stratalog.partitions.errors import EligibleLeadersNotAvailableError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog, resolve
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.producers import encode
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import StoredObject
from stratalog.snapshots.reader import Snapshot
from stratalog.tiering.bootstrap import AuxiliaryState, auxiliary_state


@dataclass(frozen=True, slots=True)
class CandidateWork(PartitionWork):
    """The work for one partition: list every unfenced replica."""

    remote: RemoteTail | None
    snapshots: bool
    """Whether a snapshot replaces the log below the snapshot's end (cleanup.policy=snapshot)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that can lead. The fields describe its log at the start of its leadership."""

    broker_id: int
    last_epoch: int
    log_end: int
    held: int
    """The number of records in the local log."""
    join: Lineage | None = None
    """The lineage that the replica must join first, if the tiered history is ahead of the replica."""
    start_over: tuple[int, bytes] | None = None
    """If the replica must first start over: the offset of the new start, and the producer state there."""


@dataclass(frozen=True, slots=True)
class Candidates:
    able: tuple[Candidate, ...]
    """The possible leaders, in order of preference."""
    unable: tuple[tuple[int, str], ...]
    """The brokers that cannot lead, with the reason."""
    high_watermark: int
    """The greatest high watermark of any replica."""

    def best(
        self, replicas: PartitionReplicas, leader: int | None = None, *, short_local_logs_last: bool = False
    ) -> Candidate:
        """The best candidate, or ``leader`` if given. The best candidate has the greatest epoch of its last
        record, and then the greatest log end. Among equal candidates, with ``short_local_logs_last``, those
        without a short local log come first; then the order of preference decides.

        Raises: EligibleLeadersNotAvailableError.
        """
        wanted = [one for one in self.able if leader in (None, one.broker_id)]
        if wanted:
            most = max((one.last_epoch, one.log_end) for one in wanted)
            equals = [one for one in wanted if (one.last_epoch, one.log_end) == most]
            held = [one.held for one in equals]
            return next(
                (one for one in equals if not (short_local_logs_last and has_short_local_log(one.held, held))),
                equals[0],
            )
        if leader is not None and leader not in replicas.view.replicas:
            why = f"broker {leader} has no replica; the replicas are {list(replicas.view.replicas)}"
        else:
            why = "; ".join(f"broker {b} {why}" for b, why in self.unable if leader in (None, b))
        raise EligibleLeadersNotAvailableError(
            f"{replicas} cannot have a leader: {why}. Restore the storage of one of these brokers, and unfence "
            "the broker"
        )


def list_candidates(work: CandidateWork) -> Candidates:
    """The task; only reads.

    Raises: errors from reading the end of the remote log.
    """
    replicas, remote = work.replicas, work.remote
    tiered = None
    if remote is not None and remote.last is not None:
        tiered = auxiliary_state(remote.store, remote.folder, remote.last)
    able: list[Candidate] = []
    unable: list[tuple[int, str]] = []
    high_watermark = replicas.view.log_start_offset
    for broker in replicas.view.replicas:
        if replicas.view.brokers[broker].fenced:
            unable.append((broker, "is fenced"))
            continue
        try:
            replica = replicas.replica(broker)
            log = replica.log()
            high_watermark = max(high_watermark, log.high_watermark, log.claimed_high_watermark)
            ahead = snapshot_ahead(replica, log) if work.snapshots else None
            if ahead is None:
                able.append(_candidate(replica, log, replicas.view.log_start_offset, tiered))
            else:
                high_watermark = max(high_watermark, ahead.snapshot_id.end_offset)
                able.append(_candidate_of_snapshot(replica, log, ahead))
        except StratalogError as error:
            unable.append((broker, f"cannot lead ({error.code}: {error})"))
    return Candidates(tuple(able), tuple(unable), high_watermark)


def _candidate(replica: Replica, log: ReplicaLog, log_start: int, tiered: AuxiliaryState | None) -> Candidate:
    """A replica as a candidate. Raises: CorruptionError kinds if the replica has lost data, and so cannot lead."""
    join = None
    if tiered is not None and tiered.lineage.latest_epoch > log.joined_epoch:
        join = tiered.lineage
        log = resolve(log.listing, join, replica.end_of_append)
    start_over = None
    floor = log_start if tiered is None else max(log_start, tiered.offset)
    if log.log_end < floor:
        known = tiered is not None and tiered.offset == floor
        producers = tiered.producers if tiered is not None and known else replica.producers(log)
        start_over = floor, encode(producers)
        imagined = (LocalStartName(floor), StoredObject(replica.path(LocalStartName(floor)), 0, 0, ""))
        listing = replace(log.listing, local_starts=(*log.listing.local_starts, imagined))
        log = resolve(listing, log.lineage, replica.end_of_append)
    check_whole(replica, log)
    last_epoch = log.lineage.epoch_at(log.log_end - 1) if log.log_end else None
    held = log.log_end - log.local_start
    return Candidate(replica.broker_id, last_epoch or 0, log.log_end, held, join, start_over)


def _candidate_of_snapshot(replica: Replica, log: ReplicaLog, ahead: Snapshot) -> Candidate:
    """A replica as a candidate if its snapshot is ahead of its log. The log then starts and ends at the snapshot's
    end.
    """
    end, epoch = ahead.snapshot_id.end_offset, ahead.snapshot_id.epoch
    join = ahead.lineage if epoch > log.joined_epoch else None
    return Candidate(replica.broker_id, epoch, end, 0, join, (end, encode(ahead.producers)))


def prepare(replicas: PartitionReplicas, candidate: Candidate) -> None:
    """If necessary, make the replica join the lineage and start over before its election, because a leader that
    began lower would use offsets twice. If the replica is not elected after all, it has lost only records that are
    tiered or below the log start.
    """
    replica = replicas.replica(candidate.broker_id)
    if candidate.join is not None:
        replica.store.create(replica.path(EpochName(candidate.join.latest_epoch)), candidate.join.to_json())
    if candidate.start_over is not None:
        offset, producers = candidate.start_over
        replica.store.create(replica.path(LocalStartName(offset)), producers)


def has_short_local_log(held: int, others: Iterable[int]) -> bool:
    """Whether a replica with ``held`` records in its local log holds less than half as many as another replica.
    (Replicas that drop records by the same rules differ by a few segments.)
    """
    return 2 * held < max(others, default=0)


def short_local_logs_last(order: Sequence[int], held: Mapping[int, int]) -> list[int]:
    """``order``, with the replicas that have short local logs at the end. ``held`` is the number of records that
    each replica holds locally; replicas that are not in ``held`` keep their place.
    """
    most = held.values()
    short = [broker for broker in order if broker in held and has_short_local_log(held[broker], most)]
    return [broker for broker in order if broker not in short] + short


def preferred_leaders(
    storage: Storage, image: ClusterImage, views: Iterable[PartitionView], run: OperationRun
) -> dict[TopicIdPartition, int]:
    """The preferred leaders of the partitions whose preferred leader depends on the replicas' files. The preferred
    leader is the first replica, in order of preference, that is in the ISR, unfenced, and without a short local
    log. If all have a short local log, it is the preferred replica. A partition whose replicas cannot be listed is
    a failure.
    """
    works = [
        DescribeWork(storage.replicas(view))
        for view in views
        if _is_wanted(image, view) and first_candidate(view.replicas, view.isr, image.brokers) is not None
    ]
    chosen: dict[TopicIdPartition, int] = {}
    for work, looks in run.done(run.tasks.run(list_replicas, works)):
        view = work.replicas.view
        held = {
            look.broker_id: look.found.log_end - look.found.local_start
            for look in looks
            if isinstance(look.found, ListedLog) and look.broker_id in view.isr
        }
        leader = first_candidate(short_local_logs_last(view.replicas, held), view.isr, image.brokers)
        if leader is not None:
            chosen[view.key] = leader
    return chosen


def _is_wanted(image: ClusterImage, view: PartitionView) -> bool:
    config = topic_config_of(image, image.topics[view.topic_id])
    return config.remote_storage_enable and config.leader_election_short_local_log_last_enable

"""Candidates for an unclean election: the replicas in storage of a partition whose ISR is lost.

A leader has to hold the log from the log start on, or find it in the remote tier, or in a snapshot. So a replica
that ends below one of the three can lead only after it has started over there (KIP-405: a leader "with missing
local segments" goes on from the remote; KIP-630, "Changes to Leader Election": "the latest epoch and end offset
for a replica is the latest snapshot or replicated log"). Records that it holds and the tiered history lacks are
dead then: the remote holds every offset once, and all its records were acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stratalog.engine.replication.damage import check_whole
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.engine.replication.snapshots import snapshot_ahead
from stratalog.engine.upkeep.replication.short_local_logs import has_short_local_log
from stratalog.partitions.errors import EligibleLeadersNotAvailableError, StratalogError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog, resolve
from stratalog.partitions.paths import EpochName, LocalStartName
from stratalog.partitions.producers import encode
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import Store, StoredObject
from stratalog.snapshots.reader import Snapshot
from stratalog.tiering.bootstrap import AuxiliaryState, auxiliary_state


@dataclass(frozen=True, slots=True)
class CandidateWork(PartitionWork):
    """Look at every unfenced replica of one partition."""

    remote: RemoteTail | None
    snapshots: bool
    """cleanup.policy=snapshot: a snapshot stands for the log up to its end."""

    def stores_used(self) -> Iterable[Store]:
        remote = [] if self.remote is None else [self.remote.store]
        return [*self.replicas.stores.values(), *remote]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as it would begin to lead."""

    broker_id: int
    last_epoch: int
    """The epoch of its last record."""
    log_end: int
    held: int
    """How many records it has in its local log."""
    join: Lineage | None = None
    """The lineage that it has to join first, because the tiered history has gone further."""
    start_over: tuple[int, bytes] | None = None
    """Where it has to start over first, and the producer state there."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one partition."""

    able: tuple[Candidate, ...]
    """In order of preference."""
    unable: tuple[tuple[int, str], ...]
    """Brokers, and why they cannot lead."""
    high_watermark: int
    """As any of the replicas knows it."""

    def best(
        self, replicas: PartitionReplicas, leader: int | None = None, *, short_local_logs_last: bool = False
    ) -> Candidate:
        """The one that holds most (``leader``, where it is given): the greatest by the epoch of the last record,
        then by the log end, then (``short_local_logs_last``) one with no short local log, then the preferred one.

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
            f"{replicas} cannot have a leader: {why}; bring the storage of one of these brokers back, and "
            "unfence it"
        )


def list_candidates(work: CandidateWork) -> Candidates:
    """The task. It creates nothing.

    Raises: errors of reading the end of the remote log.
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
    """Raises: CorruptionError kinds when the replica has lost what it promises: it would be no leader."""
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
    """Of a replica whose snapshot stands for more than its log: the log starts, and ends, where that does."""
    end, epoch = ahead.snapshot_id.end_offset, ahead.snapshot_id.epoch
    join = ahead.lineage if epoch > log.joined_epoch else None
    return Candidate(replica.broker_id, epoch, end, 0, join, (end, encode(ahead.producers)))


def prepare(replicas: PartitionReplicas, candidate: Candidate) -> None:
    """Let the replica join and start over, where it has to. Before it is elected: a leader that began below
    would give away offsets a second time. A follower that has done so and is not elected has lost nothing that
    is not tiered, or below the log start.
    """
    replica = replicas.replica(candidate.broker_id)
    if candidate.join is not None:
        replica.store.create(replica.path(EpochName(candidate.join.latest_epoch)), candidate.join.to_json())
    if candidate.start_over is not None:
        offset, producers = candidate.start_over
        replica.store.create(replica.path(LocalStartName(offset)), producers)

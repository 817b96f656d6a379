"""Erasures of a partition with snapshots, on its replicas (``stratalog.snapshots.erasure``)."""

from __future__ import annotations

from dataclasses import replace

from stratalog.engine.replication.append import replicate
from stratalog.engine.replication.erasing import ErasedOn, erase_rest
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.snapshots import (
    fetch_latest,
    repair_if_damaged,
    repair_snapshot,
    usable_snapshot,
)
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.partitions.erasure import Erasure, following
from stratalog.partitions.errors import LogGapError, StratalogError
from stratalog.partitions.paths import LocalStartName
from stratalog.partitions.producers import encode
from stratalog.partitions.replica import Replica, errors_of, writes_of
from stratalog.partitions.retention import local_start_for
from stratalog.partitions.rewrites.erasing import ErasingOptions, erase_from
from stratalog.partitions.runner import Runner
from stratalog.partitions.transactions import transactions_of
from stratalog.snapshots.reader import Snapshot


def with_erasure(replicas: PartitionReplicas, generation: int, bound: int) -> PartitionReplicas:
    """The partition as it will be after the commit of this erasure: a snapshot of its generation is current."""
    erasures = following(replicas.view.erasures, Erasure(generation, ((0, bound),)))
    return replace(replicas, view=replace(replicas.view, erasures=erasures))


def copy_to_members(replicas: PartitionReplicas) -> dict[int, StratalogError]:
    """Copy the leader's current snapshot to the other members of the ISR, and to replicas being added. Returns the
    error of each that has not got it.

    Raises: see ``fetch_latest``, for errors of the leader.
    """
    missed: dict[int, StratalogError] = {}
    for member in replicas.acknowledging:
        try:
            follower = replicas.replica(member)
            follower.list()  # checks the root before anything is written there
            with errors_of(follower), writes_of(follower):
                fetch_latest(replicas, follower)
        except StratalogError as error:
            missed[member] = error
    return missed


def start_at_snapshot(replicas: PartitionReplicas, replica: Replica) -> Snapshot | None:
    """Move the local start of a replica to the log start, if it has a current snapshot that ends there or later.
    Returns that snapshot, verified; None if the replica has none, and no other replica has one for it.

    Raises: errors of listing and reading the replica.
    """
    wanted = replicas.view.log_start_offset
    log, usable = repair_if_damaged(replicas, replica, replica.log(fresh=True))
    snapshot = usable.snapshot
    if snapshot is None or snapshot.snapshot_id.end_offset < wanted:
        repair_snapshot(replicas, replica, log)
        log = replica.log(fresh=True)
        snapshot = usable_snapshot(replica, log).snapshot
        if snapshot is None or snapshot.snapshot_id.end_offset < wanted:
            return None
    start = local_start_for(log, wanted)
    if start > log.local_start:
        producers = encode(replica.producers_at(log, start))
        with writes_of(replica):
            replica.store.create(replica.path(LocalStartName(start)), producers)
    return snapshot


def erase_below_snapshot(replicas: PartitionReplicas, options: ErasingOptions, copies: Runner) -> ErasedOn:
    """Carry out the erasures of the view on the leader and the ISR: their logs start at the log start. A file that
    a late merge has made across it is rewritten.

    Raises: LogGapError if no replica has the snapshot; see ``erase_from``; errors of listing the leader.
    """
    leader, erasures = replicas.leader, replicas.view.erasures
    leader_log(replicas)
    with errors_of(leader), writes_of(leader):
        if start_at_snapshot(replicas, leader) is None:
            raise _no_snapshot(replicas, leader)
        log = with_known_watermark(replicas, leader_log(replicas))
        erased = erase_from(leader, log, transactions_of(log, leader.footer), erasures, options)
    missed = replicate(replicas, copies)
    for member in replicas.acknowledging:
        if member in missed:
            continue
        try:
            replica = replicas.replica(member)
            with errors_of(replica):
                if start_at_snapshot(replicas, replica) is None:
                    fetch_latest(replicas, replica)
                    if start_at_snapshot(replicas, replica) is None:
                        raise _no_snapshot(replicas, replica)
            erase_rest(replicas, member, options)
        except StratalogError as error:
            missed[member] = error
    return ErasedOn(erased, missed)


def _no_snapshot(replicas: PartitionReplicas, replica: Replica) -> LogGapError:
    return LogGapError(
        f"{replica}: no readable replica has an intact snapshot that follows the last erasure and ends at "
        f"offset {replicas.view.log_start_offset} or later: bring back a replica that has one",
        broker_id=replica.broker_id,
    )

"""The logs of all replicas of a partition, as a task lists them, or the errors of listing them."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.lost_log import check_not_lost
from stratalog.engine.replication.partition import PartitionWork
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.merge import oldest_by
from stratalog.tiering.plan import waiting_since_ms


@dataclass(frozen=True, slots=True)
class DescribeWork(PartitionWork):
    """The task of listing every replica of one partition."""

    remote_end: int | None = None
    """The end of its remote log, to find out since when later records wait. None: not requested."""


@dataclass(frozen=True, slots=True)
class ReplicaFile:
    """One file of a log."""

    end: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ListedLog:
    """The log of one replica."""

    local_start: int
    high_watermark: int
    log_end: int
    files: tuple[ReplicaFile, ...]
    waiting_since_ms: int | None = None
    """The time of the first append behind the remote log; None without one, or if not requested."""
    contradicts: StratalogError | None = None
    """For a leader: how its log contradicts its remote log, or the metadata."""


@dataclass(frozen=True, slots=True)
class ListedReplica:
    """One replica: its log, or the error of listing it."""

    broker_id: int
    found: ListedLog | StratalogError


def list_replicas(work: DescribeWork) -> list[ListedReplica]:
    """The task."""
    return [ListedReplica(broker, _list(work, broker)) for broker in work.replicas.view.replicas]


def _list(work: DescribeWork, broker: int) -> ListedLog | StratalogError:
    since_ms = contradicts = None
    try:
        replica = work.replicas.replica(broker)
        log = replica.log()
        if broker == work.replicas.view.leader:
            contradicts = _contradiction(work, log)
        if work.remote_end is not None:
            since_ms = waiting_since_ms(log, work.remote_end, oldest_by(replica.footer))
    except StratalogError as error:
        return error
    files = tuple(
        ReplicaFile(link.end, link.file.object.size_bytes, link.file.object.modified_ms) for link in log.chain
    )
    return ListedLog(log.local_start, log.high_watermark, log.log_end, files, since_ms, contradicts)


def _contradiction(work: DescribeWork, log: ReplicaLog) -> StratalogError | None:
    try:
        work.replicas.check_remote_end(log)
        check_not_lost(work.replicas, log)
    except StratalogError as error:
        return error
    return None

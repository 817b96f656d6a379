"""The logs of all replicas of a partition as a task finds them; or why one cannot be looked at."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.partitions.errors import StratalogError


@dataclass(frozen=True, slots=True)
class DescribeWork(PartitionWork):
    """Look at every replica of one partition."""


@dataclass(frozen=True, slots=True)
class ReplicaFile:
    """One file of a log: where it ends, when it was made."""

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


@dataclass(frozen=True, slots=True)
class ListedReplica:
    """One replica: its log, or why it cannot be looked at."""

    broker_id: int
    found: ListedLog | StratalogError


def list_replicas(work: DescribeWork) -> list[ListedReplica]:
    """The task."""
    return [ListedReplica(broker, _list(work.replicas, broker)) for broker in work.replicas.view.replicas]


def _list(replicas: PartitionReplicas, broker: int) -> ListedLog | StratalogError:
    try:
        log = replicas.replica(broker).log()
    except StratalogError as error:
        return error
    objects = [(link.end, link.file.object) for link in log.chain]
    files = tuple(ReplicaFile(end, stored.size_bytes, stored.modified_ms) for end, stored in objects)
    return ListedLog(log.local_start, log.high_watermark, log.log_end, files)

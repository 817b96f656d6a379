"""The logs of all replicas of a partition as a task finds them; or why one cannot be looked at."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.site import Site, SiteWork
from stratalog.partitions.errors import StratalogError


@dataclass(frozen=True, slots=True)
class DescribeWork(SiteWork):
    """Look at every replica of one partition."""


@dataclass(frozen=True, slots=True)
class FileLook:
    """One file of a log: where it ends, when it was made."""

    end: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class LogLook:
    """The log of one replica."""

    local_start: int
    high_watermark: int
    log_end: int
    files: tuple[FileLook, ...]


@dataclass(frozen=True, slots=True)
class ReplicaLook:
    """One replica: its log, or why it cannot be looked at."""

    broker_id: int
    found: LogLook | StratalogError


def look_at_replicas(work: DescribeWork) -> list[ReplicaLook]:
    """The task."""
    return [ReplicaLook(broker, _look(work.site, broker)) for broker in work.site.view.replicas]


def _look(site: Site, broker: int) -> LogLook | StratalogError:
    try:
        log = site.replica(broker).log()
    except StratalogError as error:
        return error
    objects = [(link.end, link.file.object) for link in log.chain]
    files = tuple(FileLook(end, stored.size_bytes, stored.modified_ms) for end, stored in objects)
    return LogLook(log.local_start, log.high_watermark, log.log_end, files)

"""Findings about overdue retention. Listings show which partitions may have expired files. Records expire by their
own timestamps, so the footers of these files are read.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.health.finding import HealthFinding, Severity
from stratalog.engine.health.sight import SeenPartition, Sight
from stratalog.partitions.listing import DataFile
from stratalog.partitions.retention import UNLIMITED


@dataclass(frozen=True, slots=True)
class _Old:
    """The first file of a leader's log, if it is old enough to have expired."""

    seen: SeenPartition
    file: DataFile
    limit_ms: int

    def __str__(self) -> str:
        return str(self.seen)


def expiry_findings(storage: Storage, sight: Sight, run: OperationRun) -> list[HealthFinding]:
    """Find the partitions whose oldest records expired more than ``health.upkeep.max.delay.ms`` ago."""

    def expired_ms(old: _Old) -> int | None:
        footer = storage.replicas(old.seen.view).leader.footer(old.file)
        dated = footer.max_timestamp_offset is not None
        if not dated:
            return None
        return max(footer.max_timestamp_us // 1000 + old.limit_ms, old.file.object.modified_ms)

    olds = [old for seen in sight.partitions if (old := _old(sight, seen)) is not None]
    return [
        HealthFinding(
            severity=Severity.ERROR,
            kind="retention-lag",
            subjects=(str(old),),
            what="the oldest records have expired, but are still on the leader",
            do=sight.commands("retain", topics=[old.seen.view.topic]),
            since_ms=at_ms,
        )
        for old, at_ms in run.done(storage.threads.run(expired_ms, olds))
        if at_ms is not None and sight.now_ms - at_ms > sight.max_delay_ms
    ]


def _old(sight: Sight, seen: SeenPartition) -> _Old | None:
    config, leader = seen.config, seen.leader
    if config is None or leader is None or config.snapshots:
        return None
    held = (file for file in leader.data if file.name.base_offset >= leader.local_start)
    files = sorted(held, key=lambda file: file.name)
    if len(files) < 2:  # the last file is the end of the log
        return None
    first, following = files[:2]
    limit_ms = config.retention(sight.now_ms).retention_ms
    if config.remote_storage_enable:  # records that are not tiered yet must stay
        entry = sight.entries.get(seen.view.key)
        end = following.name.base_offset
        limit_ms = config.local_retention_ms if entry is not None and (entry.remote_end or 0) >= end else UNLIMITED
    if limit_ms == UNLIMITED or sight.now_ms - first.object.modified_ms <= limit_ms + sight.max_delay_ms:
        return None
    return _Old(seen, first, limit_ms)

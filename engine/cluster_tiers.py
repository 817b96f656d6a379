"""The cluster as one object: how records reach the remote tier, and how they leave the log."""

from __future__ import annotations

from collections.abc import Mapping

from stratalog.engine.cluster_state import Topics, names
from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report
from stratalog.engine.upkeep.retention import retain
from stratalog.engine.upkeep.retention import vacuum as vacuuming
from stratalog.engine.upkeep.retention.delete_records import delete_records
from stratalog.engine.upkeep.tiering import tier


class TiersOfCluster:
    """A part of ``stratalog.engine.cluster.Cluster``."""

    _context: Context

    def tier(self, topics: Topics = None, *, due: bool = False, dry_run: bool = False) -> Report:
        """Copy sealed segments to the remote table; with ``due`` only of partitions whose time has come."""
        return tier.tier(self._context, names(topics), due=due, dry_run=dry_run)

    def retain(self, topics: Topics = None, *, dry_run: bool = False) -> Report:
        """Apply local and total retention, and delete what left the log long enough ago."""
        return retain.retain(self._context, names(topics), dry_run=dry_run)

    def delete_records(self, topic: str, before: Mapping[int, int | str], *, dry_run: bool = False) -> Report:
        """Delete the records of a topic below these offsets, by partition: ``cluster.delete_records("trips", {0:
        1000})``. ``"latest"``, or -1: all that are committed. Answers each partition's low watermark; ``retain``
        deletes the bytes.

        Raises: PolicyViolationError for a topic whose log only snapshots may shorten, OffsetOutOfRangeError beyond
            the high watermark, UnknownTopicOrPartitionError: nothing was changed.
        """
        offsets = {(topic, partition): offset for partition, offset in before.items()}
        return delete_records(self._context, offsets, dry_run=dry_run)

    def vacuum(
        self, topics: Topics = None, *, older_than_ms: int = vacuuming.DAY_MS, dry_run: bool = False
    ) -> Report:
        """Delete litter: in the remote tier, and, where no topics are named, on the brokers, what replicas that
        are none any more have left there too; see ``stratalog.engine.upkeep.retention.vacuum``.
        """
        return vacuuming.vacuum(self._context, names(topics), older_than_ms=older_than_ms, dry_run=dry_run)

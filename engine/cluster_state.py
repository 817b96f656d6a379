"""The cluster as one object: what it holds of consumer groups and of snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from stratalog.engine.admin import groups as group_admin
from stratalog.engine.cluster_spark import SparkOfCluster
from stratalog.engine.driver.report import Report
from stratalog.engine.records import groups
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.engine.upkeep.snapshots import snapshot as snapshotting
from stratalog.engine.upkeep.snapshots.read_snapshot import list_snapshots, metrics
from stratalog.partitions.identity import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Topics = Sequence[str] | str | None
"""One topic, several, or (None) all."""


def names(topics: Topics) -> Sequence[str] | None:
    """The topics as a list, None for all."""
    return [topics] if isinstance(topics, str) else topics


class StateOfCluster(SparkOfCluster):
    """A part of ``stratalog.engine.cluster.Cluster``."""

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        member_epoch: int | None = None,
    ) -> Report:
        """Commit offsets of a consumer group, all or none: ``cluster.commit("loader", {("trips", 0): 1000})``.
        With ``member_epoch`` (one that grows with every incarnation of the consumer) a stale one is refused.

        Raises: InvalidGroupIdError, UnknownTopicOrPartitionError, OffsetOutOfRangeError beyond the log end,
            OffsetMetadataTooLargeError, StaleMemberEpochError, retriable kinds: nothing was changed;
            OutcomeUnknownError.
        """
        return groups.commit(self._context, group, offsets, member_epoch=member_epoch)

    def committed(
        self, group: str, topics: Topics = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a consumer group has committed, by topic and partition. With ``require_stable``, what a consumer
        needs that commits in transactions, UnstableOffsetCommitError while a transaction with offsets of it is not
        over.
        """
        return groups.committed(self._context, group, names(topics), require_stable=require_stable)

    def lag(self, group: str) -> Report:
        """How far a consumer group is behind: one row per partition of the topics that it has committed for.

        Raises: InvalidGroupIdError, GroupIdNotFoundError.
        """
        return groups.lag(self._context, group)

    def lag_frame(self, group: str) -> DataFrame:
        """``lag`` as a Spark DataFrame, with the same columns.

        Raises: as ``lag``; OperationFailedError when a partition cannot be looked at.
        """
        rows = [
            tuple({**row, "expires": datetime.fromisoformat(str(row["expires"]))}.values())
            for row in self.lag(group).raise_for_failures().rows
        ]
        return self._session("lag_frame").createDataFrame(rows, groups.LAG_SCHEMA)

    def groups(self) -> Report:
        """Every consumer group, as a table."""
        return group_admin.groups(self._context)

    def reset_offsets(
        self,
        group: str,
        topics: Topics = None,
        *,
        to: group_admin.ResetTo | None = None,
        shift_by: int | None = None,
        by_duration: timedelta | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Move what a consumer group has committed: ``cluster.reset_offsets("loader", "trips", to="earliest")``,
        to an offset, or the first record at or after a time; ``shift_by=-100`` records; ``by_duration`` back from
        now. Stop its consumers first: their next commit would take its place. Offsets out of range are moved to
        the nearest end of the log, and noted.

        Raises: GroupIdNotFoundError, UnknownTopicOrPartitionError, InvalidCallError: nothing was changed.
        """
        return group_admin.reset_offsets(
            self._context,
            group,
            names(topics),
            to=to,
            shift_by=shift_by,
            by_duration=by_duration,
            partitions=partitions,
            dry_run=dry_run,
        )

    def delete_group(self, group: str, *, dry_run: bool = False) -> Report:
        """Forget a consumer group and all that it has committed.

        Raises: GroupIdNotFoundError; NonEmptyGroupError when it commits meanwhile: nothing was changed.
        """
        return group_admin.delete_group(self._context, group, dry_run=dry_run)

    def delete_offsets(self, group: str, topics: Sequence[str] | str, *, dry_run: bool = False) -> Report:
        """Forget what a consumer group has committed for these topics. Raises: as ``delete_group``;
        UnknownTopicOrPartitionError."""
        return group_admin.delete_offsets(self._context, group, names(topics) or (), dry_run=dry_run)

    def read_snapshot(self, topic: str, partitions: Sequence[int] | None = None) -> DataFrame:
        """The latest snapshot of each partition of a topic with ``cleanup.policy=snapshot``, verified, as a Spark
        DataFrame: ``topic, partition, end_offset, timestamp, key, value, headers``, the latest record of each key
        below ``end_offset``. With the log from there on (``read(topic, start={partition: end_offset})``) it is
        the whole log, reduced by key; ``snapshots`` lists the end offsets also of those that hold nothing.
        """
        spark = self._session("reading")
        from stratalog.engine.spark.snapshot_frame import read_snapshot_frame

        return read_snapshot_frame(self._context, spark, topic, partitions)

    def snapshots(self, topics: Topics = None) -> Report:
        """Every snapshot of every replica, as a table."""
        return list_snapshots(self._context, names(topics))

    def metrics(self) -> Report:
        """The metrics of KIP-630: ``GenSnapshotLatencyMs``, ``LoadSnapshotLatencyMs`` (of this driver),
        ``SnapshotSizeBytes``, ``SnapshotLag`` (of every partition with snapshots, and of the metadata log)."""
        return metrics(self._context)

    def snapshot(
        self,
        topics: Topics = None,
        *,
        by_hand: bool = False,
        memory_bytes: int = snapshotting.MEMORY_BYTES,
        dry_run: bool = False,
    ) -> Report:
        """Make snapshots where the policy wants them (``by_hand``: of all that is new), copy them to the other
        replicas, let log starts grow, delete those that the log start has passed. Without ``topics`` of all, the
        metadata log too, which can be named as ``__cluster_metadata``. Partitions that are larger than
        ``memory_bytes`` are reduced by Spark, the others by one task each.
        """
        reduce_large: snapshotting.ReduceLarge = snapshotting.needs_spark
        if self._spark is not None:
            from stratalog.engine.spark.reducing import make_large_snapshot

            reduce_large = partial(make_large_snapshot, self._spark)
        return snapshotting.snapshot(
            self._context,
            names(topics),
            reduce_large=reduce_large,
            by_hand=by_hand,
            memory_bytes=memory_bytes,
            dry_run=dry_run,
        )

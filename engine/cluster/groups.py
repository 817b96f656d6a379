"""The consumer groups of a cluster: ``cluster.groups``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from stratalog.engine.admin import groups as admin
from stratalog.engine.admin.groups import lag_metrics
from stratalog.engine.cluster.arguments import TopicNames, names, session
from stratalog.engine.cluster.recorded import operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.records import groups
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.identity import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Groups:
    """The consumer groups of a cluster: their offsets and their lag.

        cluster.groups.commit("loader", {("trips", 0): 1000})
        cluster.groups.lag("loader").rows
        cluster.groups.reset_offsets("loader", "trips", to="earliest")

    A committed offset is the offset of the next record to read.
    """

    def __init__(self, ports: Ports, spark: SparkSession | None) -> None:
        """Use ``Cluster.groups``."""
        self._ports = ports
        self._spark = spark

    def __repr__(self) -> str:
        return "The consumer groups of a cluster: list() shows them, lag(group) shows a group's lag"

    def list(self) -> Report:
        """List all consumer groups."""
        return admin.groups(*self._ports.all)

    @operation("groups commit", leaves_event=False)
    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        member_epoch: int | None = None,
        check: bool = True,
    ) -> Report:
        """Commit offsets of a consumer group: either all of them or none.

        Args:
            member_epoch: a number that grows each time the consumer restarts; commits with a lower number are
                refused

        Raises: InvalidGroupIdError, UnknownTopicOrPartitionError, OffsetOutOfRangeError beyond the log end,
            OffsetMetadataTooLargeError, StaleMemberEpochError, retriable kinds. If it raises any of these,
            nothing was changed. After OutcomeUnknownError, the commit may have succeeded.
        """
        return groups.commit(*self._ports.all, group, offsets, member_epoch=member_epoch)

    def committed(
        self, group: str, topics: TopicNames = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a consumer group, by topic and partition. Consumers that commit in
        transactions set ``require_stable``: while an open transaction has offsets of the group, the call then
        raises UnstableOffsetCommitError.
        """
        return groups.committed(*self._ports.for_records, group, names(topics), require_stable=require_stable)

    def lag(self, group: str) -> Report:
        """Show the offsets and the lag of a group: one row per partition of each topic with commits.

        Raises: InvalidGroupIdError, GroupIdNotFoundError.
        """
        return groups.lag(*self._ports.all, group)

    def lag_frame(self, group: str) -> DataFrame:
        """Return the rows of ``lag`` as a Spark DataFrame.

        Raises: see ``lag``; OperationFailedError if a partition cannot be read.
        """
        rows = [
            tuple({**row, "expires": datetime.fromisoformat(str(row["expires"]))}.values())
            for row in self.lag(group).raise_for_failures().rows
        ]
        return session(self._spark, "lag_frame").createDataFrame(rows, groups.LAG_SCHEMA)

    def lag_metrics(self) -> Report:
        """Report Kafka's metric ``records-lag`` for every consumer group, including streams with the option
        ``group``. Each group and partition has one row, with the columns ``metric, group, topic, partition,
        value``."""
        return lag_metrics(*self._ports.all)

    @operation("groups reset_offsets")
    def reset_offsets(
        self,
        group: str,
        topics: TopicNames = None,
        *,
        to: admin.ResetTo | None = None,
        shift_by: int | None = None,
        by_duration: timedelta | None = None,
        partitions: Sequence[int] | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Move the committed offsets of a group. Stop its consumers first: their next commit would overwrite the
        new offsets. An offset outside the log is replaced with the nearer end of the log, and a note says so.

        Args:
            topics: only these topics (default: all topics with commits of the group)
            to: a named position, an offset, or the first record at or after a time
            shift_by: move N records forward, or back if N is negative (-10)
            by_duration: move to the first record that is not older than this duration
            partitions: only these partitions (default: all)

        Raises: GroupIdNotFoundError, UnknownTopicOrPartitionError, InvalidCallError. If it raises any of these,
            nothing was changed.
        """
        return admin.reset_offsets(
            *self._ports.all,
            group,
            names(topics),
            to=to,
            shift_by=shift_by,
            by_duration=by_duration,
            partitions=partitions,
            dry_run=dry_run,
        )

    @operation("groups delete")
    def delete(self, group: str, *, if_exists: bool = False, dry_run: bool = False, check: bool = True) -> Report:
        """Delete a group and its offsets, including those of open transactions.

        Args:
            if_exists: succeed with an empty report if the group does not exist

        Raises: GroupIdNotFoundError; NonEmptyGroupError if the group commits in the meantime: nothing was
            changed.
        """
        return admin.delete_group(*self._ports.all, group, if_exists=if_exists, dry_run=dry_run)

    @operation("groups delete_offsets")
    def delete_offsets(
        self, group: str, topics: Sequence[str] | str, *, dry_run: bool = False, check: bool = True
    ) -> Report:
        """Delete a group's offsets for the given topics.

        Raises: see ``delete``; UnknownTopicOrPartitionError.
        """
        return admin.delete_offsets(*self._ports.all, group, names(topics) or (), dry_run=dry_run)

"""The topics of a cluster: ``cluster.topics``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from stratalog.engine.admin import describe_cluster, topics
from stratalog.engine.cluster.arguments import declared
from stratalog.engine.cluster.recorded import always, operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.upkeep.retention.delete_records import delete_records
from stratalog.partitions.numbers import whole, whole_or_none

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class Topics:
    """The topics of a cluster: create, alter, delete, list them.

        cluster.topics.create("trips", partitions=8, value="carrier STRING, distance BIGINT")
        cluster.topics.alter_configs("trips", {"retention.ms": 86_400_000})
        cluster.topics.delete_records("trips", {0: 1000})

    ``Cluster.describe`` shows their replicas.
    """

    def __init__(self, ports: Ports) -> None:
        """Use ``Cluster.topics``."""
        self._ports = ports

    def __repr__(self) -> str:
        return "The topics of a cluster: list() shows them, create(...) creates one"

    def list(self, *, exclude_internal: bool = False) -> Report:
        """List topics with partitions, types and configs.

        Args:
            exclude_internal: omit internal topics
        """
        return describe_cluster.describe_topics(*self._ports.for_tasks, exclude_internal=exclude_internal)

    def describe(self, name: str) -> Report:
        """Show a topic's partitions, types, and effective configs, each config with its source (the topic, the
        cluster, or the default).

        Raises: UnknownTopicOrPartitionError.
        """
        return describe_cluster.describe_topic(*self._ports.for_tasks, name)

    def troubled(self, trouble: str = "under-replicated") -> Report:
        """List the partitions that are in this state or a worse state. The method reads only the metadata.

        Args:
            trouble: unavailable, under-min-isr or under-replicated

        Raises: InvalidCallError.
        """
        return describe_cluster.troubled_partitions(self._ports.metadata, self._ports.execution, trouble)

    @operation("topics create")
    def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        key: DataType | str | None = None,
        value: DataType | str | None = None,
        configs: Mapping[str, str | float] | None = None,
        if_not_exists: bool = False,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Create a topic. The report has one row, with the topic's shape and id.

        Args:
            partitions: the number of partitions (default: the cluster's num.partitions)
            replication_factor: the number of replicas of each partition (default: the cluster's
                default.replication.factor)
            key: the type of keys, as DDL ("carrier STRING, distance INT"; "STRING") or as Spark's JSON for a type
                (default: binary). Python also accepts a Spark type; the command line also accepts @FILE
            value: the type of values, in the same forms
            configs: configs of the topic, by key
            if_not_exists: succeed if the topic already exists with the requested settings
            dry_run: check the call; change nothing

        Raises: TopicAlreadyExistsError naming the difference; InvalidReplicationFactorError, InvalidConfigError,
            InvalidCallError.
        """
        return topics.create_topic(
            *self._ports.for_tasks,
            name,
            partitions=whole_or_none(partitions, f"topic {name!r}: partitions"),
            replication_factor=whole_or_none(replication_factor, f"topic {name!r}: replication factor"),
            key_schema=declared(key),
            value_schema=declared(value),
            configs=configs,
            if_not_exists=if_not_exists,
            dry_run=dry_run,
        )

    @operation("topics create_partitions")
    def create_partitions(
        self,
        name: str,
        partitions: int,
        *,
        if_not_exists: bool = False,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Add partitions to a topic. New records of a key may then go to another partition. The report has a row
        per new partition, with its replicas.

        Args:
            partitions: the new total number of partitions
            if_not_exists: succeed if the topic already has this many partitions or more
        """
        count = whole(partitions, f"topic {name!r}: partitions")
        return topics.create_partitions(
            *(self._ports.metadata, self._ports.execution),
            name,
            count,
            if_not_exists=if_not_exists,
            dry_run=dry_run,
        )

    @operation("topics alter")
    def alter(
        self,
        name: str,
        *,
        key: DataType | str | None = None,
        value: DataType | str | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Extend the declared types of a topic: append nullable fields to structs, and widen the types of value
        fields. The report has a row per new or widened field, such as ``value.gate``. New fields are null in
        existing records; all readers see the wider types. Older producers still work.

        Args:
            key: the complete new type of keys, written as for ``create`` (default: unchanged)
            value: the complete new type of values, written as for ``create`` (default: unchanged)
        """
        return topics.alter_topic(
            *(self._ports.metadata, self._ports.execution),
            name,
            key_schema=declared(key),
            value_schema=declared(value),
            dry_run=dry_run,
        )

    @operation("topics alter_configs")
    def alter_configs(
        self,
        topic: str | None,
        changes: Mapping[str, str | float | None],
        *,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Set configs of a topic or of the cluster, or reset them to their defaults. The report has a row per
        config that is set afterwards or was reset.

        Args:
            topic: the topic; None: the cluster
            changes: the new values by key; the value None restores the default
        """
        return topics.alter_configs(*self._ports.all, topic, changes, dry_run=dry_run)

    @operation("topics protect")
    def protect(
        self,
        topic: str,
        *,
        until: datetime | str | None = None,
        days: float | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Protect a topic: until a given time, no job deletes its records or the topic itself (POLICY_VIOLATION).
        The config ``protect.until.ms`` holds the time, which can be moved later, but never earlier. The report has
        one row, with the time.

            cluster.topics.protect("trips", until="2030-01-01")

        Args:
            until: an ISO 8601 time, in UTC unless it names a zone
            days: protect the topic for N days from now
            dry_run: check the call; change nothing

        Raises: PolicyViolationError, InvalidCallError, UnknownTopicOrPartitionError.
        """
        return topics.protect(*self._ports.for_tasks, topic, until=until, days=days, dry_run=dry_run)

    @operation("topics delete", destroys=always)
    def delete(
        self,
        name: str,
        *,
        keep_remote: bool = False,
        if_exists: bool = False,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Delete a topic and its data in both tiers.

        Args:
            keep_remote: keep the topic's Delta table
            if_exists: succeed with an empty report if the topic does not exist
        """
        return topics.delete_topic(
            *self._ports.for_tasks, name, keep_remote=keep_remote, if_exists=if_exists, dry_run=dry_run
        )

    @operation("delete_records", destroys=always)
    def delete_records(
        self, topic: str, before: Mapping[int, int | str], *, dry_run: bool = False, check: bool = True
    ) -> Report:
        """Delete the records of a topic below these offsets. The report has each partition's new low watermark.
        The job ``retain`` deletes the files later.

        Args:
            before: the first offset to keep, by partition; latest means the high watermark
            dry_run: check the call and print the new low watermarks; change nothing

        Raises: PolicyViolationError for a topic whose log may be shortened only by snapshots,
            OffsetOutOfRangeError beyond the high watermark, UnknownTopicOrPartitionError. If it raises any of
            these, nothing was changed.
        """
        offsets = {(topic, partition): offset for partition, offset in before.items()}
        return delete_records(*self._ports.for_tasks, offsets, dry_run=dry_run)

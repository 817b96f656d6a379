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
from stratalog.engine.metadata.topic_commands import PartitionsCreated, TopicCreated
from stratalog.engine.upkeep.retention.delete_records import delete_records
from stratalog.partitions.numbers import whole, whole_or_none

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


class Topics:
    """The topics of a cluster: created, altered, deleted, listed.

        cluster.topics.create("trips", partitions=8, value="carrier STRING, distance BIGINT")
        cluster.topics.alter_configs("trips", {"retention.ms": 86_400_000})
        cluster.topics.delete_records("trips", {0: 1000})

    ``Cluster.describe`` shows their replicas.
    """

    def __init__(self, ports: Ports) -> None:
        """Use ``Cluster.topics``."""
        self._ports = ports

    def __repr__(self) -> str:
        return "The topics of a cluster: list() shows them, create(...) makes one"

    def list(self, *, exclude_internal: bool = False) -> Report:
        """Every topic, as a table; ``exclude_internal`` leaves out the engine's own."""
        return describe_cluster.describe_topics(
            self._ports.metadata, self._ports.storage, self._ports.execution, exclude_internal=exclude_internal
        )

    def describe(self, name: str) -> Report:
        """A topic's shape, types and effective configs, and where each comes from: the topic, the cluster, or the
        default. Raises: UnknownTopicOrPartitionError."""
        return describe_cluster.describe_topic(
            self._ports.metadata, self._ports.storage, self._ports.execution, name
        )

    def troubled(self, trouble: str = "under-replicated") -> Report:
        """The partitions that are ``"unavailable"``, ``"under-min-isr"`` or ``"under-replicated"``, or worse, by
        the metadata alone. Raises: InvalidCallError."""
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
    ) -> TopicCreated:
        """Create a topic. ``key`` and ``value`` declare types, as DDL, Spark's JSON text or types; binary
        otherwise. ``if_not_exists``: a topic of that name is the answer where it has the same types, and what
        else is asked for here; another one is TopicAlreadyExistsError, which names the difference. ``dry_run``
        only checks.

        Raises: TopicAlreadyExistsError, InvalidReplicationFactorError, InvalidConfigError, InvalidCallError.
        """
        return topics.create_topic(
            *(self._ports.metadata, self._ports.storage),
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
        self, name: str, partitions: int, *, if_not_exists: bool = False, dry_run: bool = False
    ) -> PartitionsCreated:
        """Grow a topic to ``partitions`` partitions. Returns the new partitions and their replicas. Records stay
        where they are, and new ones of a key may go to other partitions than its earlier ones.
        ``if_not_exists``: a topic that has as many or more stays as it is.
        """
        count = whole(partitions, f"topic {name!r}: partitions")
        return topics.create_partitions(
            self._ports.metadata, name, count, if_not_exists=if_not_exists, dry_run=dry_run
        )

    @operation("topics alter")
    def alter(
        self,
        name: str,
        *,
        key: DataType | str | None = None,
        value: DataType | str | None = None,
        dry_run: bool = False,
    ) -> tuple[str, ...]:
        """Grow the declared types of a topic by nullable fields at the end of structs, to ``key`` and ``value``
        (as of ``create``; None: it stays). Returns the fields that were added, such as ``value.gate``: in records
        that are there they are null, and producers that do not know them go on.
        """
        return topics.alter_topic(
            self._ports.metadata, name, key_schema=declared(key), value_schema=declared(value), dry_run=dry_run
        )

    @operation("topics alter_configs")
    def alter_configs(
        self, topic: str | None, changes: Mapping[str, str | float | None], *, dry_run: bool = False
    ) -> None:
        """Set configs of a topic, of the cluster when None; None as a value restores the default.
        ``dry_run`` only checks.
        """
        topics.alter_configs(
            self._ports.metadata, self._ports.storage, self._ports.memory, topic, changes, dry_run=dry_run
        )

    @operation("topics protect")
    def protect(
        self, topic: str, *, until: datetime | str | None = None, days: float | None = None, dry_run: bool = False
    ) -> datetime:
        """Protect the records of a topic: before ``until``, or for that number of days from now, no job deletes
        any, nor the topic (POLICY_VIOLATION; ``protect.until.ms``). The time can be put later, never sooner.
        Returns it.

            cluster.topics.protect("trips", until="2030-01-01")

        Raises: PolicyViolationError, InvalidCallError, UnknownTopicOrPartitionError.
        """
        return topics.protect(
            *(self._ports.metadata, self._ports.storage, self._ports.clock),
            topic,
            until=until,
            days=days,
            dry_run=dry_run,
        )

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
        """Delete a topic and its data, in both tiers unless ``keep_remote``. ``if_exists``: a topic that is not
        there is no error, and the report has no rows.
        """
        return topics.delete_topic(
            *(self._ports.metadata, self._ports.storage, self._ports.execution),
            name,
            keep_remote=keep_remote,
            if_exists=if_exists,
            dry_run=dry_run,
        )

    @operation("delete_records", destroys=always)
    def delete_records(
        self, topic: str, before: Mapping[int, int | str], *, dry_run: bool = False, check: bool = True
    ) -> Report:
        """Delete the records of a topic below these offsets, by partition. ``"latest"``, or -1: all that are
        committed. Answers each partition's low watermark; ``retain`` deletes the bytes.

        Raises: PolicyViolationError for a topic whose log only snapshots may shorten, OffsetOutOfRangeError beyond
            the high watermark, UnknownTopicOrPartitionError: nothing was changed.
        """
        offsets = {(topic, partition): offset for partition, offset in before.items()}
        return delete_records(
            self._ports.metadata, self._ports.storage, self._ports.execution, offsets, dry_run=dry_run
        )

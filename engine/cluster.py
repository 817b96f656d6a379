"""The cluster as one object: what a notebook, a job, and a test hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cluster_file import ClusterFile, load_cluster_file
from engine.context import Context, LocalTasks, Measure, Progress, Silent, TaskRunner
from engine.metadata.image import ClusterImage
from engine.metadata.topic_commands import TopicCreated
from engine.operations import bring_up, describe, retain, tier, topics, verify
from engine.operations import merge as merging
from engine.operations import replicate as replicating
from engine.operations.append import append_batches, append_frame
from engine.operations.read import Bound, list_offsets, plan_read, read_frame
from engine.quorum.bootstrap import bootstrap as bootstrap_quorum
from engine.quorum.bootstrap import find_voters
from engine.quorum.client import MetadataClient
from engine.quorum.log import MetadataLog
from engine.quorum.voter import Voter
from engine.reading.plan import FileRange
from engine.report import Report
from partitions.clock import Clock, SystemClock
from partitions.errors import InvalidCallError
from partitions.identity import NewId, random_id
from partitions.offsets import Answer, OffsetSpec
from partitions.replica import check_broker_file, read_broker_file
from partitions.runner import Failed, ThreadRunner
from partitions.store import Store, StoreOptions, open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType

_DRIVER_THREADS = 16

OpenStore = Callable[[str, StoreOptions, Clock], Store]
"""From the address of a root to its store."""

Topics = Sequence[str] | str | None
"""One topic, several, or (None) all."""


class Cluster:
    """A cluster of storage roots, as one driver sees it.

    Any number of drivers may hold the same cluster at once. Every operation reads the metadata anew.
    """

    def __init__(self, context: Context, spark: SparkSession | None = None) -> None:
        """Use ``Cluster.open``, or ``Cluster.format`` for a new one."""
        self._context = context
        self._spark = spark

    # ------------------------------------------------------------------------ open and format

    @classmethod
    def open(
        cls,
        cluster_file: str | Path,
        spark: SparkSession | None = None,
        *,
        progress: Progress | None = None,
        clock: Clock | None = None,
        new_id: NewId = random_id,
        opener: OpenStore = open_store,
    ) -> Cluster:
        """Open the cluster that a ``cluster.toml`` describes. With ``spark`` the work runs on its executors
        and DataFrames can be read and appended; without, in threads of this process.

        Raises: InvalidCallError for what is wrong with the file, or when the cluster was never formatted;
            LogDirError, InconsistentClusterIdError for roots of somebody else; NoMajorityError.
        """
        file = load_cluster_file(cluster_file)
        clock = clock if clock is not None else SystemClock()
        stores = _open_stores(file, clock, opener)
        _check_owners(file, stores)
        voters = find_voters(
            file.cluster_id,
            {broker: stores[broker] for broker in file.voters},
            {broker: store for broker, store in stores.items() if broker not in file.voters},
        )
        return cls(_context(file, stores, voters, spark, progress, clock, new_id, opener), spark)

    @classmethod
    def format(
        cls,
        cluster_file: str | Path,
        spark: SparkSession | None = None,
        *,
        progress: Progress | None = None,
        clock: Clock | None = None,
        new_id: NewId = random_id,
        opener: OpenStore = open_store,
    ) -> Cluster:
        """Make the folders of a ``cluster.toml`` a cluster: format all roots, begin the metadata log,
        register the brokers. What is done already stays as it is.

        Raises: as ``open``; UnsupportedStoreError for storage without exclusive create.
        """
        file = load_cluster_file(cluster_file)
        clock = clock if clock is not None else SystemClock()
        stores = _open_stores(file, clock, opener)
        _check_owners(file, stores)  # find out everything that is wrong before anything is changed
        for store in stores.values():
            store.check()
        formatted = bring_up.format_roots(file, stores, file.voters, new_id)
        voters = [Voter(broker, stores[broker], formatted[broker].directory_id) for broker in file.voters]
        others = {broker: store for broker, store in stores.items() if broker not in file.voters}
        log = _metadata_log(file, voters, clock, new_id)
        bootstrap_quorum(file.cluster_id, log, voters, others)
        bring_up.format_roots(file, stores, list(others), new_id)
        cluster = cls(_context(file, stores, voters, spark, progress, clock, new_id, opener), spark)
        cluster.register().raise_for_failures()
        return cluster

    @classmethod
    def plan_format(
        cls, cluster_file: str | Path, *, clock: Clock | None = None, opener: OpenStore = open_store
    ) -> Report:
        """What ``format`` would do; writes nothing. Raises: InvalidCallError."""
        file = load_cluster_file(cluster_file)
        stores = _open_stores(file, clock if clock is not None else SystemClock(), opener)
        return bring_up.plan_format(file, stores)

    def using(self, spark: SparkSession) -> Cluster:
        """This cluster with its work on the executors of ``spark``, and DataFrames in that session."""
        from engine.spark.runner import SparkRunner

        return Cluster(replace(self._context, tasks=SparkRunner(spark)), spark)

    @property
    def file(self) -> ClusterFile:
        """The cluster file, as it was when the cluster was opened."""
        return self._context.file

    def measured(self) -> AbstractContextManager[Measure]:
        """Time and storage requests of what happens inside."""
        return self._context.measured()

    @property
    def image(self) -> ClusterImage:
        """The metadata now: a linearizable read."""
        return self._context.metadata.image()

    @property
    def stores(self) -> Mapping[int, Store]:
        """The root of each broker."""
        return self._context.stores

    def __repr__(self) -> str:
        return f"Cluster({self._context.file.cluster_id!r}, {len(self._context.stores)} brokers)"

    # --------------------------------------------------------------------- brokers and topics

    def register(self, brokers: Sequence[int] | None = None) -> Report:
        """Register brokers (all of the cluster file when None) as their roots are now."""
        return bring_up.register_brokers(self._context, brokers)

    def add_brokers(self, brokers: Sequence[int], *, dry_run: bool = False) -> Report:
        """Format the roots of brokers that are new in the cluster file, and register them."""
        return bring_up.add_brokers(self._context, brokers, dry_run=dry_run)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        key: DataType | str | None = None,
        value: DataType | str | None = None,
        configs: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> TopicCreated:
        """Create a topic. ``key`` and ``value`` declare types, as Spark types or DDL
        (``value="carrier STRING, distance BIGINT"``); binary otherwise. ``dry_run`` only checks.

        Raises: TopicAlreadyExistsError, InvalidReplicationFactorError, InvalidConfigError, InvalidCallError.
        """
        from engine.spark.types import declared

        return topics.create_topic(
            self._context,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            key_schema=declared(key),
            value_schema=declared(value),
            configs=configs,
            dry_run=dry_run,
        )

    def delete_topic(self, name: str, *, keep_remote: bool = False, dry_run: bool = False) -> Report:
        """Delete a topic and its data, in both tiers unless ``keep_remote``."""
        return topics.delete_topic(self._context, name, keep_remote=keep_remote, dry_run=dry_run)

    def alter_configs(
        self, topic: str | None, changes: Mapping[str, str | None], *, dry_run: bool = False
    ) -> None:
        """Set configs of a topic, of the cluster when None; None as a value restores the default.
        ``dry_run`` only checks.
        """
        topics.alter_configs(self._context, topic, changes, dry_run=dry_run)

    def describe(self, topics: Topics = None) -> Report:
        """Every replica of the topics, as a table."""
        return describe.describe(self._context, _names(topics))

    def describe_brokers(self) -> Report:
        """Every broker, as a table."""
        return describe.describe_brokers(self._context)

    # --------------------------------------------------------------------------- append, read

    def append(
        self,
        frame: DataFrame,
        topic: str,
        *,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
        acks: str = "all",
        producer: str | None = None,
        sequence: int = 0,
        producer_epoch: int = 0,
        order_by: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Report:
        """Append all rows of a DataFrame; see ``engine.operations.append.append_frame``.

        ``value`` None takes the declared value columns of a typed topic from the columns of ``frame``.
        In ``foreachBatch``: ``cluster.append(batch, topic, producer="my-stream", sequence=batch_id)``.
        """
        from engine.spark.appending import RecordColumns

        return append_frame(
            self._context,
            frame,
            topic,
            RecordColumns(key, value, partition, headers, timestamp),
            acks=acks,
            producer=producer,
            sequence=sequence,
            producer_epoch=producer_epoch,
            order_by=order_by,
            dry_run=dry_run,
        )

    def append_batches(
        self,
        topic: str,
        batches: Mapping[int, Sequence[pa.RecordBatch]],
        *,
        acks: str = "all",
        producer: str | None = None,
        sequence: int = 0,
        producer_epoch: int = 0,
    ) -> Report:
        """Append Arrow batches of the columns ``timestamp, key, value, headers``, by partition, from this
        process: what a small producer does without Spark. Otherwise as ``append``.
        """
        return append_batches(
            self._context,
            topic,
            batches,
            acks=acks,
            producer=producer,
            sequence=sequence,
            producer_epoch=producer_epoch,
        )

    def read(
        self, topic: str, start: Bound = None, end: Bound = None, partitions: Sequence[int] | None = None
    ) -> DataFrame:
        """The records of ``[start, end)`` of each partition as a Spark DataFrame, hot and cold alike, up to
        the high watermark, pinned to the state now. Columns: ``topic, partition, offset, timestamp, key,
        value, headers``.

        ``start`` and ``end`` are offsets, times (the first record at or after), offsets by partition, or an
        ``OffsetSpec``.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, InvalidCallError.
        """
        if self._spark is None:
            raise InvalidCallError("reading as a DataFrame needs a Spark session: Cluster.open(file, spark)")
        return read_frame(self._context, self._spark, topic, start, end, partitions)

    def plan_read(
        self, topic: str, start: Bound = None, end: Bound = None, partitions: Sequence[int] | None = None
    ) -> list[FileRange]:
        """The exact files that ``read`` would scan, in either tier."""
        return plan_read(self._context, topic, start, end, partitions)[1]

    def offsets(self, topic: str, spec: OffsetSpec | datetime) -> dict[int, Answer]:
        """ListOffsets: a named position, or the first record at or after a time, of each partition."""
        return list_offsets(self._context, topic, spec)

    # -------------------------------------------------------------------------------- the jobs

    def replicate(
        self, topics: Topics = None, *, brokers: Sequence[int] | None = None, dry_run: bool = False
    ) -> Report:
        """Bring followers to their leaders, and caught-up ones into the ISR."""
        return replicating.replicate(self._context, _names(topics), brokers=brokers, dry_run=dry_run)

    def merge(self, topics: Topics = None, *, dry_run: bool = False) -> Report:
        """Merge small appends into segments."""
        return merging.merge(self._context, _names(topics), dry_run=dry_run)

    def tier(self, topics: Topics = None, *, dry_run: bool = False) -> Report:
        """Copy sealed segments to the remote table."""
        return tier.tier(self._context, _names(topics), dry_run=dry_run)

    def retain(self, topics: Topics = None, *, dry_run: bool = False, sweep: bool = False) -> Report:
        """Apply local and total retention, and delete what left the log long enough ago."""
        return retain.retain(self._context, _names(topics), dry_run=dry_run, sweep=sweep)

    def bootstrap(self, brokers: Sequence[int] | int, *, dry_run: bool = False) -> Report:
        """Format and register brokers that lost their storage, and bring their replicas into the ISR."""
        listed = [brokers] if isinstance(brokers, int) else list(brokers)
        return bring_up.bootstrap(self._context, listed, dry_run=dry_run)

    def verify(self, topics: Topics = None, *, checksums: bool = True) -> Report:
        """Compare every replica and the remote with each other."""
        return verify.verify(self._context, _names(topics), checksums=checksums)


def _names(topics: Topics) -> Sequence[str] | None:
    return [topics] if isinstance(topics, str) else topics


def _open_stores(file: ClusterFile, clock: Clock, opener: OpenStore) -> dict[int, Store]:
    return {broker.broker_id: opener(broker.log_dir, file.store_options, clock) for broker in file.brokers}


def _check_owners(file: ClusterFile, stores: Mapping[int, Store]) -> None:
    """No root that can be read may belong to somebody else. (One that cannot is found when it is used.)

    Raises: InconsistentClusterIdError, LogDirError.
    """

    def check(broker_id: int) -> None:
        found = read_broker_file(stores[broker_id])
        if found is not None:
            check_broker_file(found, stores[broker_id], file.cluster_id, broker_id)

    for outcome in ThreadRunner(_DRIVER_THREADS).run(check, stores):
        if isinstance(outcome, Failed) and isinstance(outcome.error, InvalidCallError):
            raise outcome.error


def _metadata_log(file: ClusterFile, voters: Sequence[Voter], clock: Clock, new_id: NewId) -> MetadataLog:
    return MetadataLog(file.cluster_id, voters, clock=clock, rng=random.Random(new_id()), new_id=new_id)


def _context(
    file: ClusterFile,
    stores: Mapping[int, Store],
    voters: Sequence[Voter],
    spark: Any,
    progress: Progress | None,
    clock: Clock,
    new_id: NewId,
    opener: OpenStore,
) -> Context:
    tasks: TaskRunner = LocalTasks(_DRIVER_THREADS)
    if spark is not None:
        from engine.spark.runner import SparkRunner

        tasks = SparkRunner(spark)
    return Context(
        file=file,
        stores=stores,
        remote=None if file.remote is None else opener(file.remote, file.store_options, clock),
        metadata=MetadataClient(_metadata_log(file, voters, clock, new_id)),
        clock=clock,
        new_id=new_id,
        rng=random.Random(new_id()),
        tasks=tasks,
        threads=ThreadRunner(_DRIVER_THREADS),
        progress=progress if progress is not None else Silent(),
    )

"""The cluster as one object: what a notebook, a job, and a test hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.engine.admin import describe, describe_cluster, topics
from stratalog.engine.brokers import bring_up
from stratalog.engine.brokers import fence as fencing
from stratalog.engine.brokers.format import format_cluster
from stratalog.engine.cluster_fetch import FetchOfCluster
from stratalog.engine.cluster_quorum import QuorumOfCluster
from stratalog.engine.cluster_read import ReadOfCluster
from stratalog.engine.cluster_restore import RestoreOfCluster
from stratalog.engine.cluster_spark import declared, task_runner
from stratalog.engine.cluster_state import StateOfCluster, Topics, names
from stratalog.engine.cluster_stream import StreamOfCluster
from stratalog.engine.cluster_tiers import TiersOfCluster
from stratalog.engine.cluster_transactions import TransactionsOfCluster
from stratalog.engine.config.cluster_file import ClusterFile, load_cluster_file
from stratalog.engine.config.key_source import KeySource, key_of_environment, read_key
from stratalog.engine.driver.context import Context, Measure, Progress
from stratalog.engine.driver.opening import OpenStore, open_context, open_stores
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.reassignment_plan import ReplicaChange, ReplicaPlan
from stratalog.engine.metadata.topic_commands import PartitionsCreated, TopicCreated
from stratalog.engine.records.append import append_batches, who_appends
from stratalog.engine.replication.replica_selector import CurrentSelector, MakeSelector, OfferedSelectors
from stratalog.engine.upkeep.healing import heal as healing
from stratalog.engine.upkeep.healing import history as histories
from stratalog.engine.upkeep.healing import recover as recovering
from stratalog.engine.upkeep.replication import bootstrap as bootstrapping
from stratalog.engine.upkeep.replication import merge as merging
from stratalog.engine.upkeep.replication import reassign as reassigning
from stratalog.engine.upkeep.replication import replicate as replicating
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.reassignments import reassignments
from stratalog.engine.upkeep.verification import verify
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.numbers import whole, whole_or_none, wholes
from stratalog.partitions.probing import Prober
from stratalog.partitions.producers import OnChangedReplay
from stratalog.partitions.store import Store, open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import DataType

    from stratalog.engine.spark.frames import Frame


class Cluster(
    QuorumOfCluster,
    StateOfCluster,
    TiersOfCluster,
    FetchOfCluster,
    RestoreOfCluster,
    StreamOfCluster,
    ReadOfCluster,
    TransactionsOfCluster,
):
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
        prober: Prober | None = None,
        voters_as_logged: bool = False,
        selectors: Mapping[str, MakeSelector] | None = None,
        cluster_key: KeySource = key_of_environment,
    ) -> Cluster:
        """Open the cluster that a ``cluster.toml`` describes. With ``spark`` the work runs on its executors
        and DataFrames can be read and appended; without, in threads of this process. ``voters_as_logged``: the
        file may name other metadata voters than those of the log. ``selectors``: those of one's own from among
        which ``replica.selector.class`` picks one by its name. ``cluster_key`` gives the key that the metadata are
        signed with (``stratalog.engine.config.key_source``); without it a signed cluster is read only, and nothing
        is verified.

        Raises: InvalidCallError for what is wrong with the file, or when the cluster was never formatted;
            LogDirError, InconsistentClusterIdError for roots of somebody else; NoMajorityError.
        """
        file = load_cluster_file(cluster_file)
        context = open_context(
            file,
            key=read_key(file.cluster_id, cluster_key),
            tasks=task_runner(spark),
            progress=progress,
            clock=clock if clock is not None else SystemClock(),
            new_id=new_id,
            opener=opener,
            prober=prober,
            as_logged=voters_as_logged,
        )
        context.selector = CurrentSelector(OfferedSelectors(selectors))
        return cls(context, spark)

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
        prober: Prober | None = None,
        cluster_key: KeySource = key_of_environment,
    ) -> Cluster:
        """Make the folders of a ``cluster.toml`` a cluster: format all roots, begin the metadata log, register the
        brokers. What is done already stays as it is: where it stopped half-way, calling it again finishes it. With
        a ``cluster_key``, as of ``open``, all of it is signed.

        Raises: as ``open``; UnsupportedStoreError for storage without exclusive create.
        """
        file = load_cluster_file(cluster_file)
        context = format_cluster(
            file,
            key=read_key(file.cluster_id, cluster_key),
            clock=clock if clock is not None else SystemClock(),
            new_id=new_id,
            opener=opener,
            tasks=task_runner(spark),
            progress=progress,
            prober=prober,
        )
        return cls(context, spark)

    @classmethod
    def plan_format(
        cls, cluster_file: str | Path, *, clock: Clock | None = None, opener: OpenStore = open_store
    ) -> Report:
        """What ``format`` would do; writes nothing. Raises: InvalidCallError."""
        file = load_cluster_file(cluster_file)
        stores = open_stores(file, clock if clock is not None else SystemClock(), opener)
        return bring_up.plan_format(file, stores)

    def using(self, spark: SparkSession) -> Cluster:
        """This cluster with its work on the executors of ``spark``, and DataFrames in that session."""
        return Cluster(replace(self._context, tasks=task_runner(spark)), spark)

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

    def register(self, brokers: Sequence[int] | int | None = None, *, trust_copy: bool = False) -> Report:
        """Register brokers as their roots are now: all of the cluster file when None, but for those that were
        fenced by hand. ``trust_copy``: roots that were moved, or put back from a copy, have everything.
        """
        return bring_up.register_brokers(
            self._context, None if brokers is None else wholes(brokers, "broker"), trust_copy=trust_copy
        )

    def fence(self, brokers: Sequence[int] | int, *, force: bool = False, dry_run: bool = False) -> Report:
        """Fence brokers by hand, until ``unfence``. Leaves no partition without a leader but by ``force``."""
        return fencing.fence(self._context, wholes(brokers, "broker"), force=force, dry_run=dry_run)

    def unfence(self, brokers: Sequence[int] | int, *, dry_run: bool = False) -> Report:
        """Bring fenced brokers back, as their roots are now."""
        return fencing.unfence(self._context, wholes(brokers, "broker"), dry_run=dry_run)

    def decommission(self, brokers: Sequence[int] | int, *, dry_run: bool = False) -> Report:
        """Take brokers without replicas out of the metadata for good."""
        return fencing.decommission(self._context, wholes(brokers, "broker"), dry_run=dry_run)

    def add_brokers(self, brokers: Sequence[int] | int, *, dry_run: bool = False) -> Report:
        """Format the roots of brokers that are new in the cluster file, and register them."""
        return bring_up.add_brokers(self._context, wholes(brokers, "broker"), dry_run=dry_run)

    def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        key: DataType | str | None = None,
        value: DataType | str | None = None,
        configs: Mapping[str, str | float] | None = None,
        dry_run: bool = False,
    ) -> TopicCreated:
        """Create a topic. ``key`` and ``value`` declare types, as Spark types or DDL
        (``value="carrier STRING, distance BIGINT"``); binary otherwise. ``dry_run`` only checks.

        Raises: TopicAlreadyExistsError, InvalidReplicationFactorError, InvalidConfigError, InvalidCallError.
        """
        return topics.create_topic(
            self._context,
            name,
            partitions=whole_or_none(partitions, f"topic {name!r}: partitions"),
            replication_factor=whole_or_none(replication_factor, f"topic {name!r}: replication factor"),
            key_schema=declared(key),
            value_schema=declared(value),
            configs=configs,
            dry_run=dry_run,
        )

    def delete_topic(self, name: str, *, keep_remote: bool = False, dry_run: bool = False) -> Report:
        """Delete a topic and its data, in both tiers unless ``keep_remote``."""
        return topics.delete_topic(self._context, name, keep_remote=keep_remote, dry_run=dry_run)

    def alter_topic(
        self,
        name: str,
        *,
        key: DataType | str | None = None,
        value: DataType | str | None = None,
        dry_run: bool = False,
    ) -> tuple[str, ...]:
        """Let the declared types of a topic grow by nullable fields at the end of structs, to ``key`` and
        ``value`` (as for ``create_topic``; None: it stays). The fields that were added, such as ``value.gate``:
        records that are there have null in them, and producers that do not know them go on.
        """
        return topics.alter_topic(
            self._context, name, key_schema=declared(key), value_schema=declared(value), dry_run=dry_run
        )

    def create_partitions(self, name: str, partitions: int, *, dry_run: bool = False) -> PartitionsCreated:
        """Let a topic have so many partitions, more than now; the new ones, with their replicas. Records stay
        where they are, and new ones of a key may go to other partitions than its earlier ones.
        """
        return topics.create_partitions(
            self._context, name, whole(partitions, f"topic {name!r}: partitions"), dry_run=dry_run
        )

    def alter_configs(
        self, topic: str | None, changes: Mapping[str, str | float | None], *, dry_run: bool = False
    ) -> None:
        """Set configs of a topic, of the cluster when None; None as a value restores the default.
        ``dry_run`` only checks.
        """
        topics.alter_configs(self._context, topic, changes, dry_run=dry_run)

    def describe(self, topics: Topics = None) -> Report:
        """Every replica of the topics, as a table."""
        return describe.describe(self._context, names(topics))

    def describe_brokers(self) -> Report:
        """Every broker, as a table."""
        return describe_cluster.describe_brokers(self._context)

    def describe_topics(self) -> Report:
        """Every topic, as a table."""
        return describe_cluster.describe_topics(self._context)

    # ------------------------------------------------------------------- leaders and replicas

    def elect(
        self,
        topics: Topics = None,
        partitions: Sequence[int] | None = None,
        *,
        unclean: bool = False,
        leader: int | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Let the preferred replicas (or ``leader``) lead where others do. ``unclean``: give partitions without
        a leader the replica that holds most, and lose what only lost storage had. See
        ``stratalog.engine.upkeep.replication.elect``.
        """
        return elect(
            self._context,
            names(topics),
            partitions,
            unclean=unclean,
            leader=whole_or_none(leader, "leader: broker"),
            dry_run=dry_run,
        )

    def plan_replicas(
        self,
        topics: Topics = None,
        *,
        add: Sequence[int] | int = (),
        remove: Sequence[int] | int = (),
        move: Mapping[int, int] | None = None,
        drain: Sequence[int] | int = (),
        replication_factor: int | None = None,
    ) -> ReplicaPlan:
        """Which brokers should hold the partitions of the topics after that, where it is another set than
        now: replicas added on brokers, removed from them, moved from one to another, all of them taken off
        (``drain``), or so many of each partition. ``reassign`` carries it out.

        Raises: UnknownBrokerError, InvalidReplicaAssignmentError, InvalidReplicationFactorError.
        """
        change = ReplicaChange(
            add=wholes(add, "broker"),
            remove=wholes(remove, "broker"),
            move={whole(old, "broker"): whole(new, "broker") for old, new in (move or {}).items()},
            drain=wholes(drain, "broker"),
            replication_factor=whole_or_none(replication_factor, "replication factor"),
        )
        return reassigning.plan_replicas(self._context, names(topics), change)

    def reassign(
        self,
        plan: ReplicaPlan,
        *,
        force: bool = False,
        throttle_bytes_per_s: float | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Move replicas: ``cluster.reassign({("trips", 0): [2, 3]})``, or what ``plan_replicas`` gives. The
        newcomers are copied to before the old replicas go; see ``stratalog.engine.upkeep.replication.reassign``.
        """
        return reassigning.reassign(
            self._context, plan, force=force, throttle_bytes_per_s=throttle_bytes_per_s, dry_run=dry_run
        )

    def reassignments(self, topics: Topics = None) -> Report:
        """Reassignments in progress, as a table: what each newcomer still lacks."""
        return reassignments(self._context, names(topics))

    def cancel_reassignments(self, topics: Topics = None, *, dry_run: bool = False) -> Report:
        """Take reassignments in progress back."""
        return reassigning.cancel(self._context, names(topics), dry_run=dry_run)

    # --------------------------------------------------------------------------- append, read

    def append(
        self,
        frame: Frame,
        topic: str,
        *,
        key: Column | str | None = None,
        value: Column | str | None = None,
        partition: Column | str | None = None,
        headers: Column | str | None = None,
        timestamp: Column | str | None = None,
        acks: str = "all",
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int | None = None,
        on_changed_replay: OnChangedReplay = "refuse",
        order_by: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Report:
        """Append all rows of a frame, Spark's, pandas', polars' or Arrow's; see
        ``stratalog.engine.spark.append_frame.append_frame``.

        ``value`` None takes the declared value columns of a typed topic from the columns of ``frame``.
        ``producer`` and ``sequence`` name the append: it can be run again, and is appended once. The same of both
        with other rows is refused, and none of them is stored; ``on_changed_replay="accept"`` takes them for the
        same, where rows cannot be computed again as they were (``rand()``): that is not exactly once.
        """
        rows = self._dataframe(frame, topic)  # first of all: it knows whether there is a pyspark
        from stratalog.engine.spark.append_frame import append_frame
        from stratalog.engine.spark.appending import RecordColumns

        return append_frame(
            self._context,
            rows,
            topic,
            RecordColumns(key, value, partition, headers, timestamp),
            who_appends(producer, sequence, producer_epoch, on_changed_replay=on_changed_replay),
            acks=acks,
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
        sequence: int | None = None,
        producer_epoch: int | None = None,
        on_changed_replay: OnChangedReplay = "refuse",
    ) -> Report:
        """Append Arrow batches of the columns ``timestamp, key, value, headers``, by partition, from this
        process: what a small producer does without Spark. Otherwise as ``append``.
        """
        return append_batches(
            self._context,
            topic,
            batches,
            who_appends(producer, sequence, producer_epoch, on_changed_replay=on_changed_replay),
            acks=acks,
        )

    # -------------------------------------------------------------------------------- the jobs

    def replicate(
        self, topics: Topics = None, *, brokers: Sequence[int] | int | None = None, dry_run: bool = False
    ) -> Report:
        """Bring followers to their leaders, and caught-up ones into the ISR."""
        chosen = None if brokers is None else wholes(brokers, "broker")
        return replicating.replicate(self._context, names(topics), brokers=chosen, dry_run=dry_run)

    def merge(self, topics: Topics = None, *, dry_run: bool = False) -> Report:
        """Merge small appends into segments."""
        return merging.merge(self._context, names(topics), dry_run=dry_run)

    def bootstrap(
        self,
        brokers: Sequence[int] | int,
        topics: Topics = None,
        *,
        add: bool = False,
        instead_of: int | None = None,
        trust_copy: bool = False,
        dry_run: bool = False,
    ) -> Report:
        """Format and register brokers that are new or lost their storage, and bring their replicas into the ISR.
        ``add``: they get replicas of all partitions of the topics; ``instead_of``: those of another broker.
        ``trust_copy``: their roots are faithful copies of what they had, and are not formatted.
        """
        return bootstrapping.bootstrap(
            self._context,
            wholes(brokers, "broker"),
            names(topics),
            add=add,
            instead_of=whole_or_none(instead_of, "broker"),
            trust_copy=trust_copy,
            dry_run=dry_run,
        )

    def verify(self, topics: Topics = None, *, deep: bool = False) -> Report:
        """Compare every replica and the remote with each other: names, sizes, contiguity and footers; with
        ``deep`` every byte against its checksums.
        """
        return verify.verify(self._context, names(topics), deep=deep)

    def heal(self, topics: Topics = None, *, dry_run: bool = False) -> Report:
        """Verify every byte, and replace what is damaged or missing on brokers by verified copies of other
        replicas or of the remote. What is still wrong afterwards is a failure.
        """
        return healing.heal(self._context, names(topics), dry_run=dry_run)

    def history(self, topics: Topics = None) -> Report:
        """What replicas have discarded and still hold, as a table."""
        return histories.history(self._context, names(topics))

    def recover(
        self,
        topics: Topics,
        to: str,
        *,
        partitions: Sequence[int] | None = None,
        broker: int | None = None,
        dry_run: bool = False,
    ) -> Report:
        """Export what replicas (of ``broker`` only, where it is given) hold of other histories, as Parquet files
        in the folder or bucket ``to``.
        """
        return recovering.recover(
            self._context,
            names(topics),
            to,
            partitions=partitions,
            broker=whole_or_none(broker, "broker"),
            dry_run=dry_run,
        )

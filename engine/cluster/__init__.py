"""The cluster as one object: what a notebook, a job, and a test hold.

``client`` has the reads and appends of every day; ``topics``, ``brokers``, ``groups``, ``transactions`` and
``quorum`` are its groups; ``arguments`` says once how names and bounds are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.engine.admin.describe import describe
from stratalog.engine.admin.quorum import sign_metadata
from stratalog.engine.brokers.bring_up import plan_format
from stratalog.engine.brokers.format import format_cluster
from stratalog.engine.cluster.arguments import TopicNames, names, task_runner
from stratalog.engine.cluster.brokers import Brokers
from stratalog.engine.cluster.client import Client
from stratalog.engine.cluster.groups import Groups
from stratalog.engine.cluster.quorum import Quorum
from stratalog.engine.cluster.topics import Topics
from stratalog.engine.cluster.transactions import Transactions
from stratalog.engine.config.cluster_file import ClusterFile, load_cluster_file
from stratalog.engine.config.key_source import KeySource, key_of_environment, read_key
from stratalog.engine.driver.context import Context, Progress
from stratalog.engine.driver.opening import OpenStore, open_context, open_stores
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import Measure
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.metadata.reassignment_plan import ReplicaChange, ReplicaPlan
from stratalog.engine.replication.replica_selector import CurrentSelector, MakeSelector, OfferedSelectors
from stratalog.engine.upkeep.healing import heal as healing
from stratalog.engine.upkeep.healing import history as histories
from stratalog.engine.upkeep.healing import recover as recovering
from stratalog.engine.upkeep.replication import bootstrap as bootstrapping
from stratalog.engine.upkeep.replication import merge as merging
from stratalog.engine.upkeep.replication import reassign as reassigning
from stratalog.engine.upkeep.replication import replicate as replicating
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.replication.keep_short import keep_short
from stratalog.engine.upkeep.replication.reassignments import reassignments
from stratalog.engine.upkeep.restoring import drill as drilling
from stratalog.engine.upkeep.restoring import restore as restoring
from stratalog.engine.upkeep.retention import retain
from stratalog.engine.upkeep.retention import vacuum as vacuuming
from stratalog.engine.upkeep.snapshots import snapshot as snapshotting
from stratalog.engine.upkeep.snapshots.read_snapshot import list_snapshots, metrics
from stratalog.engine.upkeep.tiering import tier
from stratalog.engine.upkeep.verification import verify
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import ClusterKeyError
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.numbers import whole, whole_or_none, wholes
from stratalog.partitions.probing import Prober
from stratalog.partitions.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Cluster(Client):
    """A cluster of storage roots, as one driver sees it.

        cluster = Cluster.open("cluster.toml", spark)
        cluster.topics.create("trips", partitions=8)
        cluster.append(df, "trips", key="id", timestamp="started_at").raise_for_failures()
        cluster.read("trips", last=100).show()

    The methods of every day are here; the rest is in ``topics``, ``groups``, ``transactions``, ``brokers`` and
    ``quorum``. Any number of drivers may hold the same cluster at once. Every operation reads the metadata anew.
    """

    topics: Topics
    brokers: Brokers
    groups: Groups
    transactions: Transactions
    quorum: Quorum

    def __init__(self, context: Context, spark: SparkSession | None = None) -> None:
        """Use ``Cluster.open``, or ``Cluster.format`` for a new one."""
        super().__init__(context, spark)
        self.topics = Topics(context)
        self.brokers = Brokers(context)
        self.groups = Groups(context, spark)
        self.transactions = Transactions(context)
        self.quorum = Quorum(context)

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
        keeps_short: bool = True,
    ) -> Cluster:
        """Open the cluster that a ``cluster.toml`` describes. With ``spark`` the work runs on its executors
        and DataFrames can be read and appended; without, in threads of this process. ``voters_as_logged``: the
        file may name other metadata voters than those of the log. ``selectors``: those of one's own from among
        which ``replica.selector.class`` picks one by its name. ``cluster_key`` gives the key that the metadata are
        signed with (``stratalog.engine.config.key_source``); without it a signed cluster is read only, and nothing
        is verified. ``keeps_short``: logs that this driver appends to are kept short by it, in a thread of its own
        (``stratalog.engine.upkeep.replication.keep_short``).

        Raises: InvalidCallError for errors in the file, or when the cluster was never formatted;
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
        return cls(keep_short(context, opener) if keeps_short else context, spark)

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
        keeps_short: bool = True,
    ) -> Cluster:
        """Make the folders of a ``cluster.toml`` a cluster: format all roots, begin the metadata log, register the
        brokers. Finished steps stay as they are: a second call completes one that stopped half-way. With a
        ``cluster_key``, as of ``open``, all of it is signed. ``keeps_short`` is as of ``open``.

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
        return cls(keep_short(context, opener) if keeps_short else context, spark)

    @classmethod
    def plan_format(
        cls, cluster_file: str | Path, *, clock: Clock | None = None, opener: OpenStore = open_store
    ) -> Report:
        """The plan of ``format``; writes nothing. Raises: InvalidCallError."""
        file = load_cluster_file(cluster_file)
        stores = open_stores(file, clock if clock is not None else SystemClock(), opener)
        return plan_format(file, stores)

    @staticmethod
    def sign(
        cluster_file: str | Path,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        clock: Clock | None = None,
        new_id: NewId = random_id,
        opener: OpenStore = open_store,
        cluster_key: KeySource = key_of_environment,
    ) -> Report:
        """Sign the metadata of a cluster that had no key, or whose key was lost. This trusts the log that a
        majority of the voters shows now, of any author: check it before (``describe``, ``verify``). See
        ``stratalog.engine.quorum.bootstrap``.

        Raises: ClusterKeyError without a key; as ``open``; NoMajorityError.
        """
        file = load_cluster_file(cluster_file)
        key = read_key(file.cluster_id, cluster_key)
        if key is None:
            raise ClusterKeyError(
                f"cluster {file.cluster_id!r} cannot be signed without a key: set STRATALOG_CLUSTER_KEY, or give "
                "the job --cluster-key-file"
            )
        context = open_context(
            file,
            clock=clock if clock is not None else SystemClock(),
            new_id=new_id,
            opener=opener,
            key=key.trusting_what_is_there(),
            progress=progress,
            as_logged=True,
        )
        return sign_metadata(context, dry_run=dry_run)

    @staticmethod
    def restore(
        cluster_file: str | Path,
        former: str,
        spark: SparkSession | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        clock: Clock | None = None,
        new_id: NewId = random_id,
        opener: OpenStore = open_store,
        cluster_key: KeySource = key_of_environment,
    ) -> Report:
        """Make the empty brokers of a ``cluster.toml`` what cluster ``former`` was, from what that has tiered:
        topics, configs, records, leader epochs, producers. The file names the same remote, and another cluster id.
        From then on the former cluster, should any of it be left, can add nothing to the remote tier. See
        ``stratalog.engine.upkeep.restoring.restore``, also for the losses. Harmless when repeated. With a
        ``cluster_key``, as of ``open``, the description of the former cluster has to be signed, and the restored
        one is; without, nothing of it is verified.

        Raises: InvalidCallError; as ``open`` and ``format``. While a topic cannot be restored, which is a failure
            in the report, nothing is changed.
        """
        file = load_cluster_file(cluster_file)
        clock = clock if clock is not None else SystemClock()
        key = read_key(file.cluster_id, cluster_key)

        def heir() -> Context:
            tasks = task_runner(spark)
            return format_cluster(
                file, clock=clock, new_id=new_id, opener=opener, tasks=tasks, progress=progress, key=key
            )

        return restoring.restore(file, former, heir, opener=opener, clock=clock, key=key, dry_run=dry_run)

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Wait until the logs that this driver has appended to are short, or the time is over."""
        self._context.behind_appends.wait(timeout_s)

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
    def last_known_image(self) -> ClusterImage:
        """The metadata as this driver saw it last, at the latest when it opened the cluster: also while a majority
        of the voters is gone, and ``image`` raises NoMajorityError. ``next_offset`` tells how far it goes.
        """
        return self._context.metadata.last_known.image

    @property
    def stores(self) -> Mapping[int, Store]:
        """The root of each broker."""
        return self._context.stores

    def __repr__(self) -> str:
        return f"Cluster({self._context.file.cluster_id!r}, {len(self._context.stores)} brokers)"

    # ------------------------------------------------------------------------------ upkeep

    def describe(self, topics: TopicNames = None) -> Report:
        """Every replica of the topics, as a table."""
        return describe(self._context, names(topics))

    def elect(
        self,
        topics: TopicNames = None,
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
        topics: TopicNames = None,
        *,
        add: Sequence[int] | int = (),
        remove: Sequence[int] | int = (),
        move: Mapping[int, int] | None = None,
        drain: Sequence[int] | int = (),
        replication_factor: int | None = None,
    ) -> ReplicaPlan:
        """Plan the brokers of the topics' partitions after a change, where they differ from now: add replicas on
        brokers, remove them from others, move them from one to another, take all off (``drain``), or give each
        partition ``replication_factor`` replicas. ``reassign`` carries it out.

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

    def reassignments(self, topics: TopicNames = None) -> Report:
        """Reassignments in progress, as a table: what each newcomer still lacks."""
        return reassignments(self._context, names(topics))

    def cancel_reassignments(self, topics: TopicNames = None, *, dry_run: bool = False) -> Report:
        """Take reassignments in progress back."""
        return reassigning.cancel(self._context, names(topics), dry_run=dry_run)

    def replicate(
        self, topics: TopicNames = None, *, brokers: Sequence[int] | int | None = None, dry_run: bool = False
    ) -> Report:
        """Bring followers to their leaders, and caught-up ones into the ISR."""
        chosen = None if brokers is None else wholes(brokers, "broker")
        return replicating.replicate(self._context, names(topics), brokers=chosen, dry_run=dry_run)

    def merge(self, topics: TopicNames = None, *, dry_run: bool = False) -> Report:
        """Merge small appends into segments."""
        return merging.merge(self._context, names(topics), dry_run=dry_run)

    def bootstrap(
        self,
        brokers: Sequence[int] | int,
        topics: TopicNames = None,
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

    def verify(self, topics: TopicNames = None, *, deep: bool = False) -> Report:
        """Compare every replica and the remote with each other: names, sizes, contiguity and footers; with
        ``deep`` every byte against its checksums.
        """
        return verify.verify(self._context, names(topics), deep=deep)

    def heal(self, topics: TopicNames = None, *, dry_run: bool = False) -> Report:
        """Verify every byte, and replace damaged or missing files on brokers by verified copies of other replicas
        or of the remote. Remaining damage is a failure.
        """
        return healing.heal(self._context, names(topics), dry_run=dry_run)

    def history(self, topics: TopicNames = None) -> Report:
        """Files that replicas have discarded and still hold, as a table."""
        return histories.history(self._context, names(topics))

    def recover(
        self,
        topics: TopicNames,
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

    def tier(self, topics: TopicNames = None, *, due: bool = False, dry_run: bool = False) -> Report:
        """Copy sealed segments to the remote table; with ``due`` only of partitions whose time has come."""
        return tier.tier(self._context, names(topics), due=due, dry_run=dry_run)

    def retain(self, topics: TopicNames = None, *, dry_run: bool = False) -> Report:
        """Apply local and total retention, and delete what left the log long enough ago."""
        return retain.retain(self._context, names(topics), dry_run=dry_run)

    def vacuum(
        self, topics: TopicNames = None, *, older_than_ms: int = vacuuming.DAY_MS, dry_run: bool = False
    ) -> Report:
        """Delete litter: in the remote tier, and, where no topics are named, on the brokers, also the folders of
        former replicas; see ``stratalog.engine.upkeep.retention.vacuum``.
        """
        return vacuuming.vacuum(self._context, names(topics), older_than_ms=older_than_ms, dry_run=dry_run)

    def snapshots(self, topics: TopicNames = None) -> Report:
        """Every snapshot of every replica, as a table."""
        return list_snapshots(self._context, names(topics))

    def metrics(self) -> Report:
        """The metrics of KIP-630: ``GenSnapshotLatencyMs``, ``LoadSnapshotLatencyMs`` (of this driver),
        ``SnapshotSizeBytes``, ``SnapshotLag`` (of every partition with snapshots, and of the metadata log)."""
        return metrics(self._context)

    def snapshot(
        self,
        topics: TopicNames = None,
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

    def drill(self, *, deep: bool = False, opener: OpenStore = open_store) -> Report:
        """Restore this cluster from its remote tier to a temporary folder beside it, compare the two, and remove
        the copy: whether a restore would work, how long it takes, and what would be lost. Changes nothing,
        neither here nor in the remote tier. ``deep``: reads all of the remote tier. See
        ``stratalog.engine.upkeep.restoring.drill``.

        Raises: InvalidCallError when the remote tier does not describe this cluster yet.
        """
        return drilling.drill(self._context, opener, deep=deep)

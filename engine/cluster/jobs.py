"""The jobs of a cluster, as methods: they keep its logs intact, short and in the right tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from stratalog.engine.admin.history import MOST, EventFilter, history, since_time_ms
from stratalog.engine.cluster.arguments import TopicNames, names
from stratalog.engine.cluster.parts import ClusterParts
from stratalog.engine.cluster.recorded import forced, keeps_one, operation
from stratalog.engine.driver.opening import Ports
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.reassignment_plan import ReplicaChange, ReplicaPlan
from stratalog.engine.upkeep.healing import heal as healing
from stratalog.engine.upkeep.healing import keep as keeping
from stratalog.engine.upkeep.healing import recover as recovering
from stratalog.engine.upkeep.maintenance import maintain as maintaining
from stratalog.engine.upkeep.maintenance.budget import Budget
from stratalog.engine.upkeep.memory.runs import VERIFY, remembered
from stratalog.engine.upkeep.replication import bootstrap as bootstrapping
from stratalog.engine.upkeep.replication import compact as compacting
from stratalog.engine.upkeep.replication import merge as merging
from stratalog.engine.upkeep.replication import reassign as reassigning
from stratalog.engine.upkeep.replication import replicate as replicating
from stratalog.engine.upkeep.replication.elect import elect
from stratalog.engine.upkeep.restoring import drill as drilling
from stratalog.engine.upkeep.retention import retain
from stratalog.engine.upkeep.retention import vacuum as vacuuming
from stratalog.engine.upkeep.snapshots import snapshot as snapshotting
from stratalog.engine.upkeep.tiering import tier
from stratalog.engine.upkeep.verification import verify
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.numbers import whole, whole_or_none, wholes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Jobs:
    """An open cluster, for its jobs."""

    _ports: Ports
    _spark: SparkSession | None
    _parts: ClusterParts

    @operation("maintain")
    def maintain(
        self,
        *,
        only: Sequence[str] | str = (),
        exclude: Sequence[str] | str = (),
        due: bool = False,
        budget_s: float | None = None,
        budget_bytes: int | None = None,
        budget_requests: int | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Run the upkeep steps that are due, including healing, within the budget. This is the only job you must
        schedule. When the budget is used up, the next run continues. The report has one row per step. See
        ``stratalog.engine.upkeep.maintenance.maintain``.

            cluster.maintain()
            cluster.maintain(only=["replicate", "tier"], budget_s=60)

        Args:
            only: run only these steps, due or not
            exclude: do not run these steps
            due: run only those steps of ``only`` that are due
            budget_s: start no new work after this time, such as 5m
            budget_bytes: start no new work after reading and writing this many bytes, such as 10GiB
            budget_requests: start no new work after this many storage requests, such as 5000
            dry_run: list the steps that are due and the number of partitions of each; write nothing

        Raises: InvalidCallError for an unknown step, or a budget of 0.
        """
        return maintaining.maintain(
            *self._ports.all,
            self._ports.events,
            lambda storage, execution, partitions, dry_run: snapshotting.snapshot(
                *(self._ports.metadata, storage, execution, self._ports.memory),
                only=partitions,
                reduce_large=self._reduce_large(),
                dry_run=dry_run,
            ),
            only=names(only) or (),
            exclude=names(exclude) or (),
            due=due,
            budget=Budget(
                budget_s,
                whole_or_none(budget_bytes, "budget_bytes"),
                whole_or_none(budget_requests, "budget_requests"),
            ),
            dry_run=dry_run,
        )

    def _remembered(
        self,
        step: str,
        topics: TopicNames,
        act: Callable[..., Report],
        *,
        some: bool = False,
        dry_run: bool = False,
    ) -> Report:
        """Return the report of ``act`` for these topics, and store its failures, so that ``health`` shows them."""
        named = names(topics)
        run = partial(act, named, dry_run=dry_run)
        return remembered(*self._ports.for_looks, step, named, run, some=some, dry_run=dry_run)

    def _reduce_large(self) -> snapshotting.ReduceLarge:
        if self._spark is None:
            return snapshotting.needs_spark
        from stratalog.engine.spark.reducing import make_large_snapshot

        return partial(make_large_snapshot, self._spark, self._ports.storage, self._ports.execution)

    @operation("elect", destroys=forced)
    def elect(
        self,
        topics: TopicNames = None,
        partitions: Sequence[int] | None = None,
        *,
        unclean: bool = False,
        leader: int | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Elect the preferred replicas as leaders of partitions that another replica leads. See
        ``stratalog.engine.upkeep.replication.elect``.

        Args:
            unclean: for partitions without a leader, elect the replica with the most records. Records that exist
                only on lost storage are lost permanently
            leader: elect this broker instead of the preferred replica
            dry_run: print the new leaders and the number of records lost; change nothing
        """
        return elect(
            *self._ports.for_tasks,
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
        """Plan a change of replicas for ``reassign``: the partitions to change, each with its new brokers.

        Args:
            add: add replicas on these brokers
            remove: remove replicas from these brokers
            move: move the replicas of broker N to broker M
            drain: move all replicas of these brokers to other brokers, balanced over the racks
            replication_factor: give each partition N replicas

        Raises: UnknownBrokerError, InvalidReplicaAssignmentError, InvalidReplicationFactorError.
        """
        change = ReplicaChange(
            add=wholes(add, "broker"),
            remove=wholes(remove, "broker"),
            move={whole(old, "broker"): whole(new, "broker") for old, new in (move or {}).items()},
            drain=wholes(drain, "broker"),
            replication_factor=whole_or_none(replication_factor, "replication factor"),
        )
        return reassigning.plan_replicas(self._ports.metadata, names(topics), change)

    @operation("reassign", destroys=forced)
    def reassign(
        self,
        plan: ReplicaPlan,
        *,
        force: bool = False,
        throttle_bytes_per_s: float | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Move replicas to the brokers of a plan, such as ``{("trips", 0): [2, 3]}`` or the result of
        ``plan_replicas``. Old replicas are removed once the new replicas are complete. See
        ``stratalog.engine.upkeep.replication.reassign``.

        Args:
            force: remove even the last in-sync replica, and lose the records that only this replica has
            throttle_bytes_per_s: copy at most SIZE per second to each broker, such as 50MiB
        """
        return reassigning.reassign(
            *self._ports.all, plan, force=force, throttle_bytes_per_s=throttle_bytes_per_s, dry_run=dry_run
        )

    @operation("cancel_reassignments")
    def cancel_reassignments(
        self, topics: TopicNames = None, *, dry_run: bool = False, check: bool = True
    ) -> Report:
        """Cancel the reassignments in progress, and revert them."""
        return reassigning.cancel(self._ports.metadata, self._ports.execution, names(topics), dry_run=dry_run)

    @operation("replicate")
    def replicate(
        self,
        topics: TopicNames = None,
        *,
        brokers: Sequence[int] | int | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Bring followers up to date with their leaders, advance high watermarks, and return caught-up followers
        to the ISR.

        Args:
            brokers: only followers on these brokers (default: all)
        """
        chosen = None if brokers is None else wholes(brokers, "broker")
        named = names(topics)
        return remembered(
            *self._ports.for_looks,
            "replicate",
            named if brokers is None else (),
            lambda: replicating.replicate(*self._ports.all, named, brokers=chosen, dry_run=dry_run),
            dry_run=dry_run,
        )

    @operation("merge")
    def merge(self, topics: TopicNames = None, *, dry_run: bool = False, check: bool = True) -> Report:
        """Merge small appends into segments, on the leaders.

        Followers receive the segments when they replicate.
        """
        return self._remembered("merge", topics, partial(merging.merge, *self._ports.for_tasks), dry_run=dry_run)

    @operation("compact")
    def compact(self, topics: TopicNames = None, *, dry_run: bool = False, check: bool = True) -> Report:
        """Compact the topics with ``cleanup.policy=compact``: remove the records whose key has a later record.

        The remaining records keep their offsets. ``min.cleanable.dirty.ratio`` and ``max.compaction.lag.ms``
        determine when a partition is due. In tiered topics, the remote segments are rewritten first, and only
        records in the remote tier are compacted. Records without a key that were written before compaction was
        enabled are removed too; a note gives the number of these records.

        Args:
            topics: only these topics (default: all compacted topics)
        """
        act = partial(compacting.compact, *self._ports.for_tasks)
        return self._remembered("compact", topics, act, dry_run=dry_run)

    @operation("bootstrap")
    def bootstrap(
        self,
        brokers: Sequence[int] | int,
        topics: TopicNames = None,
        *,
        add: bool = False,
        instead_of: int | None = None,
        trust_copy: bool = False,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Format and register brokers that are new or lost their storage, and bring their replicas into the ISR.

        Args:
            brokers: the brokers to set up, such as 2 or 2,3. First check that an empty root is not an unmounted
                volume
            add: add a replica of each partition to each of these brokers that does not have one yet
            instead_of: set up exactly one broker, and move all replicas of broker N to it
            trust_copy: accept roots that were moved, or restored from a copy. You vouch that the copies are
                complete; if a copy is incomplete, acknowledged records are lost
        """
        return bootstrapping.bootstrap(
            *self._ports.all,
            wholes(brokers, "broker"),
            names(topics),
            add=add,
            instead_of=whole_or_none(instead_of, "broker"),
            trust_copy=trust_copy,
            dry_run=dry_run,
        )

    @operation("verify", leaves_event=False)
    def verify(self, topics: TopicNames = None, *, deep: bool = False) -> Report:
        """Compare all replicas and the remote tier with each other: names, sizes, contiguous offsets and footers.

        Args:
            deep: read every byte and check it against the checksums
        """
        named = names(topics)
        act = partial(verify.verify, *self._ports.for_tasks, named, deep=deep)
        return remembered(*self._ports.for_looks, VERIFY, named, act)

    @operation("heal")
    def heal(self, topics: TopicNames = None, *, dry_run: bool = False, check: bool = True) -> Report:
        """Verify every byte of every copy, and replace damaged or missing files on brokers with verified copies
        from other replicas or the remote tier. Damage that remains is a failure in the report, with its offsets.

        Args:
            dry_run: read the files and list the repairs; change nothing
        """
        return self._remembered(VERIFY, topics, partial(healing.heal, *self._ports.all), dry_run=dry_run)

    @operation("recover", destroys=keeps_one)
    def recover(
        self,
        topics: TopicNames,
        to: str | None = None,
        *,
        keep: Literal["remote", "brokers"] | None = None,
        partitions: Sequence[int] | None = None,
        broker: int | None = None,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Export truncated records that replicas still have, as Parquet files. With ``keep``, resolve a difference
        between a leader's log and the remote log by keeping one of the two logs. ``keep="brokers"`` also restarts
        a lost log.

        Args:
            to: export to an existing folder, or to s3://bucket/prefix
            keep: the log to keep if the brokers' log and the remote log differ
            broker: only records on this broker
            dry_run: list the files to export, or the offsets of both logs; write nothing

        Raises: InvalidCallError unless exactly one of ``to`` and ``keep`` is given.
        """
        if (to is None) == (keep is None):
            raise InvalidCallError(
                "recover takes either to (the place to export to) or keep ('remote' or 'brokers')"
            )
        if keep is not None and broker is not None:
            raise InvalidCallError("recover with keep compares the logs of all brokers: omit broker")
        if keep is not None:
            return keeping.keep_one(*self._ports.all, names(topics), keep, partitions=partitions, dry_run=dry_run)
        assert to is not None
        return recovering.recover(
            *self._ports.for_tasks,
            names(topics),
            to,
            partitions=partitions,
            broker=whole_or_none(broker, "broker"),
            dry_run=dry_run,
        )

    @operation("tier")
    def tier(
        self, topics: TopicNames = None, *, due: bool = False, dry_run: bool = False, check: bool = True
    ) -> Report:
        """Copy sealed segments of tiered topics to the remote tier, and commit them to its Delta tables.

        Args:
            due: run once, for the partitions that are due
        """
        act = partial(tier.tier, *self._ports.for_tasks, due=due)
        return self._remembered("tier", topics, act, some=due, dry_run=dry_run)

    @operation("retain")
    def retain(self, topics: TopicNames = None, *, dry_run: bool = False, check: bool = True) -> Report:
        """Apply total and local retention, and delete files that were removed from the log at least
        ``log.file.delete.delay.ms`` ago.
        """
        return self._remembered("retain", topics, partial(retain.retain, *self._ports.for_tasks), dry_run=dry_run)

    @operation("vacuum")
    def vacuum(
        self,
        topics: TopicNames = None,
        *,
        older_than_ms: int = vacuuming.DAY_MS,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Delete files that are no longer needed: uploads that were never committed, and remote files whose delay
        has passed. Without topics, also delete remaining files of deleted topics and moved replicas, and temporary
        files on the brokers. See ``stratalog.engine.upkeep.retention.vacuum``.

        Args:
            older_than_ms: delete only files older than TIME (default: 24h)
        """
        act = partial(vacuuming.vacuum, *self._ports.for_tasks, older_than_ms=older_than_ms)
        return self._remembered("vacuum", topics, act, dry_run=dry_run)

    @operation("snapshot")
    def snapshot(
        self,
        topics: TopicNames = None,
        *,
        by_hand: bool = False,
        memory_bytes: int = snapshotting.MEMORY_BYTES,
        dry_run: bool = False,
        check: bool = True,
    ) -> Report:
        """Take the snapshots that the policy requires, copy these snapshots to the other replicas, advance log
        starts, and delete older snapshots. Default: all topics with snapshots, and the metadata log
        (``__cluster_metadata``).

        Args:
            by_hand: take a snapshot of all new records now, even if the policy (metadata.snapshot.*) does not
                require a snapshot
            memory_bytes: use Spark for partitions larger than SIZE; a smaller partition is handled by one task
                (default: 256MiB)
        """
        act = partial(
            snapshotting.snapshot,
            *self._ports.all,
            reduce_large=self._reduce_large(),
            by_hand=by_hand,
            memory_bytes=memory_bytes,
        )
        return self._remembered("snapshot", topics, act, dry_run=dry_run)

    @operation("drill", leaves_event=False)
    def drill(self, *, deep: bool = False) -> Report:
        """Rehearse a restore: restore this cluster from its remote tier to a temporary folder, compare the copy
        with the cluster, and delete the copy. The report shows the time that a restore takes, and the records that
        it would lose. See ``stratalog.engine.upkeep.restoring.drill``.

        Args:
            deep: read and check every byte of the remote tier

        Raises: InvalidCallError if the remote tier does not have a description of this cluster yet.
        """
        return drilling.drill(self._ports, self._parts.opener, deep=deep)

    def history(
        self,
        *,
        since: datetime | str | None = None,
        operation: str | None = None,
        topic: str | None = None,
        limit: int = MOST,
    ) -> Report:
        """List the operations on the cluster, newest first: one event per row, with time, user, arguments,
        outcome, ``totals`` and ``notes`` (JSON). Appends and offset commits write no events. See
        ``stratalog.engine.cluster.recorded``.

            cluster.history(since="7d", operation="topics delete").rows

        Args:
            since: only events since a time (2026-06-01T12:00) or within a duration (90s, 15m, 12h, 7d)
            operation: only operations with this job name, such as tier or 'topics delete'
            topic: only events that name this topic or have figures about the topic
            limit: list at most N events (default: 100)

        Raises: InvalidCallError; see ``fetch``.
        """
        since_ms = None if since is None else since_time_ms(since, self._ports.clock.now_ms())
        return history(*self._ports.all, EventFilter(since_ms, operation, topic), limit=whole(limit, "limit"))

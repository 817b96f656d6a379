"""The cluster as one object: back from the remote tier."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.engine.brokers.format import format_cluster
from stratalog.engine.cluster_spark import task_runner
from stratalog.engine.config.cluster_file import ClusterFile, load_cluster_file
from stratalog.engine.config.key_source import KeySource, key_of_environment, read_key
from stratalog.engine.driver.context import Context, Progress
from stratalog.engine.driver.opening import OpenStore
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.description import TopicDescription
from stratalog.engine.upkeep.restoring import drill as restore_drill
from stratalog.engine.upkeep.restoring.plan import RestorePlan, plan_restore
from stratalog.engine.upkeep.restoring.restore import bring_back, check_target, planned, take_over
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.runner import ThreadRunner
from stratalog.partitions.store import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.tiering.delta_table import DeltaTopicTable

_THREADS = 16


class RestoreOfCluster:
    """A part of ``stratalog.engine.cluster.Cluster``."""

    _context: Context

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
        ``stratalog.engine.upkeep.restoring.restore``, also for what is lost. Harmless when repeated. With a
        ``cluster_key``, as of ``open``, the description of the former cluster has to be signed, and the restored
        one is; without, nothing of it is verified.

        Raises: InvalidCallError for what is wrong with the call; as ``open`` and ``format``. While a topic cannot
            be restored, which is a failure in the report, nothing is changed.
        """
        file = load_cluster_file(cluster_file)
        if former == file.cluster_id:
            raise InvalidCallError(
                f"cluster file {file.path}: the restored cluster cannot be {former!r} again: give it another id, "
                "by which the remote tier tells it from what may be left of that one"
            )
        clock = clock if clock is not None else SystemClock()
        if file.remote is None:
            raise InvalidCallError(f"cluster file {file.path} names no [cluster] remote: restore from where?")
        remote = opener(file.remote, file.store_options, clock)
        key = read_key(file.cluster_id, cluster_key)
        plan = _plan(file, remote, former, clock, key)
        if plan.failures or dry_run:
            return replace(planned(plan), dry_run=dry_run)
        context = format_cluster(
            file,
            clock=clock,
            new_id=new_id,
            opener=opener,
            tasks=task_runner(spark),
            progress=progress,
            key=key,
        )
        with context.measured() as measure:
            check_target(context.metadata.image(), plan)
            take_over(context, plan, former)
            # What the former cluster has committed until it lost the tables belongs to the history, too.
            plan = _plan(file, remote, former, clock, key)
            report = planned(plan) if plan.failures else bring_back(context, plan)
        return replace(report, dry_run=False, seconds=measure.seconds, counts=measure.counts)

    def drill(self, *, deep: bool = False, opener: OpenStore = open_store) -> Report:
        """Restore this cluster from its remote tier to a temporary folder beside it, compare the two, and remove
        the copy: whether a restore would work, how long it takes, and what would be lost. Changes nothing,
        neither here nor in the remote tier. ``deep``: reads all of the remote tier. See
        ``stratalog.engine.upkeep.restoring.drill``.

        Raises: InvalidCallError when the remote tier does not describe this cluster yet.
        """
        context = self._context
        remote = context.remote_store("a drill restores the cluster from the remote tier")
        plan = _plan(context.file, remote, context.file.cluster_id, context.clock, context.key)
        with tempfile.TemporaryDirectory(prefix="stratalog-drill-") as folder:
            file = load_cluster_file(restore_drill.copy_of_file(context, Path(folder)))

            def copy() -> Context:
                open_root = restore_drill.read_only_remote(context, opener)
                return format_cluster(file, clock=context.clock, new_id=context.new_id, opener=open_root)

            return restore_drill.drill(context, plan, copy, deep=deep)


def _plan(file: ClusterFile, remote: Store, former: str, clock: Clock, key: ClusterKey | None) -> RestorePlan:
    from stratalog.tiering.delta_table import DeltaTopicTable  # here: it loads delta-rs

    def table_of(topic: TopicDescription, cluster_id: str) -> DeltaTopicTable:
        return DeltaTopicTable(
            remote,
            topic=topic.name,
            topic_id=topic.topic_id,
            cluster_id=cluster_id,
            options=file.store_options,
            clock=clock,
        )

    former_key = None if key is None else key.of(former)
    return plan_restore(remote, former, table_of, ThreadRunner(_THREADS), file.cluster_id, former_key)

"""Making the roots of a cluster file a cluster."""

from __future__ import annotations

from typing import Any

from engine.cluster_file import ClusterFile
from engine.context import Context, Progress
from engine.metrics import SnapshotMetrics
from engine.opening import OpenStore, check_owners, make_context, metadata_log, open_stores, task_runner
from engine.operations.brokers import bring_up
from engine.quorum.bootstrap import bootstrap
from engine.quorum.voter import Voter
from partitions.clock import Clock
from partitions.identity import NewId
from partitions.probing import Prober, ThreadProber


def format_cluster(
    file: ClusterFile,
    *,
    clock: Clock,
    new_id: NewId,
    opener: OpenStore,
    spark: Any = None,
    progress: Progress | None = None,
    prober: Prober | None = None,
) -> Context:
    """Format all roots, begin the metadata log, register the brokers. What is done already stays as it is: where
    it stopped half-way, calling it again finishes it.

    Raises: InconsistentClusterIdError, LogDirError for roots of somebody else; UnsupportedStoreError for storage
        without exclusive create; EnvironmentUnusableError for a session that cannot run tasks; InvalidCallError
        where the metadata log was lost; NoMajorityError;
        OperationFailedError for brokers that cannot be registered.
    """
    # Everything that is wrong is found before anything is changed.
    tasks = task_runner(spark)
    stores = open_stores(file, clock, opener)
    prober = prober if prober is not None else ThreadProber()
    check_owners(file, stores, list(stores), prober)
    for store in stores.values():
        store.check()
    bring_up.check_log_not_lost(file, stores)
    formatted = bring_up.format_roots(file, stores, file.voters, new_id)
    voters = [Voter(broker, stores[broker], formatted[broker].directory_id) for broker in file.voters]
    others = {broker: store for broker, store in stores.items() if broker not in file.voters}
    metrics = SnapshotMetrics()
    log = metadata_log(file, stores, voters, clock, new_id, metrics)
    bootstrap(file.cluster_id, log, voters, others)
    bring_up.format_roots(file, stores, list(others), new_id)
    log = metadata_log(file, stores, voters, clock, new_id, metrics, log.last_known)
    context = make_context(file, stores, log, tasks, progress, clock, new_id, opener, prober, metrics)
    bring_up.register_brokers(context).raise_for_failures()
    return context

"""Opening a cluster: its stores, whose they are, its metadata log, and the context of its operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from engine.cluster_file import ClusterFile
from engine.context import Context, LocalTasks, Progress, Silent, TaskRunner
from engine.metrics import SnapshotMetrics
from engine.quorum.bootstrap import FoundLog, find_log
from engine.quorum.cache import SAVE_AFTER, load_cache, save_cache
from engine.quorum.client import MetadataClient
from engine.quorum.contents import Note
from engine.quorum.log import MetadataLog
from engine.quorum.state import LogState
from engine.quorum.voter import Voter
from engine.settings import cluster_config
from partitions.clock import Clock
from partitions.errors import InvalidCallError
from partitions.identity import NewId
from partitions.paths import METADATA_TOPIC
from partitions.probing import Prober
from partitions.root import check_broker_file, read_broker_file
from partitions.runner import Failed, ThreadRunner
from partitions.store import Store, StoreOptions

_DRIVER_THREADS = 16

OpenStore = Callable[[str, StoreOptions, Clock], Store]
"""From the address of a root to its store."""


def open_stores(file: ClusterFile, clock: Clock, opener: OpenStore) -> dict[int, Store]:
    """The root of each broker; nothing is looked at yet."""
    return {broker.broker_id: opener(broker.log_dir, file.store_options, clock) for broker in file.brokers}


def check_owners(file: ClusterFile, stores: Mapping[int, Store], brokers: Sequence[int], prober: Prober) -> None:
    """No root of these brokers that can be read may belong to somebody else. (One that cannot, or that hangs, is
    found when it is used; so is one that is not asked for: it is fenced, and the others go on.)

    Raises: InconsistentClusterIdError, LogDirError.
    """

    def check(broker_id: int) -> None:
        found = read_broker_file(stores[broker_id])
        if found is not None:
            check_broker_file(found, stores[broker_id], file.cluster_id, broker_id)

    deadline_s = cluster_config({}).broker_session_timeout_ms / 1000  # the cluster's own is not known yet
    for outcome in prober.probe(check, brokers, deadline_s):
        if isinstance(outcome, Failed) and isinstance(outcome.error, InvalidCallError):
            raise outcome.error


def metadata_log(
    file: ClusterFile,
    stores: Mapping[int, Store],
    voters: Sequence[Voter],
    clock: Clock,
    new_id: NewId,
    metrics: SnapshotMetrics,
    hint: LogState = LogState(),  # noqa: B008 - immutable
) -> MetadataLog:
    """The metadata log on these voters; ``hint`` is what was seen of it."""
    return MetadataLog(
        file.cluster_id,
        voters,
        clock=clock,
        rng=random.Random(new_id()),
        new_id=new_id,
        stores=stores,
        hint=hint,
        loading=partial(metrics.loading, METADATA_TOPIC, 0, clock),
    )


def find_metadata(
    file: ClusterFile,
    stores: Mapping[int, Store],
    note: Note,
    clock: Clock,
    metrics: SnapshotMetrics,
    *,
    as_logged: bool = False,
) -> FoundLog:
    """The metadata log of an existing cluster: one listing of each voter, and of the log what is not remembered
    in ``file.cache``.

    Raises: as ``find_log``.
    """
    cached = LogState() if file.cache is None else load_cache(file.cache, file.cluster_id, note)
    found = find_log(
        file.cluster_id,
        file.voters,
        stores,
        cached=cached,
        note=note,
        loading=partial(metrics.loading, METADATA_TOPIC, 0, clock),
        as_logged=as_logged,
    )
    spared = cached.end > 0 and 0 <= found.state.end - cached.end <= SAVE_AFTER
    if file.cache is not None and not spared:
        save_cache(file.cache, file.cluster_id, found.state, note)
    return found


def task_runner(spark: Any) -> TaskRunner:
    """What runs tasks: the executors of a session, threads of this process where there is none. It is asked for
    before anything is changed.

    Raises: EnvironmentUnusableError for a session that cannot run any.
    """
    if spark is None:
        return LocalTasks(_DRIVER_THREADS)
    from engine.spark.runner import SparkRunner

    return SparkRunner(spark)


def make_context(
    file: ClusterFile,
    stores: Mapping[int, Store],
    log: MetadataLog,
    tasks: TaskRunner,
    progress: Progress | None,
    clock: Clock,
    new_id: NewId,
    opener: OpenStore,
    prober: Prober,
    metrics: SnapshotMetrics,
) -> Context:
    """What the operations work with."""
    remote_options = replace(file.store_options, bytes_with_name=True)
    return Context(
        file=file,
        stores=stores,
        remote=None if file.remote is None else opener(file.remote, remote_options, clock),
        metadata=MetadataClient(log),
        clock=clock,
        new_id=new_id,
        rng=random.Random(new_id()),
        tasks=tasks,
        threads=ThreadRunner(_DRIVER_THREADS, late=True),
        progress=progress if progress is not None else Silent(),
        prober=prober,
        snapshot_metrics=metrics,
    )

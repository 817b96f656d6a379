"""Opens a cluster: its stores and their owners, its metadata log, and the ports of its operations."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from stratalog.engine.config.cluster_file import ClusterFile, load_cluster_file
from stratalog.engine.config.key_source import key_file, key_of_environment, read_key
from stratalog.engine.config.settings import cluster_config
from stratalog.engine.driver.execution import Execution, execution_on
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.metrics import SnapshotMetrics
from stratalog.engine.driver.origin import OperationsLog
from stratalog.engine.driver.running import Heartbeat
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.tasks import LocalTasks, Progress, Silent, TaskRunner
from stratalog.engine.quorum.bootstrap import FoundLog, find_log
from stratalog.engine.quorum.cache import SAVE_AFTER, load_cache, save_cache
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.contents import Note
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import LogState
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.paths import METADATA_TOPIC
from stratalog.partitions.printable import printable
from stratalog.partitions.probing import Prober, ThreadProber
from stratalog.partitions.root import BrokerFile, check_broker_file, read_broker_file
from stratalog.partitions.runner import Done, Failed, ThreadRunner
from stratalog.partitions.store import Store, StoreOptions, open_store
from stratalog.partitions.store.credentials import Provider

_DRIVER_THREADS = 16
_log = logging.getLogger(__name__)

OpenStore = Callable[[str, StoreOptions, Clock], Store]
"""Returns the store at the address of a root."""


def open_stores(file: ClusterFile, clock: Clock, opener: OpenStore) -> dict[int, Store]:
    """The store of each broker's root. Sends no request."""
    return {broker.broker_id: opener(broker.log_dir, broker.storage, clock) for broker in file.brokers}


def check_owners(file: ClusterFile, stores: Mapping[int, Store], brokers: Sequence[int], prober: Prober) -> None:
    """Check that no readable root of these brokers belongs to another cluster or broker. (An unreadable or hanging
    root is found when it is used: its broker is fenced, and the other brokers continue.)

    Raises: InconsistentClusterIdError, LogDirError.
    """
    for error in _owners(file, stores, brokers, prober).foreign:
        raise error


def check_voters(file: ClusterFile, stores: Mapping[int, Store], prober: Prober) -> Owners:
    """Check the owners of the voters' roots in the file. If foreign roots are a minority, return their errors,
    because the majority can continue without these roots.

    Raises: InconsistentClusterIdError, LogDirError.
    """
    found = _owners(file, stores, file.voters, prober)
    if 2 * (len(file.voters) - len(found.foreign)) <= len(file.voters):
        raise found.foreign[0]
    return found


@dataclass(frozen=True, slots=True)
class Owners:
    """The owners of some brokers' roots, according to the file ``broker.json`` on each root."""

    ours: Mapping[int, BrokerFile]
    """Keyed by broker; brokers with an unreadable root are left out."""
    foreign: Sequence[StratalogError]
    """The error for each foreign root."""


def _owners(file: ClusterFile, stores: Mapping[int, Store], brokers: Sequence[int], prober: Prober) -> Owners:
    def check(broker_id: int) -> BrokerFile | None:
        found = read_broker_file(stores[broker_id])
        if found is not None:
            check_broker_file(found, stores[broker_id], file.cluster_id, broker_id)
        return found

    deadline_s = cluster_config({}).broker_session_timeout_ms / 1000  # the cluster's own config is not known yet
    outcomes = prober.probe(check, brokers, deadline_s)
    failed = [one.error for one in outcomes if isinstance(one, Failed)]
    ours = {one.item: one.value for one in outcomes if isinstance(one, Done) and one.value is not None}
    return Owners(ours, [error for error in failed if isinstance(error, InvalidCallError)])


@dataclass(slots=True)
class Ports:
    """The ports of an open cluster, as ``Cluster`` holds them. An operation takes the ports that it needs, never
    this object."""

    metadata: MetadataClient
    storage: Storage
    execution: Execution
    memory: Memory = field(default_factory=Memory)
    events: OperationsLog | None = None
    """The writer of the operations' events; None if no events are written."""

    @property
    def clock(self) -> Clock:
        """The driver's clock."""
        return self.execution.clock

    @property
    def all(self) -> tuple[MetadataClient, Storage, Execution, Memory]:
        """The ports of an operation that runs tasks and uses this driver's memory."""
        return self.metadata, self.storage, self.execution, self.memory

    @property
    def for_tasks(self) -> tuple[MetadataClient, Storage, Execution]:
        """The ports of an operation that runs tasks."""
        return self.metadata, self.storage, self.execution

    @property
    def for_records(self) -> tuple[MetadataClient, Storage, Clock, Memory]:
        """The ports of appends and reads from this process."""
        return self.metadata, self.storage, self.clock, self.memory

    @property
    def for_looks(self) -> tuple[MetadataClient, Storage, Clock]:
        """The ports of a read-only operation that runs in this process, without ``Memory``."""
        return self.metadata, self.storage, self.clock

    def with_tasks(
        self, tasks: TaskRunner, *, progress: Progress | None = None, driver_only: bool | None = None
    ) -> Ports:
        """Return the same cluster with a different runner of tasks (and progress). Both share the metadata and the
        memory.
        """
        now = self.execution
        storage, execution = execution_on(
            self.storage,
            tasks,
            now.clock,
            now.progress if progress is None else progress,
            driver_only=now.driver_only if driver_only is None else driver_only,
        )
        return replace(self, storage=storage, execution=execution)


def _warn(note: str) -> None:
    _log.warning("%s", printable(note))


def metadata_log(
    file: ClusterFile,
    stores: Mapping[int, Store],
    voters: Sequence[Voter],
    clock: Clock,
    new_id: NewId,
    metrics: SnapshotMetrics,
    hint: LogState = LogState(),  # noqa: B008 - immutable
    key: ClusterKey | None = None,
) -> MetadataLog:
    """The metadata log on these voters; ``hint`` is an earlier state of the log, ``key`` the key of the voters."""
    return MetadataLog(
        file.cluster_id,
        voters,
        clock=clock,
        rng=random.Random(new_id()),
        new_id=new_id,
        stores=stores,
        hint=hint,
        note=_warn,
        loading=partial(metrics.loading, METADATA_TOPIC, 0, clock),
        key=key,
    )


def find_metadata(
    file: ClusterFile,
    stores: Mapping[int, Store],
    note: Note,
    clock: Clock,
    metrics: SnapshotMetrics,
    *,
    as_logged: bool = False,
    key: ClusterKey | None = None,
    whose: Mapping[int, BrokerFile],
) -> FoundLog:
    """Open the metadata log of an existing cluster: list a majority of its voters, and read the part of the log
    that is not in ``file.cache``.

    Raises: see ``find_log``.
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
        key=key,
        whose=whose,
    )
    spared = cached.end > 0 and 0 <= found.state.end - cached.end <= SAVE_AFTER
    if file.cache is not None and not spared:
        save_cache(file.cache, file.cluster_id, found.state, note)
    return found


def open_driver(
    cluster_file: ClusterFile | str | Path,
    credentials: Provider | str | None = None,
    cluster_key_file: str | None = None,
) -> Ports:
    """Open the cluster of a ``cluster.toml`` with this process's own clock, storage and threads. The cluster key
    comes from ``cluster_key_file``, or from the environment if none is named.

    Raises: InvalidCallError for an error in the file; see ``open_ports``.
    """
    file = cluster_file if isinstance(cluster_file, ClusterFile) else load_cluster_file(cluster_file, credentials)
    source = key_of_environment if cluster_key_file is None else key_file(cluster_key_file)
    key = read_key(file.cluster_id, source)
    return open_ports(file, clock=SystemClock(), new_id=random_id, opener=open_store, key=key)


def local_tasks() -> TaskRunner:
    """Runs tasks in threads of this process."""
    return LocalTasks(_DRIVER_THREADS)


def make_ports(
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
    key: ClusterKey | None,
) -> Ports:
    remote_options = replace(file.remote_storage, bytes_with_name=True)
    storage = Storage(
        file=file,
        stores=stores,
        remote=None if file.remote is None else opener(file.remote, remote_options, clock),
        table_clock=clock,
        new_id=new_id,
        rng=random.Random(new_id()),
        threads=ThreadRunner(_DRIVER_THREADS),
        prober=prober,
        key=key,
    )
    heard = Heartbeat(progress if progress is not None else Silent(), clock)
    storage, execution = execution_on(storage, tasks, clock, heard)
    return Ports(MetadataClient(log, clock, _warn), storage, execution, Memory(snapshot_metrics=metrics))


def open_ports(
    file: ClusterFile,
    *,
    clock: Clock,
    new_id: NewId,
    opener: OpenStore,
    key: ClusterKey | None,
    tasks: TaskRunner | None = None,
    progress: Progress | None = None,
    prober: Prober | None = None,
    as_logged: bool = False,
) -> Ports:
    """Open an existing cluster; ``tasks`` runs work keyed by partition, by default in threads of this process.
    ``as_logged``: the metadata voters in the file may differ from those in the log.

    Raises: see ``find_log``, ``check_voters``.
    """
    stores = open_stores(file, clock, opener)
    prober = prober if prober is not None else ThreadProber()
    owners = check_voters(file, stores, prober)
    notes = [str(error) for error in owners.foreign]
    metrics = SnapshotMetrics()
    found = find_metadata(
        file, stores, notes.append, clock, metrics, as_logged=as_logged, key=key, whose=owners.ours
    )
    file = replace(file, warnings=(*file.warnings, *notes))
    log = metadata_log(file, stores, found.voters, clock, new_id, metrics, found.state, key)
    tasks = tasks if tasks is not None else local_tasks()
    return make_ports(file, stores, log, tasks, progress, clock, new_id, opener, prober, metrics, key)

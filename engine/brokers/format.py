"""Formats the roots of a cluster file as a cluster."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from stratalog.engine.brokers import bring_up
from stratalog.engine.config.cluster_config import CLUSTER_CONFIGS
from stratalog.engine.config.cluster_file import BrokerEntry, ClusterFile
from stratalog.engine.config.storage_tables import kind_of
from stratalog.engine.driver.metrics import SnapshotMetrics
from stratalog.engine.driver.opening import (
    OpenStore,
    Ports,
    check_owners,
    local_tasks,
    make_ports,
    metadata_log,
    open_stores,
)
from stratalog.engine.driver.tasks import Progress, TaskRunner
from stratalog.engine.metadata.topic_commands import AlterConfigs
from stratalog.engine.quorum.bootstrap import bootstrap
from stratalog.engine.quorum.voter import Voter
from stratalog.partitions.clock import Clock
from stratalog.partitions.cluster_key import ClusterKey
from stratalog.partitions.errors import StorageAuthorizationError
from stratalog.partitions.identity import NewId
from stratalog.partitions.probing import Prober, ThreadProber
from stratalog.partitions.root import read_broker_file
from stratalog.partitions.store import Store
from stratalog.partitions.store.checking import PART_BYTES, QUICK, StoreCheck
from stratalog.partitions.store.racing import race_in_threads

REPLICAS = 3
"""The replication factor of a topic if its creator gives none. With this factor, two brokers may be lost, one
after the other."""
FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


def _check_storage(broker: BrokerEntry, store: Store, clock: Clock, new_id: NewId, opener: OpenStore) -> None:
    """Check that a root is usable. If it is new object storage, also check that the storage follows the rules of
    the log. (``check_store`` also tests folders, because they may be on network file systems.)

    Raises: LogDirError, UnsupportedStoreError.
    """
    store.check()
    if kind_of(broker.log_dir) is None or read_broker_file(store) is not None:
        return
    options = replace(broker.storage, part_bytes=PART_BYTES)
    one, other = (opener(broker.log_dir, options, clock) for _ in range(2))
    with suppress(StorageAuthorizationError):  # without the permission to delete, this is unknown
        StoreCheck(one, other, race_in_threads, clock, new_id, QUICK).must_hold()


def format_cluster(
    file: ClusterFile,
    *,
    clock: Clock,
    new_id: NewId,
    opener: OpenStore,
    tasks: TaskRunner | None = None,
    progress: Progress | None = None,
    prober: Prober | None = None,
    key: ClusterKey | None = None,
) -> Ports:
    """Format all roots, begin the metadata log, register the brokers. Finished steps are skipped, so a second call
    completes an interrupted one. ``tasks``: see ``open_ports``. With ``key``, everything is signed.

    Raises: InconsistentClusterIdError, LogDirError for foreign roots; UnsupportedStoreError for storage without
        exclusive create; InvalidCallError if the metadata log was lost; NoMajorityError; OperationFailedError for
        brokers that cannot be registered.
    """
    # Find every error before changing anything.
    stores = open_stores(file, clock, opener)
    prober = prober if prober is not None else ThreadProber()
    check_owners(file, stores, list(stores), prober)
    remote = [] if file.remote is None else [opener(file.remote, file.remote_storage, clock)]
    for store in (*stores.values(), *remote):
        bring_up.check_folder(store.uri)
    bring_up.check_log_not_lost(file, stores)
    for broker in file.brokers:  # last, because this check writes
        _check_storage(broker, stores[broker.broker_id], clock, new_id, opener)
    formatted = bring_up.format_roots(file, stores, file.voters, new_id, key)
    voters = [Voter(broker, stores[broker], formatted[broker].directory_id, key) for broker in file.voters]
    others = {broker: store for broker, store in stores.items() if broker not in file.voters}
    # the folder of another broker may be a voter's root under a different address
    check_owners(file, others, list(others), prober)
    metrics = SnapshotMetrics()
    log = metadata_log(file, stores, voters, clock, new_id, metrics, key=key)
    bootstrap(file.cluster_id, log, voters, others)
    bring_up.format_roots(file, stores, list(others), new_id, key)
    log = metadata_log(file, stores, voters, clock, new_id, metrics, log.last_known, key)
    tasks = tasks if tasks is not None else local_tasks()
    ports = make_ports(file, stores, log, tasks, progress, clock, new_id, opener, prober, metrics, key)
    bring_up.register_brokers(ports.metadata, ports.storage, ports.execution).raise_for_failures()
    _set_factors(ports)
    return ports


def _set_factors(ports: Ports) -> None:
    """Set the replication factors of new topics to ``min(3, brokers)``. Kafka's defaults would give a user's topic
    only one copy. On fewer than three brokers, they would refuse the first commit of a group and the first
    transaction. Configs that are already set stay unchanged, and so do defaults that fit the number of brokers.
    """
    image = ports.metadata.image()
    count = min(REPLICAS, len(image.brokers))
    defaults = {name: CLUSTER_CONFIGS[name].default for name in FACTORS}
    wanted = {
        name: str(count) for name, default in defaults.items() if name not in image.configs and default != count
    }
    if wanted:
        ports.metadata.submit(AlterConfigs(None, wanted))

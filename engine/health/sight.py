"""The observed state of a cluster, from which its health is computed. The state is read once; nothing is changed.

1. the metadata, and the state of its voters 2. the roots of the brokers, probed as in every run, but without a
commit 3. one listing of each broker (``maintenance.sweep.walk``); for folders also their rights and free space 4.
the stored state: the times and failures of ``maintain``, and the list of the remote log manager
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stratalog.engine.brokers.probe import probe_roots
from stratalog.engine.config.cluster_config import ClusterConfig
from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.compared_clocks import ComparedClocks, compared_clocks
from stratalog.engine.driver.known_image import known_image
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import load_stored
from stratalog.engine.health.finding import Commands
from stratalog.engine.metadata.chosen import cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import BrokerImage, ClusterImage, PartitionView
from stratalog.engine.metadata.probed_roots import Finding, Same
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.quorum.inspection import QuorumFound, inspect
from stratalog.engine.upkeep.maintenance.sweep import walk, where
from stratalog.engine.upkeep.memory.times import Times, decode
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions import paths
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import Listing, parse
from stratalog.partitions.paths import MAINTENANCE
from stratalog.partitions.runner import Done
from stratalog.partitions.store import StoredObject
from stratalog.partitions.store.local_space import (
    FolderSpace,
    folder_path,
    folder_space,
    takes_no_files,
    takes_writes,
)
from stratalog.partitions.unwritable import UnwritableStorageError
from stratalog.tiering.schedule import Entry

Seen = Listing | CorruptionError
"""The folder of a replica, or the error from listing it."""

NOTHING: Listing = parse("", ())


@dataclass(frozen=True, slots=True)
class SeenPartition:
    view: PartitionView
    config: TopicConfig | None
    """None if unknown."""
    replicas: Mapping[int, Seen]
    """The folders on the listed brokers."""

    def __str__(self) -> str:
        return str(self.view)

    @property
    def leader(self) -> Listing | None:
        """The leader's folder, if it was listed."""
        found = None if self.view.leader is None else self.replicas.get(self.view.leader)
        return found if isinstance(found, Listing) else None


@dataclass(frozen=True, slots=True)
class SeenFolder:
    """A root that is a folder of this machine."""

    path: str
    space: FolderSpace | None
    read_only: tuple[str, ...]
    """The root, or folders of the log in it, in which this process is not allowed to create files."""
    unwritable: UnwritableStorageError | None = None
    """The reason why no process may create files: the file system is read-only or full."""


@dataclass(frozen=True, slots=True)
class Sight:
    now_ms: int
    clocks: ComparedClocks
    commands: Commands
    image: ClusterImage
    config: ClusterConfig
    no_majority: str | None
    """The reason why the metadata is only the last known state; None if it is current."""
    quorum: QuorumFound
    roots: Mapping[int, Finding]
    """The probed roots of brokers that are registered and in the cluster file."""
    unlisted: frozenset[int]
    """Brokers in service whose root answers but cannot be listed."""
    in_file: frozenset[int]
    folders: Mapping[int, SeenFolder]
    """The folders of brokers whose root answers and is a folder."""
    partitions: tuple[SeenPartition, ...]
    times: Times
    remembered: bool
    """Whether any run of ``maintain`` has stored its times."""
    entries: Mapping[TopicIdPartition, Entry]

    def usable(self, broker_id: int) -> bool:
        """Whether a broker is in service, and has its registered root."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.fenced and isinstance(self.roots.get(broker_id), Same)

    def keeping_offline(self, view: PartitionView) -> frozenset[int]:
        """Return the brokers that cause a missing leader: all members of the ISR, if no member answers."""
        away = frozenset(broker_id for broker_id in view.isr if not self.usable(broker_id))
        return away if len(away) == len(view.isr) else frozenset()

    @property
    def max_delay_ms(self) -> int:
        """The allowed delay of upkeep."""
        return self.config.health_upkeep_max_delay_ms


def look(metadata: MetadataClient, storage: Storage, clock: Clock, run: OperationRun) -> Sight:
    """Observe the cluster. Raises: see ``known_image``; errors of the voters except NoMajorityError."""
    image = known_image(metadata, run)
    no_majority = run.failures.pop().message if run.failures else None
    quorum = metadata.with_log(inspect)
    roots = {found.broker_id: found.finding for found in probe_roots(storage, image)}
    answering = {broker_id for broker_id, found in roots.items() if isinstance(found, Same)}
    generations = _generations(image)

    def seen(folder: str, objects: Iterable[StoredObject]) -> Seen:
        try:
            return parse(folder, objects, generation=generations.get(folder, 0))
        except CorruptionError as error:
            return error

    # An unmounted root looks like an empty one.
    listed = {
        broker_id: found for broker_id, found in walk(storage, image, seen).items() if broker_id in answering
    }
    partitions = tuple(_partitions(image, listed))
    stored = load_stored(storage, image, MAINTENANCE)
    times = decode(stored.line)
    any_tiered = any(one.config is not None and one.config.remote_storage_enable for one in partitions)
    return Sight(
        now_ms=clock.now_ms(),
        clocks=compared_clocks(storage, clock, image),
        commands=Commands(storage.file.path),
        image=image,
        config=cluster_config_of(image),
        no_majority=no_majority,
        quorum=quorum,
        roots=roots,
        unlisted=frozenset(b for b in answering if b not in listed and not image.brokers[b].fenced),
        in_file=frozenset(storage.stores),
        folders=_folders(storage, image, answering, listed),
        partitions=partitions,
        times=times,
        remembered=bool(times.steps),
        entries=load_schedule(storage, image).schedule.entries if any_tiered else {},
    )


def _generations(image: ClusterImage) -> dict[str, int]:
    """Return the generation of the last removal rule, by replica folder, for partitions that have a rule."""
    return {
        replica_folder(view, image.brokers[broker_id]): view.generation
        for topic_id, rules in image.rules.items()
        for view in (image.view(topic_id, partition) for partition in rules)
        for broker_id in view.replicas
        if broker_id in image.brokers
    }


def _partitions(image: ClusterImage, listed: Mapping[int, Mapping[str, Seen]]) -> Iterable[SeenPartition]:
    for topic in image.topics.values():
        try:
            config = topic_config_of(image, topic)
        except StratalogError:
            config = None
        for view in image.views(topic.name):
            replicas = {
                broker_id: listed[broker_id].get(replica_folder(view, view.brokers[broker_id]), NOTHING)
                for broker_id in view.replicas
                if broker_id in listed
            }
            yield SeenPartition(view, config, replicas)


def replica_folder(view: PartitionView, broker: BrokerImage) -> str:
    """The folder of a replica, below the root of its broker."""
    assignment = view.assignments[broker.broker_id]
    return paths.replica_path(where(broker), view.topic, view.topic_id, view.partition, assignment)


def _folders(
    storage: Storage, image: ClusterImage, answering: Iterable[int], listed: Mapping[int, Mapping[str, Seen]]
) -> dict[int, SeenFolder]:
    def seen(broker_id: int) -> SeenFolder | None:
        path = folder_path(storage.stores[broker_id].uri)
        if path is None:
            return None
        inside = (name for name in listed.get(broker_id, {}) if paths.is_log_folder(name))
        ours = [path, *(f"{path}/{name}" for name in sorted(inside))]
        unwritable = takes_no_files(storage.stores[broker_id].uri)
        if unwritable is not None:
            return SeenFolder(path, folder_space(path), (), unwritable.of_broker(broker_id))
        return SeenFolder(path, folder_space(path), tuple(one for one in ours if not takes_writes(one)))

    outcomes = storage.threads.run(seen, sorted(answering))
    return {one.item: one.value for one in outcomes if isinstance(one, Done) and one.value is not None}

"""The logs of all replicas of a partition, as a task lists them, or the errors from listing them; and one walk
through the folder of a topic on each broker, instead of a listing of each replica.

A walk is cheap: on a bucket it takes one request per thousand names, and one check of the root. But a walk is not
a snapshot, and brokers are walked in no particular order, so the result is only a hint. A walk is for checks that
usually find nothing; if a check finds something, listings must confirm it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replication.lost_log import check_not_lost
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.sync import ends_as_in
from stratalog.partitions import paths
from stratalog.partitions.errors import SourceChangedError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import ReplicaLog, parse, resolve
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import oldest_by
from stratalog.partitions.runner import Done
from stratalog.partitions.store import StoredObject
from stratalog.tiering.plan import waiting_since_ms


@dataclass(frozen=True, slots=True)
class DescribeWork(PartitionWork):
    """The task of listing every replica of one partition."""

    remote_end: int | None = None
    """The end of the partition's remote log, to determine when the first later record was appended. None: not
    requested.
    """
    listed: Mapping[int, Sequence[StoredObject]] = field(default_factory=dict, repr=False)
    """The objects on brokers that were just walked (``walk_topics``)."""


@dataclass(frozen=True, slots=True)
class ReplicaFile:
    end: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ListedLog:
    local_start: int
    high_watermark: int
    log_end: int
    files: tuple[ReplicaFile, ...]
    waiting_since_ms: int | None = None
    """The time of the first append after the end of the remote log; None without such an append, or if not
    requested.
    """
    contradicts: StratalogError | None = None
    """For a leader: the contradiction between its log and the remote log or the metadata, if any."""


@dataclass(frozen=True, slots=True)
class ListedReplica:
    broker_id: int
    found: ListedLog | StratalogError


def list_replicas(work: DescribeWork) -> list[ListedReplica]:
    """The task: lists every replica."""
    view = work.replicas.view
    logs: dict[int, ReplicaLog] = {}
    found = {b: _list(work, b, logs) for b in sorted(view.replicas, key=lambda broker: broker != view.leader)}
    return [ListedReplica(broker, found[broker]) for broker in view.replicas]


def _list(work: DescribeWork, broker: int, logs: dict[int, ReplicaLog]) -> ListedLog | StratalogError:
    """List one replica. Returns its log, which is also added to ``logs``, or the error from listing it."""
    since_ms = contradicts = None
    try:
        replica = work.replicas.replica(broker)
        leader = None if work.replicas.view.leader is None else logs.get(work.replicas.view.leader)
        log = logs[broker] = _walked(replica, work.listed.get(broker), leader) or replica.log()
        if broker == work.replicas.view.leader:
            contradicts = _contradiction(work, log)
        if work.remote_end is not None:
            since_ms = waiting_since_ms(log, work.remote_end, oldest_by(replica.footer))
    except StratalogError as error:
        return error
    files = tuple(
        ReplicaFile(link.end, link.file.object.size_bytes, link.file.object.modified_ms) for link in log.chain
    )
    return ListedLog(log.local_start, log.high_watermark, log.log_end, files, since_ms, contradicts)


def _walked(
    replica: Replica, objects: Sequence[StoredObject] | None, leader: ReplicaLog | None
) -> ReplicaLog | None:
    """The log as a walk found it; None if the walk may have missed files, because a walk is not a snapshot."""
    if objects is None:
        return None
    listing = parse(replica.folder, objects, replica.store.uri_of, generation=replica.generation)
    end_of_append = replica.end_of_append if leader is None else ends_as_in(leader, replica)
    with suppress(SourceChangedError):
        log = resolve(listing, replica.lineage(listing), end_of_append)
        return None if log.lost_committed or log.stranded else log
    return None


def _contradiction(work: DescribeWork, log: ReplicaLog) -> StratalogError | None:
    try:
        work.replicas.check_remote_end(log)
        check_not_lost(work.replicas, log)
    except StratalogError as error:
        return error
    return None


Walked = Mapping[TopicIdPartition, Mapping[int, Sequence[StoredObject]]]
"""The objects in the folders of replicas, by partition and broker."""
NOT_WALKED: Walked = {}

_FEW = 16
"""A walk reads the names of all partitions of a topic, so a topic is walked only if at least one in this many
partitions is requested.
"""


def walk_topics(storage: Storage, image: ClusterImage, partitions: Iterable[PartitionReplicas]) -> Walked:
    """Walk the folders of the replicas of these partitions of ``image``. A topic with more than ``_FEW``
    partitions per requested partition is left out. So is a broker that does not answer, or whose root is not the
    registered one.
    """
    works: dict[tuple[str, int], list[tuple[TopicIdPartition, Replica]]] = {}
    for topic_id, group in groupby(
        sorted(partitions, key=lambda of: of.view.key), key=lambda of: of.view.topic_id
    ):
        chosen = list(group)
        for of in chosen if len(chosen) * _FEW >= len(image.topics[topic_id].partitions) else ():
            for broker in of.view.replicas:
                if not of.view.brokers[broker].fenced and broker in of.stores:
                    works.setdefault((topic_id, broker), []).append((of.view.key, of.replica(broker)))
    walked: dict[TopicIdPartition, dict[int, Sequence[StoredObject]]] = {}
    for outcome in storage.threads.run(_walk, list(works.values())):
        if isinstance(outcome, Done):
            for key, replica in outcome.item:
                objects = outcome.value.get(replica.folder, [])
                if all(
                    stored.name != replica.folder for stored in objects
                ):  # otherwise the folder is a link, and a listing refuses links
                    walked.setdefault(key, {})[replica.broker_id] = objects
    return walked


def _walk(replicas: Sequence[tuple[TopicIdPartition, Replica]]) -> dict[str, list[StoredObject]]:
    """The objects of one topic on one broker, grouped by the folder of each of these replicas.

    Raises: errors from listing the broker; see ``Replica.check_root``.
    """
    _, first = replicas[0]
    found: dict[str, list[StoredObject]] = {}
    for stored in first.store.walk(paths.folder_of(first.folder)):
        found.setdefault("/".join(stored.name.split("/", 3)[:3]), []).append(stored)
    first.check_root()
    return found

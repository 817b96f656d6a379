"""Before replicas are removed, reads all bytes of the files that will replace the files of these replicas.

without new replicas   immediately reads one member of the ISR that stays, and the snapshot, if any, that replaces
                       the records below the member's local start
with new replicas      reads the leader's snapshot immediately. Directly before the commit that adds the last new
                       replica to the ISR and removes others, also reads one replica that joins or stays, because
                       its bytes may have been checked long ago
of tiered topics       at both times, also reads the remote segments with records that no other replica has
                       locally, because a new replica may begin where the remote log ends
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.tasks import TaskRunner
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.damage import check_whole
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.snapshots import check_start_is_covered
from stratalog.engine.upkeep.retention.remote import remote_parts
from stratalog.engine.upkeep.retention.tasks import RemoteRetention
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    RemoteObjectMissingError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.runner import Done, Failed, Outcome
from stratalog.partitions.segments.check import verify_bytes
from stratalog.tiering.divergence import agreeing
from stratalog.tiering.remote_file import verify_remote

_LOOKS = 3
"""The number of attempts if objects are missing in the remote tier."""


@dataclass(frozen=True, slots=True)
class CoverWork(PartitionWork):
    """The work for one partition: read the files that replace the removed replicas."""

    going: tuple[int, ...]
    staying: tuple[int, ...]
    """The remaining replicas, at least one of which must be intact. Empty if new replicas will be read after they
    have copied everything.
    """
    remote: RemoteRetention | None
    """None when the topic is not tiered."""
    from_remote: bool
    """Whether new replicas may skip records that are in the remote tier."""


def plan_cover(
    storage: Storage,
    image: ClusterImage,
    topic: TopicImage,
    partition: int,
    target: tuple[int, ...],
    run: OperationRun,
) -> CoverWork | None:
    """The files to read before a partition of ``image`` gets the replicas ``target``; None if no replica is
    removed. Raises: see ``remote_parts``.
    """
    view, present = image.view(topic.topic_id, partition), topic.partitions[partition]
    going = tuple(broker for broker in present.original if broker not in target)
    if not going:
        return None
    remote: RemoteRetention | None = None
    if topic_config_of(image, topic).remote_storage_enable:
        looking = OperationRun(
            run.operation, notes=run.notes
        )  # lost objects are a failure only if replicas depend on them
        remote = remote_parts(storage, topic, looking).get(view.partition)
    comes = not set(target) <= set(present.original)
    staying = sorted((b for b in target if b in view.isr), key=lambda broker: broker != view.leader)
    return CoverWork(
        replicas=storage.replicas(view),
        going=tuple(broker for broker in going if not view.brokers[broker].fenced),
        staying=() if comes else tuple(staying),
        remote=remote,
        from_remote=comes and cluster_config_of(image).follower_fetch_last_tiered_offset_enable,
    )


def check_joins(
    metadata: MetadataClient,
    storage: Storage,
    joins: Mapping[TopicIdPartition, tuple[PartitionReplicas, Collection[int]]],
    run: OperationRun,
) -> Iterator[tuple[TopicIdPartition, StratalogError]]:
    """Read the files that replace the removed replicas, directly before new replicas join the ISR and so complete
    a reassignment. ``joins`` has these new replicas. Yields errors by partition; an error concerns the new replica
    that it names, or otherwise all new replicas.
    """
    completing = {
        key: (replicas, newcomers)
        for key, (replicas, newcomers) in joins.items()
        if replicas.view.target and newcomers and {*replicas.view.joining} <= {*replicas.view.isr, *newcomers}
    }
    if not completing:
        return

    def plan(key: TopicIdPartition, image: ClusterImage) -> CoverWork | None:
        (replicas, brokers), topic = completing[key], image.topics.get(key[0])
        if topic is None:
            return None
        work = plan_cover(storage, image, topic, key[1], replicas.view.target, run)
        stay = [broker for broker in replicas.view.target if broker in replicas.view.isr]
        return None if work is None else replace(work, replicas=replicas, staying=(*brokers, *stay))

    for outcome in check_covers(metadata.image, run.tasks, completing, plan):
        match outcome:
            case Done(key, damaged):
                yield from ((key, error) for error in damaged)
            case Failed(key, error):
                yield key, error


def check_covers(
    read_image: Callable[[], ClusterImage],
    tasks: TaskRunner,
    keys: Iterable[TopicIdPartition],
    plan: Callable[[TopicIdPartition, ClusterImage], CoverWork | None],
) -> Iterator[Outcome[TopicIdPartition, tuple[CorruptionError, ...]]]:
    """Run ``check_cover`` for the partitions for which ``plan`` returns work. A missing remote object may have
    expired after the table was read, so the check is repeated with the current table. The object is missing only
    if that table still lists it. ``read_image`` returns the metadata for each attempt.
    """
    left = [*keys]
    for look in range(_LOOKS):
        image = read_image()
        works: list[CoverWork] = []
        for key in left:
            try:
                work = plan(key, image)
            except StratalogError as unreadable:
                yield Failed(key, unreadable)
            else:
                works += [] if work is None else [work]
        left = []
        for outcome in tasks.run(check_cover, works):
            key = outcome.item.replicas.view.key
            match outcome:
                case Done(_, damaged):
                    yield Done(key, damaged)
                case Failed(_, RemoteObjectMissingError()) if look < _LOOKS - 1:
                    left.append(key)
                case Failed(_, error):
                    yield Failed(key, error)


def check_cover(work: CoverWork) -> tuple[CorruptionError, ...]:
    """The task. Returns the damage of remaining replicas, if at least one of them is intact. Raises:
    CorruptionError kinds if no intact copy would remain; errors from reading storage.
    """
    damaged: list[CorruptionError] = []
    start: int | None = None
    for replica in map(work.replicas.replica, work.staying):
        try:
            start = while_it_changes(partial(_read_whole, work.replicas, replica))
            break
        except CorruptionError as error:
            damaged.append(error)
    if start is None and damaged:
        raise CorruptSegmentError(
            f"{damaged[0]}; no intact replica would remain, so no replica was removed. Run heal, then run this "
            "command again"
        )
    if start is None:
        start = while_it_changes(partial(_start_of_leader, work.replicas))
    if start is not None and work.remote is not None:
        _check_remote(work, work.remote, start)
    return tuple(damaged)


def _start_of_leader(replicas: PartitionReplicas) -> int | None:
    """The leader's local start, below which new replicas copy nothing. None if the leader's log is too damaged to
    read. Such a leader resigns to an intact replica while new replicas copy the log, and all files are read before
    a replica is removed.
    """
    try:
        log = replicas.leader.log()
    except CorruptionError:
        return None
    check_start_is_covered(replicas, replicas.leader, log)
    return log.local_start


def _read_whole(replicas: PartitionReplicas, replica: Replica) -> int:
    """Read every byte of a replica. Returns its local start."""
    with errors_of(replica):
        log = replica.log()
        check_whole(replica, log)
        for link in log.chain:
            verify_bytes(replica.store, link.file)
        check_start_is_covered(replicas, replica, log)
        return log.local_start


def _check_remote(work: CoverWork, remote: RemoteRetention, start: int) -> None:
    """Read the remote segments with records of the removed replicas: records below ``start``, or all records if
    new replicas begin at the end of the remote log.
    """
    logs = [work.replicas.replica(broker).log() for broker in work.going]
    low = max(min((log.local_start for log in logs), default=start), work.replicas.view.log_start_offset)
    for index, segment in enumerate(agreeing(remote.listed, work.replicas.leader.log().lineage)):
        if segment.next_offset > low and (work.from_remote or segment.base_offset < start):
            try:
                if index >= len(remote.objects):
                    raise RemoteObjectMissingError(f"{segment.path} does not match its entry in the remote table")
                verify_remote(remote.store, segment, remote.objects[index])
            except CorruptionError as error:
                raise type(error)(
                    f"{error}; run heal before you remove the replicas that have the records of this segment"
                ) from error

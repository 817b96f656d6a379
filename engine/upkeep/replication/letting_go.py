"""Before replicas are let go: what stands for them is read where it lies, all of it.

nobody comes in        at once: one member of the ISR that stays, from its first byte to its last, and the snapshot
                       that stands for what lies below its local start, if one does
newcomers come in      at once: that snapshot of the leader. And right before the last of them joins the ISR, and
                       others go with the same commit, one of those who join or stay: what they copied was checked
                       as it passed, maybe long ago
of tiered topics       also the remote segments of what those who go still have, and those who stay, or come,
                       do not: a newcomer may begin where the remote log ends; at either time
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.damage import check_whole
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.snapshots import check_stands_for_start
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
from stratalog.partitions.segment_check import verify_bytes
from stratalog.partitions.store import Store
from stratalog.tiering.divergence import agreeing
from stratalog.tiering.remote_file import verify_remote

_LOOKS = 3
"""At what is missing in the remote tier."""


@dataclass(frozen=True, slots=True)
class StandWork(PartitionWork):
    """Read what stands for the replicas of one partition that go."""

    going: tuple[int, ...]
    staying: tuple[int, ...]
    """Of these one has to be whole; empty: newcomers are going to be read when they have copied all."""
    remote: RemoteRetention | None
    """None when the topic is not tiered."""
    from_remote: bool
    """Whether newcomers may leave to the remote tier whatever it has."""

    def stores_used(self) -> Iterable[Store]:
        return [*self.replicas.stores.values(), *([] if self.remote is None else [self.remote.store])]


def plan_stand(
    storage: Storage,
    image: ClusterImage,
    topic: TopicImage,
    partition: int,
    target: tuple[int, ...],
    run: OperationRun,
) -> StandWork | None:
    """The files to read before a partition, as in ``image``, gets the replicas ``target``; None when no replica
    goes.

    Raises: as ``remote_parts``.
    """
    view, present = image.view(topic.topic_id, partition), topic.partitions[partition]
    going = tuple(broker for broker in present.original if broker not in target)
    if not going:
        return None
    remote: RemoteRetention | None = None
    if topic_config_of(image, topic).remote_storage_enable:
        looking = OperationRun(run.operation, notes=run.notes)  # lost objects matter where something rests on them
        remote = remote_parts(storage, topic, looking).get(view.partition)
    comes = not set(target) <= set(present.original)
    staying = sorted((b for b in target if b in view.isr), key=lambda broker: broker != view.leader)
    return StandWork(
        replicas=storage.replicas(view),
        going=tuple(broker for broker in going if not view.brokers[broker].fenced),
        staying=() if comes else tuple(staying),
        remote=remote,
        from_remote=comes and cluster_config_of(image).follower_fetch_last_tiered_offset_enable,
    )


def check_joins(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    joins: Mapping[TopicIdPartition, tuple[PartitionReplicas, Collection[int]]],
    run: OperationRun,
) -> Iterator[tuple[TopicIdPartition, StratalogError]]:
    """Read the files that stand for the replicas that go when these newcomers join the ISR, and so complete a
    reassignment. Errors, by partition: of the newcomer that the error blames, or of all of them.
    """
    completing = {key: join for key, join in joins.items() if _completes(join[0].view, join[1])}
    if not completing:
        return

    def plan(key: TopicIdPartition, image: ClusterImage) -> StandWork | None:
        (replicas, brokers), topic = completing[key], image.topics.get(key[0])
        if topic is None:
            return None
        work = plan_stand(storage, image, topic, key[1], replicas.view.target, run)
        stay = [broker for broker in replicas.view.target if broker in replicas.view.isr]
        return None if work is None else replace(work, replicas=replicas, staying=(*brokers, *stay))

    for outcome in check_stands(metadata, execution, completing, plan):
        match outcome:
            case Done(key, damaged):
                yield from ((key, error) for error in damaged)
            case Failed(key, error):
                yield key, error


def check_stands(
    metadata: MetadataClient,
    execution: Execution,
    keys: Iterable[TopicIdPartition],
    plan: Callable[[TopicIdPartition, ClusterImage], StandWork | None],
) -> Iterator[Outcome[TopicIdPartition, tuple[CorruptionError, ...]]]:
    """``check_stand`` of these partitions, as ``plan`` has it; nothing where that is None. A remote object that is
    not there may have expired since the table was read: then all is read anew, and it is missing when the table
    lists it still.
    """
    left = [*keys]
    for look in range(_LOOKS):
        image = metadata.image()
        works: list[StandWork] = []
        for key in left:
            try:
                work = plan(key, image)
            except StratalogError as unreadable:
                yield Failed(key, unreadable)
            else:
                works += [] if work is None else [work]
        left = []
        for outcome in execution.tasks.run(check_stand, works):
            key = outcome.item.replicas.view.key
            match outcome:
                case Done(_, damaged):
                    yield Done(key, damaged)
                case Failed(_, RemoteObjectMissingError()) if look < _LOOKS - 1:
                    left.append(key)
                case Failed(_, error):
                    yield Failed(key, error)


def _completes(view: PartitionView, newcomers: Collection[int]) -> bool:
    return bool(view.target and newcomers) and set(view.joining) <= {*view.isr, *newcomers}


def check_stand(work: StandWork) -> tuple[CorruptionError, ...]:
    """The task: the damage of those that stay, although one of them is whole.

    Raises: CorruptionError kinds when nothing whole stands for what goes; errors of reading storage.
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
            f"{damaged[0]}; nobody whole would stay: no replica is let go. Run heal, then again"
        )
    if start is None:
        start = while_it_changes(partial(_start_of_leader, work.replicas))
    if start is not None and work.remote is not None:
        _check_remote(work, work.remote, start)
    return tuple(damaged)


def _start_of_leader(replicas: PartitionReplicas) -> int | None:
    """The leader's local start; what lies below it newcomers can have. None where damage keeps its log from being
    told: it resigns to who is whole as newcomers copy, and before anybody goes all is read anyway."""
    try:
        log = replicas.leader.log()
    except CorruptionError:
        return None
    check_stands_for_start(replicas, replicas.leader, log)
    return log.local_start


def _read_whole(replicas: PartitionReplicas, replica: Replica) -> int:
    """The local start of a replica of which every byte was read."""
    with errors_of(replica):
        log = replica.log()
        check_whole(replica, log)
        for link in log.chain:
            verify_bytes(replica.store, link.file)
        check_stands_for_start(replicas, replica, log)
        return log.local_start


def _check_remote(work: StandWork, remote: RemoteRetention, start: int) -> None:
    """Of what those who go have below ``start``, or, where newcomers begin at its end, of all they have."""
    logs = [work.replicas.replica(broker).log() for broker in work.going]
    low = max(min((log.local_start for log in logs), default=start), work.replicas.view.log_start_offset)
    for index, segment in enumerate(agreeing(remote.listed, work.replicas.leader.log().lineage)):
        if segment.next_offset > low and (work.from_remote or segment.base_offset < start):
            try:
                if index >= len(remote.objects):
                    raise RemoteObjectMissingError(f"{segment.path} is not there as the remote table lists it")
                verify_remote(remote.store, segment, remote.objects[index])
            except CorruptionError as error:
                raise type(error)(f"{error}; heal it before the replicas go that have its records") from error

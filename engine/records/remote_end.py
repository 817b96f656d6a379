"""Reads the remote ends of a topic's logs before appends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.runner import Done, Failed
from stratalog.tiering.remote_log import RemoteLog


def replicas_to_append_to(
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    views: Iterable[PartitionView],
    notes: list[str],
) -> dict[int, PartitionReplicas]:
    """The replicas of partitions of one topic, by partition number. If this driver has not appended to a partition
    under its leader epoch, its replicas include the remote end. All remote ends come from one read of the topic's
    table. A note is added if the remote tier does not answer.

    Raises: see ``DeltaTopicReader.load``, for an invalid table.
    """
    replicas = {view.partition: storage.replicas(view) for view in views}
    unknown = memory.remote_ends.unknown(each.view for each in replicas.values())
    if not unknown or storage.remote is None:
        return replicas
    log = _read(storage, clock, memory, image, unknown[0], notes)
    for view in unknown:
        remote = replicas[view.partition].remote
        assert remote is not None
        asked = replace(remote, unknown=True) if log is None else remote.with_log(log)
        replicas[view.partition] = replace(replicas[view.partition], remote=asked)
    return replicas


def _read(
    storage: Storage, clock: Clock, memory: Memory, image: ClusterImage, view: PartitionView, notes: list[str]
) -> RemoteLog | None:
    """The remote log of the view's topic; None if the remote tier does not answer in time."""
    now_ms, why = clock.now_ms(), "it did not answer moments ago"
    if not memory.remote_ends.is_silent(view.topic_id, now_ms):
        read = storage.read_remote_log(view)
        deadline_s = cluster_config_of(image).broker_session_timeout_ms / 1000
        (outcome,) = storage.prober.probe(lambda _: read(), [f"remote log of {view.topic}"], deadline_s)
        match outcome:
            case Done(_, log):
                return log
            case Failed(_, RetriableError() as error):
                memory.remote_ends.was_silent(view.topic_id, now_ms)
                why = str(error)
            case Failed(_, error):
                raise error
    notes.append(
        f"{view.topic}: it is unknown whether its remote log extends beyond the logs of its leaders: {why}"
    )
    return None

"""Reads the remote ends of a topic's logs before appends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import RetriableError
from stratalog.partitions.runner import Done, Failed
from stratalog.tiering.remote_log import RemoteLog


def replicas_to_append_to(
    context: Context, image: ClusterImage, views: Iterable[PartitionView], notes: list[str]
) -> dict[int, PartitionReplicas]:
    """The replicas of partitions of one topic, by number. Partitions to which this driver has not appended under
    their leader epoch get their remote ends, from one read of the topic's table. A note is added if the remote
    tier does not answer.

    Raises: see ``DeltaTopicReader.load``, for an invalid table.
    """
    replicas = {view.partition: context.replicas(view) for view in views}
    unknown = context.remote_ends.unknown(each.view for each in replicas.values())
    if not unknown or context.remote is None:
        return replicas
    log = _read(context, image, unknown[0], notes)
    for view in unknown:
        remote = replicas[view.partition].remote
        assert remote is not None
        asked = replace(remote, unknown=True) if log is None else remote.with_log(log)
        replicas[view.partition] = replace(replicas[view.partition], remote=asked)
    return replicas


def _read(context: Context, image: ClusterImage, view: PartitionView, notes: list[str]) -> RemoteLog | None:
    """The remote log of the view's topic; None if the remote tier does not answer in time."""
    now_ms, why = context.clock.now_ms(), "it did not answer a moment ago"
    if not context.remote_ends.is_silent(view.topic_id, now_ms):
        read = context.read_remote_log(view)
        deadline_s = context.cluster_config(image).broker_session_timeout_ms / 1000
        (outcome,) = context.prober.probe(lambda _: read(), [f"remote log of {view.topic}"], deadline_s)
        match outcome:
            case Done(_, log):
                return log
            case Failed(_, RetriableError() as error):
                context.remote_ends.was_silent(view.topic_id, now_ms)
                why = str(error)
            case Failed(_, error):
                raise error
    notes.append(
        f"{view.topic}: it is unknown whether its remote log extends beyond the logs of its leaders: {why}"
    )
    return None

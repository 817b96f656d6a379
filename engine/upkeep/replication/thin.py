"""Thin replicas: those that hold much less locally than others, because they began at the earliest pending upload
offset (KIP-1023). Where they lead, readers of what they lack go to the remote tier; where they follow, readers are
sent to them only for what they hold (``stratalog.engine.replicas.nearest``).

With ``leader.election.thin.replica.last.enable`` they are the last choice among replicas that could lead as well
("having slightly relaxed criteria wherein other followers are preferred for leadership", KIP-1023, "Motivation").
That is a wish about speed, so it decides only where somebody, or a job, asks for an election. One that follows
from the metadata alone, because a broker was fenced, knows nothing of storage; the next ``elect`` mends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Failure
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_changes import first_candidate
from stratalog.engine.replicas.logs import DescribeWork, LogLook, look_at_replicas
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.runner import Done, Failed


def is_thin(held: int, others: Iterable[int]) -> bool:
    """Whether a replica with ``held`` records in its local log holds less than half as many as another one.
    (Replicas that drop records by the same rules differ by a few segments.)
    """
    return 2 * held < max(others, default=0)


def thin_last(order: Sequence[int], held: Mapping[int, int]) -> list[int]:
    """``order``, with the thin replicas at the end; ``held`` is how many records each holds locally. Those of
    which nothing is known keep their place.
    """
    most = held.values()
    thin = [broker for broker in order if broker in held and is_thin(held[broker], most)]
    return [broker for broker in order if broker not in thin] + thin


def preferred_leaders(
    context: Context, image: ClusterImage, views: Iterable[PartitionView], failures: list[Failure]
) -> dict[TopicIdPartition, int]:
    """The preferred leaders of the partitions where the files of the replicas decide: the first in order of
    preference that is in the ISR, not fenced, and not thin; the preferred one where all are thin. A partition
    whose replicas cannot be looked at is a failure.
    """
    works = [
        DescribeWork(context.site(view))
        for view in views
        if _is_wanted(context, image, view) and first_candidate(view.replicas, view.isr, image.brokers) is not None
    ]
    chosen: dict[TopicIdPartition, int] = {}
    for outcome in context.tasks.run(look_at_replicas, works):
        match outcome:
            case Failed(work, error):
                failures.append(Failure.of(work, error))
            case Done(work, looks):
                view = work.site.view
                held = {
                    look.broker_id: look.found.log_end - look.found.local_start
                    for look in looks
                    if isinstance(look.found, LogLook) and look.broker_id in view.isr
                }
                leader = first_candidate(thin_last(view.replicas, held), view.isr, image.brokers)
                if leader is not None:
                    chosen[view.key] = leader
    return chosen


def _is_wanted(context: Context, image: ClusterImage, view: PartitionView) -> bool:
    config = context.topic_config(image, image.topics[view.topic_id])
    return config.remote_storage_enable and config.leader_election_thin_replica_last_enable

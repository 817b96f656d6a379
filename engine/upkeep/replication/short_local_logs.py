"""Short local logs: replicas that hold far fewer records locally than other replicas, because they began at the
earliest pending upload offset (KIP-1023). If such a replica leads, reads of the records that it lacks go to the
remote tier; a follower serves only the records that it holds (``stratalog.engine.replicas.nearest``).

With ``leader.election.short.local.log.last.enable`` such replicas are the last choice among possible leaders
("having slightly relaxed criteria wherein other followers are preferred for leadership", KIP-1023, "Motivation").
This order affects only speed, so it applies only to elections that an operator or a job requests. When a broker is
fenced, a leader is elected without reading storage, so this order is ignored; the next ``elect`` corrects the
choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_changes import first_candidate
from stratalog.engine.replicas.logs import DescribeWork, ListedLog, list_replicas
from stratalog.partitions.identity import TopicIdPartition


def has_short_local_log(held: int, others: Iterable[int]) -> bool:
    """Whether a replica with ``held`` records in its local log holds less than half as many as another replica.
    (Replicas that drop records by the same rules differ by a few segments.)
    """
    return 2 * held < max(others, default=0)


def short_local_logs_last(order: Sequence[int], held: Mapping[int, int]) -> list[int]:
    """``order``, with the replicas that have short local logs at the end. ``held`` is the number of records that
    each replica holds locally; replicas that are not in ``held`` keep their place.
    """
    most = held.values()
    short = [broker for broker in order if broker in held and has_short_local_log(held[broker], most)]
    return [broker for broker in order if broker not in short] + short


def preferred_leaders(
    storage: Storage, execution: Execution, image: ClusterImage, views: Iterable[PartitionView], run: OperationRun
) -> dict[TopicIdPartition, int]:
    """The preferred leaders of the partitions whose preferred leader depends on the replicas' files. The preferred
    leader is the first replica, in order of preference, that is in the ISR, unfenced, and without a short local
    log. If all have a short local log, it is the preferred replica. A partition whose replicas cannot be listed is
    a failure.
    """
    works = [
        DescribeWork(storage.replicas(view))
        for view in views
        if _is_wanted(image, view) and first_candidate(view.replicas, view.isr, image.brokers) is not None
    ]
    chosen: dict[TopicIdPartition, int] = {}
    for work, looks in run.done(execution.tasks.run(list_replicas, works)):
        view = work.replicas.view
        held = {
            look.broker_id: look.found.log_end - look.found.local_start
            for look in looks
            if isinstance(look.found, ListedLog) and look.broker_id in view.isr
        }
        leader = first_candidate(short_local_logs_last(view.replicas, held), view.isr, image.brokers)
        if leader is not None:
            chosen[view.key] = leader
    return chosen


def _is_wanted(image: ClusterImage, view: PartitionView) -> bool:
    config = topic_config_of(image, image.topics[view.topic_id])
    return config.remote_storage_enable and config.leader_election_short_local_log_last_enable

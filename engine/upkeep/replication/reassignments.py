"""Lists reassignments in progress: joining replicas, replicas in sync, and the remaining bytes to copy. Writes
nothing: listings of the replicas show which files a new replica lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stratalog.engine.config.cluster_config import NO_LIMIT
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, cluster_config_of
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import leader_offsets
from stratalog.engine.upkeep.replication.reassign import named
from stratalog.engine.upkeep.replication.replicate import plan
from stratalog.engine.upkeep.replication.syncing import SyncWork
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.listing import ReplicaLog, resolve
from stratalog.partitions.runner import Done, Failed
from stratalog.tiering.bootstrap import FromLeader, FromRemote, StartOver, fetch_origin


@dataclass(frozen=True, slots=True)
class Behind:
    """The part of the leader's log that a new replica lacks; the sizes are None while the start of this part is
    unknown.
    """

    broker_id: int
    records: int | None = None
    size_bytes: int | None = None
    error: StratalogError | None = None


class NewcomerRow(PartitionRow, frozen=True, kw_only=True):
    """A new replica of a partition. Brokers are separated by spaces."""

    replicas: str
    target: str
    in_sync: str
    newcomer: int
    state: str
    records_behind: int | None
    bytes_behind: int | None


def list_newcomers(work: SyncWork) -> list[Behind]:
    """The task. Raises: errors from listing the leader."""
    log = work.replicas.leader.log()
    found: list[Behind] = []
    for broker in work.replicas.view.joining:
        try:
            found.append(_behind(work, broker, log))
        except StratalogError as error:
            found.append(Behind(broker, error=error))
    return found


def _behind(work: SyncWork, broker: int, log: ReplicaLog) -> Behind:
    newcomer = work.replicas.replica(broker)
    mine = resolve(newcomer.list(), log.lineage, newcomer.end_of_append)
    origin = fetch_origin(
        leader_offsets(work.replicas, log, work.options.remote),
        fetch_offset=mine.log_end,
        follower_is_empty=not mine.chain,
        last_tiered=work.options.last_tiered,
    )
    if not isinstance(origin, FromLeader | FromRemote | StartOver):
        return Behind(broker)
    left = sum(link.file.object.size_bytes for link in log.chain if link.end > origin.offset)
    return Behind(broker, log.log_end - origin.offset, left)


def reassignments(
    metadata: MetadataClient, storage: Storage, execution: Execution, topics: Sequence[str] | None = None
) -> Report:
    """List the new replicas of the topics' partitions (None: of all topics) that are being reassigned, one row per
    new replica. Raises: UnknownTopicOrPartitionError; a leader or new replica that cannot be listed is a failure.
    """
    with execution.run("reassign --status") as run:
        image = metadata.image()
        chosen = [topic.name for topic in chosen_topics(image, topics) if any(p.target for p in topic.partitions)]
        works = [
            work for work in plan(storage, execution, image, chosen, None, None, run) if work.replicas.view.target
        ]
        for outcome in execution.tasks.run(list_newcomers, works):
            match outcome:
                case Failed(work, error):
                    run.fail(work, error)
                    found = [Behind(broker) for broker in work.replicas.view.joining]
                case Done(work, found):
                    run.failures += [
                        Failure.of(f"{work} on broker {one.broker_id}", one.error)
                        for one in found
                        if one.error is not None
                    ]
            run.add(_row(work.replicas, one) for one in found)
    run.sort("topic", "partition", "newcomer")
    run.totals |= {
        "partitions": len({(row["topic"], row["partition"]) for row in run.rows}),
        "bytes_behind": None if any(row["bytes_behind"] is None for row in run.rows) else run.sum("bytes_behind"),
    }
    rate = cluster_config_of(image).follower_replication_throttled_rate
    if rate != NO_LIMIT:
        run.totals["throttle_bytes_per_s"] = rate
    return run.report()


def _row(replicas: PartitionReplicas, behind: Behind) -> NewcomerRow:
    view = replicas.view
    return NewcomerRow(
        topic=view.topic,
        partition=view.partition,
        replicas=named(view.replicas),
        target=named(view.target),
        in_sync=named(view.isr),
        newcomer=behind.broker_id,
        state=_state(replicas, behind.broker_id),
        records_behind=behind.records,
        bytes_behind=behind.size_bytes,
    )


def _state(replicas: PartitionReplicas, broker: int) -> str:
    if replicas.view.brokers[broker].fenced:
        return "fenced"
    if broker in replicas.view.isr:
        return "in sync"
    return "being added" if broker in replicas.view.adding else "joining"

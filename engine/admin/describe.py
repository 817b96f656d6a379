"""Describes every replica of topics, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.known_image import known_image
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import chosen_topics, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.logs import DescribeWork, ListedLog, ListedReplica, list_replicas, walk_topics
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.engine.upkeep.tiering.remote_logs import load_remotes, rewrites
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    StorageAuthorizationError,
    StorageError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.store.local_space import staging_in_the_way, takes_no_files
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.schedule import Entry

_LEADER, _IN_SYNC, _UNREACHABLE = "leader", "in sync", "unreachable"


class ReplicaRow(PartitionRow, frozen=True, kw_only=True):
    """A replica. A value that cannot be read is None. Only a tiered partition has the columns ``copy_*``."""

    broker: int
    role: str
    isr: str
    epoch: int
    log_start: int
    remote_end: int | None
    local_start: int | None
    high_watermark: int | None
    log_end: int | None
    files: int | None
    local_bytes: int | None
    remote_bytes: int | None
    copy_lag_records: int | msgspec.UnsetType | None = msgspec.UNSET
    copy_lag_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    copy_lag_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    copy_error: str | msgspec.UnsetType | None = msgspec.UNSET
    copy_attempts: int | msgspec.UnsetType = msgspec.UNSET
    copy_failing_ms: int | msgspec.UnsetType = msgspec.UNSET


def describe(
    metadata: MetadataClient, storage: Storage, execution: Execution, topics: Sequence[str] | None = None
) -> Report:
    """Describe the replicas of the topics, one row per replica. A replica that cannot be listed has only the
    columns from the metadata. For all topics (None), healthy empty partitions of the engine's own topics have no
    rows; the total ``empty_internal_replicas`` counts them.

    Raises: UnknownTopicOrPartitionError. The report has these failures: unreadable replicas, brokers that are
        unreachable or accept no files, metadata without a majority, partitions without a leader or below
        ``min.insync.replicas``, and copies to the remote tier that fail repeatedly.
    """
    unreachable: dict[int, list[StratalogError]] = {}
    answering: set[int] = set()
    empty = 0
    with execution.run("describe") as run:
        image = known_image(metadata, run)
        chosen = chosen_topics(image, topics)
        remote = load_remotes(storage, image, chosen, run)
        due = load_schedule(storage, image).schedule.entries if remote or run.failures else {}
        partitions = list(storage.replicas_of(image, chosen))
        walked = walk_topics(storage, image, partitions)
        works = [
            DescribeWork(
                replicas if (log := remote.get(replicas.view.topic_id)) is None else replicas.with_remote_log(log),
                _remote_end(replicas.view, remote, due),
                walked.get(replicas.view.key, {}),
            )
            for replicas in partitions
        ]
        for work, looks in run.done(execution.tasks.run(list_replicas, works)):
            for look in looks:
                if not isinstance(look.found, StratalogError):
                    answering.add(look.broker_id)
                match look.found:
                    case (BrokerUnreachableError() | StorageAuthorizationError()) as error:
                        unreachable.setdefault(look.broker_id, []).append(error)
                    case (StratalogError() as wrong) | ListedLog(contradicts=StratalogError() as wrong):
                        run.fail(f"{work} on broker {look.broker_id}", wrong)
            view = work.replicas.view
            entry = due.get(view.key) if view.topic_id in remote else None  # otherwise the whole topic has failed
            _fail_where_needed(image, work, entry, run)
            if topics is None and _says_nothing(view, looks):
                empty += len(looks)
                continue
            cold, entry = remote.get(view.topic_id), due.get(view.key)
            for look in looks:
                row = _row(view, look, cold)
                if work.remote_end is not None:
                    row = _with_tiering(row, work, look, entry, execution.clock.now_ms())
                run.add([row])
    # one line per broker, not one per replica
    for broker, errors in sorted(unreachable.items()):
        run.fail(f"broker {broker}, which has {len(errors)} of these replicas", errors[0])
    for broker in sorted(answering):
        uri = storage.stores[broker].uri
        if (in_the_way := staging_in_the_way(uri)) is not None:
            run.fail(f"broker {broker}", in_the_way)
        elif (unwritable := takes_no_files(uri)) is not None:
            run.fail(f"broker {broker}", unwritable.of_broker(broker))
    run.sort("topic", "partition", "broker")
    run.totals["replicas"] = len(run.rows)
    if empty:
        run.totals["empty_internal_replicas"] = empty
    run.notes += rewrites(image, remote)
    return run.report()


def _fail_where_needed(image: ClusterImage, work: DescribeWork, entry: Entry | None, run: OperationRun) -> None:
    """Add a failure for everything in the rows that needs an operator. ``health`` has the commands."""
    view = work.replicas.view
    least = topic_config_of(image, image.topics[view.topic_id]).min_insync_replicas
    if view.leader is None:
        run.fail(work, LeaderNotAvailableError("no leader: see stratalog health"))
    elif not view.has_min_isr(least):
        few = f"the ISR is {sorted(view.isr)}, and min.insync.replicas is {least}: see stratalog health"
        run.fail(work, NotEnoughReplicasError(few))
    if entry is not None and entry.attempts > 1:
        times = (
            f"{entry.attempts} consecutive copies to the remote tier have failed ({entry.code}): see stratalog "
            "health"
        )
        run.fail(work, StorageError(times))


def _remote_end(
    view: PartitionView, remote: Mapping[str, RemoteLog], due: Mapping[TopicIdPartition, Entry]
) -> int | None:
    """Return the end of the partition's remote log. If the table is unreadable, this is the last known end, from
    the schedule. None for a partition that is not tiered.
    """
    if view.topic_id in remote:
        return remote[view.topic_id].end(view.partition) or 0
    return due[view.key].remote_end or 0 if view.key in due else None


def _says_nothing(view: PartitionView, looks: Iterable[ListedReplica]) -> bool:
    """Whether the partition belongs to one of the engine's own topics, and every replica that answers is empty and
    complete.
    """
    as_it_should_be = (_LEADER, _IN_SYNC, _UNREACHABLE, f"{_LEADER}, {_UNREACHABLE}")
    return view.topic in INTERNAL_TOPICS and all(
        _role(view, look) in as_it_should_be and not (isinstance(look.found, ListedLog) and look.found.files)
        for look in looks
    )


def _row(view: PartitionView, look: ListedReplica, cold: RemoteLog | None) -> ReplicaRow:
    log = look.found if isinstance(look.found, ListedLog) else None
    return ReplicaRow(
        topic=view.topic,
        partition=view.partition,
        broker=look.broker_id,
        role=_role(view, look),
        isr=",".join(map(str, view.isr)),
        epoch=view.leader_epoch,
        log_start=view.log_start_offset,
        remote_end=None if cold is None else cold.end(view.partition),
        local_start=None if log is None else log.local_start,
        high_watermark=None if log is None else log.high_watermark,
        log_end=None if log is None else log.log_end,
        files=None if log is None else len(log.files),
        local_bytes=None if log is None else sum(file.size_bytes for file in log.files),
        remote_bytes=None if cold is None else cold.bytes_of(view.partition),
    )


def _with_tiering(
    row: ReplicaRow, work: DescribeWork, look: ListedReplica, entry: Entry | None, now_ms: int
) -> ReplicaRow:
    """Return the row of a replica. The columns ``copy_*`` describe the part of its log outside the remote tier,
    which a restore would lose: acknowledged records, the bytes of their files, and the age of the first append.
    They also describe the consecutive failures of the last runs of ``tier``: start, number and error.
    """
    log = look.found if isinstance(look.found, ListedLog) else None
    end = max(work.remote_end or 0, work.replicas.view.log_start_offset)
    since_ms = None if log is None else log.waiting_since_ms
    entry = entry or Entry(0)
    return msgspec.structs.replace(
        row,
        copy_lag_records=None if log is None else max(0, log.high_watermark - end),
        copy_lag_bytes=None if log is None else sum(file.size_bytes for file in log.files if file.end > end),
        copy_lag_ms=None if log is None else 0 if since_ms is None else max(0, now_ms - since_ms),
        copy_error=entry.code or None,
        copy_attempts=entry.attempts,
        copy_failing_ms=max(0, now_ms - entry.failing_since_ms) if entry.attempts else 0,
    )


def _role(view: PartitionView, look: ListedReplica) -> str:
    """Return the role of the replica in the metadata. If the replica cannot be listed, the role says so, and says
    whether the replica leads.
    """
    broker = look.broker_id
    if isinstance(look.found, StratalogError):
        away = _UNREACHABLE if isinstance(look.found, BrokerUnreachableError) else look.found.code
        return f"{_LEADER}, {away}" if broker == view.leader else away
    if broker == view.leader:
        return _LEADER
    if broker in view.isr:
        return _IN_SYNC
    return "being added" if broker in view.adding else "out of sync"

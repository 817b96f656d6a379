"""Describe: every replica of topics, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.known_image import known_image
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replicas.logs import DescribeWork, ListedLog, ListedReplica, list_replicas
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.engine.upkeep.tiering.remote_logs import load_remotes, rewrites
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.errors import BrokerUnreachableError, StorageAuthorizationError, StratalogError
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.schedule import Entry

_LEADER, _IN_SYNC, _UNREACHABLE = "leader", "in sync", "unreachable"


def describe(context: Context, topics: Sequence[str] | None = None) -> Report:
    """One row per replica of the topics; of one that cannot be looked at only what the metadata knows. Of all
    topics (None), partitions of the engine's own ones that hold nothing and are as they should be have no rows,
    and count as ``empty_internal_replicas``: most never do.

    Raises: UnknownTopicOrPartitionError; a replica that cannot be read, a broker that is not there, and metadata
        without a majority are failures in the report.
    """
    unreachable: dict[int, list[StratalogError]] = {}
    empty = 0
    with context.run("describe") as run:
        image = known_image(context, run)
        chosen = context.topics(image, topics)
        remote = load_remotes(context, image, chosen, run)
        works = [DescribeWork(replicas) for replicas in context.replicas_of(image, chosen)]
        due = load_schedule(context, image).schedule.entries if remote or run.failures else {}
        for work, looks in run.done(context.tasks.run(list_replicas, works)):
            for look in looks:
                match look.found:
                    case (BrokerUnreachableError() | StorageAuthorizationError()) as error:
                        unreachable.setdefault(look.broker_id, []).append(error)
                    case StratalogError() as error:
                        run.fail(f"{work} on broker {look.broker_id}", error)
            view = work.replicas.view
            if topics is None and _says_nothing(view, looks):
                empty += len(looks)
                continue
            cold, entry = remote.get(view.topic_id), due.get(view.key)
            run.rows += [_row(view, look, cold, entry, context.clock.now_ms()) for look in looks]
    for broker, errors in sorted(unreachable.items()):  # one line, not one for each of its thousand replicas
        run.fail(f"broker {broker}, which has {len(errors)} of these replicas", errors[0])
    run.rows.sort(key=lambda row: (str(row["topic"]), row["partition"], row["broker"]))
    run.totals["replicas"] = len(run.rows)
    if empty:
        run.totals["empty_internal_replicas"] = empty
    run.notes += rewrites(image, remote)
    return run.report()


def _says_nothing(view: PartitionView, looks: Iterable[ListedReplica]) -> bool:
    """Whether the partition is of the engine's own topics, and no replica that answers holds, or lacks,
    anything."""
    as_it_should_be = (_LEADER, _IN_SYNC, _UNREACHABLE, f"{_LEADER}, {_UNREACHABLE}")
    return view.topic in INTERNAL_TOPICS and all(
        _role(view, look) in as_it_should_be and not (isinstance(look.found, ListedLog) and look.found.files)
        for look in looks
    )


def _row(
    view: PartitionView, look: ListedReplica, cold: RemoteLog | None, entry: Entry | None, now_ms: int
) -> dict[str, Value]:
    """None for what is not known of a replica that cannot be looked at."""
    log = look.found if isinstance(look.found, ListedLog) else None
    return {
        "topic": view.topic,
        "partition": view.partition,
        "broker": look.broker_id,
        "role": _role(view, look),
        "epoch": view.leader_epoch,
        "log_start": view.log_start_offset,
        "remote_end": None if cold is None else cold.end(view.partition),
        "local_start": None if log is None else log.local_start,
        "high_watermark": None if log is None else log.high_watermark,
        "log_end": None if log is None else log.log_end,
        "files": None if log is None else len(log.files),
        "local_bytes": None if log is None else sum(file.size_bytes for file in log.files),
        "remote_bytes": None if cold is None else cold.bytes_of(view.partition),
        **_tiering(entry, log, now_ms),
    }


def _tiering(entry: Entry | None, log: ListedLog | None, now_ms: int) -> dict[str, Value]:
    """The part of the replica's log that is not in the remote tier, and the failures of the last tier runs: since
    when, how often in a row, with what error. Empty for a partition that is not tiered.
    """
    if entry is None:
        return {}
    end = 0 if entry.remote_end is None else entry.remote_end
    behind = [] if log is None else [file for file in log.files if file.end > end]
    return {
        "copy_lag_bytes": None if log is None else sum(file.size_bytes for file in behind),
        "copy_lag_ms": None if log is None else max([0, *(now_ms - file.modified_ms for file in behind)]),
        "copy_error": entry.code or None,
        "copy_attempts": entry.attempts,
        "copy_failing_ms": max(0, now_ms - entry.failing_since_ms) if entry.attempts else 0,
    }


def _role(view: PartitionView, look: ListedReplica) -> str:
    """The role of the replica in the metadata; or that it cannot be looked at, and whether it leads."""
    broker = look.broker_id
    if isinstance(look.found, StratalogError):
        away = _UNREACHABLE if isinstance(look.found, BrokerUnreachableError) else look.found.code
        return f"{_LEADER}, {away}" if broker == view.leader else away
    if broker == view.leader:
        return _LEADER
    if broker in view.isr:
        return _IN_SYNC
    return "being added" if broker in view.adding else "out of sync"

"""Describe: every replica of topics, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.context import Context
from engine.operations.known_image import known_image
from engine.operations.tiering.remote_logs import load_remotes
from engine.operations.tiering.schedule import load_schedule
from engine.replication.site import Site, SiteWork
from engine.report import Failure, Report, Value
from engine.state.internal_topics import INTERNAL_TOPICS
from partitions.errors import BrokerUnreachableError, StratalogError
from partitions.runner import Done, Failed
from tiering.schedule import Entry

_LEADER, _IN_SYNC = "leader", "in sync"


@dataclass(frozen=True, slots=True)
class DescribeWork(SiteWork):
    """Look at every replica of one partition."""


@dataclass(frozen=True, slots=True)
class FileLook:
    """One file of a log: where it ends, when it was made."""

    end: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ReplicaLook:
    """One replica, or why it cannot be looked at."""

    broker_id: int
    local_start: int = 0
    high_watermark: int = 0
    log_end: int = 0
    files: int = 0
    size_bytes: int = 0
    ends: tuple[FileLook, ...] = ()
    error: StratalogError | None = None


def look_at_replicas(work: DescribeWork) -> list[ReplicaLook]:
    """The task."""
    return [_look(work.site, broker) for broker in work.site.view.replicas]


def _look(site: Site, broker: int) -> ReplicaLook:
    try:
        log = site.replica(broker).log()
    except StratalogError as error:
        return ReplicaLook(broker, error=error)
    return ReplicaLook(
        broker,
        local_start=log.local_start,
        high_watermark=log.high_watermark,
        log_end=log.log_end,
        files=len(log.chain),
        size_bytes=sum(link.file.object.size_bytes for link in log.chain),
        ends=tuple(
            FileLook(link.end, link.file.object.size_bytes, link.file.object.modified_ms) for link in log.chain
        ),
    )


def describe(context: Context, topics: Sequence[str] | None = None) -> Report:
    """One row per replica of the topics. Of all of them (None), replicas of the engine's own topics that hold
    nothing and are as they should be have no row: most never do.

    Raises: UnknownTopicOrPartitionError; a replica that cannot be read, a broker that is not there, and metadata
        without a majority are failures in the report.
    """
    rows: list[dict[str, Value]] = []
    failures: list[Failure] = []
    unreachable: dict[int, list[StratalogError]] = {}
    with context.measured() as measure:
        image = known_image(context, failures)
        chosen = context.topics(image, topics)
        remote = load_remotes(context, image, chosen, failures)
        works = [DescribeWork(site) for site in context.sites(image, chosen)]
        due = load_schedule(context, image).schedule.entries if remote or failures else {}
        for outcome in context.tasks.run(look_at_replicas, works):
            match outcome:
                case Failed(work, error):
                    failures.append(Failure.of(work, error))
                case Done(work, looks):
                    view = work.site.view
                    cold = remote.get(view.topic_id)
                    for look in looks:
                        if isinstance(look.error, BrokerUnreachableError):
                            unreachable.setdefault(look.broker_id, []).append(look.error)
                        elif look.error is not None:
                            failures.append(Failure.of(f"{work} on broker {look.broker_id}", look.error))
                        rows.append(
                            {
                                "topic": view.topic,
                                "partition": view.partition,
                                "broker": look.broker_id,
                                "role": _role(work.site, look.broker_id),
                                "epoch": view.leader_epoch,
                                "log_start": view.log_start_offset,
                                "remote_end": None if cold is None else cold.end(view.partition),
                                "local_start": look.local_start,
                                "high_watermark": look.high_watermark,
                                "log_end": look.log_end,
                                "files": look.files,
                                "local_bytes": look.size_bytes,
                                "remote_bytes": None if cold is None else cold.bytes_of(view.partition),
                                **_tiering(due.get((view.topic_id, view.partition)), look, context.clock.now_ms()),
                            }
                        )
    for broker, errors in sorted(unreachable.items()):  # one line, not one for each of its thousand replicas
        failures.append(Failure.of(f"broker {broker}, which has {len(errors)} of these replicas", errors[0]))
    totals: dict[str, Value] = {"replicas": len(rows)}
    rows = [row for row in rows if topics is not None or not _says_nothing(row)]
    rows.sort(key=lambda row: (str(row["topic"]), row["partition"], row["broker"]))
    return Report("describe", rows, failures, totals, False, measure.seconds, measure.counts)


def _says_nothing(row: Mapping[str, Value]) -> bool:
    return row["topic"] in INTERNAL_TOPICS and not row["files"] and row["role"] in (_LEADER, _IN_SYNC)


def _tiering(entry: Entry | None, look: ReplicaLook, now_ms: int) -> dict[str, Value]:
    """What of the replica's log is not in the remote tier, and what the last tier run met there: for how long it
    has failed, how often in a row, with what. Nothing where the partition is not tiered.
    """
    if entry is None:
        return {}
    end = 0 if entry.remote_end is None else entry.remote_end
    behind = [file for file in look.ends if file.end > end]
    return {
        "copy_lag_bytes": sum(file.size_bytes for file in behind),
        "copy_lag_ms": max([0, *(now_ms - file.modified_ms for file in behind)]),
        "copy_error": entry.code or None,
        "copy_attempts": entry.attempts,
        "copy_failing_ms": max(0, now_ms - entry.failing_since_ms) if entry.attempts else 0,
    }


def _role(site: Site, broker: int) -> str:
    view = site.view
    if broker == view.leader:
        return _LEADER
    if broker in view.isr:
        return _IN_SYNC
    return "being added" if broker in view.adding else "out of sync"

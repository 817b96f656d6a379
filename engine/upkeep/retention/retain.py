"""Retain: applies total and local retention, and deletes files after their delay (KIP-405; protocol section 4).

1. tasks: determine the part of each partition that total retention keeps, from its leader and its remote log
2. commit the new log start offsets, in one commit for all partitions
3. commit the removal of remote segments below the log starts, in one commit per topic; delete objects that were
   removed ``file.delete.delay.ms`` ago
4. tasks: on every replica, write the new local start, and delete files that left the log ``file.delete.delay.ms``
   ago

No record is deleted from a broker before its remote copy is committed and every byte of that copy has been read
(``tasks``). If a topic is no longer tiered, each log starts at the leader's local start, and all remote segments
are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from stratalog.engine.driver.compared_clocks import removal_time
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import NOT_DONE, OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.turns import Over
from stratalog.engine.metadata.chosen import chosen_partitions, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.metadata.partition_commands import AdvanceLogStart, LogStart
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.retention.remote import Expiry, remote_parts
from stratalog.engine.upkeep.retention.tasks import (
    Dropped,
    RemoteRetention,
    RetainWork,
    Wanted,
    drop,
    wanted_log_start,
)
from stratalog.engine.upkeep.tiering.point import describe_first
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.partitions.clock import Clock, time_text
from stratalog.partitions.errors import LogGapError, RemoteObjectMissingError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.replica import LookMark
from stratalog.partitions.runner import Done, Failed
from stratalog.tiering.remote_segment import RemoteSegment


class RetainRow(PartitionRow, frozen=True, kw_only=True):
    log_start: int
    local_starts: str
    remote_removed: int
    remote_removed_bytes: int
    deleted_files: int
    """The number of deleted files on brokers."""
    deleted_bytes: int
    why: str | None


def retain(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    *,
    only: Collection[TopicIdPartition] | None = None,
    over: Over | None = None,
    dry_run: bool = False,
    since: LookMark | None = None,
) -> Report:
    """Apply retention to the topics (None: all; only the partitions in ``only``, if given). Files that belong to
    no partition are left to ``vacuum``. Before a broker relies on a remote segment, the segment is read. ``over``
    is checked after one segment per partition, and then after every few segments. When ``over`` returns True, the
    local files whose segments are unread are kept, and ``totals["cut_off"]`` is the number of unfinished
    partitions. Replicas that this process has listed after ``since`` are listed again only if they have something
    to delete.

    Raises: UnknownTopicOrPartitionError; errors from reading the metadata. Any other error is a failure of its
    partition in the report.
    """
    with execution.run("retain", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        asked = chosen_partitions(image, topics, only)
        chosen = [topic for topic, _ in asked]
        now_ms = removal_time(storage, execution.clock, image, run)
        works = _plan(storage, execution.clock, image, chosen, only, now_ms, run)
        sound = {work.replicas.view.topic_id for work in works}  # the steps below skip topics that have failed
        chosen = [topic for topic in chosen if topic.topic_id in sound]
        works = [replace(work, since=since) for work in works]
        wanted = _wanted(metadata, storage, execution.clock, works, now_ms, run)
        log_starts = {
            key: found.log_start
            for key, (work, found) in wanted.items()
            if found.log_start > work.replicas.view.log_start_offset
        }
        decided = {*wanted}
        if not dry_run and log_starts:
            decided -= _commit_log_starts(metadata, storage, wanted, log_starts, run)
        image = metadata.image()
        removed = Expiry(metadata, storage, execution.clock, image, log_starts, decided, run).run(chosen)
        second = run.aside()
        again = _plan(storage, execution.clock, image, chosen, only, now_ms, second)
        known = {failure.item for failure in run.failures}  # the first plan, or step 3, has reported these topics
        run.failures += [failure for failure in second.failures if failure.item not in known]
        works = [replace(work, since=since) for work in again if work.replicas.view.key in wanted]
        done, failed = run.in_turns(drop, works, over)
        run.failures += [Failure.of(one.item, one.error) for one in failed]
        until_ms: list[tuple[PartitionView, int]] = []
        for work, dropped in done:
            view = work.replicas.view
            run.add([_row(view, dropped, log_starts, removed, wanted[view.key][1].why)])
            run.failures += [Failure.of(where, error) for where, error in dropped.failed]
            bad = _still_bad(storage, image, work, dropped.bad)
            run.failures += [Failure.of(f"{work} in the remote tier", error) for error in bad]
            if now_ms is not None and not dropped.failed and not dropped.bad and not dropped.left:
                next_ms = min(wanted[view.key][1].next_ms, dropped.next_ms)
                if view.key in removed:  # the objects of removed segments are deleted later
                    next_ms = min(next_ms, now_ms + work.delay_ms)
                until_ms += [(view, next_ms)] if next_ms else []
        if dry_run:
            _send(sends, image, chosen, done, log_starts, removed)
            run.estimate = sends.estimate()
    run.settle(until_ms)
    nothing = Dropped()
    run.fill(
        (view for _, views in asked for view in views if view.topic_id in image.topics),
        lambda view: _row(view, nothing, log_starts, removed, NOT_DONE),
    )
    run.failures = list(dict.fromkeys(run.failures))
    run.notes = list(dict.fromkeys(run.notes))
    run.total("deleted_files", "deleted_bytes", "remote_removed", "remote_removed_bytes")
    return run.report()


def _still_bad(
    storage: Storage, image: ClusterImage, work: RetainWork, bad: Mapping[str, StratalogError]
) -> list[StratalogError]:
    """The errors of remote segments. A segment that was missing when this run read it is not an error if the table
    no longer lists it, because another run has removed it.
    """
    gone = {path for path, error in bad.items() if isinstance(error, RemoteObjectMissingError)}
    if gone:
        view = work.replicas.view
        with suppress(StratalogError):
            log = storage.remote_table(image.topics[view.topic_id]).load()
            listed = {segment.path for segment in log.of_partition(view.partition)}
            return [error for path, error in bad.items() if path not in gone or path in listed]
    return list(bad.values())


def _plan(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    topics: Iterable[TopicImage],
    only: Collection[TopicIdPartition] | None,
    now_ms: int | None,
    run: OperationRun,
) -> list[RetainWork]:
    present = [topic for topic in topics if topic.topic_id in image.topics]
    configs = {topic.topic_id: topic_config_of(image, topic) for topic in present}
    tiered = [topic for topic in present if configs[topic.topic_id].remote_storage_enable]
    parts: dict[str, dict[int, RemoteRetention]] = {}

    def ask(topic: TopicImage) -> dict[int, RemoteRetention]:
        return remote_parts(storage, topic, run)

    for topic, found in run.done(ask_remote(storage, ask, tiered), lambda topic: topic.name):
        parts[topic.topic_id] = found
    works = []
    for topic, views in chosen_partitions(image, [topic.name for topic in present], only):
        config, remote = configs[topic.topic_id], parts.get(topic.topic_id, {})
        if config.remote_storage_enable and not remote:
            continue
        works += [
            RetainWork(
                replicas=storage.replicas(view),
                total=config.retention(now_ms),
                local=config.local_retention if now_ms is not None else config.local_retention.by_size,
                remote=remote.get(view.partition),
                delay_ms=config.file_delete_delay_ms,
                clock=clock,
                now_ms=now_ms,
                dry_run=run.dry_run,
                snapshots=config.snapshots,
            )
            for view in views
        ]
    return works


def _wanted(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    works: Sequence[RetainWork],
    now_ms: int | None,
    run: OperationRun,
) -> dict[TopicIdPartition, tuple[RetainWork, Wanted]]:
    """Step 1. If the remote log seems to lack records that the leader has deleted, both logs are read again,
    because another driver may have tiered and deleted these records after the table was read.
    """
    found: dict[TopicIdPartition, tuple[RetainWork, Wanted]] = {}
    for last in (False, True):
        gaps: list[RetainWork] = []
        for outcome in run.tasks.run(wanted_log_start, works):
            match outcome:
                case Failed(work, LogGapError()) if work.tiered and not last:
                    gaps.append(work)
                case Failed(work, error):
                    run.fail(work, error)
                case Done(work, wanted):
                    _note(work, wanted, run)
                    found[work.replicas.view.key] = work, wanted
        if not gaps:
            break
        image = metadata.image()
        named = {work.replicas.view.topic_id: image.topics.get(work.replicas.view.topic_id) for work in gaps}
        topics = [topic for topic in named.values() if topic is not None]
        keys = {work.replicas.view.key for work in gaps}
        works = _plan(storage, clock, image, topics, keys, now_ms, run)
    return found


def _note(work: RetainWork, wanted: Wanted, run: OperationRun) -> None:
    if wanted.ahead is not None:
        when = time_text(wanted.ahead.max_timestamp_ms)
        run.notes.append(
            f"{work}: offsets [{wanted.ahead.start}, {wanted.ahead.end}) have a timestamp in the "
            f"future, {when}; for these records, retention uses the time when they were written"
        )


def _commit_log_starts(
    metadata: MetadataClient,
    storage: Storage,
    wanted: Mapping[TopicIdPartition, tuple[RetainWork, Wanted]],
    log_starts: dict[TopicIdPartition, int],
    run: OperationRun,
) -> set[TopicIdPartition]:
    """Step 2. Removes refused partitions from ``log_starts``, and returns them."""
    changes = tuple(
        LogStart(*key, start, wanted[key][0].replicas.view.leader_epoch) for key, start in log_starts.items()
    )
    works = {key: wanted[key][0] for key in log_starts}
    refused = works.keys() - run.commit(metadata, AdvanceLogStart(changes), works)
    for key in refused:
        del log_starts[key]
    # A restore must not bring back records below the new log starts.
    if any(wanted[key][0].tiered for key in log_starts):
        run.failures += describe_first(metadata, storage, metadata.image())
    return refused


def _send(
    sends: Planned,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    done: Sequence[tuple[RetainWork, Dropped]],
    log_starts: Mapping[TopicIdPartition, int],
    removed: Collection[TopicIdPartition],
) -> None:
    """Estimate the requests: the commit of the log starts, with a restore point if a topic is tiered; for each
    tiered topic, the walk that finds objects to delete, and a commit's three listings of the table's log; and the
    writes of the new local starts.
    """
    tiered = {topic.topic_id for topic in topics if topic_config_of(image, topic).remote_storage_enable}
    if log_starts:
        sends.send_commit(image)
    for topic_id in tiered:
        sends.send(sends.storage.remote, puts=1 + 3 * any(key.topic_id == topic_id for key in removed))
    if any(key.topic_id in tiered for key in log_starts):
        sends.send_look(image)
        sends.send(sends.storage.remote, puts=2)
    for work, dropped in done:
        view = work.replicas.view
        moves = len(view.replicas) if view.key in log_starts else dropped.moves
        live = [broker for broker in view.replicas if not view.brokers[broker].fenced]
        for broker in live[:moves]:
            sends.send(work.replicas.stores.get(broker), puts=1)


def _row(
    view: PartitionView,
    dropped: Dropped,
    log_starts: dict[TopicIdPartition, int],
    removed: dict[TopicIdPartition, list[RemoteSegment]],
    why_kept: str | None,
) -> RetainRow:
    expired = removed.get(view.key, ())
    something = expired or dropped.deleted or view.key in log_starts
    return RetainRow(
        topic=view.topic,
        partition=view.partition,
        log_start=log_starts.get(view.key, view.log_start_offset),
        local_starts=" ".join(f"{broker}:{start}" for broker, start in dropped.local_starts),
        remote_removed=len(expired),
        remote_removed_bytes=sum(segment.size_bytes for segment in expired),
        deleted_files=dropped.deleted,
        deleted_bytes=dropped.deleted_bytes,
        why=None if something else dropped.why or why_kept,
    )

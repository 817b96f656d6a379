"""Retain: total and local retention, and what may be deleted after its delay (KIP-405; protocol section 4).

    1. tasks: what total retention would keep of each partition, by its leader and the remote log
    2. commit the new log start offsets, one commit for all partitions
    3. commit the removal of remote segments below them, one commit a topic; delete what was removed
       ``file.delete.delay.ms`` ago
    4. tasks: on every replica write the new local start, and delete what left the log that long ago

Nothing leaves a broker's storage before its remote copy is committed and seen in the store at its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.context import Context
from engine.metadata.image import ClusterImage, TopicImage
from engine.metadata.partition_commands import AdvanceLogStart, LogStart, Refused
from engine.operations.sweep import sweep_roots
from engine.replication.damage import blaming, check_whole
from engine.replication.site import Site
from engine.replication.snapshots import latest_snapshot, while_it_changes
from engine.report import Failure, Report, Value
from engine.settings import TopicConfig
from partitions.clock import Clock
from partitions.errors import StratalogError
from partitions.listing import ReplicaLog
from partitions.paths import LocalStartName
from partitions.producers import encode
from partitions.replica import Replica
from partitions.retention import UNLIMITED, Extent, RetentionLimits, local_start_for, removable, retained_from
from partitions.runner import Done, Failed
from partitions.segment import read_segment
from partitions.store import Store
from snapshots.start_offset import follower_start_offset
from tiering.expiry import expired_segments
from tiering.remote_log import RemoteLog

PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RetainWork:
    """One partition: its sites, limits, and what is safely remote."""

    site: Site
    total: RetentionLimits
    local: RetentionLimits
    tiered: bool
    remote: tuple[Extent, ...]
    """The partition's remote segments that were seen in the store, from the first on."""
    delay_ms: int
    clock: Clock
    dry_run: bool
    snapshots: bool = False
    """cleanup.policy=snapshot: no limit moves the log start, and local starts stay below a snapshot's end."""

    @property
    def remote_end(self) -> int:
        """Up to where the log is safely remote."""
        return self.remote[-1].end if self.remote else 0

    def stores_used(self) -> Iterable[Store]:
        """See ``engine.context.Work``."""
        return self.site.stores.values()

    def __str__(self) -> str:
        return str(self.site)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What one partition's replicas let go."""

    local_starts: tuple[tuple[int, int], ...]
    """Broker and its local start offset now."""
    deleted: int
    """Names deleted, registers included."""
    deleted_bytes: int
    failed: tuple[tuple[int, StratalogError], ...]


def wanted_log_start(work: RetainWork) -> int:
    """The task of step 1: from where on total retention keeps the partition."""
    leader = work.site.leader
    log = leader.log()
    check_whole(leader, log)
    if work.snapshots:
        return work.site.view.log_start_offset
    start = max(work.site.view.log_start_offset, 0 if work.tiered else log.local_start)
    extents = [extent for extent in work.remote if extent.end > start]
    covered = extents[-1].end if extents else start
    extents += [e for e in local_extents(leader, log, work.total) if e.end > covered]
    return max(start, min(retained_from(extents, work.total, work.clock.now_ms()) or 0, log.high_watermark))


def local_extents(replica: Replica, log: ReplicaLog, limits: RetentionLimits) -> list[Extent]:
    """The files of a replica's log; their timestamps are looked up only where a limit asks for them."""

    def latest_ms(index: int) -> int:
        if limits.retention_ms == UNLIMITED:
            return 0
        return read_segment(replica.store, log.chain[index].file).footer.latest_ms

    return [
        Extent(link.start, link.end, link.file.object.size_bytes, latest_ms(index))
        for index, link in enumerate(log.chain)
    ]


def drop(work: RetainWork) -> Dropped:
    """The task of step 4, for every replica whose root can be reached."""
    starts: list[tuple[int, int]] = []
    failed: list[tuple[int, StratalogError]] = []
    deleted = deleted_bytes = 0
    for broker in work.site.view.replicas:
        if work.site.view.brokers[broker].fenced:
            continue
        try:
            replica = work.site.replica(broker)
            start, names, size = while_it_changes(lambda: _drop_on(work, replica))  # noqa: B023 - called at once
        except StratalogError as error:
            failed.append((broker, error))
            continue
        starts.append((broker, start))
        deleted += len(names)
        deleted_bytes += size
    return Dropped(tuple(starts), deleted, deleted_bytes, tuple(failed))


def _drop_on(work: RetainWork, replica: Replica) -> tuple[int, list[str], int]:
    log = replica.log()
    check_whole(replica, log)
    start = local_start_for(log, _wanted_local_start(work, replica, log))
    if start > log.local_start and not work.dry_run:
        producers = next(
            read_segment(replica.store, link.file).footer.producers for link in log.chain if link.end == start
        )
        replica.store.create(replica.path(LocalStartName(start)), encode(producers))
    names = removable(log, work.clock.now_ms(), work.delay_ms)
    sizes = {str(file.name): file.object.size_bytes for file in log.listing.data}
    if names and not work.dry_run:
        replica.store.delete([replica.path(name) for name in names])
    return start, names, sum(sizes.get(name, 0) for name in names)


def _wanted_local_start(work: RetainWork, replica: Replica, log: ReplicaLog) -> int:
    log_start = work.site.view.log_start_offset
    if work.snapshots:
        if log_start <= log.local_start:
            return log.local_start
        with blaming(replica):
            held = latest_snapshot(replica, log)
        return follower_start_offset(log.local_start, log_start, [] if held is None else [held.snapshot_id])
    if not work.tiered:
        return log_start
    by_limits = retained_from(local_extents(replica, log, work.local), work.local, work.clock.now_ms()) or 0
    return max(min(by_limits, work.remote_end), log_start)


def retain(
    context: Context, topics: Sequence[str] | None = None, *, dry_run: bool = False, sweep: bool = False
) -> Report:
    """Apply retention to the topics (all when None). ``sweep`` also deletes the folders of deleted topics
    and of former incarnations of replicas, which takes a listing of every root.

    Raises: UnknownTopicOrPartitionError; everything else is a failure of its partition in the report.
    """
    failures: list[Failure] = []
    rows: dict[PartitionKey, dict[str, Value]] = {}
    with context.measured() as measure:
        image = context.metadata.image()
        chosen = context.topics(image, topics)
        works = _plan(context, image, chosen, dry_run, failures)
        sound = {work.site.view.topic_id for work in works}  # what failed by now is not tried again below
        chosen = [topic for topic in chosen if topic.topic_id in sound]
        log_starts = _log_starts(context, works, failures)
        if not dry_run and log_starts:
            image = _commit_log_starts(context, works, log_starts, failures)
        removed = _expire_remote(context, image, chosen, log_starts, dry_run, failures)
        works = _plan(context, image, chosen, dry_run, [])
        context.progress.start("retain", len(works), "partitions")
        for outcome in context.tasks.run(drop, works):
            size_bytes = 0
            match outcome:
                case Done(work, dropped):
                    rows[_key(work)] = _row(work, dropped, log_starts, removed)
                    size_bytes = dropped.deleted_bytes
                    failures += [Failure.of(f"{work} on broker {b}", error) for b, error in dropped.failed]
                case Failed(work, error):
                    failures.append(Failure.of(work, error))
            context.progress.advance(size_bytes)
        context.progress.finish()
        swept = sweep_roots(context, failures, dry_run) if sweep else 0
    return Report(
        operation="retain",
        rows=sorted(rows.values(), key=lambda row: (str(row["topic"]), row["partition"])),
        failures=list({(failure.item, failure.code, failure.message): failure for failure in failures}.values()),
        totals={
            "deleted_bytes": sum(int(row["deleted_bytes"] or 0) for row in rows.values()),
            "swept_files": swept,
        },
        dry_run=dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
    )


def _key(work: RetainWork) -> PartitionKey:
    return work.site.view.topic_id, work.site.view.partition


def _plan(
    context: Context,
    image: ClusterImage,
    topics: Iterable[TopicImage],
    dry_run: bool,
    failures: list[Failure],
) -> list[RetainWork]:
    works = []
    for topic in topics:
        config = context.topic_config(image, topic)
        try:
            remote = _safely_remote(context, topic, config)
        except StratalogError as error:
            failures.append(Failure.of(topic.name, error))
            continue
        works += [
            RetainWork(
                site=context.site(view),
                total=config.retention,
                local=config.local_retention,
                tiered=remote is not None,
                remote=() if remote is None else remote.get(view.partition, ()),
                delay_ms=config.file_delete_delay_ms,
                clock=context.clock,
                dry_run=dry_run,
                snapshots=config.snapshots,
            )
            for view in image.views(topic.name)
        ]
    return works


def _safely_remote(
    context: Context, topic: TopicImage, config: TopicConfig
) -> dict[int, tuple[Extent, ...]] | None:
    """Per partition what the table lists and the store holds at its size, up to the first that is missing."""
    if not config.remote_storage_enable:
        return None
    table = context.remote_table(topic)
    remote = table.load()
    missing = {segment.path for segment in table.missing_objects(remote)}
    safe: dict[int, tuple[Extent, ...]] = {}
    for partition, segments in remote.segments.items():
        extents: list[Extent] = []
        for segment in segments:
            if segment.path in missing:
                break
            extents.append(segment.extent)
        safe[partition] = tuple(extents)
    return safe


def _log_starts(context: Context, works: Sequence[RetainWork], failures: list[Failure]) -> dict[PartitionKey, int]:
    """Step 1: the log starts that grow."""
    grown: dict[PartitionKey, int] = {}
    for outcome in context.tasks.run(wanted_log_start, works):
        match outcome:
            case Done(work, start):
                if start > work.site.view.log_start_offset:
                    grown[_key(work)] = start
            case Failed(work, error):
                failures.append(Failure.of(work, error))
    return grown


def _commit_log_starts(
    context: Context, works: Iterable[RetainWork], log_starts: dict[PartitionKey, int], failures: list[Failure]
) -> ClusterImage:
    """Step 2. What is refused leaves ``log_starts``."""
    epochs = {_key(work): work.site.view.leader_epoch for work in works}
    wanted = tuple(LogStart(*key, start, epochs[key]) for key, start in log_starts.items())
    for answer in context.metadata.submit(AdvanceLogStart(wanted)):
        if isinstance(answer, Refused):
            del log_starts[answer.topic_id, answer.partition]
            failures.append(Failure.of(f"{answer.topic_id}-{answer.partition}", answer.error))
    return context.metadata.image()


def _expire_remote(
    context: Context,
    image: ClusterImage,
    topics: Iterable[TopicImage],
    log_starts: dict[PartitionKey, int],
    dry_run: bool,
    failures: list[Failure],
) -> dict[PartitionKey, int]:
    """Step 3; how many remote segments of each partition went."""
    removed: dict[PartitionKey, int] = {}
    for topic in topics:
        if topic.topic_id not in image.topics:
            continue
        config = context.topic_config(image, topic)
        if not config.remote_storage_enable:
            continue
        try:
            table = context.remote_table(topic)
            remote: RemoteLog = table.load()
            starts = {
                view.partition: max(
                    view.log_start_offset, log_starts.get((view.topic_id, view.partition), 0) if dry_run else 0
                )
                for view in image.views(topic.name)
            }
            gone = expired_segments(remote, starts)
            for segment in gone:
                key = topic.topic_id, segment.partition
                removed[key] = removed.get(key, 0) + 1
            if not dry_run:
                if gone:
                    table.commit((), gone)
                table.vacuum(config.file_delete_delay_ms)
        except StratalogError as error:
            failures.append(Failure.of(topic.name, error))
    return removed


def _row(
    work: RetainWork,
    dropped: Dropped,
    log_starts: dict[PartitionKey, int],
    removed: dict[PartitionKey, int],
) -> dict[str, Value]:
    view = work.site.view
    return {
        "topic": view.topic,
        "partition": view.partition,
        "log_start": log_starts.get(_key(work), view.log_start_offset),
        "local_starts": " ".join(f"{broker}:{start}" for broker, start in dropped.local_starts),
        "remote_removed": removed.get(_key(work), 0),
        "deleted_files": dropped.deleted,
        "deleted_bytes": dropped.deleted_bytes,
    }

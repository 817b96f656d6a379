"""Compact: removes each record whose key has a later record (cleanup.policy=compact). The remaining records keep
their offsets.

    1. tasks: list each leader, and find its dirty files; or find that its last rule has not been applied
       everywhere (``compaction``)
    2. one commit adds the next removal rule for each partition that is due (``partitions.removal``)
    3. the remote segments of tiered partitions are rewritten by the rule (``compact_remote``)
    4. if the remote log of a partition follows the rule, the rule is applied to the leader's files, and the
       followers copy the new files

If a run ends after the commit, the next run does the rest of the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from stratalog.engine.driver.compared_clocks import compared_clocks
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.planned import Planned
from stratalog.engine.driver.remote_quota import copy_throttle
from stratalog.engine.driver.report import Report
from stratalog.engine.driver.run import NOT_DONE, OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.turns import Over
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import chosen_partitions, cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_commands import AddRules, WantedRule
from stratalog.engine.metadata.protection import Now, is_protected
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.erasing import not_erased
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import BoundedWork
from stratalog.engine.replication.removal import check_follows, members_behind, remove_records
from stratalog.engine.upkeep.replication.compact_estimate import (
    PlannedRemoval,
    plan_removal,
    send_commits_of_table,
    send_removal,
)
from stratalog.engine.upkeep.replication.compact_remote import RemoteTables
from stratalog.partitions.agreed_time import agreed_ms, stamp_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.erasure import is_erased
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.removal import carried_out, to_rewrite
from stratalog.partitions.replica import errors_of
from stratalog.partitions.rewrites.compaction import Cleanable, CompactionPolicy, cleanable
from stratalog.partitions.rewrites.merge import MergePolicy
from stratalog.partitions.rewrites.removing import Removed, RemovingOptions
from stratalog.partitions.runner import Runner
from stratalog.partitions.transactions import transactions_of
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removing import NOTHING_REMOVED, RemovedRemotely

MEMORY_BYTES = 128 * 1024 * 1024
"""The memory of a task for keys, like Kafka's log.cleaner.dedupe.buffer.size. Keys that do not fit are written to
files.
"""
NO_TIME = "the clocks disagree, so nothing is compacted"
ERASING = "an erasure is unfinished: run `stratalog erase` again, without keys"
NOT_GIVEN_UP = "the topic is no longer tiered, but its remote segments have not been removed: run retain first"
PROTECTED = "the topic is protected (protect.until.ms), so no records are removed"


@dataclass(frozen=True, slots=True)
class CompactWork(BoundedWork):
    """One partition. ``most`` is the maximum number of segments to make."""

    merging: MergePolicy
    policy: CompactionPolicy
    compression: str
    clock: Clock
    copies: Runner
    segments: tuple[RemoteSegment, ...] = ()
    recorded: int | None = None
    """The generation of the rule that the remote log follows; None if the topic is not tiered."""
    unerased: bool = False
    """Whether the remote log may have records that the last erasure names."""

    @property
    def until(self) -> int | None:
        """The greatest bound that a rule may have; None: no limit. The remote log must hold everything that a rule
        covers. So it has the last record of each key below the bound, for readers of the table and for a restore.
        Without this limit, a restored cluster would adopt a rule whose bound is above its log end.
        """
        if self.recorded is None:
            return None
        return self.segments[-1].next_offset if self.segments else 0

    @property
    def options(self) -> RemovingOptions:
        return RemovingOptions(
            segment_bytes=self.merging.segment_bytes,
            compression=self.compression,
            memory_bytes=MEMORY_BYTES,
            most=self.most,
            erasures=self.replicas.view.erasures,
        )


@dataclass(frozen=True, slots=True)
class Dirty:
    """The compaction that a leader's log needs, if any."""

    found: Cleanable
    wanted: WantedRule | None = None
    """The next rule, if a rule is due."""
    is_unfinished: bool = False
    """Whether the current rule has not been applied everywhere."""
    why: str | None = None


@dataclass(frozen=True, slots=True)
class CompactResult:
    """The segments made, and the number of remaining segments."""

    removed: Removed = Removed()  # noqa: RUF009 - immutable
    left: int = 0

    @property
    def moved_bytes(self) -> int:
        return self.removed.written_bytes

    def after(self, before: CompactResult) -> CompactResult:
        was, now = before.removed, self.removed
        removed = Removed(
            segments=was.segments + now.segments,
            files=was.files + now.files,
            gaps=was.gaps + now.gaps,
            read_bytes=was.read_bytes + now.read_bytes,
            written_bytes=was.written_bytes + now.written_bytes,
            keyless=max(was.keyless, now.keyless),  # the first part has counted the records of all parts
        )
        return CompactResult(removed, self.left)


class CompactRow(PartitionRow, frozen=True, kw_only=True):
    """A partition. ``removed`` is the number of offsets without a record in the rewritten segments."""

    dirty_ratio: float | None
    segments: int
    files: int
    removed: int
    read_bytes: int
    written_bytes: int
    remote_segments: int
    remote_removed: int
    """Like ``removed``, for the remote tier."""
    remote_read_bytes: int
    remote_written_bytes: int
    why: str | None


def look_at_log(work: CompactWork) -> Dirty:
    """The task of step 1. Raises: errors from listing the leader, or a member of its ISR."""
    return while_it_changes(lambda: _look(work))


def _look(work: CompactWork) -> Dirty:
    replicas = work.replicas
    view, leader = replicas.view, replicas.leader
    log = look_at_leader(replicas)
    transactions = transactions_of(log, leader.footer)
    now_ms = agreed_ms(work.clock, leader.store)
    seen_ms = work.clock.now_ms() if now_ms is None else now_ms
    with errors_of(leader):
        found = cleanable(
            log,
            work.merging,
            work.policy,
            transactions,
            seen_ms,
            leader.footer,
            cold=(segment.extent for segment in work.segments if segment.base_offset < log.local_start),
            compacted_to=view.compacted_to,
            until=work.until,
        )
    if work.recorded is None and view.log_start_offset < log.local_start:
        return Dirty(found, why=NOT_GIVEN_UP)
    if view.rules:
        last = view.rules[-1].rule
        behind = work.recorded is not None and work.recorded < last.generation
        if behind or not carried_out(log, last) or members_behind(replicas, last):
            return Dirty(found, is_unfinished=True)
    if work.unerased or not is_erased(log, view.erasures) or not_erased(replicas):
        return Dirty(found, why=ERASING)
    if now_ms is None:
        return Dirty(found, why=NO_TIME)
    if not found.is_due(work.policy, now_ms):
        waits = work.until is not None and found.bound >= work.until
        only = "; records are compacted once they are in the remote tier" if waits else ""
        return Dirty(found, why=found.why_not(work.merging, work.policy) + only)
    wanted = WantedRule(
        topic_id=view.topic_id,
        partition=view.partition,
        bound=found.bound,
        after=view.generation,
        leader_epoch=view.leader_epoch,
        now_ms=now_ms,
        committed_ms=stamp_ms(work.clock, leader.store),
        delete_retention_ms=work.policy.delete_retention_ms,
        partition_epoch=view.partition_epoch,
    )
    return Dirty(found, wanted)


def compact_partition(work: CompactWork) -> CompactResult:
    """The task of step 4: apply the last rule of the view. Raises: see ``remove_records`` and ``check_follows``;
    the error of a member of the ISR that could not be reached.
    """
    return while_it_changes(lambda: _compact(work))


def _compact(work: CompactWork) -> CompactResult:
    rule = work.replicas.view.rules[-1].rule
    check_follows(work.replicas, work.recorded, rule.generation)
    done = remove_records(work.replicas, rule, work.options, work.copies)
    if done.missed:
        raise next(iter(done.missed.values()))
    left = len(to_rewrite(work.replicas.leader.log(), rule)) if work.most is not None else 0
    return CompactResult(done.removed, left)


def compact(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    *,
    only: Collection[TopicIdPartition] | None = None,
    over: Over | None = None,
    dry_run: bool = False,
) -> Report:
    """Compact the due partitions of topics with cleanup.policy=compact; with ``only``, just the due partitions in
    ``only``. ``over``: see ``merge``.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for a named topic with another policy; errors from
        reading and writing the metadata. Any other error is a failure of its partition in the report.
    """
    with execution.run("compact", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        now_ms = cache(lambda: compared_clocks(storage, execution.clock, image).agreed_ms)
        planned, protected = _plan(storage, execution.clock, image, topics, only, now_ms)
        tables = RemoteTables(metadata, storage, run, copy_throttle(execution, cluster_config_of(image)))
        works = _with_remote(tables, image, planned)
        run.add(_row(view, None, Removed(), PROTECTED) for view in protected)
        looked = {work.replicas.view.key: seen for work, seen in run.each(look_at_log, list(works.values()))}
        wanted = {key: seen.wanted for key, seen in looked.items() if seen.wanted is not None}
        ruled = run.commit(
            metadata,
            AddRules(tuple(wanted.values())),
            {key: works[key].replicas.view for key in wanted},
        )
        due = [key for key, seen in looked.items() if seen.is_unfinished or key in ruled]
        done: dict[TopicIdPartition, CompactResult] = {}
        if dry_run:
            done = _plan_removals(tables, sends, image, works, AddRules(tuple(wanted.values())), due)
            run.estimate = sends.estimate()
        elif due:
            image = metadata.image()
            again = [
                replace(works[key], replicas=storage.replicas(image.view(*key)))
                for key in due
                if key.topic_id in image.topics and not is_protected(image, key.topic_id, now_ms)
            ]
            tiered = [work for work in again if work.recorded is not None]
            carried = tables.carry_out(
                [tables.work(work, work.replicas.view.rules[-1].rule, work.options) for work in tiered], over
            )
            again = [
                work
                if work.recorded is None
                else replace(work, recorded=tables.generation(work.replicas.view.key))
                for work in again
                if work.recorded is None or work.replicas.view.key in carried
            ]
            finished = _carry_out(metadata, storage, run, again, over)
            done = {work.replicas.view.key: result for work, result in finished}
            run.notes += [
                f"{work.replicas}: removed records without a key, written before compaction was enabled: "
                f"{keyless:,}"
                for work, result in finished
                if (keyless := max(result.removed.keyless, tables.figures_of(work.replicas.view.key).keyless))
            ]
        idle = {key: seen for key, seen in looked.items() if key not in due and key not in wanted}
        run.settle(
            (works[key].replicas.view, 0 if seen.why == NO_TIME else seen.found.next_ms)
            for key, seen in idle.items()
        )
        run.add(
            _row(
                works[key].replicas.view,
                seen,
                done.get(key, CompactResult()).removed,
                seen.why,
                tables.figures_of(key),
            )
            for key, seen in looked.items()
        )
    run.fill((work.replicas.view for work in planned.values()), lambda view: _row(view, None, Removed(), NOT_DONE))
    run.total("segments", "removed", "remote_segments", "remote_removed")
    return run.report()


def _plan_removals(
    tables: RemoteTables,
    sends: Planned,
    image: ClusterImage,
    works: Mapping[TopicIdPartition, CompactWork],
    command: AddRules,
    due: Collection[TopicIdPartition],
) -> dict[TopicIdPartition, CompactResult]:
    """The planned results and the requests of a dry run, which assumes that the rules are committed."""
    after = command.decide(image).image_after(image)
    planned = [replace(works[key], replicas=sends.storage.replicas(after.view(*key))) for key in due]
    done: dict[TopicIdPartition, CompactResult] = {}
    for work, found in tables.run.each(plan_work, planned):
        key = work.replicas.view.key
        tiered = work.recorded is not None
        send_removal(sends, image.topics[key.topic_id], work.replicas, found, tiered=tiered)
        done[key] = CompactResult(
            Removed(segments=len(found.sizes), files=found.files, read_bytes=sum(found.sizes))
        )
        tables.figures[key] = RemovedRemotely(made=len(found.remote), read_bytes=sum(found.remote))
    if done:
        sends.send_look(image, times=2)
    if command.wanted:
        sends.send_commit(image)
    for _ in {key.topic_id for key in done if works[key].recorded is not None}:
        send_commits_of_table(sends)
    return done


def plan_work(work: CompactWork) -> PlannedRemoval:
    """The task of a dry run. Raises: see ``plan_removal``."""
    return plan_removal(work.replicas, work.merging.segment_bytes, work.segments)


def _carry_out(
    metadata: MetadataClient, storage: Storage, run: OperationRun, works: Sequence[CompactWork], over: Over | None
) -> list[tuple[CompactWork, CompactResult]]:
    """Step 4. Failed work is repeated once if its partition has changed meanwhile, because a member that has left
    the ISR may lack records although it is intact. Returns the works that succeeded, with their results; all other
    works are failures.
    """
    finished, failed = run.in_turns(compact_partition, _present(metadata, storage, works), over)
    outdated = _present(metadata, storage, [one.item for one in failed])
    changed = {
        work.replicas.view.key
        for one, work in zip(failed, outdated, strict=True)
        if work.replicas.view.partition_epoch != one.item.replicas.view.partition_epoch
    }
    again, still = run.in_turns(
        compact_partition, [work for work in outdated if work.replicas.view.key in changed], over
    )
    for one in (*(one for one in failed if one.item.replicas.view.key not in changed), *still):
        run.fail(one.item, one.error)
    return [*finished, *again]


def _present(metadata: MetadataClient, storage: Storage, works: Sequence[CompactWork]) -> list[CompactWork]:
    """The works of step 4 under the current views. Works of deleted topics keep the old view."""
    image = metadata.image() if works else None
    return [
        replace(work, replicas=storage.replicas(image.view(*work.replicas.view.key)), segments=())
        if image is not None and work.replicas.view.topic_id in image.topics
        else work
        for work in works
    ]


def _plan(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    topics: Sequence[str] | None,
    only: Collection[TopicIdPartition] | None,
    now_ms: Now,
) -> tuple[dict[TopicIdPartition, CompactWork], list[PartitionView]]:
    """The work by partition, and the partitions of protected topics. Protected topics get no work, because the
    rule of one protected topic would make the metadata refuse the commit of all rules (``protection``).
    """
    works: dict[TopicIdPartition, CompactWork] = {}
    protected: list[PartitionView] = []
    for topic, views in chosen_partitions(image, topics, only):
        config = topic_config_of(image, topic)
        if not config.compacts:
            if topics is not None:
                raise InvalidCallError(
                    f"topic {topic.name!r} is not compacted: set its cleanup.policy to compact first"
                )
            continue
        if is_protected(image, topic.topic_id, now_ms):
            protected += views
            continue
        works |= {
            view.key: CompactWork(
                replicas=storage.replicas(view),
                merging=config.merging,
                policy=config.compaction,
                compression=config.compression_type,
                clock=clock,
                copies=storage.copies,
            )
            for view in views
        }
    return works, protected


def _with_remote(
    tables: RemoteTables, image: ClusterImage, works: Mapping[TopicIdPartition, CompactWork]
) -> dict[TopicIdPartition, CompactWork]:
    """The works with their remote segments. If a remote log cannot be read, or follows a rule that the metadata
    lacks, the work is left out, with a failure.
    """
    unread = tables.open(image, [image.topics[topic_id] for topic_id in dict.fromkeys(key[0] for key in works)])
    found: dict[TopicIdPartition, CompactWork] = {}
    for key, work in works.items():
        if (log := tables.logs.get(key.topic_id)) is not None:
            segments = log.of_partition(key.partition)
            unerased = bool(segments) and log.lacks_erasure(key.partition, work.replicas.view.last_erasure)
            recorded = log.generation(key.partition)
            work = replace(work, segments=segments, recorded=recorded, unerased=unerased)
            if error := tables.unknown_rule(work.replicas, log):
                tables.run.fail(work, error)
                continue
        if key.topic_id not in unread:
            found[key] = work
    return found


def _row(
    view: PartitionView,
    seen: Dirty | None,
    removed: Removed,
    why: str | None,
    remote: RemovedRemotely = NOTHING_REMOVED,
) -> CompactRow:
    return CompactRow(
        topic=view.topic,
        partition=view.partition,
        dirty_ratio=None if seen is None else round(seen.found.dirty_ratio, 3),
        segments=removed.segments,
        files=removed.files,
        removed=removed.gaps,
        read_bytes=removed.read_bytes,
        written_bytes=removed.written_bytes,
        remote_segments=remote.segments,
        remote_removed=remote.gaps,
        remote_read_bytes=remote.read_bytes,
        remote_written_bytes=remote.written_bytes,
        why=why,
    )

"""Merge: merges small appends into segments, on the leaders. Followers copy the segments in the next sync.

Every page is checked when it is read. A leader with damaged storage resigns, and its successor merges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.planned import Planned, reads_to_rewrite, uploads
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import NOT_DONE, OperationRun, PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.turns import Over
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import chosen_partitions, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.damaged import under_others
from stratalog.engine.replicas.foreign_files import under_present_rules
from stratalog.engine.replication.later_rule import check_rules_known
from stratalog.engine.replication.leader import leader_log, look_at_leader
from stratalog.engine.replication.partition import BoundedWork
from stratalog.engine.upkeep.tiering.remote_logs import ask_for_logs
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import RetriableError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.replica import LookMark, errors_of
from stratalog.partitions.rewrites.merge import MergePolicy, next_merge_ms, plan_merges, why_not_merged
from stratalog.partitions.rewrites.rewrite import merge_run
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.transactions import transactions_of


@dataclass(frozen=True, slots=True)
class MergeWork(BoundedWork):
    """Merge one partition on its leader. ``from_offset`` is the end of the remote log, which no merge crosses.
    ``most`` is the maximum number of segments to make."""

    policy: MergePolicy
    from_offset: int
    compression: str
    clock: Clock
    dry_run: bool = False
    since: LookMark | None = None
    """A listing made after this mark may be used to decide that there is nothing to merge."""


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of merges: new segments, replaced files, bytes written, and the number of remaining segments."""

    segments: int
    files: int
    read_bytes: int
    written_bytes: int
    left: int
    next_ms: int
    """If nothing was merged: the time (ms) before which an unchanged log has nothing to merge."""
    why: str | None

    @property
    def moved_bytes(self) -> int:
        return self.written_bytes

    def after(self, before: MergeResult) -> MergeResult:
        return replace(
            self,
            why=before.why,
            segments=before.segments + self.segments,
            files=before.files + self.files,
            read_bytes=before.read_bytes + self.read_bytes,
            written_bytes=before.written_bytes + self.written_bytes,
        )


class MergeRow(PartitionRow, frozen=True, kw_only=True):
    segments: int
    files: int
    read_bytes: int
    written_bytes: int
    why: str | None


def merge_partition(work: MergeWork) -> MergeResult:
    """Merge one partition. If another run has merged files in the meantime, the merge is planned again.

    Raises: LaterRuleError when files were rewritten by a rule that the view lacks. A merge would then use the
    replaced files, whose records may be erased, or report deleted files as damage of the leader.
    """
    if work.since is not None:
        with suppress(StratalogError):  # the next listing reports the error
            planned = _merge_once(replace(work, dry_run=True))
            if not planned.segments:
                return planned
        work = replace(work, since=None)
    return while_it_changes(lambda: _merge_once(work))


def _merge_once(work: MergeWork) -> MergeResult:
    log = look_at_leader(work.replicas, since=work.since) if work.dry_run else leader_log(work.replicas)
    now_ms = work.clock.now_ms()
    transactions = transactions_of(log, work.replicas.leader.footer, work.from_offset)
    at, compacted_to = work.from_offset, work.replicas.view.compacted_to
    planned = plan_merges(log, work.policy, at, now_ms, transactions, compacted_to=compacted_to)
    runs = planned[: work.most]
    written = 0
    if runs and not work.dry_run:
        check_rules_known(work.replicas, log.listing, runs[0].start)
    for run in runs:
        if not work.dry_run:
            with errors_of(work.replicas.leader):
                written += merge_run(work.replicas.leader, run, compression=work.compression) or 0
    return MergeResult(
        segments=len(runs),
        files=sum(len(run.links) for run in runs),
        read_bytes=sum(run.size_bytes for run in runs),
        written_bytes=written,
        left=len(planned) - len(runs),
        next_ms=next_merge_ms(log, work.policy, now_ms),
        why=None
        if planned
        else why_not_merged(log, work.policy, at, now_ms, transactions, compacted_to=compacted_to),
    )


def plan(
    storage: Storage,
    clock: Clock,
    image: ClusterImage,
    topics: Sequence[str] | None,
    only: Collection[TopicIdPartition] | None,
    dry_run: bool,
    run: OperationRun,
) -> list[MergeWork]:
    """The work for each partition. A topic whose remote log is damaged is a failure, and is not merged.

    Raises: UnknownTopicOrPartitionError.
    """
    works = []
    chosen = chosen_partitions(image, topics, only)
    ends = _remote_ends(storage, image, [topic for topic, _ in chosen], run)
    for topic, views in chosen:
        if topic.topic_id not in ends:
            continue
        config = topic_config_of(image, topic)
        works += [
            MergeWork(
                replicas=storage.replicas(view),
                policy=config.merging_on_brokers,
                from_offset=max(ends[topic.topic_id].get(view.partition, 0), view.log_start_offset),
                compression=config.compression_type,
                clock=clock,
                dry_run=dry_run,
            )
            for view in views
        ]
    return works


def _remote_ends(
    storage: Storage, image: ClusterImage, topics: Sequence[TopicImage], run: OperationRun
) -> dict[str, dict[int, int]]:
    """The ends of remote logs by topic id and partition. While the remote tier is down, the end that the last tier
    run stored is used, because appends continue and their files must be merged. If the actual end is later, a new
    segment may extend across it. Such a segment is cut at the actual end before its upload (protocol, section 4,
    "Merge").
    """
    ends: dict[str, dict[int, int]] = {topic.topic_id: {} for topic in topics}
    down: set[str] = set()
    for outcome in ask_for_logs(storage, image, topics):
        match outcome:
            case Done(topic, remote):
                ends[topic.topic_id] = {p: found[-1].next_offset for p, found in remote.segments.items()}
            case Failed(topic, RetriableError() as error):
                down.add(topic.topic_id)
                message = f"{error}; merged only records after the last known end of the remote log"
                run.failures.append(Failure(topic.name, error.code, message))
            case Failed(topic, error):
                run.fail(topic.name, error)
                del ends[topic.topic_id]
    entries = load_schedule(storage, image).schedule.entries if down else {}
    for (topic_id, partition), entry in entries.items():
        if topic_id in down and entry.remote_end is not None:
            ends[topic_id][partition] = entry.remote_end
    return ends


def merge(
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
    """Merge due files in the topics (None: all; only the partitions in ``only``, if given). Partitions that this
    process has listed after ``since`` are listed again only if there is something to merge. ``over`` is checked
    after the first segment of each partition, and again after every few segments. When ``over`` returns True, the
    rest is left to the next run, and ``totals["cut_off"]`` is the number of unfinished partitions.

    Raises: UnknownTopicOrPartitionError; errors from reading the metadata. Any other error is a failure of its
    partition in the report.
    """
    with execution.run("merge", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        planned = plan(storage, execution.clock, image, topics, only, dry_run, run)
        works = [replace(work, since=since) for work in planned]
        done, failed = run.in_turns(merge_partition, works, over)
        errors = [(one.item.replicas.view, one.error) for one in failed if not dry_run]
        under = under_others(metadata, storage, errors, run) | under_present_rules(metadata, storage, errors)
        if under:
            again = [
                replace(one.item, replicas=under[key])
                for one in failed
                if (key := one.item.replicas.view.key) in under
            ]
            failed = [one for one in failed if one.item.replicas.view.key not in under]
            done_again, failed_again = run.in_turns(merge_partition, again, over)
            done, failed = done + done_again, failed + failed_again
        run.settle((work.replicas.view, result.next_ms) for work, result in done if not result.segments)
        run.failures += [Failure.of(one.item, one.error) for one in failed]
        run.add(_row(work.replicas.view, result) for work, result in done)
        if dry_run:
            for work, result in done:
                _send(sends, image, work, result)
            run.estimate = sends.estimate()
    asked = (view for _, views in chosen_partitions(image, topics, only) for view in views)
    run.fill(asked, lambda view: _row(view, MergeResult(0, 0, 0, 0, 0, 0, NOT_DONE)))
    run.total("segments")
    return run.report()


def _send(sends: Planned, image: ClusterImage, work: MergeWork, planned: MergeResult) -> None:
    """Estimate the requests of a merge. A merge reads each file, lists the leader again, checks the leader's root,
    and writes a segment of at most the size of the files.
    """
    if not planned.segments:
        return
    topic = image.topics[work.replicas.view.topic_id]
    reads = reads_to_rewrite(topic, planned.read_bytes // planned.files)
    sends.send(
        work.replicas.leader.store,
        puts=planned.segments * (1 + uploads(planned.read_bytes // planned.segments)),
        gets=planned.segments + planned.files * reads,
        moved_bytes=2 * planned.read_bytes,
    )


def _row(view: PartitionView, done: MergeResult) -> MergeRow:
    return MergeRow(
        topic=view.topic,
        partition=view.partition,
        segments=done.segments,
        files=done.files,
        read_bytes=done.read_bytes,
        written_bytes=done.written_bytes,
        why=done.why,
    )

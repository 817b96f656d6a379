"""Tier: sealed segments into the remote table (KIP-405's Remote Log Manager, step 2 of its task).

    1. tasks: upload what is due of each partition, from the earliest on; files without a commit yet
    2. driver: commit what was uploaded, per topic, in batches as uploads come in
Copy, then commit; whatever deletes looks at the commit. A crash leaves files that the next run reuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.context import Context
from engine.metadata.image import ClusterImage, TopicImage
from engine.operations.append import append_options
from engine.replication.leader import leader_log
from engine.replication.site import Site
from engine.report import Failure, Report, Value
from partitions.clock import Clock
from partitions.errors import LogGapError, StratalogError
from partitions.merge import MergePolicy, Run
from partitions.runner import Done, Failed, ThreadRunner
from partitions.store import Store
from tiering.copier import upload
from tiering.delta_table import DeltaTopicTable
from tiering.expiry import expired_segments
from tiering.plan import plan_uploads
from tiering.remote_log import RemoteLog
from tiering.remote_segment import RemoteSegment, Uploaded

UPLOAD_THREADS = 4
_COMMIT_FILES = 1000


@dataclass(frozen=True, slots=True)
class TierWork:
    """Upload what is due of one partition."""

    site: Site
    remote: Store
    folder: str
    segments: tuple[RemoteSegment, ...]
    """What is remote of the partition already: its last segment."""
    policy: MergePolicy
    compression: str
    clock: Clock
    dry_run: bool

    def stores_used(self) -> Iterable[Store]:
        """See ``engine.context.Work``."""
        return [*self.site.stores.values(), self.remote]

    def __str__(self) -> str:
        return str(self.site)


@dataclass(frozen=True, slots=True)
class TierResult:
    """What was uploaded, contiguous from the end of the remote log on; ``failed`` is what stopped it."""

    uploads: tuple[Uploaded, ...]
    planned_bytes: int
    pending_bytes: int
    """Bytes of the log that are not sealed yet, or not committed."""
    failed: StratalogError | None = None


def upload_partition(work: TierWork) -> TierResult:
    """The task. Uploads run side by side; what counts is what follows the remote log without a gap."""
    log = leader_log(work.site)
    plan = plan_uploads(
        log,
        work.segments,
        log_start=work.site.view.log_start_offset,
        policy=work.policy,
        now_ms=work.clock.now_ms(),
        what=str(work.site),
    )
    pending = sum(link.file.object.size_bytes for link in log.chain if link.start >= plan.end)
    if work.dry_run:
        return TierResult((), plan.size_bytes, pending)

    def one(run: Run) -> Uploaded:
        return upload(work.site.leader, run, work.remote, work.folder, compression=work.compression)

    done: dict[int, Uploaded] = {}
    failed: StratalogError | None = None
    for outcome in ThreadRunner(UPLOAD_THREADS).run(one, plan.runs):
        match outcome:
            case Done(run, value):
                done[run.start] = value
            case Failed(_, error):
                failed = failed or error
    uploads: list[Uploaded] = []
    for run in plan.runs:
        if run.start not in done:
            break
        uploads.append(done[run.start])
    return TierResult(tuple(uploads), plan.size_bytes, pending, failed)


@dataclass(slots=True)
class _TopicTiering:
    """One topic in the course of a run."""

    topic: TopicImage
    table: DeltaTopicTable
    remote: RemoteLog
    log_starts: dict[int, int]
    uploaded: list[Uploaded] = field(default_factory=list)

    def commit(self) -> None:
        """Commit what was uploaded since the last commit, and take out, in the same version, remote
        segments that a log start has passed: what is uploaded now need not follow them.
        """
        batch, self.uploaded = self.uploaded, []
        if not batch:
            return
        touched = {upload.segment.partition for upload in batch}
        passed = {partition: self.log_starts[partition] for partition in touched}
        self.table.commit(batch, expired_segments(self.remote, passed))


def tier(context: Context, topics: Sequence[str] | None = None, *, dry_run: bool = False) -> Report:
    """Tier what is due of the topics (all tiered ones when None).

    Raises: UnknownTopicOrPartitionError; everything else is a failure of its partition in the report.
    """
    rows: list[dict[str, Value]] = []
    failures: list[Failure] = []
    with context.measured() as measure:
        image = context.metadata.image()
        states: dict[str, _TopicTiering] = {}
        works: list[TierWork] = []
        for topic in context.topics(image, topics):
            if not context.topic_config(image, topic).remote_storage_enable:
                continue
            try:
                state = states[topic.topic_id] = _open(context, image, topic, dry_run)
                works += _plan(context, image, state, dry_run)
            except StratalogError as failure:
                failures.append(Failure.of(topic.name, failure))
        context.progress.start("tier", len(works), "partitions")
        stale = _upload(context, works, states, rows, failures)
        if stale:
            works = _planned_again(context, states, stale, failures)
            for work, error in _upload(context, works, states, rows, failures):
                failures.append(Failure.of(work, error))
        context.progress.finish()
        for state in states.values():
            _commit(state, failures)
    return Report(
        operation="tier",
        rows=sorted(rows, key=lambda row: (str(row["topic"]), row["partition"])),
        failures=failures,
        totals={
            "uploaded_files": sum(int(row["uploaded_files"] or 0) for row in rows),
            "uploaded_bytes": sum(int(row["uploaded_bytes"] or 0) for row in rows),
        },
        dry_run=dry_run,
        seconds=measure.seconds,
        counts=measure.counts,
    )


def _upload(
    context: Context,
    works: Sequence[TierWork],
    states: dict[str, _TopicTiering],
    rows: list[dict[str, Value]],
    failures: list[Failure],
) -> list[tuple[TierWork, LogGapError]]:
    """Upload, and commit what is much. Returns the partitions in which offsets seem to be missing."""
    gaps: list[tuple[TierWork, LogGapError]] = []
    for outcome in context.tasks.run(upload_partition, works):
        size_bytes = 0
        match outcome:
            case Failed(work, LogGapError() as error):
                gaps.append((work, error))
                continue
            case Failed(work, error):
                failures.append(Failure.of(work, error))
            case Done(work, result):
                state = states[work.site.view.topic_id]
                state.uploaded += result.uploads
                size_bytes = sum(upload.copied_bytes for upload in result.uploads)
                rows.append(_row(work, result))
                if result.failed is not None:
                    failures.append(Failure.of(work, result.failed))
                if len(state.uploaded) >= _COMMIT_FILES:
                    _commit(state, failures)
        context.progress.advance(size_bytes)
    return gaps


def _planned_again(
    context: Context,
    states: dict[str, _TopicTiering],
    gaps: Sequence[tuple[TierWork, LogGapError]],
    failures: list[Failure],
) -> list[TierWork]:
    """The work on these partitions as of now: since the remote was read, another driver may have tiered what
    the leader has let go of.
    """
    wanted = {(work.site.view.topic_id, work.site.view.partition) for work, _ in gaps}
    image = context.metadata.image()
    works: list[TierWork] = []
    for topic_id in sorted({topic_id for topic_id, _ in wanted} & image.topics.keys()):
        try:
            fresh = _open(context, image, image.topics[topic_id], dry_run=True)
            states[topic_id].remote, states[topic_id].log_starts = fresh.remote, fresh.log_starts
            works += [
                work
                for work in _plan(context, image, fresh, dry_run=gaps[0][0].dry_run)
                if (topic_id, work.site.view.partition) in wanted
            ]
        except StratalogError as failure:
            failures.append(Failure.of(image.topics[topic_id].name, failure))
    return works


def _open(context: Context, image: ClusterImage, topic: TopicImage, dry_run: bool) -> _TopicTiering:
    table = context.remote_table(topic)
    if not dry_run:
        schema = append_options(topic, context.topic_config(image, topic), "all").schema
        table.ensure(schema)
    remote = table.load()
    views = image.views(topic.name)
    return _TopicTiering(topic, table, remote, {view.partition: view.log_start_offset for view in views})


def _plan(context: Context, image: ClusterImage, state: _TopicTiering, dry_run: bool) -> list[TierWork]:
    config = context.topic_config(image, state.topic)
    return [
        TierWork(
            site=context.site(view),
            remote=state.table.remote,
            folder=state.table.folder,
            segments=state.remote.of_partition(view.partition)[-1:],
            policy=config.merging,
            compression=config.compression_type,
            clock=context.clock,
            dry_run=dry_run,
        )
        for view in image.views(state.topic.name)
    ]


def _commit(state: _TopicTiering, failures: list[Failure]) -> None:
    try:
        state.commit()
    except StratalogError as error:
        failures.append(Failure.of(state.topic.name, error))


def _row(work: TierWork, result: TierResult) -> dict[str, Value]:
    uploads = result.uploads
    end = uploads[-1].segment.next_offset if uploads else None
    if end is None and work.segments:
        end = work.segments[-1].next_offset
    return {
        "topic": work.site.view.topic,
        "partition": work.site.view.partition,
        "uploaded_files": len(uploads),
        "uploaded_bytes": sum(upload.copied_bytes for upload in uploads),
        "planned_bytes": result.planned_bytes,
        "remote_end": end,
        "pending_bytes": result.pending_bytes,
    }

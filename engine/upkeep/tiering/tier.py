"""Tier: copies sealed segments to the remote table (steps 2 and 3 of the task of KIP-405's Remote Log Manager).

1. read the list of due partitions
2. read the table of each topic on the list once
3. tasks: plan the due uploads of each partition, in order
4. tasks: upload them in turns, and commit them as they complete, per topic and batch (``uploads``). If the bytes
   of a leader differ from the bytes that were written, the leader resigns, and steps 3 and 4 are repeated with its
   successor
5. update the list: for each partition, the time when it is due next, its failures, and the time of the first
   failure

Segments are copied, then committed, and only then are local files deleted. After a crash, the next run reuses the
copies. (``retain`` does step 1 of KIP-405's task, the deletion.)

While the remote tier is down, every partition fails and is retried at growing intervals. Its backlog is then
computed from the last known end in the list. Nothing else waits for the remote tier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.planned import Planned, copies, reads_to_rewrite, uploads
from stratalog.engine.driver.report import Failure, Report
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.stored_schedule import places_of_copies
from stratalog.engine.metadata.chosen import chosen_topics, cluster_config_of, topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.damaged import under_others
from stratalog.engine.upkeep.tiering.iceberg import follow
from stratalog.engine.upkeep.tiering.point import describe_first
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote
from stratalog.engine.upkeep.tiering.schedule import KeptSchedule, load_schedule, save_schedule
from stratalog.engine.upkeep.tiering.state import PartitionTiering, TopicTiering, histories
from stratalog.engine.upkeep.tiering.tasks import PlanWork, plan_partition
from stratalog.engine.upkeep.tiering.uploads import Uploads
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import CorruptionError, SourceChangedError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.segments.parquet_decoding import TAIL_BYTES
from stratalog.partitions.store import Store
from stratalog.tiering.remote_log import RemoteLog

_WALKS_OF_LOG = 3
"""The number of listings of a table's log by one commit."""
_WALKS_TO_CREATE = 3


def tier(
    metadata: MetadataClient,
    storage: Storage,
    execution: Execution,
    topics: Sequence[str] | None = None,
    *,
    only: Collection[TopicIdPartition] | None = None,
    due: bool = False,
    over: Callable[[], bool] | None = None,
    dry_run: bool = False,
) -> Report:
    """Tier the due segments of the topics (None: all tiered topics; only the partitions in ``only``, if given);
    with ``due``, only partitions that are due. ``totals["next_ms"]`` is the number of milliseconds until the next
    partition is due, None if the list is empty. A note names each requested topic that is not copied. When
    ``over`` returns True, only the first upload begins; unfinished partitions are due immediately, and
    ``totals["cut_off"]`` is their number.

    Raises: UnknownTopicOrPartitionError; errors from reading the metadata. Any other error is a failure of its
    partition in the report.
    """
    with execution.run("tier", dry_run=dry_run) as run:
        sends = Planned(storage)
        image = metadata.image()
        chosen = {topic.topic_id for topic in chosen_topics(image, topics)}
        tiered = _tiered(image, chosen, run)
        run.notes += _not_copied(image, topics or (), tiered, run.failures)
        leader_epochs = {
            TopicIdPartition(topic_id, partition.partition): partition.leader_epoch
            for topic_id, of in tiered.items()
            for partition in of.topic.partitions
        }
        intervals = cluster_config_of(image).tier_intervals
        kept = load_schedule(storage, image) if tiered else KeptSchedule()
        schedule = kept.schedule.assigned(leader_epochs)
        now_ms = execution.clock.now_ms()
        entries = schedule.entries
        overdue_first = sorted(entries, key=lambda key: (entries[key].due_ms, key))
        times = schedule.due(now_ms, intervals.longest_ms) if due else overdue_first
        parts = [
            PartitionTiering(tiered[key[0]], storage.replicas(image.view(*key)), entries[key])
            for key in times
            if key[0] in chosen and (only is None or key in only)
        ]
        run.failures += describe_first(metadata, storage, image, dry_run=dry_run) if parts else []
        steps = _TierRun(metadata, storage, execution, image, parts, over, run)
        steps.open()
        steps.plan()
        run.notes += dict.fromkeys(note for of in tiered.values() for note in of.notes)
        if not dry_run:
            steps.carry_out()
            steps.follow(every=not due and only is None)
        now_ms = execution.clock.now_ms()
        after = {part.key: part.entry_after(now_ms, intervals, storage.rng.random()) for part in parts}
        if parts and not dry_run:
            why = save_schedule(storage, image, kept, leader_epochs, after)
            run.notes += [] if why is None else [f"the list of due partitions could not be stored: {why}"]
        run.add(part.row(after[part.key], now_ms) for part in parts)
        if dry_run:
            _send(sends, image, parts)
            run.estimate = sends.estimate()
        run.settled |= {part.key: part.quiet_until_ms for part in parts if part.quiet_until_ms}
        next_ms = schedule.updated(after).next_due_ms(chosen)
    run.failures += [Failure.of(part, part.error) for part in parts if part.error is not None and not part.excused]
    run.sort("topic", "partition")
    run.total("uploaded_files", "uploaded_bytes", "backlog_bytes")
    run.totals["next_ms"] = None if next_ms is None else max(0, next_ms - now_ms)
    if cut_off := 0 if dry_run else sum(part.is_cut_off for part in parts):
        run.totals["cut_off"] = cut_off
    return run.report()


def _tiered(image: ClusterImage, chosen: set[str], run: OperationRun) -> dict[str, TopicTiering]:
    """Every tiered topic of the cluster, by its id, because all tiered topics are on the list."""
    found: dict[str, TopicTiering] = {}
    for topic_id, topic in image.topics.items():
        try:
            config = topic_config_of(image, topic)
        except StratalogError as error:
            if topic_id in chosen:
                run.fail(topic.name, error)
            continue
        if config.copies_to_remote:
            found[topic_id] = TopicTiering(topic, config)
    return found


def _not_copied(
    image: ClusterImage, topics: Sequence[str], tiered: Collection[str], failures: Sequence[Failure]
) -> list[str]:
    """A note for each named topic that is not copied, with the reason."""
    failed = {failure.item for failure in failures}
    return [
        f"{topic} is not copied to the remote tier, because of remote.storage.enable or remote.log.copy.disable"
        for topic in topics
        if image.topic(topic).topic_id not in tiered and topic not in failed
    ]


def _plan_work(clock: Clock, part: PartitionTiering, whole: bool, dry_run: bool) -> PlanWork:
    log, replicas = part.of.remote, part.replicas
    remote = None if log is None else log.of_partition(replicas.view.partition)
    if log is not None:
        replicas = replicas.with_remote_log(log)
    return PlanWork(
        replicas=replicas,
        entry=part.entry,
        segments=remote if remote is None or whole else remote[-1:],
        policy=part.of.config.merging,
        lag=part.of.config.copy_lag,
        expires_ms=part.of.config.local_expires_ms,
        clock=clock,
        rule=None if log is None else _rule_of(log, replicas.view),
        dry_run=dry_run,
    )


def _rule_of(log: RemoteLog, view: PartitionView) -> Rule | None:
    """The rule that the remote log follows. If the remote log follows no rule, because tiering began later, the
    last rule in the metadata.
    """
    return log.rules.get(view.partition) or (view.rules[-1].rule if view.rules else None)


@dataclass(frozen=True, slots=True)
class _TierRun:
    """The steps of one run, over the partitions in ``parts``."""

    metadata: MetadataClient
    storage: Storage
    execution: Execution
    image: ClusterImage
    parts: Sequence[PartitionTiering]
    over: Callable[[], bool] | None
    run: OperationRun

    def carry_out(self) -> None:
        """Step 4, and its consequences."""
        self._upload(self.parts)
        self._upload_from_others()
        self._let_go()

    def open(self) -> None:
        """Step 2."""
        topics = list({part.of.topic.topic_id: part.of for part in self.parts}.values())
        for outcome in ask_remote(
            self.storage, lambda of: of.open(self.storage, dry_run=self.run.dry_run), topics
        ):
            if isinstance(outcome, Failed):
                of, of.error = outcome.item, outcome.error
                self.run.fail(of.topic.name, of.error)
                for part in self.parts:
                    if part.of is of:
                        part.error, part.excused = of.error, True

    def plan(self) -> None:
        """Step 3. If offsets seem to be missing, or belong to another history, the table is read again, and the
        plan uses all segments of the partition. Another driver may have tiered records after the table was read,
        and the leader then deleted them. Or an earlier unclean election lost tiered records.
        """
        self._plan_once(self.parts)
        gaps = [part for part in self.parts if isinstance(part.error, CorruptionError) and not part.excused]
        if not gaps:
            return
        for of in {id(part.of): part.of for part in gaps}.values():
            try:
                of.open(self.storage, dry_run=True)
            except StratalogError as error:
                self.run.fail(of.topic.name, error)
                of.error = error
        again: list[PartitionTiering] = []
        fresh = self.metadata.image()
        for part in gaps:
            part.error, part.excused = part.of.error, part.of.error is not None
            if part.key[0] in fresh.topics:
                part.replicas = self.storage.replicas(fresh.view(*part.key))
                again.append(part)
        self._plan_once(again, whole=True)

    def _plan_once(self, parts: Sequence[PartitionTiering], *, whole: bool = False) -> None:
        by_key = {part.key: part for part in parts}
        works = [_plan_work(self.execution.clock, part, whole, self.run.dry_run) for part in parts]
        for outcome in self.execution.tasks.run(plan_partition, works):
            view = outcome.item.replicas.view
            part = by_key[view.key]
            match outcome:
                case Done(_, planned):
                    part.planned = planned
                    part.next_offset = planned.plan.start
                    part.waiting = deque(() if part.error is not None else planned.plan.runs)
                case Failed(_, error):
                    part.error = part.error or error

    def _upload(self, parts: Sequence[PartitionTiering]) -> None:
        """Step 4."""
        uploads = Uploads(self.metadata, self.storage, self.execution, self.image, parts, self.over)
        self.execution.progress.start("tier", sum(len(part.waiting) for part in parts), "segments")
        uploads.run()
        self.execution.progress.finish()
        self.run.failures += uploads.failures

    def _upload_from_others(self) -> None:
        """Let leaders that were found to be damaged resign, and upload the rest from their successors. A partition
        without a successor has failed.
        """
        self._excuse_outdated()
        failed = [(part.replicas.view, part.error) for part in self.parts if part.error is not None]
        under = under_others(self.metadata, self.storage, failed, self.run)
        again = [part for part in self.parts if part.key in under]
        if not again:
            return
        for part in again:
            part.begin_again(under[part.key])
        self._plan_once(again)
        self._upload(again)

    def _excuse_outdated(self) -> None:
        """Replace the errors of logs that only seem damaged. Files of a later generation than the view's are not
        part of the log. So a log seems damaged if its files were rewritten and deleted after the run began; the
        next run copies it.
        """
        damaged = [part for part in self.parts if isinstance(part.error, CorruptionError) and not part.excused]
        image = self.metadata.image() if damaged else self.image
        for part in damaged:
            known = part.replicas.view.generation
            if part.key[0] in image.topics and image.view(*part.key).generation > known:
                part.error = SourceChangedError(
                    f"{part}: compaction or an erasure has removed records since this run began: the next run "
                    "copies the rest"
                )

    def _let_go(self) -> None:
        """Remove segments of lost histories from remote logs, unless a commit of uploads has already removed them.
        Adds a note for each remote log.
        """
        lost = [part for part in self.parts if part.planned is not None and part.planned.foreign]
        for part in lost:
            of = part.of
            if not part.committed and part.error is None and of.table is not None:
                try:
                    of.remote = of.table.commit((), (), histories(self.metadata, of, [part])).log
                except StratalogError as error:
                    part.error = error
            if part.error is None:
                self.run.notes.append(
                    f"{part}: segments of a history that was lost in an unclean election were removed from its "
                    "remote log"
                )

    def follow(self, *, every: bool) -> None:
        """Update the Iceberg tables of the remote logs that have changed; with ``every``, of all remote logs."""
        changed = [
            part.of for part in self.parts if every or part.committed or (part.planned and part.planned.foreign)
        ]
        for of in {id(of): of for of in changed if of.table is not None}.values():
            follow(self.metadata, self.storage, of.topic, of.config, self.run)


def _send(sends: Planned, image: ClusterImage, parts: Sequence[PartitionTiering]) -> None:
    """Add the requests that a dry run does not send: the uploads of these partitions, a commit for each topic, the
    restore point, and the list of due partitions. The requests that delta-rs sends for the tables are not counted.
    The numbers were counted with stores in memory.
    """
    remote = sends.storage.remote
    if not parts or remote is None:
        return
    topics = {id(part.of): part.of for part in parts if part.waiting}.values()
    new = [of for of in topics if of.remote is not None and of.remote.version < 0]
    sends.send(remote, puts=1 + bool(new))
    for of in topics:
        sends.send(remote, puts=_WALKS_OF_LOG + (_WALKS_TO_CREATE if of in new else 0))
        sends.send_look(image, times=2)
    for part in parts:
        for run in part.waiting:
            _send_upload(sends, remote, part.of, part.replicas.leader.store, run)
    for store in places_of_copies(sends.storage, image):
        sends.send(store, puts=1, gets=1)


def _send_upload(sends: Planned, remote: Store, of: TopicTiering, leader: Store, run: Run) -> None:
    """Add the requests of one upload. The object is looked up before and after the upload; then its footer is
    read.
    """
    size = run.size_bytes
    sends.send(remote, gets=3, moved_bytes=size + min(size, TAIL_BYTES))
    if run.is_segment:  # the footer, the bytes, and a check that the file is still the same object
        puts, gets = copies(size)
        sends.send(remote, puts=puts)
        sends.send(leader, gets=2 + gets, moved_bytes=size + min(size, TAIL_BYTES))
    else:  # each file, and another listing of the log
        reads = sum(reads_to_rewrite(of.topic, link.file.object.size_bytes) for link in run.links)
        sends.send(remote, puts=uploads(size))
        sends.send(leader, puts=1, gets=1 + reads, moved_bytes=size)

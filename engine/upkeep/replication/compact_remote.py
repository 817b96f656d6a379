"""The remote part of a compaction: a removal rule is applied to the remote segments before the leader's files
(``stratalog.tiering.removal``).

    1. tasks: rewrite the segments of each partition that have a record to remove, in ascending order
    2. one version of each topic's table replaces these segments; then steps 1 and 2 continue with the next part of
       each partition
    3. when a partition is done, the table records the rule. After that, the rule may be applied to the leader's
       files
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.turns import Over, in_turns
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.leader import leader_log
from stratalog.engine.replication.partition import BoundedWork, PartitionReplicas
from stratalog.engine.replication.throttle import Throttle
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.engine.upkeep.tiering.iceberg import follow
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote, current_log
from stratalog.partitions.errors import (
    CorruptionError,
    LogGapError,
    RemoteObjectMissingError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.removal import Rule
from stratalog.partitions.replica import errors_of
from stratalog.partitions.rewrites.removing import RemovingOptions
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store
from stratalog.partitions.transactions import transactions_of
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removal import Followed, Replaced, to_rewrite
from stratalog.tiering.removing import NOTHING_REMOVED, RemovedRemotely, carry_out_remotely

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable


_MAY_HAVE_MOVED = (LogGapError, RemoteObjectMissingError, SourceChangedError)
"""The errors that an outdated table may cause. After the table was read, tier and retain may have moved the local
start, or another driver may have replaced segments and deleted their objects.
"""


@dataclass(frozen=True, slots=True)
class RemoteRemovalWork(BoundedWork):
    """One partition. ``most`` is the maximum number of segments to make."""

    rule: Rule
    segments: tuple[RemoteSegment, ...]
    remote: Store
    folder: str
    options: RemovingOptions
    throttle: Throttle | None = None
    """The task's share of the quota of copies to the remote tier; None: no limit."""
    looked_again: bool = False
    """Whether the table was read again, after one of the errors ``_MAY_HAVE_MOVED``."""


def remove_remotely(work: RemoteRemovalWork) -> RemovedRemotely:
    """The task of step 1. Raises: errors from listing the leader; see ``carry_out_remotely``."""
    return while_it_changes(lambda: _remove(work))


def _remove(work: RemoteRemovalWork) -> RemovedRemotely:
    leader = work.replicas.leader
    log = with_known_watermark(work.replicas, leader_log(work.replicas))
    with errors_of(leader):
        transactions = transactions_of(log, leader.footer)
    options = replace(work.options, most=work.most)
    spend = {} if work.throttle is None else {"spend": work.throttle.spend}
    return carry_out_remotely(
        leader, log, transactions, work.rule, work.remote, work.folder, work.segments, options, **spend
    )


@dataclass(slots=True)
class RemoteTables:
    metadata: MetadataClient
    storage: Storage
    run: OperationRun
    throttle: Throttle | None = None
    """See ``copy_throttle``."""
    logs: dict[str, RemoteLog] = field(default_factory=dict)
    """The content of each table as last read, by topic id. Topics whose table cannot be read are absent."""
    figures: dict[TopicIdPartition, RemovedRemotely] = field(default_factory=dict)
    _tables: dict[str, DeltaTopicTable] = field(default_factory=dict)

    def open(self, image: ClusterImage, topics: Iterable[TopicImage]) -> set[str]:
        """Read the tables of those topics that are tiered. Missing tables are created, and rewrites by other
        programs are reverted. Returns the ids of tiered topics whose table cannot be read; each is a failure in
        the report.
        """
        tiered = [topic for topic in topics if topic_config_of(image, topic).remote_storage_enable]

        def read(topic: TopicImage) -> tuple[DeltaTopicTable, RemoteLog]:
            table = self.storage.remote_table(topic)
            return table, current_log(table, topic, self.run.notes, dry_run=self.run.dry_run)

        unread = {topic.topic_id for topic in tiered}
        for topic, (table, log) in self.run.done(ask_remote(self.storage, read, tiered), lambda topic: topic.name):
            self._tables[topic.topic_id], self.logs[topic.topic_id] = table, log
            unread.discard(topic.topic_id)
        return unread

    def figures_of(self, key: TopicIdPartition) -> RemovedRemotely:
        return self.figures.get(key, NOTHING_REMOVED)

    def generation(self, key: TopicIdPartition) -> int:
        """The generation of the rule that the remote log of a partition follows, as last read."""
        return self.logs[key.topic_id].generation(key.partition)

    def unknown_rule(self, replicas: PartitionReplicas, log: RemoteLog) -> CorruptionError | None:
        """An error if the remote log follows a rule that the current metadata lacks."""
        key = replicas.view.key
        segments = log.of_partition(key.partition)
        generation = max([log.generation(key.partition), *(segment.generation for segment in segments)])
        if generation <= replicas.view.generation:
            return None
        if generation <= self.metadata.image().generation_of(key):  # the view may be older than the rule
            return None
        return CorruptionError(
            f"{replicas}: its remote log follows removal rule {generation}, which the metadata lacks: either a "
            "restore of this cluster is unfinished (run restore again), or the metadata is an older copy "
            "(restore the voters)"
        )

    def work(self, base: BoundedWork, rule: Rule, options: RemovingOptions) -> RemoteRemovalWork:
        """The remote part of the work on a partition whose table is open."""
        topic_id, partition = base.replicas.view.key
        table = self._tables[topic_id]
        return RemoteRemovalWork(
            replicas=base.replicas,
            rule=rule,
            segments=self.logs[topic_id].of_partition(partition),
            remote=table.remote,
            folder=table.folder,
            options=options,
            throttle=self.throttle,
        )

    def carry_out(self, works: Sequence[RemoteRemovalWork], over: Over | None) -> set[TopicIdPartition]:
        """Run all steps, with one part of each partition at a time, until ``over``. Returns the partitions whose
        table has recorded their rule. All other partitions have failures, or are included in
        ``totals["cut_off"]``.
        """
        carried: set[TopicIdPartition] = set()
        self.run.progress.start("compact the remote tier", len(works), "partitions")
        left = in_turns(works, over, lambda waiting, most: self._turn(waiting, most, carried))
        self.run.progress.finish()
        if left:
            self.run.totals["cut_off"] = int(self.run.totals.get("cut_off") or 0) + len(left)
        return carried

    def _turn(
        self, waiting: Sequence[RemoteRemovalWork], most: int | None, carried: set[TopicIdPartition]
    ) -> list[RemoteRemovalWork]:
        left: list[RemoteRemovalWork] = []
        done: dict[str, list[tuple[RemoteRemovalWork, RemovedRemotely]]] = {}
        busy = [work for work in waiting if to_rewrite(work.segments, work.rule)]
        for work in waiting:
            if not to_rewrite(work.segments, work.rule):
                done.setdefault(work.replicas.view.topic_id, []).append((work, NOTHING_REMOVED))
        for outcome in self.run.tasks.run(remove_remotely, [replace(work, most=most) for work in busy]):
            match outcome:
                case Done(work, part):
                    done.setdefault(work.replicas.view.topic_id, []).append((work, part))
                    self.run.progress.advance(part.written_bytes)
                case Failed(work, error) if isinstance(error, _MAY_HAVE_MOVED) and not work.looked_again:
                    left.append(replace(work, looked_again=True))
                case Failed(work, error):
                    self.run.fail(work, error)
        for topic_id, parts in done.items():
            try:
                self._commit(topic_id, parts)
            except StratalogError as error:
                for work, _ in parts:
                    self.run.fail(work, error)
                continue
            for work, part in parts:
                key = work.replicas.view.key
                self.figures[key] = part.after(self.figures_of(key))
                if self.logs[topic_id].generation(key.partition) >= work.rule.generation:
                    carried.add(key)
                else:
                    left.append(work)
        for topic_id in {work.replicas.view.topic_id for work in left if work.looked_again}:
            try:
                self.logs[topic_id] = self._tables[topic_id].load()
            except StratalogError as error:
                self.run.fail(self._tables[topic_id].topic, error)
                left = [work for work in left if work.replicas.view.topic_id != topic_id]
        return [
            replace(
                work, segments=self.logs[work.replicas.view.topic_id].of_partition(work.replicas.view.partition)
            )
            for work in left
        ]

    def _commit(self, topic_id: str, parts: Sequence[tuple[RemoteRemovalWork, RemovedRemotely]]) -> None:
        """Steps 2 and 3. Raises: see ``DeltaTopicTable.commit``."""
        table = self._tables[topic_id]
        replaced: list[Replaced] = [each for _, part in parts for each in part.replaced]
        if replaced:
            self.logs[topic_id] = table.remove_records(replaced).log
            image = self.metadata.image()
            if (topic := image.topics.get(topic_id)) is not None:
                follow(self.metadata, self.storage, topic, topic_config_of(image, topic), self.run)
        followed = {
            work.replicas.view.partition: Followed(work.rule, part.examined)
            for work, part in parts
            if not part.left
        }
        if followed:
            self.logs[topic_id] = table.record_rules(followed)

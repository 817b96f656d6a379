"""The state of a tier run: its topics and partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.run import PartitionRow
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionImage, TopicImage, last_erasure
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.tiering.remote_logs import current_log
from stratalog.engine.upkeep.tiering.tasks import PlannedUploads
from stratalog.partitions.errors import StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.records import schema_of
from stratalog.partitions.rewrites.merge import Run
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import Uploaded
from stratalog.tiering.schedule import Entry, Intervals, failed, succeeded

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable


@dataclass(slots=True, eq=False)
class TopicTiering:
    """One topic in a run. ``table`` and ``remote`` are None if its table cannot be read; ``error`` then has the
    reason."""

    topic: TopicImage
    config: TopicConfig
    table: DeltaTopicTable | None = None
    remote: RemoteLog | None = None
    error: StratalogError | None = None
    ready: bool = False
    """Whether this run has made sure that the table accepts the topic's segments."""
    pending: list[tuple[PartitionTiering, Uploaded]] = field(default_factory=list)
    """Uploads that are not committed yet, in order."""
    notes: list[str] = field(default_factory=list)
    """Notes about changes of the table by other programs."""

    def open(self, storage: Storage, *, dry_run: bool) -> None:
        """Read the table once. Create it if it is missing, and revert rewrites by other programs.

        Raises: see ``current_log``.
        """
        table = storage.remote_table(self.topic)
        self.remote = current_log(table, self.topic, self.notes, dry_run=dry_run)
        self.table = table

    def record_beginning(self, parts: Iterable[PartitionTiering]) -> None:
        """Record the last erasures and compactions of these partitions in the table, if the table lacks the
        erasures and lists no segment of a partition because tiering began later (``stratalog.tiering.erasure``).

        Raises: see ``DeltaTopicTable.record_beginning``.
        """
        assert self.table is not None
        assert self.remote is not None
        views = {part.replicas.view.partition: part.replicas.view for part in parts}
        lacking = {p: view for p, view in views.items() if self.remote.lacks_erasure(p, view.last_erasure)}
        if any(not self.remote.of_partition(partition) for partition in lacking):
            erasures = {partition: view.erasures for partition, view in lacking.items()}
            compacted = {p: view.compaction for p, view in lacking.items() if view.compaction is not None}
            self.remote = self.table.record_beginning(erasures, compacted)

    def make_ready(self, metadata: MetadataClient) -> None:
        """Make sure, once per run with uploads, that the table accepts the topic's segments. Uses the topic's
        current schema: it may have grown since the run began, and uploads may already have the wider schema.

        Raises: see ``DeltaTopicTable.ensure``.
        """
        assert self.table is not None
        if not self.ready:
            image = metadata.image()
            topic = image.topics.get(self.topic.topic_id, self.topic)
            self.table.ensure(schema_of(topic.key_schema, topic.value_schema))
            self.ready = True


class TierRow(PartitionRow, frozen=True, kw_only=True):
    uploaded_files: int
    uploaded_bytes: int
    planned_bytes: int | None
    remote_end: int | None
    pending_bytes: int | None
    """Bytes that are not due yet."""
    backlog_bytes: int | None
    """Bytes that are due, but not in the remote tier."""
    backlog_ms: int
    """The age of the oldest bytes that are due."""
    attempts: int
    """The number of failed runs in a row."""
    failing_ms: int
    why: str | None


@dataclass(slots=True, eq=False)
class PartitionTiering:
    of: TopicTiering
    replicas: PartitionReplicas
    entry: Entry
    """The partition's entry in the list before this run."""
    planned: PlannedUploads | None = None
    error: StratalogError | None = None
    """The first error; no upload begins after it."""
    waiting: deque[Run] = field(default_factory=deque)
    in_flight: int = 0
    excused: bool = False
    """Whether the report has ``error`` as a failure of the topic, not of the partition."""
    uploaded: dict[int, Uploaded] = field(default_factory=dict)
    """The completed uploads that are not handed over yet, because earlier uploads are incomplete; by first offset.
    """
    next_offset: int = 0
    """The end offset of the uploads that were handed over for a commit."""
    committed: list[Uploaded] = field(default_factory=list)
    made: int = 0
    """The number of uploads in ``committed`` that this run has committed. Another run may have committed the
    others before.
    """

    def __str__(self) -> str:
        return str(self.replicas)

    @property
    def key(self) -> TopicIdPartition:
        return self.replicas.view.key

    @property
    def remote_end(self) -> int | None:
        """The last known end of the remote log; None if nothing is tiered, or if the end is unknown."""
        if self.of.remote is None:
            return self.entry.remote_end
        return self.of.remote.end(self.replicas.view.partition)

    @property
    def backlog(self) -> list[Run]:
        """The due runs of records that are not committed yet."""
        if self.planned is None:
            return []
        done = {uploaded.segment.base_offset for uploaded in self.committed}
        return [run for run in self.planned.plan.runs if run.start not in done]

    @property
    def is_cut_off(self) -> bool:
        """Whether some due uploads have not begun, although nothing has failed."""
        return bool(self.waiting) and self.error is None

    @property
    def quiet_until_ms(self) -> int:
        """The time before which nothing is due unless the log changes; 0 if something was due or has failed."""
        return self.planned.quiet_until_ms if self.planned is not None and self.error is None else 0

    def begin_again(self, replicas: PartitionReplicas) -> None:
        """Reset the state for another leader, which needs a new plan. Committed uploads stay committed."""
        self.replicas, self.planned, self.error, self.excused = replicas, None, None, False
        self.waiting, self.in_flight, self.uploaded = deque(), 0, {}

    def hand_over(self) -> None:
        """Hand over to the topic all uploads that follow the previously handed-over uploads without a gap."""
        while (upload := self.uploaded.pop(self.next_offset, None)) is not None:
            self.next_offset = upload.segment.next_offset
            self.of.pending.append((self, upload))

    def entry_after(self, now_ms: int, intervals: Intervals, draw: float) -> Entry:
        if self.error is not None:
            return failed(
                self.entry,
                now_ms,
                intervals,
                code=self.error.code,
                message=str(self.error),
                draw=draw,
                remote_end=self.remote_end,
            )
        if self.planned is None:
            return self.entry
        done = succeeded(
            self.entry,
            now_ms,
            intervals,
            remote_end=self.remote_end,
            seen=self.planned.seen,
            quiet_until_ms=self.planned.quiet_until_ms,
            pending_bytes=self.planned.pending_bytes,
        )
        return msgspec.structs.replace(done, due_ms=now_ms) if self.is_cut_off else done

    def row(self, after: Entry, now_ms: int) -> TierRow:
        plan = None if self.planned is None else self.planned.plan
        backlog = self.backlog
        oldest_ms = min((link.file.object.modified_ms for run in backlog for link in run.links), default=now_ms)
        return TierRow(
            topic=self.replicas.view.topic,
            partition=self.replicas.view.partition,
            uploaded_files=self.made,
            uploaded_bytes=sum(uploaded.copied_bytes for uploaded in self.committed),
            planned_bytes=None if plan is None else plan.size_bytes,
            remote_end=self.remote_end,
            pending_bytes=None if self.planned is None else self.planned.pending_bytes,
            backlog_bytes=None if plan is None else sum(run.size_bytes for run in backlog),
            backlog_ms=max(0, now_ms - oldest_ms),
            attempts=after.attempts,
            failing_ms=max(0, now_ms - after.failing_since_ms) if after.attempts else 0,
            why=None if self.planned is None or self.error is not None else self.planned.why,
        )


def histories(metadata: MetadataClient, of: TopicTiering, parts: Iterable[PartitionTiering]) -> Histories:
    """The histories that a commit of these partitions must follow, with a function that reads the current leaders.
    The function returns nothing if the topic was deleted, or is no longer tiered.
    """
    topic_id = of.topic.topic_id

    def now() -> dict[int, Present]:
        image = metadata.image()
        topic = image.topics.get(topic_id)
        if topic is None or not topic_config_of(image, topic).copies_to_remote:
            return {}
        return {p.partition: present_of(image, topic, p) for p in topic.partitions}

    parts = [*parts]
    lineages = {part.replicas.view.partition: part.planned.lineage for part in parts if part.planned is not None}
    erasures = {part.replicas.view.partition: part.replicas.view.last_erasure for part in parts}
    return Histories(lineages, now, erasures)


def present_of(image: ClusterImage, topic: TopicImage, of: PartitionImage) -> Present:
    erasure = last_erasure(image.erasures_of(TopicIdPartition(topic.topic_id, of.partition)))
    return Present(of.leader_epoch, of.log_start_offset, erasure)

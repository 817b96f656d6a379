"""Retention of the remote tier: the segments that are reliable, and the segments to remove (KIP-405, KIP-950)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.retention.tasks import RemoteRetention
from stratalog.engine.upkeep.tiering.iceberg import follow
from stratalog.engine.upkeep.tiering.remote_logs import without_rewrites
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import RemoteObjectMissingError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.lineage import Lineage
from stratalog.tiering.divergence import Histories, Present
from stratalog.tiering.plan import expired_segments
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_objects import RemoteObjects
from stratalog.tiering.remote_segment import RemoteSegment

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable


_NO_HISTORY = Lineage()
"""The lineage of a partition that may keep no segment in the remote tier."""


def remote_parts(storage: Storage, topic: TopicImage, run: OperationRun) -> dict[int, RemoteRetention]:
    """The remote part of every partition of a tiered topic. If the store lacks an object that the table lists, the
    topic has a failure in the report. A rewrite by another program is first reverted, with a note. Without this
    step, a Delta VACUUM might delete objects on which brokers are about to rely.

    Raises: see ``DeltaTopicTable.undo_rewrites``.
    """
    table = storage.remote_table(topic)
    log = without_rewrites(table, topic, table.load(), run.notes, dry_run=run.dry_run)
    log, objects, missing = _load(table, log)
    if missing:
        run.fail(
            topic.name,
            RemoteObjectMissingError(
                f"{table.uri} lists {len(missing)} objects that are missing or have another size; the "
                f"first is {min(missing)}. The brokers keep their copies; heal rebuilds the objects "
                "from them"
            ),
        )
    parts = {}
    for partition in range(len(topic.partitions)):
        listed = log.of_partition(partition)
        there = list(takewhile(objects.holds, listed))
        parts[partition] = RemoteRetention(
            table.remote, listed, tuple(objects.segments[segment.path].object for segment in there)
        )
    return parts


def _load(table: DeltaTopicTable, log: RemoteLog) -> tuple[RemoteLog, RemoteObjects, frozenset[str]]:
    """The content of the table and its objects; ``log`` was just read from the table. If an object seems to be
    missing, the table is read again, because the object may have been removed since the first read.
    """
    objects = table.objects()
    missing = frozenset(segment.path for segment in log.all_segments() if not objects.holds(segment))
    if missing:
        log, objects = table.load(), table.objects()
        missing &= {segment.path for segment in log.all_segments() if not objects.holds(segment)}
    return log, objects, missing


@dataclass(slots=True)
class Expiry:
    """The segments that one run removes from the remote logs."""

    metadata: MetadataClient
    storage: Storage
    clock: Clock
    image: ClusterImage
    log_starts: Mapping[TopicIdPartition, int]
    """The log start offsets that this run has committed, or would commit without ``dry_run``."""
    decided: Collection[TopicIdPartition]
    """The partitions whose log now starts at the offset that retention wants."""
    operation: OperationRun
    removed: dict[TopicIdPartition, list[RemoteSegment]] = field(default_factory=dict)

    def run(self, topics: Iterable[TopicImage]) -> dict[TopicIdPartition, list[RemoteSegment]]:
        """Step 3 of retain."""
        for topic in topics:
            if topic.topic_id not in self.image.topics:
                continue
            try:
                config = topic_config_of(self.image, topic)
                if config.remote_storage_enable:
                    self._expire(topic, config)
                elif config.remote_log_delete_on_disable and self.storage.remote is not None:
                    self._remove_all(topic, config)
            except StratalogError as error:
                self.operation.fail(topic.name, error)
        return self.removed

    def _expire(self, topic: TopicImage, config: TopicConfig) -> None:
        table = self.storage.remote_table(topic)
        gone = expired_segments(
            table.load(), {p.partition: self._log_start(topic, p.partition) for p in topic.partitions}
        )
        if gone and not self.operation.dry_run:
            table.commit((), gone)
        self._count(topic, gone)
        if not self.operation.dry_run:
            if gone:
                follow(self.metadata, self.storage, topic, config, self.operation)
            self._delete_removed(table, config)

    def _log_start(self, topic: TopicImage, partition: int) -> int:
        committed = self.image.view(topic.topic_id, partition).log_start_offset
        key = TopicIdPartition(topic.topic_id, partition)
        return max(committed, self.log_starts.get(key, 0)) if self.operation.dry_run else committed

    def _remove_all(self, topic: TopicImage, config: TopicConfig) -> None:
        """Remove all segments of a topic that is no longer tiered (KIP-950), if its logs start on brokers."""
        table = self.storage.remote_table(topic)
        log = table.load()
        partitions = [p for p in log.segments if (topic.topic_id, p) in self.decided]
        gone = [segment for partition in partitions for segment in log.of_partition(partition)]
        if self.operation.dry_run or log.version < 0:
            self._count(topic, gone)
            return

        def none_if_tiered() -> dict[int, Present]:
            image = self.metadata.image()
            now = image.topics.get(topic.topic_id)
            if now is None or topic_config_of(image, now).remote_storage_enable:
                return {}
            return dict.fromkeys(partitions, Present(_NO_HISTORY.latest_epoch))

        if partitions:
            after = table.commit((), (), Histories(dict.fromkeys(partitions, _NO_HISTORY), none_if_tiered)).log
            self._count(topic, [segment for segment in gone if not after.of_partition(segment.partition)])
            follow(self.metadata, self.storage, topic, config, self.operation)
        self._delete_removed(table, config)

    def _delete_removed(self, table: DeltaTopicTable, config: TopicConfig) -> None:
        """Delete the removed objects whose delay has passed, if the clocks agree on the time."""
        if agreed_ms(self.clock, table.remote) is not None:
            table.vacuum(config.file_delete_delay_ms)

    def _count(self, topic: TopicImage, gone: Iterable[RemoteSegment]) -> None:
        for segment in gone:
            self.removed.setdefault(TopicIdPartition(topic.topic_id, segment.partition), []).append(segment)

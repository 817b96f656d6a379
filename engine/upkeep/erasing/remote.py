"""The remote part of an erasure: the remote logs of tiered topics lose the records before the leaders do
(``stratalog.tiering.erasure``).

    carry_out   steps 2 and 3: rewrite segments, replace them in the table, and record the erasure
    clean       steps 5 and 6: delete the objects that had records, then the history of the table
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.replication.partition import PartitionWork
from stratalog.engine.upkeep.erasing.certificate import ErasedFile
from stratalog.engine.upkeep.erasing.partition import RemoteFigures
from stratalog.engine.upkeep.erasing.tasks import RemoteCopy, not_compacted_remotely
from stratalog.engine.upkeep.tiering.remote_logs import ask_remote, current_log, without_rewrites
from stratalog.partitions.erasure import Erasure
from stratalog.partitions.errors import (
    OutcomeUnknownError,
    RemoteObjectMissingError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.removal import Rule
from stratalog.partitions.rewrites.removing import RemovingOptions
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.store import Store
from stratalog.tiering.erasing import erase_remotely
from stratalog.tiering.erasure import lacks_compaction, to_erase_remotely
from stratalog.tiering.remote_file import read_remote
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removing import RemovedRemotely

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class EraseRemotelyWork(PartitionWork):
    """One partition with remote segments that hold erased offsets."""

    copy: RemoteCopy
    compression: str
    segment_bytes: int
    compacted: Rule

    def stores_used(self) -> Iterable[Store]:
        """See ``PartitionWork``."""
        return [*self.replicas.stores.values(), self.copy.store]


@dataclass(frozen=True, slots=True)
class ErasedSegments:
    """The result of a task: the change to commit, and the replaced segments with their checksums."""

    done: RemovedRemotely
    replaced: tuple[ErasedFile, ...]


def rewrite(work: EraseRemotelyWork) -> ErasedSegments:
    """The task of step 2. Raises: see ``erase_remotely``."""
    return while_it_changes(lambda: _rewrite(work))


def _rewrite(work: EraseRemotelyWork) -> ErasedSegments:
    copy, erasures = work.copy, work.replicas.view.erasures
    options = RemovingOptions(segment_bytes=work.segment_bytes, compression=work.compression, memory_bytes=0)
    replaced = tuple(erased_segment(copy, each) for each in to_erase_remotely(copy.segments, erasures))
    done = erase_remotely(
        work.replicas.leader, copy.store, copy.folder, copy.segments, erasures, work.compacted, options
    )
    return ErasedSegments(done, replaced)


def erased_segment(copy: RemoteCopy, segment: RemoteSegment) -> ErasedFile:
    """A remote segment with its checksum. Raises: see ``read_remote``."""
    found = read_remote(copy.store, copy.folder, segment)
    return ErasedFile(segment.path, segment.size_bytes, f"{found.crc32:08x}")


@dataclass(slots=True)
class RemoteErasing:
    """The tables of the tiered topics in one run."""

    storage: Storage
    run: OperationRun
    tables: dict[str, DeltaTopicTable] = field(default_factory=dict)
    """Keyed by topic id."""
    logs: dict[str, RemoteLog] = field(default_factory=dict)
    """As last read."""
    figures: dict[TopicIdPartition, RemoteFigures] = field(default_factory=dict)

    def open(self, image: ClusterImage, topics: Iterable[TopicImage]) -> None:
        """Read the tables of the topics that are tiered, or were before; unless it is a dry run, create missing
        ones of tiered topics, and revert rewrites by other programs.

        Raises: see ``current_log``; errors from the store.
        """
        for topic in topics:
            tiered, remote = topic_config_of(image, topic).remote_storage_enable, self.storage.remote
            if not tiered and (remote is None or not remote.walk(topic.folder)):
                continue
            table = self.storage.remote_table(topic)
            if tiered:
                log = current_log(table, topic, self.run.notes, dry_run=self.run.dry_run)
            else:
                log = table.load()
                if log.version < 0:
                    continue
                log = without_rewrites(table, topic, log, self.run.notes, dry_run=self.run.dry_run)
            self.tables[topic.topic_id], self.logs[topic.topic_id] = table, log

    def reload(self) -> None:
        """Read the tables again. A table that cannot be read stays as it was; its partitions fail later."""
        for outcome in ask_remote(self.storage, lambda topic_id: self.tables[topic_id].load(), [*self.tables]):
            if isinstance(outcome, Done):
                self.logs[outcome.item] = outcome.value

    def copy_of(self, view: PartitionView) -> RemoteCopy | None:
        """The remote log of a partition as last read; None if its topic was not tiered when the run began."""
        table = self.tables.get(view.topic_id)
        if table is None:
            return None
        log = self.logs[view.topic_id]
        behind = lacks_compaction(log, view.partition, view.compaction)
        segments, erased = log.of_partition(view.partition), log.erased_to(view.partition)
        return RemoteCopy(table.remote, table.folder, segments, erased, behind)

    def carry_out(
        self, image: ClusterImage, views: Iterable[PartitionView]
    ) -> dict[TopicIdPartition, StratalogError]:
        """Steps 2 and 3 for the erasures of these partitions. Returns those whose table does not record them:
        their replicas must not be rewritten yet."""
        waiting = {view.key: view for view in views if view.topic_id in self.tables and self._is_due(view)}
        failed: dict[TopicIdPartition, StratalogError] = {}
        if waiting:
            self.reload()
        missing: dict[TopicIdPartition, StratalogError] = {}
        for _ in range(_ATTEMPTS):
            waiting = {key: view for key, view in waiting.items() if self._is_due(view) and key not in failed}
            if not waiting:
                return failed
            missing = {}
            failed |= self._attempt(image, waiting, missing)
        for key, view in waiting.items():
            if self._is_due(view) and key not in failed:
                failed[key] = missing.get(key) or OutcomeUnknownError(
                    f"{view}: its remote log keeps changing: erase again"
                )
        return failed

    def _is_due(self, view: PartitionView) -> bool:
        return self.logs[view.topic_id].lacks_erasure(view.partition, view.last_erasure)

    def _attempt(
        self,
        image: ClusterImage,
        waiting: Mapping[TopicIdPartition, PartitionView],
        missing: dict[TopicIdPartition, StratalogError],
    ) -> dict[TopicIdPartition, StratalogError]:
        """Returns the partitions that failed. A partition with a segment whose object is ``missing`` has not
        failed yet: another run may have replaced the segment."""
        failed: dict[TopicIdPartition, StratalogError] = {}
        made: dict[str, list[tuple[PartitionView, ErasedSegments]]] = {}
        for key, view in waiting.items():
            if lacks_compaction(self.logs[key.topic_id], key.partition, view.compaction):
                failed[key] = not_compacted_remotely(str(view))
        views = [view for key, view in waiting.items() if key not in failed]
        works = [work for view in views if (work := self._work(image, view)) is not None]
        for outcome in self.run.tasks.run(rewrite, works):
            match outcome:
                case Done(work, erased):
                    made.setdefault(work.replicas.view.topic_id, []).append((work.replicas.view, erased))
                case Failed(work, RemoteObjectMissingError() as error):
                    why = f"{error}: restore it from a backup of the remote tier, then erase again"
                    missing[work.replicas.view.key] = RemoteObjectMissingError(why)
                case Failed(work, error):
                    failed[work.replicas.view.key] = error
        for topic_id in {view.topic_id for view in waiting.values()}:
            own = [view for view in waiting.values() if view.topic_id == topic_id and view.key not in failed]
            try:
                self._commit(topic_id, made.get(topic_id, []), own)
            except StratalogError as error:
                failed |= {view.key: error for view in own}
        return failed

    def _work(self, image: ClusterImage, view: PartitionView) -> EraseRemotelyWork | None:
        copy = self.copy_of(view)
        assert copy is not None
        if not to_erase_remotely(copy.segments, view.erasures):
            return None
        config = topic_config_of(image, image.topics[view.topic_id])
        return EraseRemotelyWork(
            replicas=self.storage.replicas(view),
            copy=copy,
            compression=config.compression_type,
            segment_bytes=config.merging.segment_bytes,
            compacted=view.compaction or Rule(0, 0),
        )

    def _commit(
        self, topic_id: str, made: Sequence[tuple[PartitionView, ErasedSegments]], views: Sequence[PartitionView]
    ) -> None:
        """Raises: see ``DeltaTopicTable.commit``."""
        table = self.tables[topic_id]
        if made:
            table.remove_records([each for _, erased in made for each in erased.done.replaced], "erase")
            for view, erased in made:
                figures = self.figures.setdefault(view.key, RemoteFigures())
                figures.files += len(erased.replaced)
                figures.read_bytes += erased.done.read_bytes
                figures.written_bytes += erased.done.written_bytes
                figures.replaced += [file for file in erased.replaced if file not in figures.replaced]
        erasures: dict[int, Sequence[Erasure]] = {view.partition: view.erasures for view in views}
        compacted = {view.partition: view.compaction for view in views if view.compaction is not None}
        self.logs[topic_id] = table.record_erasures(erasures, compacted)

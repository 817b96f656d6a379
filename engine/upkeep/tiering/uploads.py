"""The uploads of a tier run, and the commits that add them to the remote log.

1. Lanes take uploads in turns: first one segment of each partition, the longest overdue partition first; then the
   next segment of each partition.
2. An upload waits until the segments before it are uploaded; then its topic can commit it.
3. A committer commits completed uploads, one topic at a time, while other uploads continue. The commit reads the
   current leaders. The commit leaves out segments of a leader that was replaced meanwhile, and segments that were
   copied before a compaction or an erasure.

After a failure in a partition, no further upload of that partition begins. When a budget is used up, only the
first upload begins. If an upload hangs, its lane waits until the deadline, while the other lanes continue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.remote_quota import copy_throttle
from stratalog.engine.driver.report import Failure
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.upkeep.tiering.state import PartitionTiering, TopicTiering, histories
from stratalog.engine.upkeep.tiering.tasks import UploadWork, upload_run
from stratalog.partitions.errors import CorruptionError, FencedLeaderEpochError, SourceChangedError, StratalogError
from stratalog.partitions.runner import Done, Failed, Outcome, values
from stratalog.tiering.plan import expired_segments
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import Uploaded

Batch = list[tuple[PartitionTiering, Uploaded]]

LANES = 8
WAVE = 4
"""The number of concurrent uploads per lane and process. If tasks run in this process, a lane has one upload at a
time: a thread that waits for several uploads, one of which hangs, would not notice that the others have completed.
"""
LOOKAHEAD = 16
"""The maximum number of concurrent uploads of one partition. The number is limited because all these uploads may
turn out to be useless.
"""
COMMIT_EVERY_S = 5.0
COMMIT_FILES = 1000
_NOWHERE = -1


class Uploads:
    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        execution: Execution,
        image: ClusterImage,
        partitions: Sequence[PartitionTiering],
        over: Callable[[], bool] | None = None,
    ) -> None:
        """``partitions`` have plans, and take turns in the given order; ``over``: see ``tier``."""
        config = cluster_config_of(image)
        self._metadata = metadata
        self._storage = storage
        self._execution = execution
        self._deadline_s = config.remote_log_manager_copy_timeout_ms / 1000
        self._throttle = copy_throttle(execution, config)
        self._parts = {part.key: part for part in partitions if part.waiting}
        self._topics = list({id(part.of): part.of for part in self._parts.values()}.values())
        self._turns = deque(self._parts.values())
        self._changed = threading.Condition()
        """Held to read or change the state of partitions and topics."""
        self._lanes = LANES
        self._broken = False
        self._over = over
        self._begun_any = False
        self.failures: list[Failure] = []
        """The failures that concern more than one partition. All other failures are stored with their partitions.
        """

    def run(self) -> None:
        """Upload and commit everything, as far as possible."""
        if self._turns:
            # Start the committer last: every lane has then begun, and notifies the committer when the lane ends.
            steps = [self._lane] * LANES + [self._commit_as_they_come]
            values(self._storage.threads.run(lambda step: step(), steps))

    # ------------------------------------------------------------------------------- the lanes

    def _lane(self) -> None:
        try:
            processes = self._execution.tasks.processes
            most = 1 if processes == 1 else WAVE * processes
            while wave := self._take(most):
                for outcome in self._execution.tasks.run(upload_run, wave):
                    self._arrived(outcome)
        except BaseException:
            self._broken = True
            raise
        finally:
            with self._changed:
                self._lanes -= 1
                self._changed.notify_all()

    def _take(self, most: int) -> list[UploadWork]:
        """The next uploads, in turns; empty if this lane cannot begin an upload, or is not allowed to."""
        wave: list[UploadWork] = []
        with self._changed:
            while self._turns and len(wave) < most and not self._broken:
                if self._begun_any and self._over is not None and self._over():
                    break
                self._begun_any = True
                part = self._turns.popleft()
                if part.error is None:
                    wave.append(self._begun(part))
                    if part.waiting and part.in_flight < LOOKAHEAD:
                        self._turns.append(part)
        return wave

    def _begun(self, part: PartitionTiering) -> UploadWork:
        assert part.of.table is not None
        part.in_flight += 1
        return UploadWork(
            replicas=part.replicas,
            run=part.waiting.popleft(),
            remote=part.of.table.remote,
            folder=part.of.table.folder,
            compression=part.of.config.compression_type,
            deadline_s=self._deadline_s,
            throttle=self._throttle,
            prober=self._storage.prober,
        )

    def _arrived(self, outcome: Outcome[UploadWork, Uploaded]) -> None:
        with self._changed:
            part = self._parts[outcome.item.replicas.view.key]
            if part.in_flight == LOOKAHEAD and part.waiting:
                self._turns.append(part)
            part.in_flight -= 1
            match outcome:
                case Done(work, uploaded):
                    part.uploaded[work.run.start] = uploaded
                    part.hand_over()
                    self._execution.progress.advance(uploaded.copied_bytes)
                case Failed(_, error):
                    part.error = part.error or error
                    self._execution.progress.advance()
            self._changed.notify_all()

    # --------------------------------------------------------------------------- the committer

    def _commit_as_they_come(self) -> None:
        over = False
        try:
            while not over:
                with self._changed:
                    self._changed.wait_for(lambda: self._lanes == 0 or self._pending() > 0)
                    self._changed.wait_for(
                        lambda: self._lanes == 0 or self._pending() >= COMMIT_FILES, timeout=COMMIT_EVERY_S
                    )
                    over = self._lanes == 0
                for topic in self._topics:
                    if not self._broken:
                        self._commit(topic)
        except BaseException:
            self._broken = True  # stop the lanes, because uploads that will not be committed are useless
            raise

    def _pending(self) -> int:
        return sum(len(topic.pending) for topic in self._topics)

    def _commit(self, topic: TopicTiering) -> None:
        """Commit the pending uploads of a topic. If the commit would break the log of a partition, each partition
        is committed separately.
        """
        with self._changed:
            batch, topic.pending = topic.pending, []
        if not batch:
            return
        try:
            topic.make_ready(self._metadata)
            self._put(topic, batch)
        except CorruptionError as error:
            keys = list(dict.fromkeys(part.key for part, _ in batch))
            if len(keys) == 1:
                self._failed(topic, batch, error)
                return
            for key in keys:
                own = [(part, upload) for part, upload in batch if part.key == key]
                try:
                    self._put(topic, own)
                except StratalogError as its_own:
                    self._failed(topic, own, its_own)
        except StratalogError as error:
            self._failed(topic, batch, error)

    def _put(self, topic: TopicTiering, batch: Batch) -> None:
        """Commit one version of the table. The same version removes the remote segments below a log start, so
        there may be a gap between these segments and the new uploads. Copies from a former leader are left out;
        the next run finds them.
        """
        assert topic.table is not None
        assert topic.remote is not None
        parts = {part.key: part for part, _ in batch}.values()
        topic.record_beginning(parts)
        passed = {part.replicas.view.partition: part.replicas.view.log_start_offset for part in parts}
        done = topic.table.commit(
            [upload for _, upload in batch],
            expired_segments(topic.remote, passed),
            histories(self._metadata, topic, parts),
        )
        fenced = {upload.segment.path for upload in done.fenced}
        stale = {upload.segment.path for upload in done.stale}
        stale |= {upload.segment.path for upload in done.superseded if _is_cut_differently(done.log, upload)}
        with self._changed:
            topic.remote = done.log
            for part, upload in batch:
                if upload.segment.path in stale:
                    part.error = part.error or SourceChangedError(
                        f"{part}: since the copy of {upload.segment.name}, compaction or an erasure has removed "
                        "records from it or another segment of the partition, or another run has tiered its "
                        "records in other segments: the upload was not committed, and the next run copies the rest"
                    )
                elif upload.segment.path not in fenced:
                    part.committed.append(upload)
                    part.made += upload.segment.path in done.made
                elif part.error is None:
                    part.error = FencedLeaderEpochError(
                        f"{part}: leader epoch {part.replicas.epoch}, under which {upload.segment.name} was "
                        "copied, has ended, or the topic is no longer tiered: the upload was not committed"
                    )

    def _failed(self, topic: TopicTiering, batch: Batch, error: StratalogError) -> None:
        """Record that the batch was not committed. Later uploads of its partitions will not be committed either,
        because the table would then have a gap.
        """
        parts = {part.key: part for part, _ in batch}
        with self._changed:
            for part in parts.values():
                if part.error is None:
                    part.error, part.excused = error, len(parts) > 1
                part.next_offset = _NOWHERE
            topic.pending = [(part, upload) for part, upload in topic.pending if part.key not in parts]
        if len(parts) > 1:
            self.failures.append(Failure.of(topic.topic.name, error))


def _is_cut_differently(log: RemoteLog, superseded: Uploaded) -> bool:
    """Whether the log ends inside or before the segment, because other segments took the place of earlier ones."""
    end = log.end(superseded.segment.partition)
    return end is not None and end < superseded.segment.next_offset

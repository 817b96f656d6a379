"""Keeps logs short: after its appends are acknowledged, a driver shortens the logs to which it has appended.

An append leaves two names in the folder of each replica. The partition is due when the number of new names is
enough for a merge, and at least a quarter of the number of names that remained after the last run. A thread of
this driver then shortens the log, under the view of the acknowledged append. So the cost is proportional to the
number of appends, even if many files are not deleted yet. Any number of drivers may do this concurrently. If a
driver dies, the next run uses its results.

The work is bounded: each new segment has at most ``segment.merge.inline.bytes``. Larger segments are left to
``merge``, and all work that needs the remote tier is left to ``retain``.

1. On each replica, delete the appends that a segment has hidden for ``file.delete.delay.ms``, after all bytes of
   that segment have been read on that replica. Delete superseded high watermarks, too. This step comes first,
   because a merge that hides the appends again would restart their delay.
2. Merge on the leader, below the high watermark.
3. Sync the members of the ISR, so that they get the new segments.

A failure here does not fail the append; the logger ``stratalog.engine.upkeep`` reports each error code once. Later
appends make the partition due again; ``merge`` and ``retain`` also do this work.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.opening import OpenStore, open_stores
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replication.append import replicate
from stratalog.engine.replication.damage import check_whole, covered
from stratalog.engine.replication.log_end import LogEnd, names_in
from stratalog.engine.upkeep.replication.merge import MergeWork, merge_partition
from stratalog.engine.upkeep.tiering.schedule import load_schedule
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import SourceChangedError, StaleMetadataError, StratalogError
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.printable import printable
from stratalog.partitions.replica import Replica
from stratalog.partitions.retention import superseded
from stratalog.partitions.runner import SerialRunner
from stratalog.partitions.store import Store


@dataclass(frozen=True, slots=True)
class ShortenWork(MergeWork):
    delay_ms: int = 0
    """file.delete.delay.ms."""


@dataclass(slots=True)
class Shortened:
    segments: int = 0
    deleted: int = 0
    """The number of file names that were deleted."""
    names: int = 0
    """The number of data files and high watermarks that remain in the leader's folder."""
    failed: tuple[StratalogError, ...] = ()
    """The errors of followers and of damaged segments. The files that a damaged segment replaced are not deleted.
    """


def shorten(work: ShortenWork) -> Shortened:
    """Shorten the log of one partition. After an unreachable or damaged follower, the other replicas are still
    processed.

    Raises: see ``merge_partition``; errors of the leader.
    """
    replicas, done = work.replicas, Shortened()
    leader = replicas.leader
    for replica in (*(replicas.replica(broker) for broker in replicas.followers), leader):
        try:
            done.names = _delete(work, replica, done)
        except StratalogError as error:
            done.failed += (error,)
    done.segments = merge_partition(work).segments
    if done.segments:
        done.names += done.segments
        # Members that cannot be reached are not reported: this view may be old, and the next append detects such
        # members.
        replicate(replicas, SerialRunner())
    return done


def _delete(work: ShortenWork, replica: Replica, done: Shortened) -> int:
    """Step 1, on one replica. Returns the number of names that remain in its folder."""
    log = replica.log()
    check_whole(replica, log)
    now_ms = agreed_ms(work.clock, replica.store)
    names, damaged = covered(replica, log, [] if now_ms is None else superseded(log, now_ms, work.delay_ms))
    if names:
        replica.store.delete([replica.path(name) for name in names])
    done.deleted += len(names)
    done.failed += tuple(damaged)
    return names_in(log.listing) - len(names)


_FRACTION = 4
"""A log is due when its folder has grown by one name for every four names that remained after the last run."""
_MOST_PARTITIONS = 100_000
"""The maximum number of logs for which the number of remaining names is stored."""
_AT_THE_END_S = 30.0
"""The maximum time for which due work continues when the process exits."""

_log = logging.getLogger("stratalog.engine.upkeep")


@dataclass(frozen=True, slots=True)
class _Due:
    """A log to shorten, as it was after its last append."""

    image: ClusterImage
    view: PartitionView
    names: int


@dataclass(frozen=True, slots=True)
class _LastTime:
    """The numbers of names when a log was last shortened."""

    names: int
    """The number of names in the log's folder at the append that made the log due."""
    left: int
    """The number of names after the log was shortened."""


_NONE = _LastTime(0, 0)


class KeptShort:
    """The logs that one driver keeps short. Thread-safe."""

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        clock: Clock,
        open_stores: Callable[[], Mapping[int, Store]],
    ) -> None:
        """``open_stores`` opens separate stores of the brokers; their requests are not counted for any operation.
        The metadata is read only after an error.
        """
        self._metadata = metadata
        self._storage = storage
        self._clock = clock
        self._open_stores = open_stores
        self._last: dict[TopicIdPartition, _LastTime] = {}
        self._due: dict[TopicIdPartition, _Due] = {}
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._logged: set[str] = set()

    def appended(self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]) -> None:
        """Record acknowledged appends to partitions of one topic under these views. Start a thread if logs are
        due.
        """
        due = self._find_due(image, ended)
        if not due:
            return
        with self._lock:
            self._due |= due
            if self._worker is None:
                # The thread is not a daemon thread, so that a process that appends once does its share of the work
                # before it ends.
                self._worker = threading.Thread(target=self._work, name="stratalog-keep-short", daemon=False)
                self._worker.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is due, or until the timeout."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.join(timeout_s)

    def _find_due(
        self, image: ClusterImage, ended: Sequence[tuple[PartitionView, LogEnd]]
    ) -> dict[TopicIdPartition, _Due]:
        """The logs that have grown enough since the last run."""
        due: dict[TopicIdPartition, _Due] = {}
        topic = image.topics.get(ended[0][0].topic_id) if ended else None
        if topic is None:
            return due
        config = topic_config_of(image, topic)
        if config.segment_merge_inline_bytes == 0:
            return due
        for view, end in ended:
            last = self._last.get(view.key, _NONE)
            if end.names < last.names:  # names have been deleted since, and the log is still short
                last = self._last[view.key] = _LastTime(end.names, last.left)
            if end.names - last.names >= max(2 * config.segment_merge_min_files, last.left // _FRACTION):
                due[view.key] = _Due(image, view, end.names)
        return due

    @cached_property
    def _working(self) -> Storage:
        """The storage for this work. The stores stay open, because each store caches data about files."""
        return replace(self._storage, stores=self._open_stores())

    def _work(self) -> None:
        clock = self._clock
        ends_s: float | None = None
        while True:
            if ends_s is None and not threading.main_thread().is_alive():
                ends_s = clock.monotonic_s() + _AT_THE_END_S
            with self._lock:
                if not self._due or (ends_s is not None and clock.monotonic_s() > ends_s):
                    self._worker = None
                    return
                due = self._due.pop(next(iter(self._due)))
            if len(self._last) >= _MOST_PARTITIONS:
                self._last.clear()
            self._last[due.view.key] = _LastTime(
                due.names, due.names
            )  # recorded before the attempt, so that after a failure not every append tries again
            try:
                self._shorten(due)
            except Exception:
                if ends_s is not None or not threading.main_thread().is_alive():
                    return  # the interpreter is shutting down, and parts of it are gone
                note = f"{due.view.topic}-{due.view.partition} was not kept short"
                _log.exception("%s", printable(note))

    def _shorten(self, due: _Due) -> None:
        try:
            done = shorten_log(self._working, self._clock, due.image, due.view)
        except StratalogError as error:
            self._log(due.view, error)
            return
        if done is not None:
            self._last[due.view.key] = _LastTime(due.names, done.names)
            for failed in done.failed:
                self._log(due.view, failed)

    def _log(self, view: PartitionView, error: StratalogError) -> None:
        passing = isinstance(error, SourceChangedError | StaleMetadataError)
        if passing or error.code in self._logged or self._is_deleted(view):
            return
        self._logged.add(error.code)
        note = f"{view} was not kept short: {error.code}: {error}"
        _log.warning("%s", printable(note))

    def _is_deleted(self, view: PartitionView) -> bool:
        """Whether the topic was deleted. Its folders may then be partly deleted, which looks like damage."""
        with suppress(StratalogError):
            return view.topic_id not in self._metadata.image().topics
        return False


def keep_short(
    metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, opener: OpenStore
) -> None:
    """Let this driver shorten the logs to which it appends."""
    memory.behind_appends = KeptShort(metadata, storage, clock, lambda: open_stores(storage.file, clock, opener))


def shorten_log(storage: Storage, clock: Clock, image: ClusterImage, view: PartitionView) -> Shortened | None:
    """Shorten one log, according to its topic's configs; None if the topic was deleted, or must not be merged.
    Raises: see ``shorten``.
    """
    topic = image.topics.get(view.topic_id)
    config = None if topic is None else topic_config_of(image, topic)
    if config is None or config.segment_merge_inline_bytes == 0:
        return None
    from_offset = view.log_start_offset
    if config.remote_storage_enable:
        entry = load_schedule(storage, image).schedule.entries.get(view.key)
        from_offset = max(from_offset, (entry.remote_end if entry is not None else None) or 0)
    return shorten(
        ShortenWork(
            replicas=storage.replicas(view),
            policy=config.merging_inline,
            from_offset=from_offset,
            compression=config.compression_type,
            clock=clock,
            delay_ms=config.file_delete_delay_ms,
        )
    )

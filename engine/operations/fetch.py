"""Fetch: some records of partitions from an offset on, in this process, from either tier (Kafka's Fetch request).

For consumers of small ranges: no Spark, no plan of files. A fetch answers from one tier: from the leader where its
local log has the offset, else from the remote log; the next one goes on at ``Fetched.next_offset``.

    1. read the metadata (once for all partitions of a call), list the leader
    2. the offset is local: its files; else the remote segment that holds it: ranged reads of the footer and of
       the row groups that are needed; what was read of late is remembered
    3. what fails and may pass is tried again, after 1, with exponential back-off, until the time-out (KIP-405,
       "Remote Storage Fetcher Thread Pool", 2.3)
A segment that was deleted meanwhile is an error at once: OFFSET_OUT_OF_RANGE, where the log start has passed it,
else REMOTE_OBJECT_MISSING (2.2). So is what the fetch quota leaves no room for before the time-out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView, TopicImage
from engine.reading.fetching import Remote
from engine.reading.records import READ_COLUMNS, free
from engine.remote_quota import fetch_throttle
from engine.replication.damage import check_whole
from engine.replication.throttle import Throttle
from partitions.errors import (
    InvalidCallError,
    OffsetOutOfRangeError,
    RemoteNotReadyError,
    RemoteObjectMissingError,
    RetriableError,
    SourceChangedError,
    StaleMetadataError,
    ThrottlingQuotaExceededError,
)
from partitions.growth import widest
from partitions.listing import ReplicaLog
from partitions.lookup import Piece
from partitions.records import physical_schema, type_from_json
from partitions.runner import Outcome, values
from tiering.divergence import readable
from tiering.remote_file import remote_file
from tiering.remote_log import RemoteLog

T = TypeVar("T")

TopicPartition = tuple[str, int]

MAX_BYTES = 1024 * 1024
"""Kafka's max.partition.fetch.bytes."""
TIMEOUT_S = 30.0
"""Kafka's request.timeout.ms of consumers."""
_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 2.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch gave of one partition."""

    topic: str
    partition: int
    records: pa.Table
    """Columns ``partition, offset, timestamp, key, value, headers``, in the order of offsets, without gaps; empty
    at the high watermark."""
    next_offset: int
    """Where to go on."""
    log_start: int
    high_watermark: int
    remote: bool
    """Whether the records came from the remote tier."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A partition as one look at its leader saw it."""

    topic: TopicImage
    view: PartitionView
    log: ReplicaLog
    tiered: bool

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.view.partition}"

    @property
    def log_start(self) -> int:
        """The first offset that readers get."""
        first = self.view.log_start_offset
        return first if self.tiered else max(first, self.log.local_start)

    @property
    def high_watermark(self) -> int:
        """The offset after the last one that readers get."""
        return max(self.log.high_watermark, self.log_start)


def fetch(
    context: Context,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = MAX_BYTES,
    timeout_s: float = TIMEOUT_S,
) -> Fetched:
    """The records of a partition from ``offset`` on: at least one, if there is one below the high watermark, and
    as many more as take at most ``max_bytes`` in memory.

    Raises: UnknownTopicOrPartitionError; OffsetOutOfRangeError below the log start and above the high watermark;
        InvalidCallError; ThrottlingQuotaExceededError; LeaderNotAvailableError, StorageError, StoreTimeoutError
        and other errors that may pass and have not until the time-out; RemoteObjectMissingError and other
        CorruptionError kinds.
    """
    return values(fetch_many(context, {(topic, partition): offset}, max_bytes=max_bytes, timeout_s=timeout_s))[0]


def fetch_many(
    context: Context,
    offsets: Mapping[TopicPartition, int],
    *,
    max_bytes: int = MAX_BYTES,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[Outcome[TopicPartition, Fetched]]:
    """Fetch from several partitions at once, ``max_bytes`` of each: an outcome for each, as they come, local ones
    without waiting for remote ones.

    Raises: InvalidCallError; what keeps the metadata from being read.
    """
    if max_bytes < 1 or timeout_s <= 0:
        raise InvalidCallError(f"max_bytes = {max_bytes}, timeout_s = {timeout_s}: both must be above 0")
    deadline_s = context.clock.monotonic_s() + timeout_s
    image = context.metadata.image()
    throttle = fetch_throttle(context, context.cluster_config(image))

    def begin(key: TopicPartition) -> Fetched | Remote[Fetched]:
        one = _Fetch(context, key, offsets[key], max_bytes, deadline_s, throttle)
        return one.until_it_passes(lambda fresh: one.begin(context.metadata.image() if fresh else image))

    left_s = max(0.0, deadline_s - context.clock.monotonic_s())
    return context.fetching.run(begin, list(offsets), context.clock, left_s)


@dataclass(frozen=True, slots=True)
class _Fetch:
    """One fetch in the course of its tries."""

    context: Context
    key: TopicPartition
    offset: int
    max_bytes: int
    deadline_s: float
    throttle: Throttle | None

    def until_it_passes(self, attempt: Callable[[bool], T]) -> T:
        """Try again what may pass; ``attempt`` is told whether it has been tried before."""
        tries = 0
        while True:
            try:
                return attempt(tries > 0)
            except ThrottlingQuotaExceededError:
                raise  # there is no room before the deadline
            except (RetriableError, StaleMetadataError):
                tries += 1
                longest = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2**tries)
                pause = longest * self.context.rng.uniform(0.5, 1.0)
                if self.context.clock.monotonic_s() + pause > self.deadline_s:
                    raise
                self.context.clock.sleep(pause)

    def begin(self, image: ClusterImage) -> Fetched | Remote[Fetched]:
        """The local records, or what it takes to get remote ones."""
        seen = self._look(image)
        if self.offset >= seen.log.local_start:
            end = seen.high_watermark
            links = [link for link in seen.log.chain if link.end > self.offset and link.start < end]
            store = self.context.site(seen.view).leader.store
            pieces = [Piece(store, link.file, link.start, min(link.end, end)) for link in links]
            return self._fetched(seen, pieces, remote=False)
        return Remote(lambda: self.until_it_passes(lambda fresh: self._remotely(seen, fresh)))

    def _look(self, image: ClusterImage) -> _Seen:
        name, partition = self.key
        topic = image.topic(name)
        view = image.view(topic.topic_id, partition)
        leader = self.context.site(view).leader
        log = leader.log()
        check_whole(leader, log)
        tiered = self.context.topic_config(image, topic).remote_storage_enable
        seen = _Seen(topic, view, log, tiered)
        if not seen.log_start <= self.offset <= seen.high_watermark:
            raise OffsetOutOfRangeError(
                f"{seen}: offset {self.offset} is not in [{seen.log_start}, {seen.high_watermark}], the log start "
                "offset and the high watermark"
            )
        return seen

    def _remotely(self, seen: _Seen, fresh: bool) -> Fetched:
        """The remote records; ``fresh``: go by what the table says now."""
        known = None if fresh else self.context.fetching.remote_logs.get(seen.topic.topic_id)
        if known is None or not known.covering(seen.view.partition, self.offset, self.offset + 1):
            known = self._load(seen)
        try:
            return self._fetched(seen, self._remote_pieces(seen, known), remote=True)
        except (SourceChangedError, RemoteObjectMissingError) as error:
            now = self._look(self.context.metadata.image())  # the log start may have passed it
            log = self._load(now)
            if self._remote_pieces(now, log)[:1] == self._remote_pieces(seen, known)[:1]:
                raise RemoteObjectMissingError(
                    f"{seen}: the remote log lists a segment with offset {self.offset} whose object is not there: "
                    f"{error}"
                ) from error
            raise SourceChangedError(f"{seen}: offset {self.offset} is in another file by now: {error}") from error

    def _load(self, seen: _Seen) -> RemoteLog:
        log = self.context.remote_table(seen.topic).load()
        self.context.fetching.remote_logs.put(seen.topic.topic_id, log)
        return log

    def _remote_pieces(self, seen: _Seen, remote: RemoteLog) -> list[Piece]:
        """From the one that holds the offset on."""
        store = self.context.remote_store(f"topic {seen.topic.name!r} is tiered")
        folder = self.context.remote_folder(seen.topic)
        covering = remote.covering(seen.view.partition, self.offset, seen.log.local_start)
        segments = list(readable(covering, seen.log.lineage))
        if not segments or not segments[0][0].base_offset <= self.offset < segments[0][1]:
            raise RemoteNotReadyError(
                f"{seen}: offset {self.offset} is not on the leader any more, and not in the remote log; verify "
                "the topic"
            )
        return [Piece(store, remote_file(folder, one), one.base_offset, end) for one, end in segments]

    def _fetched(self, seen: _Seen, pieces: list[Piece], *, remote: bool) -> Fetched:
        pay = self._pay if remote else free
        records = self.context.fetching.reader.read(str(seen), pieces, self.offset, self.max_bytes, pay)
        schema = _schema(seen.topic)
        if records is None:
            records = schema.empty_table()
        else:  # its schema may have grown since they were written, and also since this looked
            records = records.cast(widest([schema, records.schema.remove_metadata()], str(seen)))
        return Fetched(
            seen.topic.name,
            seen.view.partition,
            records,
            self.offset + records.num_rows,
            seen.log_start,
            seen.high_watermark,
            remote,
        )

    def _pay(self, size_bytes: int) -> None:
        left_s = self.deadline_s - self.context.clock.monotonic_s()
        if self.throttle is not None and not self.throttle.borrow(size_bytes, left_s):
            raise ThrottlingQuotaExceededError(
                f"{self.key[0]}-{self.key[1]}: offset {self.offset} is remote, and earlier fetches use up "
                "remote.log.manager.fetch.max.bytes.per.second until the time-out; fetch it later"
            )


def _schema(topic: TopicImage) -> pa.Schema:
    key, value = (
        None if text is None else type_from_json(text) for text in (topic.key_schema, topic.value_schema)
    )
    physical = physical_schema(key, value)
    return pa.schema([physical.field(name) for name in READ_COLUMNS])

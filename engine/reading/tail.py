"""Tail: yields the records of a topic as they are appended, in this process (like the poll loop of a Kafka
consumer).

1. List the partitions once, to find the start offsets.
2. Fetch from all partitions, as many concurrently as ``fetch_max_bytes`` of memory allow. Yield the tables one by
   one. The position of a partition is after the last yielded record.
3. If there were no records, wait, longer each time up to ``longest_poll_s``, and fetch again.

A poll without records lists each leader once. The metadata is read again when it is older than
``metadata_max_age_s`` (Kafka's metadata.max.age.ms), when the listing of a former leader requires it, and before
an error is raised. New partitions are read from their first record. Until the metadata is read again, the tail may
yield records that ``delete_records`` has deleted. While the metadata is unreachable, a tail continues as long as
the leaders answer.

Every fetch carries the leader epoch of the last record, so an unclean election is detected (KIP-320).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.report import Report, Value
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import topic_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import check_some
from stratalog.engine.reading.fetch import Fetched, fetch_many
from stratalog.engine.reading.look import look
from stratalog.engine.reading.tail_start import (
    DEFAULT_OPTIONS,
    Start,
    TailOptions,
    begins_at,
    in_range,
    notes_on_snapshots,
    where_of,
)
from stratalog.engine.replicas.nearest import SeenLeader
from stratalog.engine.replication.replica_selector import NOWHERE, ClientMetadata
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    LogTruncationError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.html_table import MOST_ROWS, head_line, html_table
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.offsets import OffsetSpec
from stratalog.partitions.printable import printable
from stratalog.partitions.runner import Done

_NAP_S = 0.5
"""The time in seconds within which a waiting tail notices ``stop``."""


@dataclass(slots=True)
class Served:
    """The records of a partition from one broker, or from the remote tier."""

    start: int
    end: int
    records: int = 0
    read_bytes: int = 0
    cross_rack_bytes: int = 0


class Tail:
    """Iterates over Arrow tables ``partition, offset, timestamp, key, value, headers``, each of one partition, in
    order and without gaps. ``follow`` says when the iteration ends. A new iteration, including one after an error,
    continues at ``positions``. One thread iterates; any thread may call ``stop``.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        clock: Clock,
        memory: Memory,
        topic: str,
        partitions: Sequence[int] | None = None,
        *,
        start: Start = OffsetSpec.LATEST,
        last: int | None = None,
        options: TailOptions = DEFAULT_OPTIONS,
        client: ClientMetadata = NOWHERE,
    ) -> None:
        """Lists the partitions (None: all of the topic), and fetches nothing yet. ``last``: begin that many
        records before the end of each partition, instead of at ``start``.

        Raises: UnknownTopicOrPartitionError, InvalidCallError, OffsetOutOfRangeError; OffsetNotAvailableError if
            the recently elected leader does not know the needed end yet; errors from listing the partitions.
        """
        self._metadata = metadata
        self._storage = storage
        self._clock = clock
        self._memory = memory
        self._topic = topic
        self._chosen = partitions
        self._options = options
        self._client = client
        self._stopped = threading.Event()
        self._served: dict[tuple[int, int | None], Served] = {}
        self._damage: dict[str, None] = {}
        """Damage that the tail has skipped by reading other copies; one entry each."""
        self._failing_since_s: dict[int, float] = {}
        """By partition, the time since which the tail could not determine how to continue."""
        check_some(partitions)
        isolation = Isolation(options.isolation)
        where = where_of(topic, start, last, clock.now_ms())
        self._image, states = look(
            metadata, storage, memory, topic, partitions, lambda seen: where.takes_remote(seen, isolation)
        )
        self._read_s = clock.monotonic_s()
        self._topic_id = self._image.topic(topic).topic_id
        begin = begins_at(
            metadata, storage, clock, memory, self._image, self._image.topic(topic), states, where, options
        )
        leaders = {state.leader.view.partition: state for state in states}
        self._positions = {p: in_range(state, begin[p], options) for p, state in leaders.items()}
        config = topic_config_of(self._image, self._image.topic(topic))
        self._notes = [] if where.is_end else notes_on_snapshots(topic, config, states, self._positions)
        self._ends = {} if options.follow else {p: state.leader.latest(isolation) for p, state in leaders.items()}

    @property
    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The next offset to read, by topic and partition, in the form that ``cluster.groups.commit`` accepts."""
        return {(self._topic, partition): at for partition, at in sorted(self._positions.items())}

    def __repr__(self) -> str:
        at = ", ".join(f"{partition}: {offset}" for partition, offset in self._at()[:MOST_ROWS])
        more = "" if len(self._at()) <= MOST_ROWS else ", ..."
        return f"Tail({printable(self._topic)!r}, next offsets {{{at}{more}}}): iterate over it for Arrow tables"

    def _repr_html_(self) -> str:
        rows = [[str(partition), f"{offset:,}"] for partition, offset in self._at()]
        columns = ("partition", "next offset")
        head = head_line(f"tail of {self._topic}: iterate over it for Arrow tables")
        return head + html_table(columns, rows, numbers=columns)

    def _at(self) -> list[tuple[int, int]]:
        """A copy of the positions, so that it is safe to call this while another thread iterates."""
        return sorted((partition, at.offset) for partition, at in dict(self._positions).items())

    def stop(self) -> None:
        """Make the iteration end soon."""
        self._stopped.set()

    def report(self) -> Report:
        """Report the sources of the records so far, with a row for each partition and broker, or for the remote
        tier. Notes name damaged copies, and records that only a snapshot has.
        """
        by_partition = sorted(self._served.items(), key=lambda item: (item[0][0], item[1].start))
        rows = [self._row(partition, broker, served) for (partition, broker), served in by_partition]
        names = ("records", "bytes", "cross_rack_bytes")
        totals = {name: sum(int(row[name] or 0) for row in rows) for name in names}
        return Report("tail", rows, totals=totals, notes=(*self._notes, *self._damage))

    def __iter__(self) -> Iterator[pa.Table]:
        """Raises: OffsetOutOfRangeError, LogTruncationError if ``auto_offset_reset`` is ``none``;
        UnknownTopicOrPartitionError when the topic is deleted; errors that last longer than ``timeout_s``.
        """
        clock, options = self._clock, self._options
        pause_s, idle_since_s = options.first_poll_s, clock.monotonic_s()
        while not self._stopped.is_set():
            if clock.monotonic_s() - self._read_s >= options.metadata_max_age_s:
                with suppress(
                    RetriableError, StaleMetadataError
                ):  # the previous metadata is good enough until the next poll
                    self._refresh()
            for fetched in self._poll():
                pause_s, idle_since_s = 0.0, clock.monotonic_s()
                yield fetched.records
                if self._stopped.is_set():
                    return
            if not options.follow and not self._wanted():
                return
            idle_s = clock.monotonic_s() - idle_since_s
            if options.idle_timeout_s is not None and idle_s >= options.idle_timeout_s:
                return
            if not options.follow and idle_s >= options.timeout_s:
                raise OffsetNotAvailableError(
                    f"{self._topic}: the leaders of partitions {self._wanted()} were elected "
                    "recently, and do not yet know everything that was committed when the tail "
                    "began; try again after an append, or run replicate"
                )
            if pause_s:
                self._wait(pause_s)
            pause_s = min(max(pause_s * 2, options.first_poll_s), options.longest_poll_s)

    def _wanted(self) -> list[int]:
        """The partitions to fetch from: all partitions while following, otherwise the partitions that are not read
        to their end."""
        if self._options.follow:
            return sorted(self._positions)
        return [p for p, at in sorted(self._positions.items()) if at.offset < self._ends[p]]

    def _poll(self) -> Iterator[Fetched]:
        """Fetch from each partition once. Returns the fetches with records."""
        wanted = iter(self._wanted())
        at_once = max(1, self._options.fetch_max_bytes // self._options.max_bytes)
        while some := list(islice(wanted, at_once)):
            began_s = self._clock.monotonic_s()
            outcomes = fetch_many(
                self._metadata,
                self._storage,
                self._clock,
                self._memory,
                {(self._topic, partition): self._positions[partition] for partition in some},
                max_bytes=self._options.max_bytes,
                timeout_s=self._options.timeout_s,
                client=self._client,
                known=self._image,
                isolation=self._options.isolation,
            )
            for outcome in outcomes:
                partition = outcome.item[1]
                if not isinstance(outcome, Done):
                    self._failed(partition, outcome.error, began_s)
                    continue
                self._failing_since_s.pop(partition, None)
                fetched, start = outcome.value, self._positions[partition].offset
                if fetched.next_offset > start:  # skips markers and records of aborted transactions
                    self._positions[partition] = OffsetAndMetadata(fetched.next_offset, fetched.leader_epoch)
                if fetched.records.num_rows:
                    self._note(start, fetched)
                    yield fetched

    def _failed(self, partition: int, error: StratalogError, began_s: float) -> None:
        """Continue in another way after an error, or raise the error. While the metadata is unreachable, the next
        poll tries again, for up to ``timeout_s``.
        """
        since_s = self._failing_since_s.pop(partition, began_s)
        if isinstance(error, OffsetNotAvailableError):
            return  # there is nothing to read yet, as at the high watermark
        try:
            if self._can_continue(partition, error):
                return
        except (RetriableError, StaleMetadataError):
            if self._clock.monotonic_s() - since_s < self._options.timeout_s:
                self._failing_since_s[partition] = since_s
                return
        raise error

    def _can_continue(self, partition: int, error: StratalogError) -> bool:
        """Whether the next poll can continue in another way. An error caused by outdated metadata does not prevent
        this.

        Raises: see ``_refresh``, ``look``.
        """
        before = self._image
        self._refresh()
        if _partition(before, self._topic_id, partition) != _partition(self._image, self._topic_id, partition):
            return True
        if self._options.auto_offset_reset == "none" or not isinstance(error, OffsetOutOfRangeError):
            return False
        if isinstance(error, LogTruncationError):
            self._positions[partition] = OffsetAndMetadata(error.divergent_offset)
            return True
        (state,) = look(self._metadata, self._storage, self._memory, self._topic, [partition], _leader_alone)[1]
        self._positions[partition] = in_range(state, self._positions[partition], self._options)
        return True

    def _refresh(self) -> None:
        """Read the metadata, and start on new partitions.

        Raises: UnknownTopicOrPartitionError when the topic is deleted, or created again under its name; errors
            from reading the metadata, or from listing new partitions.
        """
        self._image = self._metadata.image()
        topic = self._image.topic(self._topic)
        if topic.topic_id != self._topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {self._topic!r} was deleted and created again, with a new log; start again"
            )
        if self._chosen is None and self._options.follow:
            fresh = [p.partition for p in topic.partitions if p.partition not in self._positions]
            for state in (
                look(self._metadata, self._storage, self._memory, self._topic, fresh, _leader_alone)[1]
                if fresh
                else ()
            ):
                self._positions[state.leader.view.partition] = OffsetAndMetadata(state.positions.log_start)
        self._read_s = self._clock.monotonic_s()

    def _wait(self, pause_s: float) -> None:
        while pause_s > 0 and not self._stopped.is_set():
            self._clock.sleep(min(pause_s, _NAP_S))
            pause_s -= _NAP_S

    def _note(self, start: int, fetched: Fetched) -> None:
        self._damage |= dict.fromkeys(fetched.damage)
        served = self._served.setdefault((fetched.partition, fetched.broker), Served(start, start))
        served.end = fetched.next_offset
        served.records += fetched.records.num_rows
        served.read_bytes += fetched.read_bytes
        served.cross_rack_bytes += fetched.cross_rack_bytes

    def _row(self, partition: int, broker: int | None, served: Served) -> dict[str, Value]:
        known = None if broker is None else self._image.brokers.get(broker)
        return {
            "topic": self._topic,
            "partition": partition,
            "broker": "remote" if broker is None else broker,
            "rack": None if known is None else known.rack,
            "start": served.start,
            "end": served.end,
            "records": served.records,
            "bytes": served.read_bytes,
            "cross_rack_bytes": served.cross_rack_bytes,
        }


def _partition(image: ClusterImage, topic_id: str, partition: int) -> PartitionImage:
    return image.topics[topic_id].partitions[partition]


def _leader_alone(_: SeenLeader) -> bool:
    """Whether the leader is enough to locate a place, as it is for the named ends of a log."""
    return False

"""The source of a stream, on the driver: its start, the end of its next batch, and the files of a planned batch.

    initial   the start of a new query
    latest    a trigger: reads the metadata, lists the leaders, divides the limit; opens no file
    bounds    the bounds of a batch read, instead of ``initial`` and ``latest``
    plan      a batch: the files of [start, end), from either tier and the closest replica, divided into tasks
              (``stratalog.engine.reading.stream_read``)
    ranges    a batch as ranges of offsets, for a scan (``stratalog.engine.reading.range_plan``)

A range of offsets always gives the same records, wherever its files are now. An unreachable leader is fenced if
that is due, and the next leader is used.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from stratalog.engine.brokers.probe import with_leaders
from stratalog.engine.driver.execution import Execution
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.admission import Backlog, Extent, admit
from stratalog.engine.reading.client import client_metadata
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.reading.look import check_partitions, local_pieces, look_again, remote_log_pieces
from stratalog.engine.reading.plan import NearPieces, check_end, readable_pieces
from stratalog.engine.reading.plan_read import check_same_types, epochs_between
from stratalog.engine.reading.range_plan import StreamRange
from stratalog.engine.reading.stream_offsets import (
    BEGINNING,
    LogBounds,
    Position,
    StreamOffsets,
    is_idle,
    planned_range,
    resume,
)
from stratalog.engine.reading.stream_options import SourceOptions, Start, Subscription
from stratalog.engine.reading.stream_read import StreamTask
from stratalog.engine.reading.stream_tasks import Part, group_ends, pack, part, split, task_bytes
from stratalog.engine.records.groups import commit, committed
from stratalog.engine.replicas.nearest import SeenLeader, nearest, seen_leader
from stratalog.engine.state.group_commits import OffsetAndMetadata, check_group
from stratalog.engine.state.internal_topics import INTERNAL_TOPICS
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    InvalidCallError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StratalogError,
)
from stratalog.partitions.growth import grew
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.offsets import Answer, FoundOffset, OffsetSpec
from stratalog.partitions.records import schema_of
from stratalog.partitions.runner import values
from stratalog.partitions.transactions import LogTransactions, transactions_of
from stratalog.tiering.remote_log import RemoteLog


@dataclass(frozen=True, slots=True)
class _SeenOffsets:
    """The topics of a stream, from one read of the metadata."""

    topics: Mapping[str, TopicImage]
    """Keyed by name."""
    leaders: Mapping[TopicPartition, SeenLeader]
    """The leaders of the partitions to read."""

    @property
    def ids(self) -> dict[str, str]:
        """The topic ids, by name."""
        return {name: topic.topic_id for name, topic in self.topics.items()}


def topics_of(image: ClusterImage, reads: Subscription) -> list[TopicImage]:
    """The topics of a stream; assigned partitions must exist.

    Raises: UnknownTopicOrPartitionError, also if a pattern matches no topic; InvalidCallError for an invalid
        pattern.
    """
    topics = [image.topic(name) for name in reads.topics(image.topic_ids, INTERNAL_TOPICS)]
    for topic in topics:
        check_partitions(topic, reads.partitions(topic.name, len(topic.partitions)))
    return topics


class StreamSource:
    """The topics of one query, on the driver."""

    def __init__(
        self, metadata: MetadataClient, storage: Storage, clock: Clock, memory: Memory, options: SourceOptions
    ) -> None:
        self._metadata = metadata
        self._storage = storage
        self._clock = clock
        self._memory = memory
        self._options = options
        self._client = client_metadata(storage.file, None, options.client_rack)
        self._types: TopicImage | None = None
        """The topic whose columns fit the records of all other topics."""
        self._target: dict[TopicPartition, int] | None = None
        self.latest_seen: StreamOffsets | None = None
        """The end of the log at the last call of ``latest``."""
        self.planned: StreamOffsets | None = None
        """The end of the batch that ``latest`` returned."""
        self.topics_seen: Sequence[TopicImage] = ()
        """The topics as read last. They have the types of all records before an end that was returned earlier."""

    # --------------------------------------------------------------------------------- offsets

    def initial(self) -> StreamOffsets:
        """The start of a new query.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, InvalidCallError for the options;
            OffsetNotAvailableError, see ``SeenLeader.latest``.
        """
        seen = self._look()
        offsets = self._places(seen, self._options.start, "startingOffsets")
        positions = {key: self._bounds(leader).position(offsets[key]) for key, leader in seen.leaders.items()}
        return StreamOffsets(seen.ids, positions, initial=True)

    def ends(self) -> StreamOffsets:
        """The current ends of the logs. Raises: UnknownTopicOrPartitionError."""
        seen = self._look()
        logs = {key: self._bounds(leader) for key, leader in seen.leaders.items()}
        return StreamOffsets(seen.ids, {key: log.position(log.end) for key, log in logs.items()})

    def bounds(self) -> tuple[StreamOffsets, StreamOffsets]:
        """The bounds of a batch read, pinned now; ``plan`` has its tasks.

        Raises: see ``initial``; OffsetOutOfRangeError if the start is after the end.
        """
        seen = self._look()
        logs = {key: self._bounds(leader) for key, leader in seen.leaders.items()}
        starts = self._places(seen, self._options.start, "startingOffsets")
        ends = self._places(seen, self._options.end, "endingOffsets")
        for key, log in logs.items():
            if starts[key] > ends[key]:
                raise OffsetOutOfRangeError(
                    f"{log.what}: the read starts at {starts[key]}, after its end at {ends[key]}"
                )
        first, last = (
            StreamOffsets(seen.ids, {key: log.position(places[key]) for key, log in logs.items()})
            for places in (starts, ends)
        )
        return first, last

    def stop_at_present_end(self) -> None:
        """Let the stream end at the current end of its topics (``Trigger.AvailableNow``). Raises:
        OffsetNotAvailableError, see ``SeenLeader.latest``.
        """
        leaders = self._look().leaders
        self._target = {key: leader.latest(self._options.isolation) for key, leader in leaders.items()}

    def latest(self, start: StreamOffsets, max_rows: int | None, max_bytes: int | None) -> StreamOffsets:
        """The end of the batch that begins at ``start``; ``start`` itself if there is nothing to read.

        Raises: InvalidCallError when ``start`` names another topic, or a deleted topic of the same name;
        OffsetOutOfRangeError for lost records, unless records may be lost.
        """
        seen = self._look()
        start = self._of_topics(start, seen)
        bounds = {key: self._bounds(leader) for key, leader in seen.leaders.items()}
        backlogs: dict[TopicPartition, Backlog] = {}
        for key, leader in seen.leaders.items():
            low = resume(
                start.partitions.get(key, BEGINNING),
                bounds[key],
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
            end = bounds[key].end
            if self._target is not None:
                end = min(end, self._target.get(key, low))
            local = local_pieces(leader.replicas.leader, leader.log) if max_bytes is not None else ()
            extents = [_extent(piece) for piece in local]
            backlogs[key] = Backlog(low, max(low, end), extents)
        if max_bytes is not None:
            for topic in seen.topics.values():
                self._add_remote_extents(topic, seen.leaders, backlogs)
        ends = admit(backlogs, max_rows=max_rows, max_bytes=max_bytes)
        positions = {
            key: start.partitions[key]
            if is_idle(start.partitions.get(key), backlogs[key].start, ends[key])
            else log.position(ends[key])
            for key, log in bounds.items()
        }
        self.latest_seen = StreamOffsets(seen.ids, {key: log.position(log.end) for key, log in bounds.items()})
        self.planned = StreamOffsets(seen.ids, positions)
        if start.initial:
            return StreamOffsets(seen.ids, positions, began=start.partitions)
        if positions == start.partitions:
            return start
        return self.planned

    def _of_topics(self, offsets: StreamOffsets, seen: _SeenOffsets) -> StreamOffsets:
        return offsets.of_topics(seen.ids, self._options.topics, fail_on_data_loss=self._options.fail_on_data_loss)

    def _bounds(self, leader: SeenLeader) -> LogBounds:
        return LogBounds(str(leader), leader.log_start, leader.end(self._options.isolation), leader.log)

    def _add_remote_extents(
        self,
        topic: TopicImage,
        leaders: Mapping[TopicPartition, SeenLeader],
        backlogs: dict[TopicPartition, Backlog],
    ) -> None:
        """Add the sizes of remote files; a remote log is loaded only if the batch needs it."""
        behind = [
            key
            for key, backlog in backlogs.items()
            if key[0] == topic.name and backlog.start < leaders[key].log.local_start
        ]
        if not behind or not leaders[behind[0]].tiered:
            return
        remote = self._storage.remote_table(topic).load()
        for key in behind:
            backlog, leader = backlogs[key], leaders[key]
            pieces = remote_log_pieces(self._storage, leader, remote.of_partition(key[1]))
            cold = [extent for extent in map(_extent, pieces) if extent.end <= leader.log.local_start]
            backlogs[key] = Backlog(backlog.start, backlog.end, (*cold, *backlog.extents))

    def _places(self, seen: _SeenOffsets, bound: Start, option: str) -> dict[TopicPartition, int]:
        """The offsets of a bound. Raises: InvalidCallError unless each partition has one; OffsetOutOfRangeError;
        OffsetNotAvailableError for an offset that is not known to be committed on the recently elected leader.
        """
        given = bound if isinstance(bound, Mapping) else dict.fromkeys(seen.leaders, bound)
        if set(given) != set(seen.leaders):
            raise InvalidCallError(
                f"{option} is given for {_listed(given)}, but {_listed(seen.leaders)} are read: "
                "give a position for each (-2 for earliest, -1 for latest)"
            )
        by_time: dict[tuple[str, datetime], Mapping[int, Answer]] = {}
        places = {}
        for key, at in given.items():
            leader = seen.leaders[key]
            log = self._bounds(leader)
            if isinstance(at, datetime):
                if (key[0], at) not in by_time:
                    by_time[key[0], at] = self._at(key[0], at, option)
                found = by_time[key[0], at][key[1]]
                none = not isinstance(found, FoundOffset)
                if none and option == "startingOffsets" and self._options.fail_without_record:
                    raise OffsetOutOfRangeError(
                        f"{log.what} has no record at or after the starting time {at.isoformat()}: give "
                        "startingOffsetsByTimestampStrategy = latest to read only new records, or an earlier time"
                    )
                places[key] = found.offset if isinstance(found, FoundOffset) else log.end
            else:
                places[key] = self._named(at, leader) if isinstance(at, OffsetSpec) else at
            if log.end < places[key] <= log.log.log_end:
                leader.latest(self._options.isolation)
            if places[key] < log.log_start and not self._options.fail_on_data_loss:
                places[key] = log.log_start
            if not log.log_start <= places[key] <= log.end:
                lost = "; to read from the first remaining offset, give failOnDataLoss = false"
                raise OffsetOutOfRangeError(
                    f"{log.what}: {option} is {at}, but the log has [{log.log_start}, {log.end})"
                    f"{lost if places[key] < log.log_start else ''}"
                )
        return places

    def _named(self, spec: OffsetSpec, leader: SeenLeader) -> int:
        return leader.log_start if spec is OffsetSpec.EARLIEST else leader.latest(self._options.isolation)

    def _at(self, topic: str, time: datetime, option: str) -> Mapping[int, Answer]:
        if time.timestamp() * 1000 > self._clock.now_ms():
            name = option.replace("Offsets", "Timestamp")
            raise InvalidCallError(f"{name} {time.isoformat()} is in the future: use {option} = latest")
        return list_offsets(self._metadata, self._storage, self._memory, topic, time, self._options.isolation)

    # ---------------------------------------------------------------------------------- batches

    def plan(self, start: StreamOffsets, end: StreamOffsets) -> list[StreamTask]:
        """The tasks that read the records of ``[start, end)``.

        Raises: see ``latest``; errors from planning a read.
        """
        began = _began(start, end)
        if not _has_records(began, end):
            return []
        return look_again(self._metadata, self._storage, lambda: self._plan_once(began, end))

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[StreamRange]:
        """The records of ``plan``, as a range of offsets per partition with records. Raises: see ``latest``."""
        began = _began(start, end)
        if not _has_records(began, end):
            return []
        return look_again(self._metadata, self._storage, lambda: self._ranges_once(began, end))

    def _ranges_once(self, began: Mapping[TopicPartition, Position], end: StreamOffsets) -> list[StreamRange]:
        seen = self._look(also=end.partitions)
        return [
            StreamRange(
                topic,
                seen.ids[topic],
                partition,
                low,
                high,
                epochs_between(seen.leaders[topic, partition].log.lineage, low, high),
            )
            for (topic, partition), (low, high) in self._planned(began, end, seen).items()
        ]

    def _planned(
        self, began: Mapping[TopicPartition, Position], end: StreamOffsets, seen: _SeenOffsets
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets ``[low, high)`` of a batch, for each partition that has records in it."""
        ranges = {
            key: planned_range(
                began.get(key, BEGINNING),
                position,
                self._bounds(seen.leaders[key]),
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
            for key, position in self._of_topics(end, seen).partitions.items()
        }
        return {key: (low, high) for key, (low, high) in ranges.items() if low < high}

    def _plan_once(self, began: Mapping[TopicPartition, Position], end: StreamOffsets) -> list[StreamTask]:
        seen = self._look(also=end.partitions)
        leaders, ranges = seen.leaders, self._planned(began, end, seen)
        tiered = {name for (name, _), leader in leaders.items() if leader.tiered}
        tables = {name: self._storage.remote_table(seen.topics[name]) for name in sorted(tiered)}
        behind = {key[0] for key, (low, _) in ranges.items() if low < leaders[key].log.local_start}
        remotes = {name: table.load() for name, table in tables.items() if name in behind}

        def parts_of(key: TopicPartition) -> tuple[str, list[Part]]:
            low, high = ranges[key]
            return key[0], self._parts(leaders[key], low, high, remotes.get(key[0]))

        threads = self._storage.threads
        parts = [(topic, one) for topic, some in values(threads.run(parts_of, list(ranges))) for one in some]
        most = task_bytes(sum(one.size_bytes for _, one in parts), self._options.min_partitions)
        cut = values(threads.run(lambda of: (of[0], split(of[1], most, group_ends)), parts))
        tasks = []
        for topic in sorted({topic for topic, _ in cut}):
            smaller = [one for name, some in cut if name == topic for one in some]
            smaller.sort(key=lambda one: (one.partition, one.piece.start))
            for task in pack(smaller, most):
                partitions = sorted({one.partition for one in task})
                replicas_of = {p: leaders[topic, p].replicas for p in partitions}
                table = tables.get(topic)
                tasks.append(StreamTask(topic, tuple(task), replicas_of, table, self._options.isolation))
        return tasks

    def _parts(self, leader: SeenLeader, low: int, high: int, remote: RemoteLog | None) -> list[Part]:
        """The files of ``[low, high)`` of a partition. All these records were committed when the batch was
        planned. A leader that was elected since then has the records, but may not know that they are committed,
        nor the outcomes of their transactions.
        """
        end = leader.end(self._options.isolation)
        if high > end and self._options.isolation is Isolation.READ_COMMITTED:
            raise OffsetNotAvailableError(
                f"{leader}: offsets up to {high} must be read, but the recently elected leader "
                f"only knows that offsets up to {end} are committed; try again after an append, or run replicate"
            )
        cold: list[FileSlice] = []
        if remote is not None:
            cold = remote_log_pieces(self._storage, leader, remote.of_partition(leader.view.partition))
        ends = transactions_of(leader.log, leader.footer_of, low)
        hidden = ends.hidden(self._options.isolation)
        local = local_pieces(leader.replicas.leader, leader.log)
        pieces = readable_pieces(str(leader), cold, local, low, high, self._near(leader, low, ends))
        for piece in pieces:
            check_end(str(leader), piece)
        return [part(leader.view.partition, piece) for piece in pieces if piece.file.name not in hidden]

    def _near(self, leader: SeenLeader, low: int, ends: LogTransactions) -> NearPieces | None:
        """The closest replica (KIP-392). Only the leader shows undecided transactions."""
        chosen = nearest(self._clock, self._memory, leader, self._client, low)
        if chosen.is_leader or ends.fates:
            return None
        if transactions_of(chosen.log, chosen.replica.footer, low).fates:
            return None
        return NearPieces(local_pieces(chosen.replica, chosen.log), chosen.high_watermark)

    def _look(self, also: Collection[TopicPartition] = ()) -> _SeenOffsets:
        """List the partitions to read now, and the partitions in ``also``, which an earlier batch has."""
        return with_leaders(self._metadata, self._storage, lambda image: self._look_once(image, also))

    def _look_once(self, image: ClusterImage, also: Collection[TopicPartition]) -> _SeenOffsets:
        reads = self._options.topics
        topics = {topic.name: topic for topic in topics_of(image, reads)}
        self._check_types(list(topics.values()))
        self.topics_seen = list(topics.values())
        views = [
            image.view(topic.topic_id, one.partition)
            for topic in topics.values()
            for one in topic.partitions
            if one.partition in reads.partitions(topic.name, len(topic.partitions))
            or (topic.name, one.partition) in also
        ]

        def leader(view: PartitionView) -> SeenLeader:
            seen = seen_leader(self._storage, self._memory, image, view, self._client)
            seen.end(self._options.isolation)  # any reads of footers happen here, in a thread
            return seen

        leaders = {
            (one.view.topic, one.view.partition): one for one in values(self._storage.threads.run(leader, views))
        }
        return _SeenOffsets(topics, dict(sorted(leaders.items())))

    def _check_types(self, topics: Sequence[TopicImage]) -> None:
        """Check that the query's columns fit topics that matched later, and types that have grown since the query
        began.

        Raises: InvalidCallError naming the topic that does not fit.
        """
        first = self._types = self._types or topics[0]
        for topic in topics:
            now, then = (schema_of(one.key_schema, one.value_schema) for one in (topic, first))
            if not (
                grew(pa.struct(list(then)), pa.struct(list(now)))
                or grew(pa.struct(list(now)), pa.struct(list(then)))
            ):
                check_same_types([first, topic])


def _began(start: StreamOffsets, end: StreamOffsets) -> Mapping[TopicPartition, Position]:
    return end.began if start.initial and end.began is not None else start.partitions


def _has_records(began: Mapping[TopicPartition, Position], end: StreamOffsets) -> bool:
    return dict(began) != dict(end.partitions)


def _listed(keys: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(keys))


def _extent(piece: FileSlice) -> Extent:
    return Extent(piece.start, piece.end, part(0, piece).size_bytes)


_log = logging.getLogger(__name__)


class StreamProgress:
    """Commits the positions of a stream to a consumer group, for observers: ``cluster.groups.lag(group)`` shows
    them. The stream itself continues from its checkpoint. The group's offsets never move back, even if a query
    runs again from an older checkpoint. A failed commit is logged once and does not stop the stream.
    """

    def __init__(
        self, metadata: MetadataClient, storage: Storage, execution: Execution, memory: Memory, group: str
    ) -> None:
        """Raises: InvalidGroupIdError."""
        check_group(group)
        self._metadata = metadata
        self._storage = storage
        self._execution = execution
        self._memory = memory
        self._group = group
        self._reported: StreamOffsets | None = None
        self._warned = False

    def report(self, done: StreamOffsets) -> None:
        """Commit ``done``, the offsets below which everything is processed, in one append. Partitions in which
        ``done`` is not ahead of the group are skipped. Does nothing if ``done`` equals the last report.
        """
        if self._reported is not None and self._reported.partitions == done.partitions:
            return
        try:
            before = committed(
                self._metadata,
                self._storage,
                self._execution.clock,
                self._memory,
                self._group,
                list(done.topic_ids),
            )
            ahead = {
                key: OffsetAndMetadata(position.offset, position.leader_epoch)
                for key, position in done.partitions.items()
                if key not in before or before[key].offset < position.offset
            }
            if ahead:
                commit(self._metadata, self._storage, self._execution, self._memory, self._group, ahead)
            self._reported = done
        except StratalogError as error:
            if not self._warned:
                self._warned = True
                _log.warning(
                    "the stream continues, but its offsets were not committed to group %r, whose "
                    "lag is out of date: %s: %s",
                    self._group,
                    error.code,
                    error,
                )

"""The source of a stream: where it begins, how far its next batch goes, and which files hold a planned batch.

    initial            where a new query begins
    latest             a trigger: read the metadata, list the leaders, share out the limit; no file is opened
    plan               a batch: the files of [start, end), in either tier, of the closest replica, shared out to
                       tasks (``engine.operations.streaming.read``)

A range of offsets is replayed with the same records whatever became of its files since: offsets are for ever.
A leader that cannot be reached is fenced, where that is due, and the one after it asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView, TopicImage
from engine.operations.brokers.brokers import with_leaders
from engine.operations.reading.list_offsets import list_offsets
from engine.operations.reading.look import local_pieces, remote_pieces
from engine.operations.reading.nearest import footer_nearby, nearest
from engine.operations.streaming.read import StreamTask
from engine.operations.while_it_changes import while_it_changes
from engine.reading.admission import Backlog, Extent, admit
from engine.reading.client import client_metadata
from engine.reading.plan import NearPieces, check_end, readable_pieces
from engine.reading.stream_offsets import (
    BEGINNING,
    LogBounds,
    Position,
    StreamOffsets,
    planned_range,
    resume,
    stands_still,
)
from engine.reading.stream_options import SourceOptions
from engine.reading.stream_tasks import Part, pack, part, split, task_bytes
from engine.replication.damage import check_whole
from partitions.errors import (
    InvalidCallError,
    LogGapError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
)
from partitions.listing import ReplicaLog
from partitions.lookup import Piece
from partitions.offsets import FoundOffset, OffsetSpec
from partitions.replica import Replica
from partitions.runner import values
from partitions.transactions import FooterOf, Isolation, LogTransactions, transactions_of
from tiering.delta_table import DeltaTopicTable
from tiering.remote_log import RemoteLog

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class _Leader:
    """A partition's leader, as it was listed."""

    view: PartitionView
    replica: Replica
    log: ReplicaLog
    bounds: LogBounds
    footer_of: FooterOf
    """What its files say of themselves."""


class StreamSource:
    """One query's hold on its topic, in the driver."""

    def __init__(self, context: Context, options: SourceOptions) -> None:
        self._context = context
        self._options = options
        self._client = client_metadata(context.file, None, options.client_rack)
        self._target: dict[int, int] | None = None
        self.latest_seen: StreamOffsets | None = None
        """Where the log ended when ``latest`` was last asked."""

    # --------------------------------------------------------------------------------- offsets

    def initial(self) -> StreamOffsets:
        """Where a new query begins.

        Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, InvalidCallError for the options.
        """
        topic, leaders = self._look()
        offsets = self._starts(topic, {partition: leader.bounds for partition, leader in leaders.items()})
        positions = {p: leader.bounds.position(offsets[p]) for p, leader in leaders.items()}
        return StreamOffsets(topic.name, topic.topic_id, positions, initial=True)

    def stop_at_present_end(self) -> None:
        """From now on there is nothing beyond what there is now (``Trigger.AvailableNow``)."""
        self._target = {partition: leader.bounds.end for partition, leader in self._look()[1].items()}

    def latest(self, start: StreamOffsets, max_rows: int | None, max_bytes: int | None) -> StreamOffsets:
        """Where the batch that begins at ``start`` ends; ``start`` itself when there is nothing to read.

        Raises: InvalidCallError when ``start`` is of another topic, or of a deleted one of this name;
            OffsetOutOfRangeError when records are lost to the stream, unless they may be.
        """
        topic, leaders = self._look()
        start.check_topic(topic.name, topic.topic_id)
        backlogs: dict[int, Backlog] = {}
        for partition, leader in leaders.items():
            low = self._resume(start.partitions.get(partition, BEGINNING), leader.bounds)
            end = leader.bounds.end
            if self._target is not None:
                end = min(end, self._target.get(partition, low))
            local = local_pieces(leader.replica, leader.log) if max_bytes is not None else ()
            extents = [_extent(piece) for piece in local]
            backlogs[partition] = Backlog(low, max(low, end), extents)
        if max_bytes is not None:
            self._add_remote_extents(topic, leaders, backlogs)
        ends = admit(backlogs, max_rows=max_rows, max_bytes=max_bytes)
        positions = {
            partition: start.partitions[partition]
            if stands_still(start.partitions.get(partition), backlogs[partition].start, ends[partition])
            else leader.bounds.position(ends[partition])
            for partition, leader in leaders.items()
        }
        self.latest_seen = StreamOffsets(
            topic.name,
            topic.topic_id,
            {partition: leader.bounds.position(leader.bounds.end) for partition, leader in leaders.items()},
        )
        if start.initial:
            return StreamOffsets(topic.name, topic.topic_id, positions, began=start.partitions)
        if positions == start.partitions:
            return start
        return StreamOffsets(topic.name, topic.topic_id, positions)

    def _resume(self, position: Position, bounds: LogBounds) -> int:
        return resume(position, bounds, fail_on_data_loss=self._options.fail_on_data_loss)

    def _add_remote_extents(
        self, topic: TopicImage, leaders: Mapping[int, _Leader], backlogs: dict[int, Backlog]
    ) -> None:
        """The sizes of what is to be read from the remote tier: its log is loaded only where there is some."""
        behind = [p for p, backlog in backlogs.items() if backlog.start < leaders[p].log.local_start]
        table = self._remote_table(topic) if behind else None
        if table is None:
            return
        remote = table.load()
        for partition in behind:
            backlog, log = backlogs[partition], leaders[partition].log
            pieces = remote_pieces(table.remote, table.folder, remote.of_partition(partition), log.lineage)
            cold = [extent for extent in map(_extent, pieces) if extent.end <= log.local_start]
            backlogs[partition] = Backlog(backlog.start, backlog.end, (*cold, *backlog.extents))

    def _starts(self, topic: TopicImage, bounds: Mapping[int, LogBounds]) -> dict[int, int]:
        match self._options.start:
            case OffsetSpec() as spec:
                return {partition: _named(spec, log) for partition, log in bounds.items()}
            case datetime() as time:
                return self._at(time, topic, bounds)
            case given:
                return _given_starts(given, bounds, topic.name)

    def _at(self, time: datetime, topic: TopicImage, bounds: Mapping[int, LogBounds]) -> dict[int, int]:
        if time.timestamp() * 1000 > self._context.clock.now_ms():
            raise InvalidCallError(
                f"startingTimestamp {time.isoformat()} is in the future: begin with startingOffsets = latest"
            )
        found = list_offsets(self._context, topic.name, time, self._options.isolation)
        return {
            partition: answer.offset if isinstance(answer := found[partition], FoundOffset) else log.end
            for partition, log in bounds.items()
        }

    # ---------------------------------------------------------------------------------- batches

    def plan(self, start: StreamOffsets, end: StreamOffsets) -> list[StreamTask]:
        """The records of ``[start, end)``, shared out to tasks.

        Raises: as ``latest``; what planning a read raises.
        """
        began = end.began if start.initial and end.began is not None else start.partitions
        if dict(began) == dict(end.partitions):
            return []
        # Records wander from the leader to the remote while both are looked at.
        return while_it_changes(lambda: self._plan_once(began, end), LogGapError, looks=_LOOKS)

    def _plan_once(self, began: Mapping[int, Position], end: StreamOffsets) -> list[StreamTask]:
        topic, leaders = self._look()
        end.check_topic(topic.name, topic.topic_id)
        ranges = {
            partition: planned_range(
                began.get(partition, BEGINNING),
                position,
                leaders[partition].bounds,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
            for partition, position in end.partitions.items()
        }
        ranges = {partition: (low, high) for partition, (low, high) in ranges.items() if low < high}
        behind = any(low < leaders[partition].log.local_start for partition, (low, _) in ranges.items())
        table = self._remote_table(topic)
        remote = table.load() if table is not None and behind else None

        def parts_of(partition: int) -> list[Part]:
            low, high = ranges[partition]
            return self._parts(leaders[partition], low, high, table, remote)

        threads = self._context.threads
        parts = [one for some in values(threads.run(parts_of, list(ranges))) for one in some]
        most = task_bytes(sum(one.size_bytes for one in parts), self._options.min_partitions)
        cut = values(threads.run(lambda one: split(one, most, _group_ends), parts))
        smaller = sorted((one for some in cut for one in some), key=lambda one: (one.partition, one.piece.start))
        return [
            StreamTask(
                topic.name,
                tuple(task),
                {p: self._context.site(leaders[p].view) for p in sorted({one.partition for one in task})},
                table,
                self._options.isolation,
            )
            for task in pack(smaller, most)
        ]

    def _parts(
        self, leader: _Leader, low: int, high: int, table: DeltaTopicTable | None, remote: RemoteLog | None
    ) -> list[Part]:
        """The files of ``[low, high)`` of a partition. All of it was committed when the batch was planned: a
        leader that was elected since has it, but may not know so much, nor what became of transactions in it.
        """
        what = leader.bounds.what
        if high > leader.bounds.end and self._options.isolation is Isolation.READ_COMMITTED:
            raise OffsetNotAvailableError(
                f"{what}: offsets up to {high} are to be read, and the leader, elected of late, knows them to be "
                f"committed up to {leader.bounds.end}; try again after an append, or run replicate"
            )
        cold: list[Piece] = []
        if table is not None and remote is not None:
            segments = remote.of_partition(leader.view.partition)
            cold = remote_pieces(table.remote, table.folder, segments, leader.log.lineage)
        ends = transactions_of(leader.log, leader.footer_of, low)
        hidden = ends.hidden(self._options.isolation)
        pieces = readable_pieces(
            what, cold, local_pieces(leader.replica, leader.log), low, high, self._near(leader, low, ends)
        )
        for piece in pieces:
            check_end(what, piece)
        return [part(leader.view.partition, piece) for piece in pieces if piece.file.name not in hidden]

    def _near(self, leader: _Leader, low: int, ends: LogTransactions) -> NearPieces | None:
        """The closest replica (KIP-392). What is undecided about transactions only the leader tells."""
        chosen = nearest(self._context, leader.view, leader.log, self._client, low)
        if chosen.is_leader or ends.fates:
            return None
        if transactions_of(chosen.log, chosen.replica.footer, low).fates:
            return None
        return NearPieces(local_pieces(chosen.replica, chosen.log), chosen.high_watermark)

    def _look(self) -> tuple[TopicImage, dict[int, _Leader]]:
        return with_leaders(self._context, self._look_once)

    def _look_once(self, image: ClusterImage) -> tuple[TopicImage, dict[int, _Leader]]:
        topic = image.topic(self._options.topic)
        tiered = self._context.topic_config(image, topic).remote_storage_enable
        views = [image.view(topic.topic_id, one.partition) for one in topic.partitions]

        def leader(view: PartitionView) -> _Leader:
            site = self._context.site(view)
            replica, footer_of = site.leader, footer_nearby(self._context, site, self._client)
            log = replica.log(lambda file: footer_of(file).next_offset)
            check_whole(replica, log)
            log_start = view.log_start_offset if tiered else max(view.log_start_offset, log.local_start)
            isolation = self._options.isolation
            end = log.high_watermark
            if isolation is Isolation.READ_COMMITTED:
                end = transactions_of(log, footer_of).end(isolation, log)
            end = max(end, log_start)
            what = f"{view.topic}-{view.partition}"
            return _Leader(view, replica, log, LogBounds(what, log_start, end, log), footer_of)

        leaders = values(self._context.threads.run(leader, views))
        return topic, {one.view.partition: one for one in sorted(leaders, key=lambda one: one.view.partition)}

    def _remote_table(self, topic: TopicImage) -> DeltaTopicTable | None:
        image = self._context.metadata.last_known.image
        tiered = self._context.topic_config(image, topic).remote_storage_enable
        return self._context.remote_table(topic) if tiered else None


def _named(spec: OffsetSpec, bounds: LogBounds) -> int:
    return bounds.log_start if spec is OffsetSpec.EARLIEST else bounds.end


def _given_starts(
    given: Mapping[int, int | OffsetSpec], bounds: Mapping[int, LogBounds], topic: str
) -> dict[int, int]:
    """Raises: InvalidCallError unless there is an offset for every partition; OffsetOutOfRangeError."""
    if set(given) != set(bounds):
        raise InvalidCallError(
            f"startingOffsets is for partitions {sorted(given)}, topic {topic!r} has {sorted(bounds)}: give one "
            "for each (-2 for earliest, -1 for latest)"
        )
    starts = {p: _named(at, bounds[p]) if isinstance(at, OffsetSpec) else at for p, at in given.items()}
    for partition, offset in starts.items():
        log = bounds[partition]
        if not log.log_start <= offset <= log.end:
            raise OffsetOutOfRangeError(
                f"{log.what}: startingOffsets says {offset}, the log has [{log.log_start}, {log.end})"
            )
    return starts


def _extent(piece: Piece) -> Extent:
    return Extent(piece.start, piece.end, part(0, piece).size_bytes)


def _group_ends(piece: Piece) -> list[int]:
    segment = piece.segment
    ends, end = [], segment.footer.base_offset
    for index in range(segment.parquet.num_row_groups):
        end += segment.parquet.row_group(index).num_rows
        ends.append(end)
    return ends

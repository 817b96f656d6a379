"""Read: a range of a topic, hot and cold alike; and ListOffsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from engine.context import Context
from engine.metadata.image import PartitionView, TopicImage
from engine.operations.looking import while_it_changes
from engine.reading.plan import FileRange, PartitionPieces, file_ranges, readable_pieces
from engine.replication.damage import check_whole
from engine.replication.site import Site
from partitions.bulk import collector_paused
from partitions.errors import (
    InvalidCallError,
    LogGapError,
    OffsetOutOfRangeError,
    RetriableError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from partitions.lineage import Lineage
from partitions.listing import ReplicaLog
from partitions.lookup import Piece, first_at_or_after, largest_timestamp
from partitions.offsets import Answer, FoundOffset, OffsetSpec, Positions, UnknownOffset, named_offset
from partitions.runner import values
from partitions.store import Store
from tiering.divergence import readable
from tiering.remote_file import remote_file
from tiering.remote_log import RemoteLog
from tiering.remote_segment import RemoteSegment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Bound = OffsetSpec | int | datetime | Mapping[int, int] | None
"""Where a range begins or ends, of each partition: a named position, an offset, a time, or offsets by
partition; None is the log start, or the high watermark."""

_LOOKS = 3
ALL_BOUNDS = "an offset, a datetime with a time zone, offsets by partition, an OffsetSpec, or None"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as one look at its leader and the remote saw it."""

    view: PartitionView
    log: ReplicaLog
    positions: Positions
    readable: PartitionPieces


def look(
    context: Context,
    topic: str,
    partitions: Sequence[int] | None = None,
    bounds: tuple[Bound, Bound] | None = None,
) -> tuple[TopicImage, list[PartitionState]]:
    """The topic, and the present state of these of its partitions (all when None), to plan reads on. With
    ``bounds`` only reads between these two: where the leaders hold all of it, the remote tier is not asked, and
    states know nothing of it.

    Records wander from the leader to the remote, and retention drops them from either, while both are
    looked at: what seems to be a gap is looked at again before it is believed.

    Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError, LogGapError, CorruptionError kinds;
        StorageError when it takes the remote tier and that is down.
    """
    return while_it_changes(lambda: _look_once(context, topic, partitions, bounds), LogGapError, looks=_LOOKS)


def _look_once(
    context: Context, topic: str, partitions: Sequence[int] | None, bounds: tuple[Bound, Bound] | None
) -> tuple[TopicImage, list[PartitionState]]:
    image = context.metadata.image()
    topic_image = image.topic(topic)
    chosen = range(len(topic_image.partitions)) if partitions is None else dict.fromkeys(partitions)
    views = [image.view(topic_image.topic_id, partition) for partition in chosen]
    # The leaders first: what has left them by the time the remote is read is in the remote.
    leaders = values(context.threads.run(lambda view: _look_at_leader(context.site(view)), views))
    tiered = context.topic_config(image, topic_image).remote_storage_enable
    remote = None
    if tiered and not (bounds is not None and all(_is_local(seen, *bounds) for seen in leaders)):
        try:
            remote = context.remote_table(topic_image).load()
        except RetriableError as error:
            raise StorageError(
                f"topic {topic!r}: this read takes the remote tier: {error}; what the leaders hold, from "
                f"{OffsetSpec.EARLIEST_LOCAL.name} on, can be read without it"
            ) from error
    states = values(context.threads.run(lambda seen: _state(context, topic_image, seen, remote, tiered), leaders))
    return topic_image, sorted(states, key=lambda state: state.view.partition)


def _is_local(seen: _Leader, start: Bound, end: Bound) -> bool:
    """Whether the leader alone holds what a read between these bounds needs, also to find out where they are."""
    low = _known_to_leader(seen, start)
    return low is not None and low >= seen.log.local_start and _known_to_leader(seen, end) is not None


def _known_to_leader(seen: _Leader, bound: Bound) -> int | None:
    """An offset at or below the one that a bound stands for; None where it takes the remote log to tell."""
    log_start, local_start = seen.view.log_start_offset, seen.log.local_start
    match bound:
        case OffsetSpec.LATEST | OffsetSpec.EARLIEST_LOCAL:
            return max(log_start, local_start)
        case OffsetSpec.LAST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
            return None
        case OffsetSpec.MAX_TIMESTAMP | datetime():
            return log_start if log_start >= local_start else None
        case Mapping():
            return bound.get(seen.view.partition, log_start)
        case int() if not isinstance(bound, OffsetSpec):
            return bound
        case _:
            return log_start


@dataclass(frozen=True, slots=True)
class _Leader:
    """A partition's leader, as it was listed."""

    view: PartitionView
    store: Store
    log: ReplicaLog


def _look_at_leader(site: Site) -> _Leader:
    replica = site.leader
    log = replica.log()
    check_whole(replica, log)
    return _Leader(site.view, replica.store, log)


def _state(
    context: Context, topic: TopicImage, seen: _Leader, remote: RemoteLog | None, tiered: bool
) -> PartitionState:
    view, log = seen.view, seen.log
    what = f"{topic.name}-{view.partition}"
    local = [Piece(seen.store, link.file, link.start, link.end) for link in log.chain]
    cold = []
    if remote is not None:
        store = context.remote_store(f"topic {topic.name!r} is tiered")
        cold = remote_pieces(store, context.remote_folder(topic), remote.of_partition(view.partition), log.lineage)
    log_start = view.log_start_offset if tiered else max(view.log_start_offset, log.local_start)
    high_watermark = max(log.high_watermark, log_start)
    readable_from = log_start if remote is not None else max(log_start, log.local_start)
    pieces = readable_pieces(what, cold, local, readable_from, high_watermark)
    check_ends(what, [piece for piece in pieces if piece.store is seen.store])
    positions = Positions(
        log_start=log_start,
        local_start=log.local_start,
        high_watermark=high_watermark,
        log_end=log.log_end,
        remote_end=cold[-1].end if cold else None,
        tiered=tiered,
    )
    readable = PartitionPieces(topic.name, view.partition, log_start, high_watermark, pieces, log.local_start)
    return PartitionState(view, log, positions, readable)


def remote_pieces(store: Store, folder: str, segments: Iterable[RemoteSegment], lineage: Lineage) -> list[Piece]:
    """A part of a partition's remote log, in offset order, as far as it is of the leader's history."""
    with collector_paused():
        return [
            Piece(store, remote_file(folder, segment), segment.base_offset, end)
            for segment, end in readable(segments, lineage)
        ]


def check_ends(what: str, pieces: Sequence[Piece]) -> None:
    """The end of an append was inferred from the file that follows it; its footer must agree, or records
    would be missing without a sign.

    Raises: LogGapError.
    """
    for piece in pieces:
        name = piece.file.name
        if not name.merged and piece.segment.footer.next_offset < piece.end:
            raise LogGapError(
                f"{what}: {piece.store.uri_of(piece.file.object.name)} ends at offset "
                f"{piece.segment.footer.next_offset}, the next file starts at {piece.end}: a file is missing "
                "between them; restore it from another replica"
            )


def check_partitions(topic: TopicImage, partitions: Iterable[int]) -> None:
    """Raises: UnknownTopicOrPartitionError."""
    for partition in partitions:
        if not 0 <= partition < len(topic.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} has no partition {partition}: it has {len(topic.partitions)}, from 0 on"
            )


def plan_read(
    context: Context,
    topic: str,
    start: Bound = None,
    end: Bound = None,
    partitions: Sequence[int] | None = None,
) -> tuple[TopicImage, list[FileRange]]:
    """The exact files of ``[start, end)`` of each partition, as of now.

    Raises: UnknownTopicOrPartitionError, OffsetOutOfRangeError, InvalidCallError.
    """
    topic_image, states = look(context, topic, partitions, (start, end))
    for bound in (start, end):
        if isinstance(bound, Mapping):
            check_partitions(topic_image, bound)
    ranges: list[FileRange] = []
    for state in states:
        low = _bound(state, start, state.positions.log_start)
        high = _bound(state, end, state.positions.high_watermark)
        ranges += file_ranges(state.readable, low, high)
    return topic_image, ranges


def read_frame(
    context: Context,
    spark: SparkSession,
    topic: str,
    start: Bound = None,
    end: Bound = None,
    partitions: Sequence[int] | None = None,
) -> DataFrame:
    """The records of ``[start, end)`` of each partition: columns ``topic, partition, offset, timestamp,
    key, value, headers``. Pinned to the state at planning.

    Raises: as ``plan_read``.
    """
    from engine.spark.scanning import scan
    from engine.spark.types import record_schema, spark_type

    topic_image, ranges = plan_read(context, topic, start, end, partitions)
    schema = record_schema(spark_type(topic_image.key_schema), spark_type(topic_image.value_schema))
    return scan(spark, topic, ranges, schema)


def list_offsets(context: Context, topic: str, spec: OffsetSpec | datetime) -> dict[int, Answer]:
    """ListOffsets: a named position, or the first record at or after a time, of each partition.

    Raises: UnknownTopicOrPartitionError, InvalidCallError for a time without a zone.
    """
    _, states = look(context, topic, bounds=(OffsetSpec.LATEST, spec))
    return {state.view.partition: _answer(state, spec) for state in states}


def _answer(state: PartitionState, spec: OffsetSpec | datetime) -> Answer:
    if isinstance(spec, datetime):
        found = first_at_or_after(state.readable.pieces, micros(spec))
    elif spec is OffsetSpec.MAX_TIMESTAMP:
        found = largest_timestamp(state.readable.pieces)
    else:
        found = named_offset(state.positions, spec)
    if isinstance(found, FoundOffset):
        return FoundOffset(found.offset, found.timestamp_us, state.log.lineage.epoch_at(found.offset))
    return found


def _bound(state: PartitionState, bound: Bound, otherwise: int) -> int:
    match bound:
        case None:
            return otherwise
        case OffsetSpec() | datetime():
            found = _answer(state, bound)
            if isinstance(found, FoundOffset):
                return found.offset
            if isinstance(bound, datetime):
                return state.positions.high_watermark  # no record is that late
            assert isinstance(found, UnknownOffset)
            raise OffsetOutOfRangeError(
                f"{state.view.topic}-{state.view.partition}: {bound.name} is not known: {found.reason}"
            )
        case bool():
            raise InvalidCallError(f"{bound!r} is no bound of a read: it takes {ALL_BOUNDS}")
        case int():
            return bound
        case Mapping():
            return bound.get(state.view.partition, otherwise)
    raise InvalidCallError(f"{bound!r} is no bound of a read: it takes {ALL_BOUNDS}")


def micros(time: datetime) -> int:
    """Microseconds since the epoch. Raises: InvalidCallError for a time without a zone."""
    if time.tzinfo is None:
        raise InvalidCallError(f"{time} has no time zone: give one, e.g. datetime(2013, 1, 1, tzinfo=UTC)")
    delta = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds

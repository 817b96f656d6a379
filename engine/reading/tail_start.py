"""Where a tail begins, and its options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import cast

from stratalog.engine.config.topic_config import TopicConfig
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.bounds import Bound, Committed, ReadQuery
from stratalog.engine.reading.fetch import MAX_BYTES, TIMEOUT_S, check_limits
from stratalog.engine.reading.last import leader_has_last, start_of_last
from stratalog.engine.reading.list_offsets import position, takes_remote
from stratalog.engine.reading.look import PartitionState, check_partitions
from stratalog.engine.reading.positions import RESETS, FirstAt, Place, place_of
from stratalog.engine.records.groups import committed, existing_group
from stratalog.engine.replicas.nearest import SeenLeader
from stratalog.engine.replicas.offsets_for_epoch import check_history
from stratalog.engine.state.group_commits import OffsetAndMetadata
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    InvalidCallError,
    LogTruncationError,
    OffsetOutOfRangeError,
)
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.isolation import Isolation, isolation_of
from stratalog.partitions.offsets import FoundOffset, OffsetSpec

Start = Bound | Mapping[TopicPartition, OffsetAndMetadata]
"""The start of a tail: a bound of a read, or the ``Tail.positions`` of an earlier tail. A time means the first
record at or after that time (``FirstAt``)."""

FETCH_MAX_BYTES = 50 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """Options of a tail. Raises: InvalidCallError."""

    follow: bool = True
    """True: never end. False: end at the high watermarks at the start, or at the last stable offsets for committed
    reads.
    """
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED
    """The isolation level (isolation.level)."""
    auto_offset_reset: str = "none"
    """The place to continue from if the log no longer has an offset, or to begin at for a group without a commit:
    ``none`` (an error), ``earliest`` or ``latest``. If an unclean election has replaced that part of the history,
    both ``earliest`` and ``latest`` continue where the histories diverge.
    """
    max_bytes: int = MAX_BYTES
    """The maximum bytes of one table in memory (max.partition.fetch.bytes)."""
    fetch_max_bytes: int = FETCH_MAX_BYTES
    """The maximum bytes of all tables fetched at the same time (fetch.max.bytes); at least one table is
    fetched."""
    timeout_s: float = TIMEOUT_S
    """The time for which transient errors of a fetch are retried before they are raised."""
    idle_timeout_s: float | None = None
    """End after this long without a record; None: never."""
    first_poll_s: float = 0.1
    longest_poll_s: float = 5.0
    """The longest wait between polls without records."""
    metadata_max_age_s: float = 10.0

    def __post_init__(self) -> None:
        isolation_of(self.isolation)
        if self.auto_offset_reset not in RESETS:
            raise InvalidCallError(f"auto_offset_reset = {self.auto_offset_reset!r}: one of {', '.join(RESETS)}")
        check_limits(self.max_bytes, self.timeout_s)
        if not 0 < self.first_poll_s <= self.longest_poll_s:
            raise InvalidCallError(
                f"first_poll_s = {self.first_poll_s}, longest_poll_s = {self.longest_poll_s}: "
                "the first must be above 0, and at most the second"
            )


DEFAULT_OPTIONS = TailOptions()


@dataclass(frozen=True, slots=True)
class Where:
    """The requested start. A partition without a requested start begins at its log start."""

    last: int | None = None
    group: str | None = None
    known: Mapping[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    place: Place | None = None
    bounds: Mapping[int, Place] = field(default_factory=dict)
    """Places by partition, which override ``place``."""

    @property
    def is_end(self) -> bool:
        """Whether only later records are wanted."""
        return self.last == 0 or (self.place is OffsetSpec.LATEST and not self.bounds)

    def of(self, partition: int) -> Place | None:
        """The place in a partition."""
        return self.bounds.get(partition, self.place)

    def takes_remote(self, seen: SeenLeader, isolation: Isolation) -> bool:
        """Whether the remote tier is needed to locate the place. (Fetches find remote records themselves.)"""
        if self.last is not None:
            return not leader_has_last(seen, self.last, seen.end(isolation), isolation)
        place = self.of(seen.view.partition)
        return isinstance(place, OffsetSpec | FirstAt) and takes_remote(seen, place)


def where_of(topic: str, start: Start, last: int | None, now_ms: int) -> Where:
    """Raises: InvalidCallError, OffsetOutOfRangeError for contradictory arguments."""
    if isinstance(start, str | datetime):
        start = place_of(start, "start =")
    if last is not None:
        # last = 0 means the next record, so 0 is not valid for a read of existing records.
        query = ReadQuery(
            topics=(topic,), start=None if start is OffsetSpec.LATEST else cast(Bound, start), last=last or None
        )
        return Where(last=query.last or 0)
    if isinstance(start, Committed):
        return Where(group=start.group)
    if isinstance(start, Mapping) and any(isinstance(at, OffsetAndMetadata) for at in start.values()):
        return Where(known=cast(Mapping[TopicPartition, OffsetAndMetadata], start))
    query = ReadQuery(topics=(topic,), start=cast(Bound, start))
    query.check_times(now_ms)
    return Where(
        place=query.first if isinstance(query.first, Place) else None,
        bounds=query.named([topic]).get("start", {}).get(topic, {}),
    )


def begins_at(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    memory: Memory,
    image: ClusterImage,
    topic: TopicImage,
    states: Sequence[PartitionState],
    where: Where,
    options: TailOptions,
) -> dict[int, OffsetAndMetadata]:
    """The start offset by partition.

    Raises: UnknownTopicOrPartitionError, GroupIdNotFoundError, OffsetOutOfRangeError.
    """
    name, known, isolation = topic.name, where.known, Isolation(options.isolation)
    if where.group is not None:
        known = committed(metadata, storage, clock, memory, where.group, [name])
        if options.auto_offset_reset == "none":
            existing_group(storage, clock, memory, image, where.group)
        elif options.auto_offset_reset == "latest":
            where = replace(where, place=OffsetSpec.LATEST)
    check_partitions(topic, where.bounds)
    found: dict[int, OffsetAndMetadata] = {}
    for state in states:
        partition = state.leader.view.partition
        if where.last is not None:
            begin = start_of_last(state, where.last, state.leader.latest(isolation), isolation)
            found[partition] = OffsetAndMetadata(begin)
        elif (name, partition) in known:
            found[partition] = known[name, partition]
        else:
            found[partition] = OffsetAndMetadata(_offset(state, where.of(partition), isolation))
    return found


def in_range(state: PartitionState, at: OffsetAndMetadata, options: TailOptions) -> OffsetAndMetadata:
    """The position to continue from at an offset that the log may no longer have. If the leader epoch is known, a
    fetch checks the history. A tail that ends at this offset might not fetch, so the history is checked now.

    Raises: OffsetOutOfRangeError when ``auto_offset_reset`` is ``none``; UnknownLeaderEpochError.
    """
    positions, reset = state.positions, options.auto_offset_reset
    if at.leader_epoch is not None and not options.follow:
        try:
            check_history(str(state.leader), state.leader.log, at.offset, at.leader_epoch)
        except LogTruncationError as error:
            if reset == "none":
                raise
            at = OffsetAndMetadata(error.divergent_offset)
    if positions.log_start <= at.offset <= positions.log_end or (at.leader_epoch is not None and reset == "none"):
        return at
    if reset == "none":
        raise OffsetOutOfRangeError(
            f"{state.leader}: offset {at.offset} is not in [{positions.log_start}, "
            f"{positions.high_watermark}], the log start offset and the high watermark"
        )
    return OffsetAndMetadata(
        positions.log_start if reset == "earliest" else state.leader.latest(Isolation(options.isolation))
    )


def _offset(state: PartitionState, bound: Place | None, isolation: Isolation) -> int:
    """The offset of a place. For an unknown position, and for a time after all records, this is the end of the
    reader's records. (If the first record of a time is in an undecided transaction, the offset is that of the
    record, because earlier records are too early.)
    """
    match bound:
        case None:
            return state.positions.log_start
        case OffsetSpec.LATEST:
            return state.leader.latest(isolation)
        case OffsetSpec() | FirstAt():
            answer = position(state, bound)
            return answer.offset if isinstance(answer, FoundOffset) else state.leader.latest(isolation)
        case _:
            return bound


def notes_on_snapshots(
    topic: str, config: TopicConfig, states: Iterable[PartitionState], begin: Mapping[int, OffsetAndMetadata]
) -> list[str]:
    """A note on each partition that is read from its log start, if a snapshot has the records before it. Without
    the note, a topic whose records are all in snapshots would look empty.
    """
    if not config.snapshots:
        return []
    starts = {state.leader.view.partition: state.positions.log_start for state in states}
    return [
        f"{topic}-{partition}: only its snapshot has the records before offset {at.offset}: cluster.read_snapshot "
        "returns the latest record of each key"
        for partition, at in sorted(begin.items())
        if 0 < starts[partition] == at.offset
    ]

"""Computes the state of each upload of a segment from the metadata topic ``__remote_log_metadata``. Pure.

Source: KIP-405, and Kafka's messages RemoteLogSegmentMetadataRecord, RemoteLogSegmentMetadataUpdateRecord and
RemotePartitionDeleteMetadataRecord, version 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stratalog.bridges.kafka_tier.fields import Fields
from stratalog.bridges.kafka_tier.segment import RemoteLogSegment, SegmentState
from stratalog.partitions.errors import InvalidCallError

_FRAME_VERSION = 1
_ADDED, _CHANGED, _PARTITION_DELETED = 0, 1, 2
_TXN_INDEX_EMPTY = 0
"""A tag."""
_NEXT = {
    SegmentState.COPY_SEGMENT_STARTED: {SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED},
    SegmentState.COPY_SEGMENT_FINISHED: {SegmentState.DELETE_SEGMENT_STARTED},
    SegmentState.DELETE_SEGMENT_STARTED: {SegmentState.DELETE_SEGMENT_FINISHED},
    SegmentState.DELETE_SEGMENT_FINISHED: set[SegmentState](),
}
"""Kafka's RemoteLogSegmentState.isValidTransition. A repeated state is also allowed."""


@dataclass(frozen=True, slots=True)
class SegmentUpdate:
    """A new state of a segment."""

    topic_id: str
    topic: str
    partition: int
    segment_id: str
    state: SegmentState
    custom_metadata: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionDeletion:
    """A step of the deletion of a partition with all its segments."""

    topic_id: str
    topic: str
    partition: int
    state: int


Message = RemoteLogSegment | SegmentUpdate | PartitionDeletion


def parse_message(value: bytes | None, what: str) -> Message:
    """A record of the metadata topic.

    Raises: InvalidCallError for an unknown kind or version; CorruptionError for damaged bytes.
    """
    fields = Fields(value or b"", what)
    frame, kind, version = fields.varint(), fields.varint(), fields.varint()
    if frame != _FRAME_VERSION or kind not in (_ADDED, _CHANGED, _PARTITION_DELETED) or version != 0:
        raise InvalidCallError(
            f"{what} has frame version {frame}, kind {kind}, version {version}, which are not supported: it "
            "comes from a newer Kafka, or another metadata manager"
        )
    if kind == _PARTITION_DELETED:
        topic, topic_id, partition = _topic_partition(fields)
        fields.bytes_of(12)
        return PartitionDeletion(topic_id, topic, partition, fields.number("b"))
    topic, topic_id, partition = _topic_partition(fields)
    segment_id = fields.uuid()
    list(fields.tagged())
    if kind == _CHANGED:
        fields.bytes_of(12)
        custom = fields.compact_bytes()
        return SegmentUpdate(topic_id, topic, partition, segment_id, _state(fields), custom)
    start, end = fields.number("q"), fields.number("q")
    broker, max_ms, event_ms = fields.number("i"), fields.number("q"), fields.number("q")
    epochs = []
    for _ in range(fields.count()):
        epochs.append((fields.number("i"), fields.number("q")))
        list(fields.tagged())
    size, custom, state = fields.number("i"), fields.compact_bytes(), _state(fields)
    tagged = dict(fields.tagged())
    return RemoteLogSegment(
        topic_id=topic_id,
        topic=topic,
        partition=partition,
        segment_id=segment_id,
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=max_ms,
        size_bytes=size,
        leader_epochs=tuple(epochs),
        broker_id=broker,
        event_timestamp_ms=event_ms,
        state=state,
        txn_index_empty=tagged.get(_TXN_INDEX_EMPTY) == b"\x01",
        custom_metadata=custom,
    )


def _topic_partition(fields: Fields) -> tuple[str, str, int]:
    topic, topic_id, partition = fields.compact_string(), fields.uuid(), fields.number("i")
    list(fields.tagged())
    return topic, topic_id, partition


def _state(fields: Fields) -> SegmentState:
    number = fields.number("b")
    try:
        return SegmentState(number)
    except ValueError:
        raise InvalidCallError(f"{fields.what} has the state {number}, which is unknown") from None


@dataclass(slots=True)
class SegmentStates:
    """All segments of the topic, in the state of their last message."""

    segments: dict[str, RemoteLogSegment] = field(default_factory=dict)
    """The uploads by segment id."""
    contradictory: dict[str, str] = field(default_factory=dict)
    """Contradictions in the messages of a segment, by the segment's id. Such a segment is left out."""
    unknown: dict[str, SegmentUpdate] = field(default_factory=dict)
    """Updates of segments whose first message the topic no longer has."""
    deleted_partitions: set[tuple[str, int]] = field(default_factory=set)
    """Topic ids and partitions whose deletion has begun."""

    def apply(self, message: Message) -> None:
        """Apply the next message. All messages of a partition are in one partition of the topic, in order."""
        match message:
            case PartitionDeletion():
                self.deleted_partitions.add((message.topic_id, message.partition))
            case RemoteLogSegment():
                known = self.segments.get(message.segment_id)
                if known is None:
                    self.segments[message.segment_id] = message
                    if message.state is not SegmentState.COPY_SEGMENT_STARTED:
                        self._wrong(message.segment_id, f"its first state is {message.state.name}")
                elif known != message:
                    self._wrong(message.segment_id, "it has two different descriptions")
            case SegmentUpdate():
                self._update(message)

    def _update(self, message: SegmentUpdate) -> None:
        known = self.segments.get(message.segment_id)
        if known is None:
            self.unknown[message.segment_id] = message
            return
        if (known.topic_id, known.partition) != (message.topic_id, message.partition):
            self._wrong(message.segment_id, "an update gives it to another partition")
            return
        if message.state != known.state and message.state not in _NEXT[known.state]:
            self._wrong(message.segment_id, f"its state went from {known.state.name} to {message.state.name}")
        custom = known.custom_metadata if message.custom_metadata is None else message.custom_metadata
        self.segments[message.segment_id] = replace(known, state=message.state, custom_metadata=custom)

    def _wrong(self, segment_id: str, why: str) -> None:
        self.contradictory.setdefault(segment_id, why)

    def refused(self) -> dict[str, str]:
        """The segments to ignore in any state, by id, with the reason."""
        found = {
            one.segment_id: "the deletion of its partition has begun"
            for one in self.segments.values()
            if (one.topic_id, one.partition) in self.deleted_partitions
        }
        return found | {
            segment_id: f"its metadata is contradictory: {why}" for segment_id, why in self.contradictory.items()
        }

    def notes(self) -> list[str]:
        """Notes, one for each partition with segments that may have records, but whose first message is lost."""
        lost: dict[tuple[str, int], list[str]] = {}
        for one in self.unknown.values():
            if one.segment_id not in self.segments and one.state is not SegmentState.DELETE_SEGMENT_FINISHED:
                lost.setdefault((one.topic, one.partition), []).append(one.segment_id)
        return [
            f"the metadata topic has no description of these segments of {topic}-{partition}, so "
            f"their offsets are unknown: {', '.join(sorted(ids)[:3])}{', ...' if len(ids) > 3 else ''}"
            for (topic, partition), ids in sorted(lost.items())
        ]

    def topic_ids(self, topic: str) -> dict[str, int]:
        """The ids that topics of that name have had, each with the time of its last upload (ms)."""
        found: dict[str, int] = {}
        for one in self.segments.values():
            if one.topic == topic:
                found[one.topic_id] = max(found.get(one.topic_id, -1), one.event_timestamp_ms)
        return found

    def of(self, topic_id: str, partition: int) -> list[RemoteLogSegment]:
        """The segments of a partition, by offset."""
        found = [s for s in self.segments.values() if (s.topic_id, s.partition) == (topic_id, partition)]
        return sorted(found, key=lambda s: (s.start_offset, s.end_offset, s.event_timestamp_ms, s.segment_id))


def folded(messages: Iterable[Message]) -> SegmentStates:
    """The state after all messages."""
    states = SegmentStates()
    for message in messages:
        states.apply(message)
    return states


def parsed(values: Sequence[tuple[int, bytes | None]], what: str) -> Iterator[Message]:
    """Messages of one partition of the topic, from offsets and values."""
    for offset, value in values:
        yield parse_message(value, f"{what}, offset {offset}")

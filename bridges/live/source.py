"""The source of a stream over a mirrored topic and Kafka: the end of each batch, and its ranges of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from stratalog.bridges.formats.typed import TypedValues
from stratalog.bridges.live.boundary import Boundary, LiveTopic, look_live
from stratalog.bridges.mirror.source import MirrorSource, SourceTruncatedError
from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.admission import Backlog, admit
from stratalog.engine.reading.list_offsets import list_offsets
from stratalog.engine.reading.range_plan import StreamRange
from stratalog.engine.reading.stream_offsets import BEGINNING, Position, StreamOffsets
from stratalog.engine.reading.stream_options import SourceOptions
from stratalog.engine.reading.stream_source import StreamSource
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, OffsetOutOfRangeError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.offsets import FoundOffset, OffsetSpec


class LiveSource(StreamSource):
    """A ``StreamSource`` of one topic whose log continues in Kafka. A position has Kafka's epoch at the end of the
    batch, with which a task checks that Kafka still has the earlier history.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        storage: Storage,
        clock: Clock,
        memory: Memory,
        options: SourceOptions,
        source: MirrorSource,
        topic: str,
        values: TypedValues | None,
    ) -> None:
        super().__init__(metadata, storage, clock, memory, options)
        self._source, self._topic, self._values = source, topic, values

    def initial(self) -> StreamOffsets:
        """The start of a new query: an offset, or a time for which the mirrored log has a record.

        Raises: see ``look_live``; OffsetOutOfRangeError; InvalidCallError for a time after the mirrored log.
        """
        live = self._live()
        start = self._options.start
        positions: dict[TopicPartition, Position] = {}
        for partition, boundary in live.boundaries.items():
            key = self._topic, partition
            at = start.get(key) if isinstance(start, Mapping) else start
            if at is None:
                raise InvalidCallError(
                    f"startingOffsets has no position for {key[0]}-{partition}: give one for each partition "
                    "(-2 for earliest, -1 for latest)"
                )
            positions[key] = self._position(boundary, self._place(live, partition, at))
        return StreamOffsets({self._topic: live.topic.topic_id}, positions, initial=True)

    def stop_at_present_end(self) -> None:
        """Fix the end of the stream at the current end of both sides (``Trigger.AvailableNow``)."""
        self._target = {(self._topic, p): boundary.end for p, boundary in self._live().boundaries.items()}

    def latest(self, start: StreamOffsets, max_rows: int | None, max_bytes: int | None) -> StreamOffsets:
        """The end of the batch that begins at ``start``; ``start`` itself if there is nothing to read.

        Raises: see ``look_live``; InvalidCallError for a limit of bytes, or a checkpoint of another topic;
            SourceTruncatedError if both sides end before ``start``.
        """
        if max_bytes is not None:
            raise InvalidCallError("maxBytesPerTrigger: Kafka does not report sizes; use maxOffsetsPerTrigger")
        live = self._live()
        start = self._of_topic(start, live)
        keys = {(self._topic, partition): boundary for partition, boundary in live.boundaries.items()}
        lows = {key: start.partitions.get(key, BEGINNING).offset for key in keys}
        backlogs = {}
        for key, boundary in keys.items():
            if lows[key] > boundary.end:
                raise SourceTruncatedError(
                    f"{key[0]}-{key[1]}: the stream has read up to offset {lows[key]}, but records now end at "
                    f"{boundary.end}"
                )
            end = boundary.end if self._target is None else min(boundary.end, self._target.get(key, lows[key]))
            backlogs[key] = Backlog(lows[key], max(lows[key], end))
        ends = admit(backlogs, max_rows=max_rows)
        positions = {
            key: start.partitions[key]
            if key in start.partitions and ends[key] == lows[key]
            else self._position(boundary, ends[key])
            for key, boundary in keys.items()
        }
        ids = {self._topic: live.topic.topic_id}
        self.latest_seen = StreamOffsets(ids, {key: Position(boundary.end) for key, boundary in keys.items()})
        self.planned = StreamOffsets(ids, positions)
        if start.initial:
            return StreamOffsets(ids, positions, began=start.partitions)
        return start if positions == dict(start.partitions) else self.planned

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[StreamRange]:
        """The offsets of a batch, from either side. ``epochs`` are Kafka's leader epochs."""
        began = end.began if start.initial and end.began is not None else start.partitions
        found = []
        for (topic, partition), until in sorted(end.partitions.items()):
            at = began.get((topic, partition), BEGINNING)
            if at.offset < until.offset:
                epochs = () if at.leader_epoch is None else ((at.leader_epoch, at.offset),)
                found.append(StreamRange(topic, end.topic_ids[topic], partition, at.offset, until.offset, epochs))
        return found

    def _live(self) -> LiveTopic:
        live = look_live(
            self._metadata, self._storage, self._clock, self._memory, self._source, self._topic, self._values
        )
        self.topics_seen = [live.topic]
        return live

    def _of_topic(self, start: StreamOffsets, live: LiveTopic) -> StreamOffsets:
        ids = {self._topic: live.topic.topic_id}
        return start.of_topics(ids, self._options.topics, fail_on_data_loss=True)

    def _position(self, boundary: Boundary, offset: int) -> Position:
        """A position beyond the boundary, with Kafka's current epoch, which is at least that of the previous
        record.
        """
        return Position(offset, boundary.there.leader_epoch if offset > boundary.offset else None)

    def _place(self, live: LiveTopic, partition: int, at: int | OffsetSpec | datetime) -> int:
        boundary = live.boundaries[partition]
        if at is OffsetSpec.LATEST:
            return boundary.end
        if at is OffsetSpec.EARLIEST and partition not in {one.partition for one in live.topic.partitions}:
            return boundary.there.log_start
        if isinstance(at, int) and not isinstance(at, OffsetSpec):
            if at > boundary.end:
                raise OffsetOutOfRangeError(
                    f"{self._topic}-{partition}: startingOffsets {at} is past the end of the log ({boundary.end})"
                )
            return at
        found = list_offsets(self._metadata, self._storage, self._memory, self._topic, at).get(partition)
        if not isinstance(found, FoundOffset):
            raise InvalidCallError(
                f"{self._topic}-{partition}: the mirrored log has no record at or after {at}: mirror the topic "
                "first, or begin at an offset"
            )
        return found.offset

"""The offsets of a stream, in the form of its checkpoint, and the positions from which it continues. Pure.

    {"topics": {"trips": {"topicId": "..", "partitions": {"0": {"offset": 17, "leaderEpoch": 3}}}}}

``offset`` is the next offset to read. ``leaderEpoch`` is the epoch of the record before that offset (for KIP-320's
truncation detection). It is absent if no record was read. The start offsets of a query have ``"initial": true``;
the end offsets of the query's first batch have the start of the query in ``"began"``. This is needed because Spark
requests the initial offsets again when it repeats that batch, and by then "latest" may be a different offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stratalog.engine.reading.stream_options import Subscription
from stratalog.engine.replicas.offsets_for_epoch import divergent_offset
from stratalog.partitions.errors import InvalidCallError, LogTruncationError, OffsetOutOfRangeError
from stratalog.partitions.identity import TopicPartition
from stratalog.partitions.listing import ReplicaLog


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read, and the leader epoch of the preceding record, if known."""

    offset: int
    leader_epoch: int | None = None


BEGINNING = Position(0)
"""The start of a partition that was added while the stream ran."""


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The stream's position in each partition of its topics."""

    topic_ids: Mapping[str, str]
    """Keyed by name."""
    partitions: Mapping[TopicPartition, Position]
    initial: bool = False
    began: Mapping[TopicPartition, Position] | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON of the checkpoint; equal offsets give equal text."""
        positions = _positions_to_json(self.partitions)
        found: dict[str, Any] = {
            "topics": {
                topic: {"topicId": topic_id, "partitions": positions.get(topic, {})}
                for topic, topic_id in sorted(self.topic_ids.items())
            }
        }
        if self.initial:
            found["initial"] = True
        if self.began is not None:
            found["began"] = _positions_to_json(self.began)
        return found

    def behind(self, latest: StreamOffsets) -> dict[str, float]:
        """The minimum, maximum and average number of records per partition between these offsets and ``latest``.
        The keys are the metric names of Spark's Kafka source.
        """
        lags = [at.offset - self.partitions.get(key, at).offset for key, at in latest.partitions.items()] or [0]
        return {
            "minOffsetsBehindLatest": min(lags),
            "maxOffsetsBehindLatest": max(lags),
            "avgOffsetsBehindLatest": sum(lags) / len(lags),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamOffsets:
        """Parse the offsets of a checkpoint. Raises: InvalidCallError for JSON that no stratalog stream wrote."""
        try:
            began, topics = data.get("began"), data["topics"]
            return cls(
                {str(topic): str(of["topicId"]) for topic, of in topics.items()},
                _positions_from_json({topic: of["partitions"] for topic, of in topics.items()}),
                data.get("initial") is True,
                None if began is None else _positions_from_json(began),
            )
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise InvalidCallError(
                "the checkpoint was not written by a stream of this format, but contains "
                f"{data!r}: give the query "
                "another checkpointLocation"
            ) from error

    def of_topics(
        self, topic_ids: Mapping[str, str], reads: Subscription, *, fail_on_data_loss: bool
    ) -> StreamOffsets:
        """The offsets of the query's current topics (``topic_ids`` by name). Deleted topics of the query's pattern
        are dropped if records may be lost.

        Raises: InvalidCallError for offsets of another topic, or of a deleted topic of the same name;
            OffsetOutOfRangeError for a deleted topic, unless records may be lost.
        """
        gone = [topic for topic in self.topic_ids if topic not in topic_ids]
        for topic, topic_id in self.topic_ids.items():
            now = topic_ids.get(topic, topic_id)
            if now != topic_id:
                raise InvalidCallError(
                    f"topic {topic!r} was deleted and created again since the checkpoint was written (topic id "
                    f"{topic_id}, now {now}): give the query a new checkpointLocation"
                )
        for topic in gone:
            if not reads.matches(topic):
                raise InvalidCallError(
                    f"the checkpoint belongs to topic {topic!r}, but the query reads {reads}: give "
                    "the query its own "
                    "checkpointLocation"
                )
            if fail_on_data_loss:
                raise OffsetOutOfRangeError(
                    f"topic {topic!r} was deleted: its records are lost to this stream. To continue "
                    "without the topic, start the stream with failOnDataLoss = false"
                )
        if not gone:
            return self
        return replace(
            self,
            topic_ids={topic: topic_id for topic, topic_id in self.topic_ids.items() if topic not in gone},
            partitions={key: at for key, at in self.partitions.items() if key[0] not in gone},
            began=None
            if self.began is None
            else {key: at for key, at in self.began.items() if key[0] not in gone},
        )


def _positions_to_json(positions: Mapping[TopicPartition, Position]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (topic, partition), at in sorted(positions.items()):
        epoch = {} if at.leader_epoch is None else {"leaderEpoch": at.leader_epoch}
        found.setdefault(topic, {})[str(partition)] = {"offset": at.offset} | epoch
    return found


def _positions_from_json(data: Mapping[str, Any]) -> dict[TopicPartition, Position]:
    def position(at: Mapping[str, Any]) -> Position:
        epoch = at.get("leaderEpoch")
        return Position(int(at["offset"]), None if epoch is None else int(epoch))

    return {
        (str(topic), int(partition)): position(at)
        for topic, partitions in data.items()
        for partition, at in partitions.items()
    }


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The bounds of a partition's log, from a listing of its leader. A stream reads ``[log_start, end)``, from
    either tier."""

    what: str
    log_start: int
    end: int
    log: ReplicaLog

    def position(self, offset: int) -> Position:
        """The position at this offset of the log."""
        return Position(offset, self.log.lineage.epoch_at(offset - 1) if offset > self.log_start else None)


def resume(position: Position, log: LogBounds, *, fail_on_data_loss: bool) -> int:
    """The position from which a stream at ``position`` continues: the same position, unless records are lost. A
    position below the log start moves up to the log start. After a truncation (an unclean election has replaced
    records), the position moves back to the offset at which the histories diverge.

    Raises: OffsetOutOfRangeError for lost records, LogTruncationError for replaced records, unless records may be
        lost.
    """
    parted = _parted(position, log.log)
    if parted is not None:
        going_on = max(parted, log.log_start)
        why = (
            f"the log was truncated to offset {parted} (by an unclean election) after the stream had read up to "
            f"{position.offset}"
        )
    elif position.offset < log.log_start:
        going_on = log.log_start
        why = f"offsets [{position.offset}, {log.log_start}) are no longer in the log (retention, DeleteRecords)"
    else:
        return position.offset
    if not fail_on_data_loss:
        return going_on
    message = (
        f"{log.what}: {why}: records are lost to this stream. To continue from offset "
        f"{going_on} anyway, start the stream with failOnDataLoss = false"
    )
    if parted is not None:
        raise LogTruncationError(message, parted)
    raise OffsetOutOfRangeError(message)


def _parted(position: Position, log: ReplicaLog) -> int | None:
    """The offset at which the log diverges from the records that the stream has read; None if there is no
    divergence."""
    if position.leader_epoch is not None:
        return divergent_offset(log, position.offset, position.leader_epoch)
    return log.log_end if position.offset > max(log.log_end, log.local_start) else None


def is_idle(start: Position | None, going_on: int, end: int) -> bool:
    """Whether a batch from ``going_on`` to ``end`` does not change the position of a partition, nor its
    history."""
    return start is not None and start.offset == going_on == end


def planned_range(start: Position, end: Position, log: LogBounds, *, fail_on_data_loss: bool) -> tuple[int, int]:
    """The offsets ``[low, high)`` of a planned batch: the same offsets at every call while they exist. If records
    may be lost, lost offsets are skipped.

    Raises: OffsetOutOfRangeError, see ``resume``.
    """
    if start == end:
        return end.offset, end.offset
    low = resume(start, log, fail_on_data_loss=fail_on_data_loss)
    high = min(end.offset, resume(end, log, fail_on_data_loss=fail_on_data_loss))
    return low, max(low, high)

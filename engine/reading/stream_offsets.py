"""How far a stream has come, as its checkpoint holds it, and where it goes on. Pure.

    {"topic": "trips", "topicId": "..", "partitions": {"0": {"offset": 17, "leaderEpoch": 3}}}

``offset`` is the next one to read; ``leaderEpoch`` is that of the record before it (KIP-320's truncation
detection), absent where none was read. The offsets at which a query begins carry ``"initial": true``; those at
which its first batch ends carry where it began in ``"began"``: Spark asks for the initial offsets anew when that
batch is run again, and "latest" is another offset by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.reading.offsets_for_epoch import divergent_offset
from partitions.errors import InvalidCallError, LogTruncationError, OffsetOutOfRangeError
from partitions.listing import ReplicaLog


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read, and the leader epoch of the record before it, where that is known."""

    offset: int
    leader_epoch: int | None = None


BEGINNING = Position(0)
"""Where a stream enters a partition that was added while it ran."""


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """A position in each partition of a topic."""

    topic: str
    topic_id: str
    partitions: Mapping[int, Position]
    initial: bool = False
    began: Mapping[int, Position] | None = None

    def to_json(self) -> dict[str, Any]:
        """As the checkpoint holds it; equal offsets give equal text."""
        found: dict[str, Any] = {
            "topic": self.topic,
            "topicId": self.topic_id,
            "partitions": _positions_to_json(self.partitions),
        }
        if self.initial:
            found["initial"] = True
        if self.began is not None:
            found["began"] = _positions_to_json(self.began)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamOffsets:
        """Raises: InvalidCallError for what no stream of ours has written."""
        try:
            began = data.get("began")
            return cls(
                str(data["topic"]),
                str(data["topicId"]),
                _positions_from_json(data["partitions"]),
                data.get("initial") is True,
                None if began is None else _positions_from_json(began),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidCallError(
                f"the checkpoint was not written by a stream of this format, it says {data!r}: give the query "
                "another checkpointLocation"
            ) from error

    def check_topic(self, topic: str, topic_id: str) -> None:
        """Raises: InvalidCallError when these are offsets of another topic, or of a deleted one of this name."""
        if self.topic != topic:
            raise InvalidCallError(
                f"the checkpoint is of topic {self.topic!r}, the query reads {topic!r}: give the query its own "
                "checkpointLocation"
            )
        if self.topic_id != topic_id:
            raise InvalidCallError(
                f"topic {topic!r} was deleted and created again since the checkpoint was written (topic id "
                f"{self.topic_id}, now {topic_id}): give the query a new checkpointLocation"
            )


def _positions_to_json(positions: Mapping[int, Position]) -> dict[str, Any]:
    return {
        str(partition): {"offset": at.offset}
        | ({} if at.leader_epoch is None else {"leaderEpoch": at.leader_epoch})
        for partition, at in sorted(positions.items())
    }


def _positions_from_json(data: Mapping[str, Any]) -> dict[int, Position]:
    return {int(partition): Position(int(at["offset"]), at.get("leaderEpoch")) for partition, at in data.items()}


@dataclass(frozen=True, slots=True)
class LogBounds:
    """A partition as its leader was listed: a stream reads ``[log_start, end)`` of it, in either tier."""

    what: str
    log_start: int
    end: int
    log: ReplicaLog

    def position(self, offset: int) -> Position:
        """The position at an offset of this log."""
        return Position(offset, self.log.lineage.epoch_at(offset - 1) if offset > self.log_start else None)


def resume(position: Position, log: LogBounds, *, fail_on_data_loss: bool) -> int:
    """Where a stream that stands at ``position`` goes on: there, unless records are lost to it. Those below the
    log start are skipped; where the log was truncated below the position (an unclean election, after which other
    records have these offsets), it goes back to where the histories part.

    Raises: OffsetOutOfRangeError for lost records, LogTruncationError where others took their offsets; unless they
        may be lost.
    """
    parted = _parted(position, log.log)
    if parted is not None:
        going_on = max(parted, log.log_start)
        why = (
            f"the log was truncated to offset {parted} (an unclean election) after the stream had read up to "
            f"{position.offset}"
        )
    elif position.offset < log.log_start:
        going_on = log.log_start
        why = f"offsets [{position.offset}, {log.log_start}) are no longer in the log (retention, DeleteRecords)"
    else:
        return position.offset
    if not fail_on_data_loss:
        return going_on
    said = (
        f"{log.what}: {why}: records are lost to this stream. To go on from offset {going_on} all the same, "
        "start it with failOnDataLoss = false"
    )
    if parted is not None:
        raise LogTruncationError(said, parted)
    raise OffsetOutOfRangeError(said)


def _parted(position: Position, log: ReplicaLog) -> int | None:
    """Where the log parts from what the stream has read; None where it does not."""
    if position.leader_epoch is not None:
        return divergent_offset(log, position.offset, position.leader_epoch)
    return log.log_end if position.offset > max(log.log_end, log.local_start) else None


def stands_still(start: Position | None, going_on: int, end: int) -> bool:
    """Whether a batch that goes on at ``going_on`` and ends at ``end`` leaves a partition where it was: also the
    history is the same, and the position stays what it is.
    """
    return start is not None and start.offset == going_on == end


def planned_range(start: Position, end: Position, log: LogBounds, *, fail_on_data_loss: bool) -> tuple[int, int]:
    """The offsets ``[low, high)`` of a planned batch: the same ones whenever it is asked, as long as they are
    there; without those that are lost, where records may be.

    Raises: OffsetOutOfRangeError as ``resume``.
    """
    if start == end:
        return end.offset, end.offset
    low = resume(start, log, fail_on_data_loss=fail_on_data_loss)
    high = min(end.offset, resume(end, log, fail_on_data_loss=fail_on_data_loss))
    return low, max(low, high)

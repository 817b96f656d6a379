"""OffsetsForLeaderEpoch for consumers (KIP-392, "Protocol Changes"; KIP-320): the end of a leader epoch for
consumers, and a check that a log still has a consumer's records. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.partitions.errors import LogTruncationError, OffsetNotAvailableError, UnknownLeaderEpochError
from stratalog.partitions.lineage import EpochStart, Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.offsets import UnknownOffset


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The end of a leader epoch: the start of the next epoch, but at most the high watermark."""

    leader_epoch: int
    """The greatest epoch of the log that is at most the requested epoch; if there is none, the requested epoch."""
    end_offset: int


def end_for_consumers(
    what: str, log: ReplicaLog, current_leader_epoch: int, leader_epoch: int
) -> EpochEndOffset | UnknownOffset:
    """The end of ``leader_epoch`` in the log of a leader in ``current_leader_epoch``. The result is an
    UnknownOffset if the epoch is later than all epochs of the log.

    Raises: OffsetNotAvailableError if a recently elected leader's high watermark is below the end, because more
    records may have been committed before the election.
    """
    if leader_epoch > log.lineage.latest_epoch:
        return UnknownOffset(
            f"leader epoch {leader_epoch} is above the latest leader epoch of the log, {log.lineage.latest_epoch}"
        )
    end = _end(log.lineage, leader_epoch, log.log_end)
    if end > log.high_watermark and not knows_high_watermark(log, current_leader_epoch):
        raise OffsetNotAvailableError(
            f"{what}: the recently elected leader has the high watermark {log.high_watermark}, and leader epoch "
            f"{leader_epoch} ends at or below {end}; ask again after an append, or run replicate"
        )
    floor = _floor(log.lineage, leader_epoch)
    return EpochEndOffset(leader_epoch if floor is None else floor.epoch, min(end, log.high_watermark))


def knows_high_watermark(log: ReplicaLog, current_leader_epoch: int) -> bool:
    """Whether the leader's high watermark covers all records that were committed before its election. They are all
    below the start of the leader's own epoch, which is where its log ended at the take-over (KIP-207).
    """
    latest = log.lineage.entries[-1] if log.lineage.entries else None
    taken_over = latest is not None and latest.epoch == current_leader_epoch
    return log.high_watermark >= (latest.start_offset if latest is not None and taken_over else log.log_end)


def check_history(what: str, log: ReplicaLog, offset: int, leader_epoch: int) -> None:
    """Check that the leader's log still has the records of a consumer at ``offset``, whose last record was of
    ``leader_epoch`` (KIP-320).

    Raises: LogTruncationError; UnknownLeaderEpochError when the consumer's leader epoch is later than the leader's
    latest epoch.
    """
    if leader_epoch > log.lineage.latest_epoch:
        raise UnknownLeaderEpochError(
            f"{what}: the last record was read in leader epoch {leader_epoch}, but the leader's log has only "
            f"epochs up to {log.lineage.latest_epoch}"
        )
    divergent = divergent_offset(log, offset, leader_epoch)
    if divergent is not None:
        raise LogTruncationError(
            f"{what}: the records that were read up to offset {offset}, in leader epoch {leader_epoch}, are no "
            f"longer in the log: an unclean election has replaced them from offset {divergent} on. Continue from "
            f"offset {divergent}, and undo the effects of the replaced records",
            divergent,
        )


def divergent_offset(log: ReplicaLog, offset: int, leader_epoch: int) -> int | None:
    """The offset up to which a leader's log has the records of a consumer that is at ``offset`` and whose last
    record was of ``leader_epoch``. The log must have this epoch or a later one. None if the log has all of these
    records: the epoch is in the log and does not end before the offset (KIP-320).

    After several unclean elections the histories may diverge earlier: like a Kafka consumer, the consumer does not
    send the start of its last record's epoch.
    """
    floor, end = _floor(log.lineage, leader_epoch), _end(log.lineage, leader_epoch, log.log_end)
    if end < offset:
        return end
    if floor is None or floor.epoch == leader_epoch:
        return None
    return floor.start_offset  # the epoch is lost, and its records had offsets from here on


def _floor(lineage: Lineage, leader_epoch: int) -> EpochStart | None:
    """The greatest epoch of the log that is at most this epoch."""
    return next((entry for entry in reversed(lineage.entries) if entry.epoch <= leader_epoch), None)


def _end(lineage: Lineage, leader_epoch: int, log_end: int) -> int:
    end = lineage.end_of(leader_epoch)
    return log_end if end is None else end

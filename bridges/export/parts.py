"""The state of each partition in a run: its position, the due pieces, and the pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stratalog.bridges.mirror.rows import NO_TIMESTAMP_MS
from stratalog.bridges.mirror.source import SourceRecord
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, StratalogError

Read = Callable[[int, int], tuple[Sequence[SourceRecord], int]]
"""Reads records of a partition starting at an offset; returns the records and the offset after the last one."""


_NOT_SENT_MS = {
    0: "librdkafka would send the current time instead",
    NO_TIMESTAMP_MS: "in Kafka it means no timestamp",
}
"""Timestamps that Kafka would change, and the reason."""


def _not_sent(record: SourceRecord) -> InvalidCallError:
    return InvalidCallError(
        f"the record at offset {record.offset} has the timestamp {record.timestamp_ms} ms: "
        f"{_NOT_SENT_MS[record.timestamp_ms or 0]}. The export stops before this record. Export the later "
        "records with --name, --start and --new-offsets; or delete the records up to this record (stratalog "
        "delete_records)"
    )


class Pace:
    """Spaces records by their timestamps, ``speed`` times as fast; None: without waiting."""

    def __init__(self, speed: float | None, clock: Clock) -> None:
        """Raises: InvalidCallError for a speed that is not above 0."""
        if speed is not None and not speed > 0:
            raise InvalidCallError(f"pace = {speed:g}: give a factor above 0")
        self._speed, self._clock = speed, clock
        self._began_s = clock.monotonic_s()
        self._first_ms: int | None = None

    def begin(self, records: Sequence[SourceRecord]) -> None:
        """Set the first timestamp of each partition; the record with the earliest is due now."""
        stamps = [record.timestamp_ms for record in records if record.timestamp_ms is not None]
        if self._first_ms is None and stamps:
            self._first_ms, self._began_s = min(stamps), self._clock.monotonic_s()

    def wait_s(self, record: SourceRecord) -> float:
        """The seconds until the record is due; 0 without a timestamp."""
        if self._speed is None or record.timestamp_ms is None or self._first_ms is None:
            return 0.0
        due_s = self._began_s + (record.timestamp_ms - self._first_ms) / 1000 / self._speed
        return max(0.0, due_s - self._clock.monotonic_s())


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """A unit of writing: the offsets ``[start, end)`` in this cluster, with all records to export."""

    partition: int
    start: int
    end: int
    records: tuple[SourceRecord, ...]

    @property
    def size_bytes(self) -> int:
        """The approximate size of the records."""
        return sum(record.size_bytes for record in self.records)


@dataclass(slots=True)
class ExportedPartition:
    partition: int
    position: int
    """The offset in this cluster below which all records are written."""
    end: int
    """The offset in this cluster at which the run ends."""
    log_start: int
    """The log start in this cluster."""
    first: int
    """The first offset of the export."""
    read: Read
    waiting: list[SourceRecord] = field(default_factory=list)
    read_to: int = 0
    """The offset up to which the log was read."""
    began: int = 0
    records: int = 0
    gaps: int = 0
    gap: int = 0
    """The number of offsets without a record directly before ``position``, as far as this run has written them."""
    written_bytes: int = 0
    error: StratalogError | None = None

    def __post_init__(self) -> None:
        self.began = self.read_to = self.position

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do in this run."""
        return self.error is not None or self.position >= self.end

    def look(self) -> None:
        """Read more records, if none are waiting.

        Raises: errors from reading; InvalidCallError if the next record's timestamp cannot be sent.
        """
        if self.waiting or self.read_to >= self.end:
            return
        found, read_to = self.read(max(self.read_to, self.log_start), self.end)
        found = [record for record in found if record.offset < self.end]
        at = next((at for at, record in enumerate(found) if record.timestamp_ms in _NOT_SENT_MS), None)
        if at == 0:
            raise _not_sent(found[0])
        self.waiting = found[:at]
        self.read_to = min(self.end, read_to) if at is None else found[at].offset

    def cut(self, pace: Pace) -> ExportPiece | None:
        """The next piece, if any is due. Call ``written`` before the next call."""
        due = 0
        while due < len(self.waiting) and pace.wait_s(self.waiting[due]) <= 0:
            due += 1
        if due < len(self.waiting):
            end = self.waiting[due - 1].offset + 1 if due else self.position
        else:
            end = self.read_to
        if end == self.position:
            return None
        return ExportPiece(self.partition, self.position, end, tuple(self.waiting[:due]))

    def written(self, piece: ExportPiece) -> None:
        """Record that the piece is written."""
        self.waiting = self.waiting[len(piece.records) :]
        self.position = piece.end
        self.gap = (
            piece.end - piece.records[-1].offset - 1 if piece.records else self.gap + piece.end - piece.start
        )
        self.records += len(piece.records)
        self.gaps += piece.end - piece.start - len(piece.records)
        self.written_bytes += piece.size_bytes

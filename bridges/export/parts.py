"""One run's state of each partition: where it is, the pieces that are due, and at which pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stratalog.bridges.mirror.source import SourceRecord
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import InvalidCallError, StratalogError

Read = Callable[[int, int], tuple[Sequence[SourceRecord], int]]
"""Of a partition: some records from an offset on, and the offset behind them."""


class Pace:
    """Records go as far apart as their timestamps are, ``speed`` times as fast; None: as fast as they can."""

    def __init__(self, speed: float | None, clock: Clock) -> None:
        """Raises: InvalidCallError for a speed that is not above 0."""
        if speed is not None and not speed > 0:
            raise InvalidCallError(f"pace = {speed:g}: it is how many times as fast, above 0")
        self._speed, self._clock = speed, clock
        self._began_s = clock.monotonic_s()
        self._first_ms: int | None = None

    def begin(self, records: Sequence[SourceRecord]) -> None:
        """These are the first ones of each partition: the earliest of them is due now."""
        stamps = [record.timestamp_ms for record in records if record.timestamp_ms is not None]
        if self._first_ms is None and stamps:
            self._first_ms, self._began_s = min(stamps), self._clock.monotonic_s()

    def wait_s(self, record: SourceRecord) -> float:
        """So long until the record is due. One without a timestamp is."""
        if self._speed is None or record.timestamp_ms is None or self._first_ms is None:
            return 0.0
        due_s = self._began_s + (record.timestamp_ms - self._first_ms) / 1000 / self._speed
        return max(0.0, due_s - self._clock.monotonic_s())


@dataclass(frozen=True, slots=True)
class ExportPiece:
    """Written at once: the offsets ``[start, end)`` here, and all records of them that are to be exported."""

    partition: int
    start: int
    end: int
    records: tuple[SourceRecord, ...]

    @property
    def size_bytes(self) -> int:
        """About what the records take."""
        return sum(record.size_bytes for record in self.records)


@dataclass(slots=True)
class ExportedPartition:
    """A partition that is being exported."""

    partition: int
    position: int
    """Here: all below it is written."""
    end: int
    """Here: the run goes up to it."""
    log_start: int
    """Here."""
    first: int
    """The first offset of the export."""
    read: Read
    waiting: list[SourceRecord] = field(default_factory=list)
    read_to: int = 0
    """Up to here the log was read."""
    began: int = 0
    records: int = 0
    gaps: int = 0
    written_bytes: int = 0
    error: StratalogError | None = None

    def __post_init__(self) -> None:
        self.began = self.read_to = self.position

    @property
    def done(self) -> bool:
        """Whether nothing is left to do in this run."""
        return self.error is not None or self.position >= self.end

    def look(self) -> None:
        """Read on, if nothing waits. Raises: errors of reading."""
        if self.waiting or self.read_to >= self.end:
            return
        found, read_to = self.read(max(self.read_to, self.log_start), self.end)
        self.waiting = [record for record in found if record.offset < self.end]
        self.read_to = min(self.end, read_to)

    def cut(self, pace: Pace) -> ExportPiece | None:
        """The next piece, if anything is due. It is written (``written``) before the next one is asked for."""
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
        """The piece is there."""
        self.waiting = self.waiting[len(piece.records) :]
        self.position = piece.end
        self.records += len(piece.records)
        self.gaps += piece.end - piece.start - len(piece.records)
        self.written_bytes += piece.size_bytes

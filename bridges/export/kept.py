"""Writes pieces at the same offsets: see the package, "Exactly once, at the same offsets"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stratalog.bridges.export.journal import Journal
from stratalog.bridges.export.parts import ExportPiece
from stratalog.bridges.export.target import ExportTarget, OffsetsNotKeptError
from stratalog.bridges.mirror.compare import RecordsDifferError
from stratalog.bridges.mirror.source import SourceBounds, SourceRecord
from stratalog.partitions.clock import Clock

MOST_GAP = 10_000_000
"""The maximum number of consecutive offsets without a record that an export uses up."""
_POLL_S = 0.1


def settled(
    target: ExportTarget, topic: str, journal: Journal, partitions: Sequence[int], clock: Clock
) -> Mapping[int, SourceBounds]:
    """Wait until no records of earlier, fenced runs are in flight, and return the bounds of the target's logs.
    Raises: RecordsDifferError if other writers have written to the topic.
    """
    began_s = clock.monotonic_s()
    while True:
        bounds = target.bounds(topic, partitions)
        within = [p for p, (start, end) in journal.last.items() if start <= bounds[p].log_end < end]
        if not within or clock.monotonic_s() - began_s >= target.settle_s:
            break
        clock.sleep(_POLL_S)
    for partition, found in bounds.items():
        known = journal.places.get(partition, 0)
        if found.log_end > known:
            raise _differ(topic, partition, f"it ends at offset {found.log_end}, but was written up to {known}")
    return bounds


def check_gap(topic: str, piece: ExportPiece, before: int) -> None:
    """Check that no gap is too long. ``before`` is the number of offsets without a record directly before the
    piece. Raises: OffsetsNotKeptError.
    """
    start = piece.start - before
    for end in (*(record.offset for record in piece.records), piece.end):
        if end - start > MOST_GAP:
            raise OffsetsNotKeptError(
                f"{topic}-{piece.partition}: {end - start} offsets from {start} have no record, and Kafka would "
                f"need an aborted record at each of them; the limit is {MOST_GAP}: export at new offsets with "
                "--new-offsets"
            )
        start = end + 1


def write(target: ExportTarget, topic: str, piece: ExportPiece) -> None:
    """Write the piece, whose first offset is the end of the target's log. Raises: RecordsDifferError if a record
    got another offset.
    """
    offset = piece.start
    for start, records in _runs(piece):
        if start < records[0].offset:
            target.take(topic, piece.partition, start, records[0].offset - start)
        wanted = [record.offset for record in records]
        if list(target.append(topic, piece.partition, records)) != wanted:
            raise _differ(
                topic,
                piece.partition,
                f"Kafka stored the records for offset {wanted[0]} and later at other offsets",
            )
        offset = wanted[-1] + 1
    if offset < piece.end:
        target.take(topic, piece.partition, offset, piece.end - offset)
    end = target.bounds(topic, [piece.partition])[piece.partition].log_end
    if end != piece.end:
        raise _differ(topic, piece.partition, f"it ends at offset {end}, but was written up to {piece.end}")


def _runs(piece: ExportPiece) -> Iterator[tuple[int, list[SourceRecord]]]:
    """Groups of records without a gap, each with the end of the previous group."""
    before, run = piece.start, list[SourceRecord]()
    for record in piece.records:
        if run and record.offset != run[-1].offset + 1:
            yield before, run
            before, run = run[-1].offset + 1, []
        run.append(record)
    if run:
        yield before, run


def _differ(topic: str, partition: int, how: str) -> RecordsDifferError:
    return RecordsDifferError(
        f"{topic}-{partition} of the target: {how}: another producer has written to it. Stop that producer, "
        "delete the topic in the target, and export again"
    )

"""One file of the remote tier, as the table of its topic lists it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptionError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import DataName
from stratalog.partitions.retention import UNKNOWN_MS, LogFile

EARLIEST_MS = -(2**63) // 1000
LATEST_MS = UNKNOWN_MS
"""Bounds of every possible timestamp, for segments without statistics."""


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """Records ``[base_offset, next_offset)`` of one partition in the remote tier; never empty.

    ``min_timestamp_ms`` and ``max_timestamp_ms`` are bounds, rounded outwards to milliseconds; the exact
    values are in the file's footer.
    """

    partition: int
    name: DataName
    next_offset: int
    size_bytes: int
    min_timestamp_ms: int = EARLIEST_MS
    max_timestamp_ms: int = LATEST_MS
    modified_ms: int = field(default=0, compare=False)
    """The time when the object appeared in the remote store, by the store's clock; 0 if unknown."""
    rebuilt: int = 0
    """The number of the object with that name: 0 for the first upload. Later objects replace a damaged object, or
    an object with different content that was never committed."""

    def __post_init__(self) -> None:
        if self.next_offset <= self.name.base_offset or self.name.next_offset not in (None, self.next_offset):
            raise CorruptionError(
                f"remote segment {self.path} cannot hold offsets [{self.name.base_offset}, {self.next_offset})"
            )

    @property
    def path(self) -> str:
        """Its path in the table, relative to the topic's folder."""
        return paths.remote_segment_path(self.partition, self.name, self.rebuilt)

    @property
    def base_offset(self) -> int:
        """First offset."""
        return self.name.base_offset

    @property
    def epoch(self) -> int:
        """The leader epoch of its last record."""
        return self.name.epoch

    @property
    def generation(self) -> int:
        """The generation of the removal rule with which the segment was written; 0: none."""
        return self.name.generation

    @property
    def records(self) -> int:
        """The number of rows. A row is a record, or a gap in place of a removed record."""
        return self.next_offset - self.base_offset

    @property
    def extent(self) -> LogFile:
        """The segment in the form that total retention uses."""
        return LogFile(
            self.base_offset, self.next_offset, self.size_bytes, self.max_timestamp_ms, self.modified_ms
        )

    def is_of(self, lineage: Lineage) -> bool:
        """Whether the segment belongs to this history (after an unclean election it may belong to a lost
        history).
        """
        return lineage.epoch_at(self.next_offset - 1) == self.epoch

    @classmethod
    def listed(
        cls,
        what: str,
        path: str,
        size_bytes: int,
        records: int | None,
        min_timestamp_ms: int | None,
        max_timestamp_ms: int | None,
        modified_ms: int,
    ) -> RemoteSegment:
        """The segment of an add action. Pass None for statistics that the action lacks. ``what`` names the table
        in errors.

        Raises: CorruptionError when the path is not the path of a segment, or contradicts the statistics.
        """
        parsed = paths.parse_remote_segment_path(path)
        if parsed is None:
            raise CorruptionError(
                f"{what} lists {path!r}, which is not a segment: another writer wrote this "
                "table, and its log does not reach back to the files that it listed before"
            )
        partition, name, rebuilt = parsed
        if records is None and name.next_offset is None:
            raise CorruptionError(f"{what} lists {path!r} without numRecords: its end is unknown")
        next_offset = name.next_offset if records is None else name.base_offset + records
        if next_offset is None or name.next_offset not in (None, next_offset):
            raise CorruptionError(f"{what} lists {path!r} with {records} records, which its name contradicts")
        return cls(
            partition,
            name,
            next_offset,
            size_bytes,
            EARLIEST_MS if min_timestamp_ms is None else min_timestamp_ms,
            LATEST_MS if max_timestamp_ms is None else max_timestamp_ms,
            modified_ms,
            rebuilt,
        )


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A segment in the remote tier that may be committed (KIP-405's COPY_SEGMENT_STARTED): a task's result for the
    driver.
    """

    segment: RemoteSegment
    modified_ms: int
    """The time when the object's name appeared in the remote store."""
    statistics: str
    """Delta's per-file statistics, JSON."""
    copied_bytes: int
    """Bytes that this upload wrote; 0 if the file already existed."""

"""SnapshotId: the records of a log that a snapshot replaces (KIP-630, "Terminology"). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.paths import CheckpointName


@total_ordering
@dataclass(frozen=True, slots=True)
class SnapshotId:
    """A snapshot of the records ``[0, end_offset)``, the last of which has leader epoch ``epoch``.

    Ids are ordered by epoch, then by end offset, like the ends of logs: the greater of two contains more records
    (KIP-630, "Snapshot Format", "Changes to Leader Election").
    """

    end_offset: int
    epoch: int
    generation: int = 0
    """The number of the erasure that the snapshot follows (``snapshots.erasure``); 0: none."""

    def __post_init__(self) -> None:
        if self.end_offset < 0 or self.epoch < 0:
            raise InvalidCallError(f"no snapshot can end at offset {self.end_offset}, epoch {self.epoch}")

    def __lt__(self, other: SnapshotId) -> bool:
        mine, others = (self.epoch, self.end_offset), (other.epoch, other.end_offset)
        return (*mine, self.generation) < (*others, other.generation)

    @property
    def name(self) -> CheckpointName:
        """The name of the snapshot's file."""
        return CheckpointName(self.end_offset, self.epoch, self.generation)

    @classmethod
    def of(cls, name: CheckpointName) -> SnapshotId:
        """The snapshot of a file name."""
        return cls(name.end_offset, name.epoch, name.generation)

    def __str__(self) -> str:
        return f"{self.end_offset}-{self.epoch}{f'.{self.generation}' if self.generation else ''}"


EMPTY = SnapshotId(0, 0)
"""The end of a log without records. No snapshot of it is ever taken."""


def lineage_up_to(end_offset: int, lineage: Lineage) -> Lineage:
    """The epochs of the records ``[0, end_offset)``."""
    return Lineage(entry for entry in lineage if entry.start_offset < end_offset)


def check_may_snapshot(
    snapshot_id: SnapshotId,
    *,
    lineage: Lineage,
    log_start: int,
    high_watermark: int,
    is_boundary: bool,
    latest: SnapshotId,
) -> None:
    """Check that a snapshot with this id may be taken: of committed records, up to a batch boundary that the log
    still has, with the epoch of the last record, and after ``latest``, the greatest existing snapshot.

    Raises: InvalidCallError, which names the violated condition.
    """
    end = snapshot_id.end_offset
    epoch = lineage.epoch_at(end - 1) if end > 0 else None
    wrong: str | None = None
    if end == 0:
        wrong = "it would be empty"
    elif end > high_watermark:
        wrong = f"snapshots contain only committed records, and the high watermark is {high_watermark}"
    elif snapshot_id <= latest:
        wrong = f"a new snapshot must be later than {latest}"
    elif end < log_start:
        wrong = f"the log starts at {log_start}"
    elif epoch != snapshot_id.epoch:
        wrong = f"the record before it has epoch {epoch}"
    elif not is_boundary:
        wrong = "a batch spans that offset"
    if wrong is not None:
        raise InvalidCallError(f"no snapshot {snapshot_id} can be taken of this log: {wrong}")

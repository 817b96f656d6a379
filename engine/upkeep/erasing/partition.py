"""One partition in a run of ``erase``."""

from __future__ import annotations

from dataclasses import dataclass, field

from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.upkeep.erasing.certificate import (
    ErasedFile,
    ErasedPartition,
    ErasedRemote,
    ErasedTable,
    NotErased,
)
from stratalog.engine.upkeep.erasing.tasks import CleanedReplicas, PlannedErasing, offsets_of
from stratalog.partitions.erasure import OffsetRange, count
from stratalog.partitions.listing import DataFile
from stratalog.partitions.rewrites.wanted_where import RecordFinder


@dataclass(slots=True)
class RemoteFigures:
    """The remote work on a partition so far."""

    files: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    replaced: list[ErasedFile] = field(default_factory=list)


@dataclass(slots=True)
class ErasingPartition:
    """One partition, and what came of it."""

    view: PartitionView
    keys: RecordFinder | None
    """The records to erase; None: only those that an earlier run has found."""
    offsets: list[OffsetRange] = field(default_factory=list)
    looked_to: int = 0
    leader_epoch: int = 0
    """See ``ErasedPartition``, like ``looked_to``."""
    above: int = 0
    records: int | None = None
    """The erased records, if they are not the offsets: in a topic with snapshots, whole files go."""
    searched: bool = False
    """See ``ErasedPartition``."""
    replaced: list[ErasedFile] = field(default_factory=list)
    files: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    cleaned: CleanedReplicas | None = None
    cleaned_under: int = -1
    """The partition epoch."""
    deleted: int = 0
    left: list[NotErased] = field(default_factory=list)
    remote: ErasedRemote | None = None
    """Its remote copy; None: the topic is not tiered."""
    published: ErasedTable | None = None
    """Its part of the table in which its topic publishes its snapshots; None: the topic does not publish them."""
    remote_files: int = 0
    """The remote segments that were rewritten, and the files of that table that were replaced."""
    error: NotErased | None = None
    """The failure that ended the work on it."""
    planned: bool = False
    """In a dry run, whether it was searched."""

    @property
    def failed(self) -> bool:
        """Whether a failure ended the work on it."""
        return self.error is not None

    @property
    def erased_records(self) -> int:
        """The number of erased records; see ``EraseRow``."""
        return count(offsets_of((), self.offsets)) if self.records is None else self.records

    @property
    def not_erased(self) -> list[NotErased]:
        """All that is left, or may be."""
        return self.left if self.error is None else [self.error, *self.left]

    def __str__(self) -> str:
        return str(self.view)

    def is_new(self, file: DataFile, where: str) -> bool:
        """Whether a file of a replica may have got its name after the replica was cleaned. Such a file may have
        records that its writer has read before the erasure. ``where``: see ``NotErased``."""
        if self.cleaned is None or file.name in self.cleaned.names:
            return False
        return all(one.where != where for one in self.left)

    def take(self, figures: RemoteFigures) -> None:
        """Add the figures of remote work since the last call."""
        self.read_bytes += figures.read_bytes
        self.written_bytes += figures.written_bytes
        self.remote_files += figures.files
        figures.read_bytes = figures.written_bytes = figures.files = 0

    def leave_above(self) -> None:
        """Records above the last stable offset are not erased."""
        if self.above:
            why = (
                f"{self.above:,} wanted records are at or above the last stable offset {self.looked_to}: "
                "erase again when their transactions have ended, and the high watermark has passed them"
            )
            self.left.append(NotErased(f"broker {self.view.leader}", why))

    def plan(self, planned: PlannedErasing) -> None:
        """Take the figures of a dry run, and what the run cannot erase."""
        self.planned = True
        self.offsets, self.files, self.deleted = [*planned.offsets], planned.files, planned.deleted
        self.remote_files = planned.remote_files
        self.read_bytes = planned.bytes + planned.remote_bytes
        self.written_bytes = planned.bytes * len(self.view.replicas) + planned.remote_bytes
        self.above, self.looked_to = planned.above, planned.looked_to
        self.records = planned.records
        self.left += planned.not_erased
        self.leave_above()

    def certified(self) -> ErasedPartition:
        """The partition in the certificate."""
        return ErasedPartition(
            partition=self.view.partition,
            looked_to=self.looked_to,
            leader_epoch=self.leader_epoch,
            searched=self.searched,
            generation=self.view.generation,
            offsets=offsets_of((), self.offsets),
            replaced=tuple(self.replaced),
            made=() if self.cleaned is None else self.cleaned.made,
            not_erased=tuple(self.not_erased),
            remote=self.remote,
            published=self.published,
        )

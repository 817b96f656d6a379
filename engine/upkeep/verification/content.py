"""Reads every byte of a partition's files, in groups of bounded size, so that all cores share the work on one
large replica.

A group is a separate piece of work; damage is reported with its offsets. A file that a merge or retention has
deleted meanwhile is a finding only if the log no longer has its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stratalog.engine.replicas.repair import BadFile, Damage, HeldFile, Missing, Place
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.upkeep.verification.findings import Finding, offsets
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    LogGapError,
    RemoteObjectMissingError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.listing import DataFile, is_live
from stratalog.partitions.segments.check import SMALL_BYTES, BadRange, CheckedSegment, check_segment
from stratalog.partitions.store import Store

GROUP_BYTES = 32 * 1024 * 1024
GROUP_FILES = 256
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ReadWork:
    """Read some files of one replica, or of the remote tier."""

    replicas: PartitionReplicas
    place: Place
    store: Store
    files: tuple[HeldFile, ...]
    of_log: bool
    """Whether the files are part of the log. Other files (discarded or hidden) are read to find good copies, and
    may be missing.
    """

    @property
    def size_bytes(self) -> int:
        return sum(held.size_bytes for held in self.files)

    @property
    def where(self) -> str:
        """The name of the replica, or of the remote tier, in reports."""
        if self.place is None:
            return f"{self.replicas} in the remote tier"
        return str(self.replicas.replica(self.place))

    def stores_used(self) -> Iterable[Store]:
        return [self.store]

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The result of a group: the good files with their checksums, and the findings about all other files."""

    good: tuple[tuple[HeldFile, int], ...]
    findings: tuple[Finding, ...]


def groups_of(
    replicas: PartitionReplicas, place: Place, store: Store, files: Iterable[HeldFile], of_log: bool = True
) -> Iterator[ReadWork]:
    """The files in order, in groups of at least one file, limited in bytes and in number of files."""
    group: list[HeldFile] = []
    size = 0
    for held in files:
        if group and (size + held.size_bytes > GROUP_BYTES or len(group) == GROUP_FILES):
            yield ReadWork(replicas, place, store, tuple(group), of_log)
            group, size = [], 0
        group.append(held)
        size += held.size_bytes
    if group:
        yield ReadWork(replicas, place, store, tuple(group), of_log)


def read_files(work: ReadWork) -> ReadFiles:
    """Read all files of the work. After a damaged file, the remaining files are still read."""
    good: list[tuple[HeldFile, int]] = []
    findings: list[Finding] = []
    for held in work.files:
        try:
            file, checked = _read(work, held)
        except CorruptSegmentError as error:
            bad = BadRange(held.start, held.end, error)
            findings.append(_finding(work, bad, BadFile(held.file, held.start, held.end)))
            continue
        except LogGapError as error:
            findings.append(Finding(work.where, error, work.place, Missing(held.start, held.end)))
            continue
        except RemoteObjectMissingError as error:
            findings.append(Finding(work.where, error, None, BadFile(held.file, held.start, held.end)))
            continue
        except StratalogError as error:
            findings.append(Finding(work.where, error, work.place))
            continue
        if checked is not None:
            read = read_file(work, file, checked)
            good += read.good
            findings += read.findings
    return ReadFiles(tuple(good), tuple(findings))


def is_small(file: DataFile) -> bool:
    """Whether reading the footer reads the complete file, so that the file is not read again."""
    return file.object.size_bytes <= SMALL_BYTES


def check_file(store: Store, file: DataFile) -> CheckedSegment:
    """Check one file completely. Raises: see ``check_segment``."""
    return check_segment(store, file)


def read_file(work: ReadWork, file: DataFile, checked: CheckedSegment) -> ReadFiles:
    footer = checked.segment.footer
    held = HeldFile(file, footer.base_offset, footer.next_offset)
    if not checked.bad:
        return ReadFiles(((held, checked.segment.crc32),), ())
    first, *others = checked.bad
    damage = BadFile(file, held.start, held.end)  # heal replaces complete files, so this is reported once
    return ReadFiles((), (_finding(work, first, damage), *(_finding(work, bad, None) for bad in others)))


def _finding(work: ReadWork, bad: BadRange, damage: Damage | None) -> Finding:
    message = f"{offsets(bad.start, bad.end)}: {bad.error}"
    if not work.of_log:
        message += "; the log does not use this file, and retain deletes the file later"
    return Finding(
        work.where,
        CorruptSegmentError(message),
        work.place,
        damage if work.of_log else None,
        log_is_whole=not work.of_log,
        unused=not work.of_log,
    )


def _read(work: ReadWork, held: HeldFile) -> tuple[DataFile, CheckedSegment | None]:
    """The file as it was read, and the result of the check; None if the file was legitimately deleted meanwhile.

    Raises: CorruptSegmentError; LogGapError when both the file and its records are gone; RemoteObjectMissingError.
    """
    file = held.file
    for _ in range(_ATTEMPTS):
        try:
            return file, check_file(work.store, file)
        except SourceChangedError as error:
            if work.place is None:
                raise RemoteObjectMissingError(f"{error}; but the remote table lists it") from error
            present = _present(work, held)
            if present is None:
                return file, None
            file = present
    raise SourceChangedError(f"{work.where}: {held.name} changes faster than it can be read; try again")


def _present(work: ReadWork, held: HeldFile) -> DataFile | None:
    """The file that now has that name. None if the file was deleted, and either the log no longer needs it, or it
    belongs to a history that the replica has meanwhile abandoned.

    Raises: LogGapError; errors from listing the replica.
    """
    assert work.place is not None
    replica = work.replicas.replica(work.place)
    try:
        log = replica.log(fresh=True)
    except CorruptionError as error:
        raise SourceChangedError(
            f"{work.where}: {held.name} was deleted, and the log cannot be read: {error}"
        ) from error
    for file in log.listing.data:
        if file.name == held.name:
            return file
    if work.of_log and is_live(held.name, log.lineage, log.local_start) and held.end > log.log_end:
        raise LogGapError(
            f"{replica}: {offsets(held.start, held.end)} are missing: {held.name} was deleted in the meantime"
        )
    return None

"""Checks the remote part of a partition: compares the table with its objects, and both with the leader's log."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replicas.repair import BadFile, HeldFile
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.replication.remote_end import RemoteTail, check_reaches_remote
from stratalog.engine.upkeep.verification.findings import Finding
from stratalog.partitions import paths
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    LogGapError,
    RemoteObjectMissingError,
    StratalogError,
)
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.segments.reader import Segment
from stratalog.partitions.store import Store
from stratalog.tiering.plan import earliest_pending_upload
from stratalog.tiering.remote_file import read_remote, remote_file
from stratalog.tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """The segments of one partition in the remote table."""

    store: Store
    folder: str
    segments: tuple[RemoteSegment, ...]
    missing: frozenset[str]
    """The paths that the table lists, but whose objects are missing in the store or have another size."""
    rewrite: str = ""
    """A description of files with which other programs have replaced segments, if any."""
    generation: int = 0
    """The generation of the last removal rule or erasure that the table records."""
    compacted: int = 0
    """The generation of the last removal rule that the table records."""

    def lists(self, object_name: str) -> bool:
        """Whether the table lists the object with this name in the store."""
        return any(paths.join(self.folder, segment.path) == object_name for segment in self.segments)


@dataclass(frozen=True, slots=True)
class RemoteWork(PartitionWork):
    """The work: check the segments of one partition in the remote table."""

    part: RemotePartition
    leader: ReplicaLog | None
    """The leader's log, with which the end of the remote log is compared. It was listed before the table was
    read, so the table lists all records that the leader had deleted. None if the leader's log is unreliable.
    """


def check_remote(work: RemoteWork) -> tuple[tuple[HeldFile, ...], list[Finding]]:
    """The task: returns the objects whose footers match the table, and the findings about the other objects."""
    replicas, remote = work.replicas, work.part
    where = f"{replicas} in the remote tier"
    sound: list[HeldFile] = []
    findings: list[Finding] = []
    for segment in remote.segments:
        try:
            found = _check(where, replicas, remote, segment)
        except CorruptionError as error:
            bad = BadFile(remote_file(remote.folder, segment), segment.base_offset, segment.next_offset)
            findings.append(Finding(where, error, None, bad))
        except StratalogError as error:
            findings.append(Finding(where, error))
        else:
            sound.append(HeldFile(found.file, segment.base_offset, segment.next_offset))
    if work.leader is not None:
        _check_end(where, replicas, remote, work.leader, findings)
        _check_rules(where, remote, work.leader, findings)
    return tuple(sound), findings


def _check_rules(where: str, remote: RemotePartition, leader: ReplicaLog, findings: list[Finding]) -> None:
    """Check that the remote log follows the removal rules that the leader's files follow."""
    for link in leader.chain:
        for segment in remote.segments if link.name.generation > remote.generation else ():
            overlaps = segment.base_offset < link.end and link.start < segment.next_offset
            if overlaps and segment.generation < link.name.generation:
                error = CorruptionError(
                    f"{where}: {segment.path} follows removal rule {segment.generation}, but the leader's "
                    f"{link.name} follows rule {link.name.generation}: the remote tier was restored from "
                    "an older copy. Restore the newer copy; otherwise compact removes the records again, "
                    "but keys whose tombstones are already removed may reappear"
                )
                findings.append(Finding(where, error))
                return


def _check_end(
    where: str,
    replicas: PartitionReplicas,
    remote: RemotePartition,
    leader: ReplicaLog,
    findings: list[Finding],
) -> None:
    log_start, segments = replicas.view.log_start_offset, remote.segments
    tail = RemoteTail(remote.store, remote.folder, segments[-1] if segments else None)
    try:
        check_reaches_remote(replicas.view, replicas.leader, leader, tail)
        if segments and segments[0].base_offset > log_start:
            raise LogGapError(
                f"{where}: the log starts at offset {log_start}, but the remote log starts at "
                f"{segments[0].base_offset}: the records in between were never copied, and remain on the brokers"
            )
        earliest_pending_upload(leader, segments, log_start, str(replicas))
    except StratalogError as error:
        findings.append(Finding(where, error))


def _check(where: str, replicas: PartitionReplicas, remote: RemotePartition, segment: RemoteSegment) -> Segment:
    if segment.path in remote.missing:
        raise RemoteObjectMissingError(
            f"{where}: the table lists {segment.path} with {segment.size_bytes} bytes, but the object is missing "
            "or has another size"
        )
    found = read_remote(remote.store, remote.folder, segment)
    if found.footer.topic_id != replicas.view.topic_id:
        raise CorruptSegmentError(f"{where}: {segment.path} belongs to topic {found.footer.topic_id}")
    _check_statistics(where, segment, found)
    return found


def _check_statistics(where: str, segment: RemoteSegment, found: Segment) -> None:
    """Check that the table's bounds exclude no record, because readers would skip an excluded record. Raises:
    CorruptionError.
    """
    footer = found.footer
    if footer.max_timestamp_offset is None:
        return
    low, high = footer.min_timestamp_us, footer.max_timestamp_us
    if segment.min_timestamp_ms * 1000 > low or segment.max_timestamp_ms * 1000 < high:
        raise CorruptionError(
            f"{where}: the table's statistics of {segment.path} exclude some of its timestamps: "
            f"the statistics have [{segment.min_timestamp_ms}, {segment.max_timestamp_ms}] ms, but the "
            f"records have [{low}, {high}] us"
        )

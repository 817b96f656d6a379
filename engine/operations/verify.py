"""Verify: every replica and the remote against each other.

Per partition: names and sizes of all replicas against the leader's, contiguity and footers of every file,
the remote table against its objects and the log. With ``checksums`` also every byte: replicas are copies,
so files of one name must be equal, and the remote's with them; pages are checked against their checksums.
Nothing is changed. What is wrong is a row *and* a failure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from engine.context import Context
from engine.metadata.image import ClusterImage, TopicImage
from engine.replication.leader import check_whole
from engine.replication.site import Site
from engine.report import Failure, Report, Value
from partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    LogGapError,
    RemoteObjectMissingError,
    StratalogError,
)
from partitions.listing import DataFile, Link, ReplicaLog
from partitions.paths import DataName
from partitions.replica import Replica
from partitions.runner import Done, Failed
from partitions.segment import Segment, read_segment, verify_segment
from partitions.store import Store
from tiering.plan import earliest_pending_upload
from tiering.remote_file import read_remote, remote_file
from tiering.remote_segment import RemoteSegment

_READ_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerifyWork:
    """Verify one partition."""

    site: Site
    checksums: bool
    remote: Store | None
    folder: str
    segments: tuple[RemoteSegment, ...]
    missing: frozenset[str]
    """Paths that the table lists and the store does not hold at that size."""

    def stores_used(self) -> Iterable[Store]:
        """See ``engine.context.Work``."""
        return [*self.site.stores.values(), *([] if self.remote is None else [self.remote])]

    def __str__(self) -> str:
        return str(self.site)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong, and where."""

    where: str
    error: StratalogError


@dataclass(frozen=True, slots=True)
class Verified:
    """One partition."""

    findings: tuple[Finding, ...]
    replicas: int
    files: int
    size_bytes: int
    remote_files: int


class _Checks:
    """Collects what is wrong instead of stopping at the first."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def note(self, where: object, error: StratalogError) -> None:
        self.findings.append(Finding(str(where), error))


def verify_partition(work: VerifyWork) -> Verified:
    """The task."""
    checks = _Checks()
    view = work.site.view
    logs: dict[int, ReplicaLog] = {}
    for broker in view.replicas:
        if view.brokers[broker].fenced:
            continue
        try:
            replica = work.site.replica(broker)
            logs[broker] = log = replica.log()
            check_whole(replica, log)
        except StratalogError as error:
            checks.note(f"{work} on broker {broker}", error)
    digests: dict[str, str] = {}
    order = sorted(logs, key=lambda broker: broker != view.leader)
    damaged: set[DataName] = set()
    for broker in order:
        replica = work.site.replica(broker)
        damaged |= _check_files(replica, logs[broker], checks, digests if work.checksums else None)
    if view.leader in logs:
        for broker in order[1:]:
            _compare(work.site, broker, logs[view.leader], logs[broker], damaged, checks)
    if work.remote is not None:
        _check_remote(work, work.remote, None if view.leader is None else logs.get(view.leader), checks, digests)
    return Verified(
        tuple(checks.findings),
        replicas=len(logs),
        files=sum(len(log.chain) for log in logs.values()),
        size_bytes=sum(link.file.object.size_bytes for log in logs.values() for link in log.chain),
        remote_files=len(work.segments),
    )


def _check_files(
    replica: Replica, log: ReplicaLog, checks: _Checks, digests: dict[str, str] | None
) -> set[DataName]:
    """Footers and contiguity of one replica; with ``digests``, all bytes, against those of other replicas.
    Returns the files that are damaged: copies of them that differ are not to blame.
    """
    damaged: set[DataName] = set()
    for stranger in log.listing.strangers:
        what = replica.store.uri_of(stranger.name)
        checks.note(replica, CorruptSegmentError(f"{what} is a foreign file: nobody of ours writes such names"))
    for link in log.chain:
        try:
            segment = read_segment(replica.store, link.file)
            _check_link(replica, link, segment)
            if digests is not None:
                _check_bytes(replica.store, link.file, digests)
        except StratalogError as error:
            checks.note(replica, error)
            damaged.add(link.name)
    return damaged


def _check_link(replica: Replica, link: Link, segment: Segment) -> None:
    what = replica.store.uri_of(link.file.object.name)
    footer = segment.footer
    if (footer.topic_id, footer.partition) != (replica.topic_id, replica.partition):
        raise CorruptSegmentError(f"{what} is of partition {footer.partition} of topic {footer.topic_id}")
    if footer.next_offset < link.end:
        raise LogGapError(
            f"{what} ends at offset {footer.next_offset}, the next file starts at {link.end}: offsets "
            f"[{footer.next_offset}, {link.end}) are missing"
        )


def _check_bytes(store: Store, file: DataFile, digests: dict[str, str]) -> None:
    verify_segment(store, file)  # first: where a file is damaged, its copies are not to blame
    digest = _digest(store, file)
    if digests.setdefault(str(file.name), digest) != digest:
        raise CorruptSegmentError(f"{store.uri_of(file.object.name)} has other bytes than its copies elsewhere")


def _digest(store: Store, file: DataFile) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with store.open(file.object) as source:
        while data := source.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def _compare(
    site: Site, broker: int, leader: ReplicaLog, other: ReplicaLog, damaged: Set[DataName], checks: _Checks
) -> None:
    """Names and sizes, and that a member of the ISR holds what the high watermark promises."""
    where = site.replica(broker)
    in_sync = broker in site.view.isr
    sizes = {link.name: link.file.object.size_bytes for link in leader.chain if link.name not in damaged}
    for link in other.chain:
        expected = sizes.get(link.name)
        if expected is not None and expected != link.file.object.size_bytes:
            what = where.store.uri_of(link.file.object.name)
            checks.note(
                where,
                CorruptSegmentError(f"{what} has {link.file.object.size_bytes} bytes, on the leader {expected}"),
            )
    if other.lineage != leader.lineage and other.joined_epoch == leader.joined_epoch:
        checks.note(where, CorruptionError(f"{where} has another lineage than its leader: {other.lineage}"))
    if in_sync and other.log_end < leader.high_watermark:
        checks.note(
            where,
            LogGapError(
                f"{where} is in sync and ends at offset {other.log_end}, below the high watermark "
                f"{leader.high_watermark}"
            ),
        )


def _check_remote(
    work: VerifyWork, store: Store, leader: ReplicaLog | None, checks: _Checks, digests: dict[str, str]
) -> None:
    """The table's segments against their objects, and their end against the leader's log."""
    where = f"{work} in the remote tier"
    for segment in work.segments:
        try:
            if segment.path in work.missing:
                raise RemoteObjectMissingError(
                    f"{where}: the table lists {segment.path} with {segment.size_bytes} bytes; the object is not "
                    "there as such"
                )
            found = read_remote(store, work.folder, segment)
            if found.footer.topic_id != work.site.view.topic_id:
                raise CorruptSegmentError(f"{where}: {segment.path} is of topic {found.footer.topic_id}")
            _check_statistics(where, segment, found)
            if work.checksums:
                # The same records under a merged name may have been encoded here and there by themselves.
                copies = {} if segment.name.merged else digests
                _check_bytes(store, remote_file(work.folder, segment), copies)
        except StratalogError as error:
            checks.note(where, error)
    if leader is not None and work.segments:
        try:
            earliest_pending_upload(leader, work.segments, work.site.view.log_start_offset, str(work))
        except StratalogError as error:
            checks.note(where, error)


def _check_statistics(where: str, segment: RemoteSegment, found: Segment) -> None:
    """Raises: CorruptionError when the table's bounds exclude a record: readers would skip it."""
    footer = found.footer
    if footer.max_timestamp_offset is None:
        return
    low, high = footer.min_timestamp_us, footer.max_timestamp_us
    if segment.min_timestamp_ms * 1000 > low or segment.max_timestamp_ms * 1000 < high:
        raise CorruptionError(
            f"{where}: the table's statistics of {segment.path} exclude some of its timestamps: they say "
            f"[{segment.min_timestamp_ms}, {segment.max_timestamp_ms}] ms, its records have [{low}, {high}] us"
        )


def verify(context: Context, topics: Sequence[str] | None = None, *, checksums: bool = True) -> Report:
    """Verify the topics (all when None). ``checksums`` False reads names, sizes and footers only.

    Raises: UnknownTopicOrPartitionError.
    """
    rows: list[dict[str, Value]] = []
    failures: list[Failure] = []
    with context.measured() as measure:
        image = context.metadata.image()
        works: list[VerifyWork] = []
        for topic in context.topics(image, topics):
            try:
                works += _plan(context, image, topic, checksums)
            except StratalogError as failure:
                failures.append(Failure.of(topic.name, failure))
        context.progress.start("verify", len(works), "partitions")
        for outcome in context.tasks.run(verify_partition, works):
            size_bytes = 0
            match outcome:
                case Failed(work, error):
                    failures.append(Failure.of(work, error))
                case Done(work, verified):
                    failures += [Failure.of(finding.where, finding.error) for finding in verified.findings]
                    rows.append(_row(work, verified))
                    size_bytes = verified.size_bytes
            context.progress.advance(size_bytes)
        context.progress.finish()
    return Report(
        operation="verify",
        rows=sorted(rows, key=lambda row: (str(row["topic"]), row["partition"])),
        failures=failures,
        totals={"bytes": sum(int(row["bytes"] or 0) for row in rows), "findings": len(failures)},
        seconds=measure.seconds,
        counts=measure.counts,
    )


def _plan(context: Context, image: ClusterImage, topic: TopicImage, checksums: bool) -> list[VerifyWork]:
    store, segments, missing = None, {}, frozenset[str]()
    if context.topic_config(image, topic).remote_storage_enable:
        table = context.remote_table(topic)
        remote = table.load()
        store, segments = table.remote, dict(remote.segments)
        missing = frozenset(segment.path for segment in table.missing_objects(remote))
    return [
        VerifyWork(
            site=context.site(view),
            checksums=checksums,
            remote=store,
            folder=context.remote_folder(topic),
            segments=segments.get(view.partition, ()),
            missing=missing,
        )
        for view in image.views(topic.name)
    ]


def _row(work: VerifyWork, verified: Verified) -> dict[str, Value]:
    return {
        "topic": work.site.view.topic,
        "partition": work.site.view.partition,
        "replicas": verified.replicas,
        "files": verified.files,
        "bytes": verified.size_bytes,
        "remote_files": verified.remote_files,
        "findings": len(verified.findings),
    }

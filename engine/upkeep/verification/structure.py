"""Checks the replicas of a partition from listings and footers: names, sizes, contiguity, registers. No records
are read.

Every replica is listed, followers before their leader. A follower that has not joined its leader's epoch is
checked as if it had joined. The footer of every file is read, because it has the file's end offset: so gaps are
found that a listing cannot show.

The order of the listings determines what two replicas must have in common. A leader must have all records that an
earlier listing of a follower shows. A follower must have all records that were committed before it was listed. So
if a replica had to be listed twice, the check begins again. A member that seems to lack records is listed again
after its leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stratalog.engine.replicas.registers import lineage_of
from stratalog.engine.replicas.repair import BadEpoch, BadFile, Copy, HeldFile, Missing
from stratalog.engine.replication.damage import uncommitted_epoch
from stratalog.engine.replication.lost_log import check_not_lost
from stratalog.engine.replication.partition import PartitionReplicas, PartitionWork
from stratalog.engine.upkeep.verification.content import ReadFiles, ReadWork, check_file, is_small, read_file
from stratalog.engine.upkeep.verification.findings import Finding, foreign_file, odd_copies, offsets
from stratalog.engine.upkeep.verification.registers import check_registers, check_snapshots, read_snapshots
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    LogGapError,
    SourceChangedError,
    StratalogError,
)
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile, Listing, ReplicaLog, parse, resolve
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.segments.check import CheckedSegment
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.segments.reader import read_segment
from stratalog.partitions.store import StoredObject

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class StructureWork(PartitionWork):
    """The work: check all replicas of one partition."""

    deep: bool
    """Whether to read the registers, too, and to leave the comparison of copies to the check of all bytes."""
    snapshots: bool
    """Whether snapshots replace the records deleted from the log (cleanup.policy=snapshot)."""
    listed: Mapping[int, Sequence[StoredObject]] = field(default_factory=dict, repr=False)
    """The objects of brokers whose folders were just walked. Walks are not snapshots, and have no order, so
    findings must be confirmed by listings.
    """


@dataclass(frozen=True, slots=True)
class ReplicaStructure:
    """One replica, under the lineage of its leader."""

    broker_id: int
    lineage: Lineage
    epochs: frozenset[int]
    """The epochs whose registers the replica has; the greatest of them is ``joined_epoch``."""
    joined_epoch: int
    local_start: int
    high_watermark: int
    end: int
    """The end of the last file, even if the log has gaps."""
    live: tuple[HeldFile, ...]
    """The files of the log that have reliable footers, including files after a gap."""
    spare: tuple[HeldFile, ...]
    """The data files that are not part of the log: files of other histories, or hidden by merged segments."""
    bad: tuple[BadFile, ...]


@dataclass(frozen=True, slots=True)
class PartitionStructure:
    """One partition. ``lineage`` is the leader's lineage, as far as it is known."""

    replicas: tuple[ReplicaStructure, ...]
    findings: tuple[Finding, ...]
    lineage: Lineage
    leader_log: ReplicaLog | None
    """The leader's log as listed; None if the log is damaged or was not listed. If None, the remote log is not
    compared with the leader's log.
    """
    read: tuple[tuple[int, ReadFiles], ...] = ()
    """With ``deep``, by broker: the small files of the log that were read completely with their footers."""


@dataclass(slots=True)
class _SeenReplica:
    """A replica during the check."""

    replica: Replica
    objects: Sequence[StoredObject]
    listing: Listing
    lineage: Lineage | None
    log: ReplicaLog | None = None


class _Footers:
    """The footers of a replica's files, read from storage once per check. With ``deep``, small files are read
    completely.
    """

    def __init__(self, replica: Replica, *, deep: bool) -> None:
        self._replica = replica
        self._deep = deep
        self._found: dict[DataFile, SegmentFooter] = {}
        self.checked: dict[DataFile, CheckedSegment] = {}
        """The files that were read completely."""

    def of(self, file: DataFile) -> SegmentFooter:
        """Raises: see ``read_segment``."""
        if file not in self._found:
            if self._deep and is_small(file):
                self.checked[file] = check_file(self._replica.store, file)
                self._found[file] = self.checked[file].segment.footer
            else:
                self._found[file] = read_segment(self._replica.store, file, remembered=False).footer
        return self._found[file]

    def end_of(self, file: DataFile) -> int:
        """The end of an append; if it is unknown, the offset after its first record."""
        for end_of in (lambda file: self.of(file).next_offset, self._replica.end_of_append):
            # Damage is reported later; for the end offset, the log continues after the file.
            with suppress(CorruptSegmentError):
                return end_of(file)
        return file.name.base_offset + 1


def partition_structure(work: StructureWork) -> PartitionStructure:
    """The task."""
    for _ in range(_ATTEMPTS):
        try:
            return _partition_structure(work)
        except SourceChangedError as error:  # retention or a merge has deleted a file, so list all replicas again
            changed = error
    vanish = SourceChangedError(
        f"{work}: its files are deleted faster than they can be read: {changed}; try again"
    )
    return PartitionStructure((), (Finding(str(work), vanish),), Lineage(), None)


def _partition_structure(work: StructureWork) -> PartitionStructure:
    """Raises: SourceChangedError when a file that was listed is gone."""
    view = work.replicas.view
    findings: list[Finding] = []
    seen: dict[int, _SeenReplica] = {}
    # The leader is listed last, so its log must not be behind any follower's.
    for broker in sorted(view.replicas, key=lambda broker: broker == view.leader):
        if view.brokers[broker].fenced:
            continue
        try:
            replica = work.replicas.replica(broker)
            seen[broker] = _list(replica, work.listed.get(broker), view.leader_epoch, findings)
        except SourceChangedError:
            raise
        except StratalogError as error:
            findings.append(Finding(f"{work} on broker {broker}", error, broker))
    reference = _reference(work.replicas, seen)
    looks: dict[int, ReplicaStructure] = {}
    read: list[tuple[int, ReadFiles]] = []
    for broker, found in seen.items():
        footers = _Footers(found.replica, deep=work.deep)
        try:
            looks[broker] = _replica_structure(found, reference, footers, findings)
            read += [(broker, files) for files in _read_of(work.replicas, looks[broker], footers)]
        except SourceChangedError:
            raise
        except StratalogError as error:
            findings.append(Finding(str(found.replica), error, broker))
    if work.snapshots:
        committed = max((look.high_watermark for look in looks.values()), default=0)
        for broker, look in looks.items():
            replica, listing = seen[broker].replica, seen[broker].listing
            member = broker in view.isr
            findings += check_snapshots(replica, listing, look.lineage, look.local_start, committed, member=member)
    leader = None if view.leader is None else looks.get(view.leader)
    if leader is not None and (log := seen[leader.broker_id].log) is not None and not log.lost_committed:
        _find_lost(work.replicas, log, findings)
    _find_short(work.replicas, seen, looks, leader, reference, findings)
    findings += _one_file_for_two(work.replicas, looks.values())
    if work.deep:
        of_leader = seen.get(view.leader) if view.leader is not None else None
        for found in seen.values():
            leading = None if of_leader is None else of_leader.replica
            findings += check_registers(found.replica, found.objects, leading, view.leader_epoch)
            findings += read_snapshots(found.replica, found.listing)
    else:
        _compare_sizes(work.replicas, looks.values(), findings)
    sound = leader is not None and all(finding.broker_id != leader.broker_id for finding in findings)
    log = seen[leader.broker_id].log if leader is not None and sound else None
    return PartitionStructure(tuple(looks.values()), tuple(findings), reference, log, tuple(read))


def _read_of(replicas: PartitionReplicas, look: ReplicaStructure, footers: _Footers) -> Iterator[ReadFiles]:
    """The files of a replica's log that were read completely with their footers."""
    store = replicas.replica(look.broker_id).store
    for held in look.live:
        if (checked := footers.checked.get(held.file)) is not None:
            yield read_file(ReadWork(replicas, look.broker_id, store, (held,), of_log=True), held.file, checked)


def _list(
    replica: Replica, listed: Sequence[StoredObject] | None, epoch: int, findings: list[Finding]
) -> _SeenReplica:
    """List one replica. ``epoch`` is the view's leader epoch; findings under an outdated view are checked again
    (``audit``).
    """
    with errors_of(replica):
        objects = replica.store.list(replica.folder) if listed is None else listed
        if listed is None:
            replica.check_root()
        listing = parse(replica.folder, objects, replica.store.uri_of, generation=replica.generation)
    for name, _ in listing.epochs:
        if name.epoch > epoch:
            error: StratalogError = uncommitted_epoch(replica, name.epoch, epoch)
            findings.append(Finding(str(replica), error, replica.broker_id, BadEpoch(name.epoch, needed=False)))
    listing = replace(listing, epochs=tuple(each for each in listing.epochs if each[0].epoch <= epoch))
    for foreign in listing.foreign:
        error = foreign_file(replica.store, foreign)
        findings.append(Finding(str(replica), error, replica.broker_id, log_is_whole=True))
    try:
        return _SeenReplica(replica, objects, listing, lineage_of(replica, listing))
    except CorruptionError as error:
        damage = BadEpoch(max(listing.joined_epoch, _greatest_epoch(listing)))
        findings.append(Finding(str(replica), error, replica.broker_id, damage))
        return _SeenReplica(replica, objects, listing, None)


def _greatest_epoch(listing: Listing) -> int:
    """The greatest epoch that a file of the replica names; a replica joins an epoch before it gets files of it."""
    epochs = [file.name.epoch for file in listing.data] + [mark.epoch for mark in listing.watermarks]
    return max(epochs, default=0)


def _reference(replicas: PartitionReplicas, seen: Mapping[int, _SeenReplica]) -> Lineage:
    """The leader's lineage; if it cannot be read, the latest lineage that a member of the ISR has joined."""
    view = replicas.view
    leader = seen.get(view.leader) if view.leader is not None else None
    if leader is not None and leader.lineage is not None:
        return leader.lineage
    known = [(b in view.isr, s.lineage.latest_epoch, b) for b, s in seen.items() if s.lineage is not None]
    lineage = seen[max(known)[2]].lineage if known else None
    return Lineage() if lineage is None else lineage


def _replica_structure(
    found: _SeenReplica, reference: Lineage, footers: _Footers, findings: list[Finding]
) -> ReplicaStructure:
    """Raises: SourceChangedError; errors from reading the replica."""
    replica, listing = found.replica, found.listing
    lineage = found.lineage
    if lineage is None or lineage.latest_epoch < reference.latest_epoch:
        lineage = reference
    log = found.log = resolve(listing, lineage, footers.end_of)
    files = sorted([*(link.file for link in log.chain), *log.stranded], key=lambda file: file.name)
    good: list[HeldFile] = []
    errors: dict[DataFile, StratalogError] = {}
    for file in files:
        try:
            good.append(_held(replica, file, footers.of(file)))
        except CorruptSegmentError as error:
            errors[file] = error
    bad = [_bad(file, files, log) for file in errors]
    findings += [
        Finding(str(replica), _damage(replica, file, errors[file.file]), replica.broker_id, file) for file in bad
    ]
    end = max([log.local_start, *(f.end for f in good), *(f.end for f in bad)])
    return ReplicaStructure(
        broker_id=replica.broker_id,
        lineage=lineage,
        epochs=frozenset(name.epoch for name, _ in listing.epochs),
        joined_epoch=listing.joined_epoch,
        local_start=log.local_start,
        high_watermark=max(log.high_watermark, min(log.claimed_high_watermark, end)),
        end=end,
        live=tuple(good),
        spare=tuple(_unread(file) for file in (*log.dead, *log.hidden)),
        bad=tuple(bad),
    )


def _held(replica: Replica, file: DataFile, footer: SegmentFooter) -> HeldFile:
    if (footer.topic_id, footer.partition) != (replica.topic_id, replica.partition):
        raise CorruptSegmentError(
            f"{replica.store.uri_of(file.object.name)} belongs to partition {footer.partition} of "
            f"topic {footer.topic_id}"
        )
    return HeldFile(file, footer.base_offset, footer.next_offset)


def _unread(file: DataFile) -> HeldFile:
    """A file of which only the name is known."""
    base, following = file.name.base_offset, file.name.next_offset
    return HeldFile(file, base, base + 1 if following is None else following)


def _bad(file: DataFile, files: Iterable[DataFile], log: ReplicaLog) -> BadFile:
    """The bad file, with the offsets that are lost with it. If the end of the file is unknown, these offsets
    extend to the next file, or to the committed end.
    """
    base, end = file.name.base_offset, file.name.next_offset
    if end is None:
        later = [other.name.base_offset for other in files if other.name.base_offset > base]
        end = min(later, default=max(base + 1, log.claimed_high_watermark))
    return BadFile(file, base, end)


def _damage(replica: Replica, bad: BadFile, error: StratalogError) -> CorruptSegmentError:
    return CorruptSegmentError(f"{offsets(bad.start, bad.end)}: {error}")


# ------------------------------------------------------------------------------ missing records


def _find_lost(replicas: PartitionReplicas, log: ReplicaLog, findings: list[Finding]) -> None:
    """Find a leader that has lost records although its own files do not show the loss."""
    try:
        check_not_lost(replicas, log)
    except StratalogError as error:
        findings.append(Finding(str(replicas), error))


def _find_short(
    replicas: PartitionReplicas,
    seen: Mapping[int, _SeenReplica],
    looks: Mapping[int, ReplicaStructure],
    leader: ReplicaStructure | None,
    reference: Lineage,
    findings: list[Finding],
) -> None:
    """Find gaps, and logs that end too low: this replica or another one proves that the log reached a greater
    offset.
    """
    for broker, found in looks.items():
        replica, log, look = seen[broker].replica, seen[broker].log, found
        assert log is not None
        must_reach, why = log.claimed_high_watermark, "the high watermark reached"
        if leader is None:
            pass
        elif look is leader:
            known = max(_known_of(replicas, seen, looks.values(), leader), default=(0, ""))
            must_reach, why = max((must_reach, why), known, key=lambda each: each[0])
        else:
            if broker in replicas.view.isr and leader.high_watermark > max(must_reach, look.end):
                # The leader may have advanced beyond the follower's earlier listing.
                try:
                    again = _SeenReplica(replica, (), replica.list(fresh=True), seen[broker].lineage)
                    look = _replica_structure(again, reference, _Footers(replica, deep=False), [])
                except SourceChangedError:
                    raise
                except StratalogError as unreadable:
                    findings.append(Finding(str(replica), unreadable, broker))
            if broker in replicas.view.isr and leader.high_watermark > must_reach:
                must_reach, why = (
                    leader.high_watermark,
                    "the replica is in sync, and the leader's high watermark is",
                )
            if found.lineage != leader.lineage and found.joined_epoch == leader.joined_epoch:
                error = CorruptionError(f"{replica} has a different lineage than its leader: {found.lineage}")
                # The register of a member of the ISR may be the right one, so it stays.
                damage = None if broker in replicas.view.isr else BadEpoch(found.joined_epoch)
                findings.append(Finding(str(replica), error, broker, damage))
        # A replica may have neither a local start nor any record, although the log begins above 0.
        has_begun = look.end > 0 or log.claimed_high_watermark > 0
        if not has_begun and must_reach <= replicas.view.log_start_offset:
            continue
        findings += _gaps(replica, look, must_reach, why)


def _known_of(
    replicas: PartitionReplicas,
    seen: Mapping[int, _SeenReplica],
    looks: Iterable[ReplicaStructure],
    leader: ReplicaStructure,
) -> Iterator[tuple[int, str]]:
    """The offsets that the leader's log must have reached according to other replicas, with the reason. Once a
    follower and the leader have joined the view's epoch, all records of the follower came from this leader. Before
    that, a follower may have extra records from the previous leader that were never acknowledged. So a member of
    the ISR then proves only the records below its high watermark.
    """
    for other in looks:
        log = seen[other.broker_id].log
        if other is leader or log is None:
            continue
        if other.joined_epoch == leader.joined_epoch == replicas.epoch and other.lineage == leader.lineage:
            yield other.end, f"broker {other.broker_id} has copied records up to"
        if other.broker_id in replicas.view.isr:
            yield log.claimed_high_watermark, f"broker {other.broker_id} has recorded the high watermark"


def _gaps(replica: Replica, look: ReplicaStructure, must_reach: int, why: str) -> list[Finding]:
    """The findings for every range between the local log start and ``must_reach`` that no file holds."""
    found: list[Finding] = []

    def note(start: int, end: int, error: StratalogError) -> None:
        found.append(Finding(str(replica), error, replica.broker_id, Missing(start, end)))

    held = [(f.start, f.end, f.file) for f in look.live] + [(f.start, f.end, f.file) for f in look.bad]
    position, last = look.local_start, "the local log start"
    for start, end, file in sorted(held, key=lambda each: each[0]):
        if start > position:
            error = LogGapError(
                f"{replica}: {offsets(position, start)} are missing: {last} ends at {position}, but the next "
                f"file starts at {start}, {replica.store.uri_of(file.object.name)}"
            )
            note(position, start, error)
        if end > position:
            position, last = end, str(file.name)
    if position < must_reach:
        message = f"{replica}: {offsets(position, must_reach)} are missing: {why} {must_reach}, but the log ends "
        note(position, must_reach, CorruptionError(f"{message}at {position}: storage has lost committed records"))
    return found


def _one_file_for_two(replicas: PartitionReplicas, looks: Iterable[ReplicaStructure]) -> Iterator[Finding]:
    """Files of two replicas that are the same file: hard links, or one folder mounted in two places. Separate
    files never share inode and mtime, because a part of the mtime is random. The original is the leader's file, or
    else the first file.
    """
    held: dict[tuple[DataName, str], ReplicaStructure] = {}
    for look in sorted(looks, key=lambda look: look.broker_id != replicas.view.leader):
        replica = replicas.replica(look.broker_id)
        for copy in look.live if replica.store.uri.startswith("file://") else ():
            other = held.setdefault((copy.name, copy.file.object.version), look)
            if other is not look:
                what = f"{replica.store.uri_of(copy.file.object.name)}: {offsets(copy.start, copy.end)}"
                error = CorruptSegmentError(
                    f"{what}: this is the same file as the copy of {replicas.replica(other.broker_id)}, "
                    "because of a hard link or a folder mounted twice, so there is one fewer copy than it seems"
                )
                bad = BadFile(copy.file, copy.start, copy.end)
                yield Finding(str(replica), error, look.broker_id, bad)


def _compare_sizes(
    replicas: PartitionReplicas, looks: Iterable[ReplicaStructure], findings: list[Finding]
) -> None:
    copies = [
        Copy(look.broker_id, replicas.replica(look.broker_id).store, held, held.size_bytes)
        for look in looks
        for held in look.live
    ]
    for copy, agreed, error in odd_copies(copies, replicas.view.leader):
        held = copy.held
        damage = BadFile(held.file, held.start, held.end) if agreed else None
        where = str(replicas.replica(copy.place)) if copy.place is not None else str(replicas)
        findings.append(Finding(where, error, copy.place, damage))

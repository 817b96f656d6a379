"""The tasks of an erasure, one per partition: find the records, remove them, delete the files that had them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.replication.damage import check_whole, covered
from stratalog.engine.replication.erasing import ErasedOn, erase_records, not_compacted, not_erased
from stratalog.engine.replication.leader import leader_log, look_at_leader
from stratalog.engine.replication.partition import PartitionWork
from stratalog.engine.replication.removal import check_follows
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.engine.upkeep.erasing.certificate import ErasedFile, NotErased
from stratalog.engine.upkeep.snapshots.partition import SnapshotWork
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.amounts import span_text
from stratalog.partitions.clock import Clock
from stratalog.partitions.discarded import Discarded, discarded
from stratalog.partitions.erasure import MOST_RANGES, Erasure, OffsetRange, is_erased, to_erase, within
from stratalog.partitions.errors import (
    CorruptSegmentError,
    LogGapError,
    RemoteObjectMissingError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from stratalog.partitions.listing import DataFile, Link, ReplicaLog
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.rewrites.erasing import ErasingOptions, marks
from stratalog.partitions.rewrites.wanted_where import RecordFinder
from stratalog.partitions.runner import Runner
from stratalog.partitions.segments.reader import end_of_file
from stratalog.partitions.store import Store
from stratalog.partitions.transactions import transactions_of
from stratalog.tiering.erasing import find_remotely
from stratalog.tiering.erasure import check_searchable, to_erase_remotely
from stratalog.tiering.remote_file import read_remote
from stratalog.tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class RemoteCopy:
    """The remote log of a partition."""

    store: Store
    folder: str
    """The topic's."""
    segments: tuple[RemoteSegment, ...]
    erased: int = 0
    """The generation of the last erasure that it follows."""
    behind: bool = False
    """Whether it has not carried out the last compaction of the view."""


def not_compacted_remotely(what: str) -> RetriableError:
    """The error for an erasure that must wait for the remote part of a compaction."""
    return RetriableError(
        f"{what}: the last compaction has not been applied to its remote log yet: run `stratalog compact`, then "
        "erase again"
    )


@dataclass(frozen=True, slots=True)
class EraseWork(PartitionWork):
    """One partition."""

    keys: RecordFinder | None
    """The records to erase; None: only continue the erasures that the metadata lists."""
    options: ErasingOptions
    delay_ms: int
    clock: Clock
    copies: Runner
    dry_run: bool = False
    now: bool = False
    """Whether replaced files are deleted immediately."""
    start: int = 0
    """The records below this offset were searched."""
    epoch: int = 0
    """The leader epoch in which they were searched."""
    remote: RemoteCopy | None = None
    """None for a topic that is not tiered."""
    snapshots: SnapshotWork | None = None
    """How the partition's snapshots are made; None for a topic without."""
    published: bool = False
    """Whether an object of the table in which the topic publishes its snapshots has the keys."""

    def stores_used(self) -> Iterable[Store]:
        """See ``PartitionWork``."""
        return [*self.replicas.stores.values(), *([] if self.remote is None else [self.remote.store])]


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records of the keys in the log: in the remote part below the leader's local start, and on the leader."""

    offsets: tuple[OffsetRange, ...] = ()
    """At most ``MOST_RANGES`` ranges."""
    looked_to: int = 0
    """The offsets below it were searched."""
    ends: bool = True
    """Whether ``looked_to`` is the last stable offset."""
    above: int = 0
    """Records of the keys at or above the last stable offset, or in a file that reaches above it."""
    files: int = 0
    """The files that hold the offsets."""
    bytes: int = 0
    before: RetriableError | None = None
    """A member of the ISR has not carried out an erasure that another run has committed: this comes first, and
    nothing was found yet."""


def find_records(work: EraseWork) -> FoundRecords:
    """Find the records of the keys on the leader.

    Raises: errors of listing and reading the leader; RetriableError when a member of the ISR, or the remote log,
        has not carried out the last compaction.
    """
    return while_it_changes(lambda: _find(work))


def _find(work: EraseWork) -> FoundRecords:
    replicas, keys = work.replicas, work.keys
    assert keys is not None
    log = with_known_watermark(replicas, look_at_leader(replicas) if work.dry_run else leader_log(replicas))
    if behind := not_compacted(replicas):
        raise RetriableError(
            f"{replicas}: the replicas on brokers {behind} have not carried out its last compaction: run "
            "`stratalog compact`, then erase again"
        )
    if work.remote is not None and work.remote.behind:
        raise not_compacted_remotely(str(replicas))
    if not work.dry_run and (behind := not_erased(replicas)):
        return FoundRecords(
            before=RetriableError(
                f"{replicas}: the replicas on brokers {behind} have not carried out an earlier erasure: run "
                "`stratalog replicate`, then erase again"
            )
        )
    found = _search(work, log, keys)
    if work.remote is not None:
        _check_objects(work.remote, found.offsets)
    return found


def _search(work: EraseWork, log: ReplicaLog, keys: RecordFinder) -> FoundRecords:
    leader, found = work.replicas.leader, _Ranges()
    remote = None if work.remote is None else _remote_copy(work, log)
    if remote is not None:
        below = find_remotely(remote.store, remote.folder, remote.segments, keys, work.start, log.local_start)
        for segment, offsets in below:
            if (full := found.add(offsets, segment.size_bytes)) is not None:
                return found.records(full, ends=False)
    with errors_of(leader):
        stable = transactions_of(log, leader.footer).last_stable_offset
        above = 0
        for link in log.over(max(work.start, log.local_start), log.log_end):
            there = keys.offsets_in(leader.store, link.file, max(link.start, work.start), link.end)
            if link.end > stable:
                above += sum(1 for _ in there)
            elif (full := found.add(there, link.file.object.size_bytes)) is not None:
                return found.records(full, ends=False)
    return found.records(stable, ends=True, above=above)


@dataclass(slots=True)
class _Ranges:
    """The offsets found so far, ascending, and the files that have them."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    files: int = 0
    bytes: int = 0

    def add(self, offsets: Iterable[int], size_bytes: int) -> int | None:
        """The offsets found in one file. Returns the first that makes too many ranges."""
        held = False
        for offset in offsets:
            self.files, self.bytes = self.files + (not held), self.bytes + (not held) * size_bytes
            held = True
            if self.ranges and self.ranges[-1][1] == offset:
                self.ranges[-1] = self.ranges[-1][0], offset + 1
            elif len(self.ranges) == MOST_RANGES:
                return offset
            else:
                self.ranges.append((offset, offset + 1))
        return None

    def records(self, looked_to: int, *, ends: bool, above: int = 0) -> FoundRecords:
        """The result, if the offsets below ``looked_to`` were searched."""
        return FoundRecords(tuple(self.ranges), looked_to, ends, above, self.files, self.bytes)


def _remote_copy(work: EraseWork, log: ReplicaLog) -> RemoteCopy:
    """The remote log, which with the leader's is one log. It is read again if the leader has deleted records since
    it was read. Raises: see ``check_searchable``."""
    remote, view = work.remote, work.replicas.view
    assert remote is not None
    rest = log.lineage, view.log_start_offset, log.local_start, str(work.replicas)
    try:
        check_searchable(remote.segments, *rest)
    except LogGapError:
        part = work.replicas.remote
        if part is None:
            raise
        remote = replace(remote, segments=part.read().of_partition(view.partition))
        check_searchable(remote.segments, *rest)
    return remote


def _check_objects(remote: RemoteCopy, offsets: tuple[OffsetRange, ...]) -> None:
    """Check that the objects to rewrite exist, before the offsets are committed. After that, heal does not rebuild
    them from replicas, whose files still have the records. Raises: RemoteObjectMissingError, CorruptionError.
    """
    for segment in to_erase_remotely(remote.segments, [Erasure(_UNCOMMITTED, offsets)]):
        try:
            read_remote(remote.store, remote.folder, segment)
        except RemoteObjectMissingError as error:
            raise RemoteObjectMissingError(f"{error}: run heal, then erase again") from error


@dataclass(frozen=True, slots=True)
class Erased:
    """The erasures of the view were carried out on the leader, and on the members of the ISR but
    ``done.missed``."""

    done: ErasedOn
    replaced: tuple[ErasedFile, ...]


def erase_partition(work: EraseWork) -> Erased:
    """Carry out the erasures of the view. Raises: see ``erase_records`` and ``check_follows``."""
    return while_it_changes(lambda: _erase(work))


def _erase(work: EraseWork) -> Erased:
    erased = None if work.remote is None else work.remote.erased
    check_follows(work.replicas, erased, work.replicas.view.last_erasure)
    leader = work.replicas.leader
    before = to_erase(leader.log(), work.replicas.view.erasures)
    replaced = tuple(erased_file(leader, link) for link, _ in before)
    return Erased(erase_records(work.replicas, work.options, work.copies), replaced)


def erased_file(replica: Replica, link: Link) -> ErasedFile:
    """The file of a link, with its checksum. Raises: see ``Replica.segment``."""
    return ErasedFile(str(link.name), link.file.object.size_bytes, f"{replica.segment(link.file).crc32:08x}")


@dataclass(frozen=True, slots=True)
class CleanedReplicas:
    """The replicas of a partition after the files with erased records were deleted."""

    deleted: int
    deleted_bytes: int
    not_erased: tuple[NotErased, ...]
    made: tuple[ErasedFile, ...]
    """The leader's files that hold the erased offsets, as gaps."""
    names: frozenset[DataName]
    """The data files in the leader's log, which were searched for the keys."""


def clean(work: EraseWork, kind: type[Cleaning] | None = None) -> CleanedReplicas:
    """Delete the files with erased records that have left the logs, on every replica that can be reached.
    ``kind``: how a replica is cleaned, if its topic has snapshots.

    Raises: errors of listing the leader; StaleMetadataError when the view is out of date on any of them.
    """
    replicas, erasures = work.replicas, work.replicas.view.erasures
    leader = replicas.leader
    log = look_at_leader(replicas)
    names = frozenset(link.name for link in log.chain)
    with errors_of(leader):
        made = tuple(
            erased_file(leader, link)
            for link in log.chain
            if any(within(one.offsets, link.start, link.end) for one in erasures)
        )
    cleaning = (kind or Cleaning)(work, names)
    for broker in replicas.view.replicas:
        try:
            while_it_changes(partial(cleaning.on, broker))
        except StaleMetadataError:
            raise
        except StratalogError as error:
            cleaning.left.append(
                NotErased(
                    f"broker {broker}",
                    f"cleaning failed: {error.code}: {error}; bring the broker back, then erase again",
                )
            )
    return CleanedReplicas(cleaning.deleted, cleaning.deleted_bytes, tuple(cleaning.left), made, names)


class Cleaning:
    """The replicas of one partition, one after the other."""

    def __init__(self, work: EraseWork, names: frozenset[DataName]) -> None:
        self._work, self._names = work, names
        self.deleted = self.deleted_bytes = 0
        self.left: list[NotErased] = []

    def on(self, broker: int) -> None:
        """Delete what may be deleted from one replica. Raises: errors of listing and reading it."""
        work, replica = self._work, self._work.replicas.replica(broker)
        erasures, left = work.replicas.view.erasures, list[NotErased]()
        log = replica.log(fresh=True)
        check_whole(replica, log)
        now_ms = agreed_ms(work.clock, replica.store)
        if not work.dry_run and not is_erased(log, erasures):  # a run carries out the erasures before it cleans
            why = "its log still has erased records: run `stratalog replicate`, then erase again"
            left.append(NotErased(f"broker {broker}", why))
        doomed: dict[str, Discarded] = {}
        found = [one for one in discarded(log) if self._holds(replica, one.file)]
        found_names = {one.file.name for one in found}
        for file in log.stranded:
            if file.name not in found_names and self._holds(replica, file):
                left.append(self._left(broker, file, "it comes after a gap in the log: run `stratalog heal`"))
        for one in found:
            due_ms = one.deletable_ms(0 if work.now else work.delay_ms)
            if due_ms is None:
                why = f"{one.why}, above the high watermark: run `stratalog replicate`, then erase again"
                left.append(self._left(broker, one.file, why))
            elif not work.now and (now_ms is None or due_ms > now_ms):
                wait = "" if now_ms is None else span_text(due_ms - now_ms)
                when = f"it can be deleted in {wait}" if wait else "the clocks disagree"
                why = f"{when}: erase again later, or immediately with now (a job: --now)"
                left.append(self._left(broker, one.file, why, waits=True))
            else:
                doomed[str(one.file.name)] = one
        names, damaged = covered(replica, log, [*doomed])
        if names and not work.dry_run:
            replica.store.delete([replica.path(name) for name in names])
        for name in set(doomed) - set(names):
            left.append(
                self._left(broker, doomed[name].file, f"the file that replaces it is damaged: {damaged[0]}")
            )
        self.deleted += len(names)
        self.deleted_bytes += sum(doomed[name].file.object.size_bytes for name in names)
        self.left += left

    def _holds(self, replica: Replica, file: DataFile) -> bool:
        work, searched = self._work, file.name in self._names
        return may_hold(replica.store, file, work.replicas.view, work.keys, searched=searched)

    @staticmethod
    def _left(broker: int, file: DataFile, why: str, *, waits: bool = False) -> NotErased:
        return NotErased(f"broker {broker}: {file.object.name}", why, waits)


def may_hold(
    store: Store,
    file: DataFile,
    view: PartitionView,
    keys: RecordFinder | None,
    looked_to: int | None = None,
    *,
    searched: bool = False,
) -> bool:
    """Whether a data file may hold a wanted record, or one that the view's erasures name. For a damaged file the
    answer is yes. A wanted record from ``looked_to`` on is ignored: it was appended after the search, and the
    erasures do not name it. ``searched``: the file was searched, and wanted records are ignored.

    The erasures did not have to name records that the log had lost before: those in files that a compaction had
    replaced. Without keys, such records may be the wanted ones of an earlier run.
    """
    name = file.name
    if any(_is_before(view, one, name) for one in view.erasures):
        return True
    try:
        end = end_of_file(store, file)
        if any(
            one.generation > name.generation and within(one.offsets, name.base_offset, end)
            for one in view.erasures
        ):
            return True
        if searched:
            return False
        if keys is None:
            return _has_left_the_log(view, name)
        end = end if looked_to is None else min(end, looked_to)
        if name.base_offset >= end:
            return False
        return next(keys.offsets_in(store, file, name.base_offset, end), None) is not None
    except CorruptSegmentError:
        return True


def _is_before(view: PartitionView, erasure: Erasure, name: DataName) -> bool:
    """Whether a compaction may have replaced the file before ``erasure``, whose offsets are still needed. The
    metadata may have forgotten that compaction; its bound is at most that of the next one, because bounds only
    grow."""
    if view.compaction is None or not erasure.offsets:
        return False
    later = (one.rule.bound for one in view.rules if one.rule.generation > erasure.generation)
    return name.generation < erasure.generation and name.base_offset < next(later, view.compaction.bound)


def _has_left_the_log(view: PartitionView, name: DataName) -> bool:
    """Whether the log may have lost records of the file: to a compaction, or because its start has moved."""
    rule = view.compaction
    replaced = rule is not None and name.generation < rule.generation and name.base_offset < rule.bound
    return replaced or name.base_offset < view.log_start_offset


@dataclass(frozen=True, slots=True)
class PlannedErasing:
    """The work of a run on one partition, counted before it."""

    offsets: tuple[OffsetRange, ...]
    """The offsets of earlier erasures, and those of records found now."""
    files: int
    """The leader's files to rewrite. A file counts twice that an earlier erasure and the keys name."""
    bytes: int
    deleted: int
    """The files to delete on all replicas that can be reached."""
    remote_files: int = 0
    """The remote segments to rewrite."""
    remote_bytes: int = 0
    above: int = 0
    looked_to: int = 0
    """See ``FoundRecords``."""
    not_erased: tuple[NotErased, ...] = ()
    """Files and brokers that the run cannot erase, as far as this is known before it."""
    records: int | None = None
    """See ``ErasingPartition.records``."""
    large: bool = False
    """Whether only Spark can make the snapshot that the run needs."""


def plan_partition(work: EraseWork) -> PlannedErasing:
    """Count what a run would do. Nothing is changed: ``work.dry_run``.

    Raises: see ``find_records`` and ``clean``.
    """
    replicas, erasures = work.replicas, work.replicas.view.erasures
    records = FoundRecords() if work.keys is None else find_records(work)
    found, cleaned = records.offsets, clean(work)
    deleted = cleaned.deleted
    for broker in replicas.view.replicas if work.now or work.delay_ms == 0 else ():
        with suppress(StratalogError):  # the files of a replica that is away stay
            deleted += len(_to_replace(replicas.replica(broker).log(), erasures, found))
    files = _to_replace(replicas.leader.log(), erasures, found)
    size = sum(link.file.object.size_bytes for link in files)
    remote = () if work.remote is None else work.remote.segments
    doomed = to_erase_remotely(remote, [*erasures, Erasure(_UNCOMMITTED, tuple(found))])
    return PlannedErasing(
        offsets_of(erasures, found),
        len(files),
        size,
        deleted,
        len(doomed),
        sum(segment.size_bytes for segment in doomed),
        records.above,
        records.looked_to,
        tuple(one for one in cleaned.not_erased if not one.waits),
    )


_UNCOMMITTED = 2**62
"""The generation of an erasure that is not committed yet: greater than every other."""


def _to_replace(log: ReplicaLog, erasures: Sequence[Erasure], found: Sequence[OffsetRange]) -> list[Link]:
    """The links of a log that earlier erasures name, and then those that have other offsets found now."""
    links = [link for link, _ in to_erase(log, erasures)]
    now = [Erasure(0, tuple(found))]
    for link in log.chain:
        named = marks(now, link.start, link.end) & ~marks(erasures, link.start, link.end)
        if named.any():
            links.append(link)
    return links


def offsets_of(erasures: Iterable[Erasure], more: Collection[OffsetRange] = ()) -> tuple[OffsetRange, ...]:
    """All offsets of the erasures, and more, as ranges."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted([*(pair for one in erasures for pair in one.offsets), *more]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)

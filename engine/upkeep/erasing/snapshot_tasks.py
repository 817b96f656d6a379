"""The tasks of an erasure in topics with snapshots, one per partition (``stratalog.snapshots.erasure``): search
the keys, write the snapshot without them, delete the files that had them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.replication.erasing import not_erased
from stratalog.engine.replication.erasing_snapshots import (
    copy_to_members,
    erase_below_snapshot,
    start_at_snapshot,
    with_erasure,
)
from stratalog.engine.replication.leader import leader_log, look_at_leader
from stratalog.engine.replication.snapshots import (
    better_snapshot,
    check_still_there,
    checkpoints_of,
    latest_snapshot,
    outdated_files,
    repair_snapshot,
)
from stratalog.engine.replication.watermark import with_known_watermark
from stratalog.engine.upkeep.erasing.certificate import ErasedFile, NotErased
from stratalog.engine.upkeep.erasing.tasks import (
    CleanedReplicas,
    Cleaning,
    Erased,
    EraseWork,
    PlannedErasing,
    clean,
    erased_file,
    offsets_of,
)
from stratalog.engine.upkeep.snapshots.partition import needed_from, plan_and_repair, plan_of
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.amounts import span_text
from stratalog.partitions.erasure import to_erase
from stratalog.partitions.errors import LogGapError, RetriableError, SourceChangedError, StratalogError
from stratalog.partitions.growth import fitted
from stratalog.partitions.listing import DataFile, ReplicaLog
from stratalog.partitions.paths import CheckpointName, ChunkName, DataName, base_name, parse_name
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.replica import Replica, errors_of, writes_of
from stratalog.partitions.rewrites.wanted_where import RecordFinder
from stratalog.partitions.store import Store, StoredObject
from stratalog.partitions.transactions import transactions_of
from stratalog.snapshots.reader import Snapshot, read_snapshot
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId
from stratalog.snapshots.writer import SnapshotWriter

NO_SNAPSHOT = (
    "it has no snapshot, and no record from which one could be made: append the records that are to stay, then "
    "erase again"
)
"""The reason why the keys stay in the published table of a partition without records."""


def snapshot_file(name: CheckpointName, stored: StoredObject) -> DataFile:
    """A snapshot as a data file, whose offsets are its rows."""
    return DataFile(DataName(0, None, name.epoch), stored)


def holds_keys(store: Store, name: CheckpointName, stored: StoredObject, keys: RecordFinder) -> bool:
    """Whether a snapshot has a record of the keys. Raises: see ``RecordFinder.offsets_in``."""
    found = keys.offsets_in(store, snapshot_file(name, stored), 0, 2**62)
    return next(found, None) is not None


# ----------------------------------------------------------------------------------- searching


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The records of the keys on the leader of one partition."""

    records: int = 0
    """In the latest snapshot, and in the log's files up to the last stable offset."""
    above: int = 0
    """In files that extend above the last stable offset."""
    looked_to: int = 0
    """The last stable offset, or the end of the latest snapshot if that is later: on a leader that has lost its
    high watermark."""
    epoch: int = 0
    """The leader epoch of the search."""
    files: int = 0
    """The files of the log below the last stable offset."""
    bytes: int = 0
    """The size of these, and of the latest snapshot."""
    last_end: int = 0
    """The end of the last of these files that has a record of the keys; 0 if none has."""
    large: bool = False
    """See ``SnapshotPlan``."""
    published: bool = False
    """Whether the published table has the keys (``EraseWork.published``)."""
    before: RetriableError | None = None
    """A member of the ISR has not carried out an earlier erasure: this comes first, and nothing was searched."""

    @property
    def any(self) -> bool:
        """Whether there is anything to erase."""
        return self.records > 0 or self.published


def find_keys(work: EraseWork) -> FoundKeys:
    """Search the keys on the leader. Raises: LogGapError if no snapshot replaces the records that its log lacks;
    errors of listing and reading the leader.
    """
    return while_it_changes(lambda: _find(work))


@dataclass(frozen=True, slots=True)
class _Searched:
    """The leader's log, and the latest snapshot of it."""

    log: ReplicaLog
    latest: Snapshot | None
    holder: Replica
    """The replica with that snapshot."""
    large: bool


def _searched(work: EraseWork) -> _Searched:
    """If the leader's snapshot is damaged or missing, a run first repairs it from another replica; a dry run uses
    the snapshot that a run would copy.

    Raises: LogGapError if no snapshot replaces the records that the log lacks; see ``plan_and_repair``.
    """
    replicas, leader, snapshots = work.replicas, work.replicas.leader, work.snapshots
    assert snapshots is not None
    if not work.dry_run:
        log, planned, latest = plan_and_repair(snapshots)
        return _Searched(with_known_watermark(replicas, log), latest, leader, planned.large)
    log = look_at_leader(replicas)
    try:
        planned, latest = plan_of(snapshots, leader, log)
    except LogGapError:
        better = better_snapshot(replicas, leader, log)
        if better is None or better[1].snapshot_id.end_offset < needed_from(snapshots, log):
            raise
        return _Searched(log, better[1], better[0], large=False)
    return _Searched(log, latest, leader, planned.large)


def _find(work: EraseWork) -> FoundKeys:
    replicas, keys = work.replicas, work.keys
    assert keys is not None
    leader = replicas.leader
    if not work.dry_run and (behind := not_erased(replicas)):
        return FoundKeys(
            before=RetriableError(
                f"{replicas}: the replicas on brokers {behind} have not carried out an earlier erasure: run "
                "`stratalog replicate`, then erase again"
            )
        )
    found = _searched(work)
    log, latest = found.log, found.latest
    with errors_of(leader):
        stable = transactions_of(log, leader.footer).last_stable_offset
        looked_to = stable if latest is None else max(stable, latest.snapshot_id.end_offset)
        records = above = files = size = last_end = 0
        if latest is not None:
            size += latest.size_bytes
            one = snapshot_file(latest.snapshot_id.name, latest.stored)
            records += sum(1 for _ in keys.offsets_in(found.holder.store, one, 0, latest.records + 2))
        for link in log.chain:
            count = sum(1 for _ in keys.offsets_in(leader.store, link.file, link.start, link.end))
            if link.end > looked_to:
                above += count
                continue
            records, files, size = records + count, files + 1, size + link.file.object.size_bytes
            last_end = link.end if count else last_end
    return FoundKeys(records, above, looked_to, replicas.epoch, files, size, last_end, found.large, work.published)


# ------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class RewriteWork(EraseWork):
    """One partition whose keys leave a snapshot."""

    source: SnapshotId = EMPTY
    """The snapshot that has the keys. Each try of the task uses this one, so that all tries write one content."""
    target: int = 0
    """The generation of the erasure."""


@dataclass(frozen=True, slots=True)
class RewrittenSnapshot:
    """The snapshot without the keys is on the leader, and on the members but ``missed``."""

    bound: int
    read_bytes: int
    written_bytes: int
    missed: dict[int, StratalogError]


def rewrite_snapshot(work: RewriteWork) -> RewrittenSnapshot | SourceChangedError:
    """Write a snapshot again without the keys, under the generation of the erasure; copy it to the ISR. Returns an
    error if the leader does not have the snapshot any more, or is another one, and never had it.

    Raises: errors of reading and writing the leader.
    """
    try:
        return _rewrite(work)
    except SourceChangedError as error:
        return error


def _rewrite(work: RewriteWork) -> RewrittenSnapshot:
    leader, bound = work.replicas.leader, work.source.end_offset
    with errors_of(leader), writes_of(leader):
        log = leader_log(work.replicas)
        stored = dict(checkpoints_of(log)).get(work.source.name)
        if stored is None:
            raise SourceChangedError(f"{leader}: snapshot {work.source} was deleted in the meantime: erase again")
        source = _read(leader, stored)
        _write(work, leader, log, source)
        future = with_erasure(work.replicas, work.target, bound)
        made = latest_snapshot(future.leader, future.leader.log())
        if made is None or made.snapshot_id.end_offset != bound:
            raise SourceChangedError(
                f"{leader}: the snapshot of erasure {work.target} does not exist: erase again"
            )
    return RewrittenSnapshot(bound, source.size_bytes, made.size_bytes, copy_to_members(future))


def _read(replica: Replica, stored: StoredObject) -> Snapshot:
    return read_snapshot(
        replica.store, replica.folder, stored, owner=replica.topic_id, partition=replica.partition
    )


def _write(work: RewriteWork, leader: Replica, log: ReplicaLog, source: Snapshot) -> None:
    assert work.snapshots is not None
    with SnapshotWriter(
        leader.store,
        leader.folder,
        replace(work.source, generation=work.target),
        owner=leader.topic_id,
        partition=leader.partition,
        lineage=log.lineage,
        last_contained_log_timestamp_ms=source.last_contained_log_timestamp_ms,
        schema=work.snapshots.schema,
        clock=work.clock,
        compression=work.options.compression,
        producers=source.producers,
    ) as writer:
        for batch in without_keys(work, source):
            writer.write(batch)
        check_still_there(leader, look_at_leader(work.replicas).listing, source.stored)
        writer.freeze()


def without_keys(work: EraseWork, source: Snapshot) -> Iterator[pa.RecordBatch]:
    """The records of a snapshot, without those of the keys."""
    assert work.snapshots is not None
    assert work.keys is not None
    wanted = pa.schema([work.snapshots.schema.field(name) for name in RECORD_COLUMNS])
    for batch in source.batches():
        rows = fitted(batch, wanted, str(work))
        held = work.keys.selects(rows)
        yield rows.filter(pa.array(~held)) if held.any() else rows


def erase_below(work: EraseWork) -> Erased:
    """Carry out the erasures of the view. Raises: see ``erase_below_snapshot``."""
    return while_it_changes(lambda: _erase_below(work))


def _erase_below(work: EraseWork) -> Erased:
    leader, erasures = work.replicas.leader, work.replicas.view.erasures
    replaced = tuple(erased_file(leader, link) for link, _ in to_erase(leader.log(), erasures))
    return Erased(erase_below_snapshot(work.replicas, work.options, work.copies), replaced)


# ------------------------------------------------------------------------------------ cleaning


def clean_below(work: EraseWork) -> CleanedReplicas:
    """Delete the files before the log start that may have the keys, and outdated snapshots, on every replica that
    can be reached. Raises: see ``tasks.clean``.
    """
    cleaned = clean(work, _CleaningSnapshots)
    if not work.replicas.view.erasures:
        return cleaned
    leader = work.replicas.leader
    with errors_of(leader):
        latest = latest_snapshot(leader, leader.log())
    if latest is None:
        return cleaned
    made = ErasedFile(str(latest.snapshot_id.name), latest.size_bytes, f"{latest.segment.crc32:08x}")
    return replace(cleaned, made=(*cleaned.made, made))


class _CleaningSnapshots(Cleaning):
    """The replicas of one partition with snapshots, one after the other."""

    def on(self, broker: int) -> None:
        """See ``Cleaning.on``. Nothing is deleted from a replica that needs a snapshot, and has no intact current
        one."""
        work, replica = self._work, self._work.replicas.replica(broker)
        with errors_of(replica):
            log = replica.log(fresh=True)
            if work.dry_run:
                latest = latest_snapshot(replica, log)
            else:
                latest = start_at_snapshot(work.replicas, replica)
                if latest is not None and self._is_old(replica, latest):
                    repair_snapshot(work.replicas, replica, replica.log())
                    latest = latest_snapshot(replica, replica.log())
            if latest is None and (work.replicas.view.last_erasure or log.local_start > 0):
                why = (
                    "it has no intact snapshot that follows the last erasure: run `stratalog replicate`, then "
                    "erase again"
                )
                self.left.append(NotErased(f"broker {broker}", why))
                return
            super().on(broker)
            self._clean_snapshots(broker, replica, latest)

    def _is_old(self, replica: Replica, latest: Snapshot) -> bool:
        """Whether the latest snapshot of a replica has the keys: the leader's later one does not."""
        return self._has_keys(replica, latest.snapshot_id.name, latest.stored)

    def _has_keys(self, replica: Replica, name: CheckpointName, stored: StoredObject) -> bool:
        """Whether a current snapshot from before the search has a record of the keys. A later one may have records
        that were appended after it."""
        keys = self._work.keys
        if keys is None or may_be_later(name, self._work.start, self._work.epoch):
            return False
        return holds_keys(replica.store, name, stored, keys)

    def _clean_snapshots(self, broker: int, replica: Replica, latest: Snapshot | None) -> None:
        work, view = self._work, self._work.replicas.view
        log = replica.log(fresh=True)
        now_ms = agreed_ms(work.clock, replica.store)
        found = outdated_files(replica, log, view)
        clean: list[tuple[SnapshotId, int]] = []  # current snapshots without the keys, with their times
        for name, stored in log.listing.checkpoints:
            if not self._has_keys(replica, name, stored):
                clean.append((SnapshotId.of(name), stored.modified_ms))
            elif latest is not None and name == latest.snapshot_id.name:
                why = (
                    "it has the keys, but the search did not find them in the leader's snapshot or log: erase "
                    "again; if the file stays, run `stratalog snapshot`, then erase again"
                )
                self.left.append(NotErased(f"broker {broker}: {stored.name}", why))
            else:
                found.append(stored)
        found += [
            stored
            for name, stored in log.listing.chunks  # a fetch that needs them begins again
            if not may_be_later(name, work.start, work.epoch)
            or (latest is not None and SnapshotId.of(name.checkpoint) <= latest.snapshot_id)
        ]
        doomed: list[StoredObject] = []
        for stored in found:
            due_ms = max(_replaced_ms(stored, clean), stored.modified_ms) + work.delay_ms
            if work.now or work.delay_ms == 0 or (now_ms is not None and due_ms <= now_ms):
                doomed.append(stored)
                continue
            when = (
                "the clocks disagree" if now_ms is None else f"it can be deleted in {span_text(due_ms - now_ms)}"
            )
            why = f"{when}: erase the same keys again later, or immediately with now (a job: --now)"
            self.left.append(NotErased(f"broker {broker}: {stored.name}", why, waits=True))
        if doomed and not work.dry_run:
            with writes_of(replica):
                replica.store.delete([stored.name for stored in doomed])
        self.deleted += len(doomed)
        self.deleted_bytes += sum(stored.size_bytes for stored in doomed)


def _replaced_ms(stored: StoredObject, clean: Sequence[tuple[SnapshotId, int]]) -> int:
    """The time at which the first snapshot without the keys replaced a snapshot, or a piece of one. Every snapshot
    in ``clean`` replaces those of another generation. 0: none has replaced it.
    """
    name = parse_name(base_name(stored.name))
    assert isinstance(name, CheckpointName | ChunkName)
    own = SnapshotId.of(name.checkpoint if isinstance(name, ChunkName) else name)
    return min((ms for one, ms in clean if one.generation != own.generation or own <= one), default=0)


def plan_below(work: EraseWork) -> PlannedErasing:
    """Count what a run would do. Nothing is changed: ``work.dry_run``. Raises: see ``find_keys``."""
    view = work.replicas.view
    found = FoundKeys() if work.keys is None else find_keys(work)
    cleaned = clean_below(work)
    deleted = cleaned.deleted
    if found.any and (work.now or work.delay_ms == 0):
        for broker in view.replicas:
            with suppress(StratalogError):  # the files of a replica that is away stay
                log = work.replicas.replica(broker).log()
                gone = [link for link in log.chain if link.end <= found.looked_to]
                deleted += len(gone) + len(log.listing.checkpoints)
    without_snapshot = []
    if found.any and not found.looked_to:
        without_snapshot.append(NotErased(f"broker {view.leader}", NO_SNAPSHOT))
    return PlannedErasing(
        offsets=offsets_of(view.erasures, ((0, found.looked_to),) if found.any else ()),
        files=1 if found.any else 0,
        bytes=found.bytes if found.any else 0,
        deleted=deleted,
        above=found.above,
        looked_to=found.looked_to,
        not_erased=(*(one for one in cleaned.not_erased if not one.waits), *without_snapshot),
        records=found.records,
        large=found.large and found.any,
    )


def may_be_later(name: CheckpointName | ChunkName, looked_to: int, leader_epoch: int) -> bool:
    """Whether a current snapshot may have records that were appended after a search up to ``looked_to``, in
    ``leader_epoch``. One of an earlier epoch may be of a history that an unclean election has abandoned.
    """
    return name.end_offset > looked_to and name.epoch >= leader_epoch


def snapshot_left(
    store: Store,
    stored: StoredObject,
    generation: int,
    keys: RecordFinder | None,
    searched: tuple[int, int] | None,
) -> str | None:
    """The reason why a snapshot, or a piece of one, may still have a record of the keys; None if it has none.
    ``generation`` is that of the last erasure. A current snapshot that is later than the search of the keys may
    have records of them. ``searched`` is the offset up to which they were searched, and the leader epoch of the
    search. None: no snapshot may have records of the keys.

    Raises: errors of reading the file.
    """
    name = parse_name(base_name(stored.name))
    assert isinstance(name, CheckpointName | ChunkName)
    if name.generation < generation:
        return "it does not follow the erasure"
    if keys is None:
        return None
    if searched is not None and name.generation == generation and may_be_later(name, *searched):
        return None
    if isinstance(name, ChunkName):
        return "it is a piece of a snapshot that is being copied, or was"
    return "it has a record of the keys" if holds_keys(store, name, stored, keys) else None

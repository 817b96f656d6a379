"""The tasks of retain, one per partition: find the offset at which the partition's log should start, and delete
files of its replicas.

A broker may delete a record that total retention keeps only if:

* its segment is in the remote table, and belongs to the history of this replica
* a walk made after the table was read shows that the store has the object with its size
* this process has read all bytes of that object, and their checksum equals the checksum computed when they were
  written; the same object need not be read again

So a segment is read once for all replicas of its partition, before their logs begin to rely on it. The local files
are deleted ``file.delete.delay.ms`` later; a driver that has not read the segment yet then reads it again.

Before a replica deletes files that a merge has replaced, all bytes of the merged segment are read on that replica.

A damaged file is reported. The files that the damaged file would replace are kept, so that ``heal`` can rebuild
the damaged file from them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.replication.damage import check_whole, covered
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import BoundedWork
from stratalog.engine.replication.snapshots import latest_snapshot, newest_id, usable_snapshot
from stratalog.partitions.agreed_time import agreed_ms
from stratalog.partitions.amounts import span_text
from stratalog.partitions.clock import FOREVER_MS, Clock
from stratalog.partitions.errors import CorruptSegmentError, LogGapError, StratalogError
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.paths import DataName, LocalStartName, WatermarkName, parse_name
from stratalog.partitions.producers import encode
from stratalog.partitions.replica import LookMark, Replica
from stratalog.partitions.retention import (
    UNLIMITED,
    LogFile,
    RetentionLimits,
    in_future,
    local_start_for,
    next_expiry_ms,
    next_removal_ms,
    removable,
    retained_from,
    why_kept,
)
from stratalog.partitions.store import Store, StoredObject
from stratalog.snapshots.start_offset import follower_start_offset
from stratalog.tiering.divergence import agreeing
from stratalog.tiering.plan import both_tiers
from stratalog.tiering.remote_file import verify_remote
from stratalog.tiering.remote_segment import RemoteSegment

NO_TIME = "the clocks disagree, so nothing expires by time"


@dataclass(frozen=True, slots=True)
class RemoteRetention:
    """The remote part of one partition."""

    store: Store
    listed: tuple[RemoteSegment, ...]
    objects: tuple[StoredObject, ...]
    """The objects of the listed segments, from the first segment up to the first whose object is missing or has
    another size.
    """


@dataclass(frozen=True, slots=True)
class RetainWork(BoundedWork):
    """One partition: its replicas, limits, and remote part. ``most`` is the number of additional remote segments
    on which each replica may begin to rely.
    """

    total: RetentionLimits
    local: RetentionLimits
    remote: RemoteRetention | None
    """None if the topic is not tiered."""
    delay_ms: int
    clock: Clock
    now_ms: int | None
    """The current time for expiring records. None: no record expires by time, and the limits have no times
    (``agreed_time``).
    """
    dry_run: bool
    snapshots: bool = False
    """cleanup.policy=snapshot: no limit moves the log start, and local starts stay below a snapshot's end."""
    since: LookMark | None = None
    """A listing made after this mark may be used to decide that there is nothing to do."""

    @property
    def tiered(self) -> bool:
        return self.remote is not None

    def safe(self, log: ReplicaLog) -> tuple[RemoteSegment, ...]:
        """The remote segments, starting with the first, that are in the store and belong to this log's history.
        Empty if the first of them begins after the start of the log.
        """
        if self.remote is None:
            return ()
        found = agreeing(self.remote.listed[: len(self.remote.objects)], log.lineage)
        begins_late = found and found[0].base_offset > max(log.local_start, self.replicas.view.log_start_offset)
        return () if begins_late else found


@dataclass(frozen=True, slots=True)
class Wanted:
    """The first offset of a partition that total retention keeps."""

    log_start: int
    ahead: LogFile | None = None
    """A file with a timestamp in the future."""
    next_ms: int = FOREVER_MS
    """The time (ms) before which the offset cannot change unless the log changes."""
    why: str | None = None
    """The reason why the offset is unchanged."""


@dataclass(slots=True)
class Dropped:
    """The files that one partition's replicas have deleted."""

    local_starts: list[tuple[int, int]] = field(default_factory=list)
    """The current local start offset, by broker."""
    deleted: int = 0
    """The number of deleted data files; registers are not included."""
    deleted_bytes: int = 0
    failed: list[tuple[str, StratalogError]] = field(default_factory=list)
    bad: dict[str, StratalogError] = field(default_factory=dict)
    """Unreliable remote segments, by path, as the table listed them when the task was planned."""
    next_ms: int = FOREVER_MS
    """The time (ms) before which nothing more is deleted unless the replicas change."""
    left: bool = False
    """Whether a replica may delete more once it relies on more segments."""
    why: str | None = None
    """The reason why nothing was deleted on the last replica, if it differs from the reason in ``Wanted``."""
    moves: int = 0
    """The number of replicas whose local start moves."""

    @property
    def moved_bytes(self) -> int:
        return self.deleted_bytes

    def after(self, before: Dropped) -> Dropped:
        return replace(
            self,
            deleted=before.deleted + self.deleted,
            deleted_bytes=before.deleted_bytes + self.deleted_bytes,
            failed=list(dict.fromkeys((*before.failed, *self.failed))),
            bad={**before.bad, **self.bad},
        )


def wanted_log_start(work: RetainWork) -> Wanted:
    """The task of step 1.

    Raises: LogGapError when the leader has deleted records that the remote table does not list, which may be a
    temporary state; see ``Replica.log``.
    """
    if work.since is not None:
        with suppress(StratalogError):  # the next listing reports the error
            wanted = _wanted_log_start(work)
            if wanted.log_start <= work.replicas.view.log_start_offset:
                return wanted
    return _wanted_log_start(replace(work, since=None))


def _wanted_log_start(work: RetainWork) -> Wanted:
    leader, view = work.replicas.leader, work.replicas.view
    log = look_at_leader(work.replicas, since=work.since)
    if work.snapshots:
        return Wanted(view.log_start_offset, why="only snapshots shorten this log (cleanup.policy)")
    now_ms = work.clock.now_ms() if work.now_ms is None else work.now_ms
    start = max(view.log_start_offset, 0 if work.tiered else log.local_start)
    if work.remote is not None:
        _check_gap(work, log, agreeing(work.remote.listed, log.lineage))
    extents = both_tiers(work.safe(log), local_extents(leader, log, work.total))
    extents = [extent for extent in extents if extent.end > start]
    by_limits = retained_from(extents, work.total, now_ms) or 0
    ahead = None if work.total.retention_ms == UNLIMITED else in_future(extents, by_limits, now_ms)
    next_ms = next_expiry_ms(extents, work.total, now_ms)
    log_start = max(start, min(by_limits, log.high_watermark))
    why = why_kept(extents, work.total, now_ms) if log_start == start else None
    if why is not None and work.now_ms is None:
        why = NO_TIME
    return Wanted(log_start, ahead, next_ms, why)


def _check_gap(work: RetainWork, log: ReplicaLog, remote: tuple[RemoteSegment, ...]) -> None:
    log_start = work.replicas.view.log_start_offset
    begins, ends = (remote[0].base_offset, remote[-1].next_offset) if remote else (log.local_start, 0)
    if log_start < log.local_start and (begins > log_start or ends < log.local_start):
        held = f"only [{begins}, {ends})" if remote else "nothing"
        raise LogGapError(
            f"{work}: the leader has deleted the tiered offsets [{log_start}, {log.local_start}), but the remote "
            f"log has {held} of the leader's history: check that the right remote tier is mounted. Nothing is "
            "deleted until then"
        )


def local_extents(replica: Replica, log: ReplicaLog, limits: RetentionLimits) -> list[LogFile]:
    """The files of a replica's log. The timestamps of records are read only if a limit requires them."""

    def latest_ms(link: Link) -> int:
        return 0 if limits.retention_ms == UNLIMITED else replica.footer(link.file).latest_ms

    return [
        LogFile(
            link.start,
            link.end,
            link.file.object.size_bytes,
            partial(latest_ms, link),
            link.file.object.modified_ms,
        )
        for link in log.chain
    ]


def drop(work: RetainWork) -> Dropped:
    """The task of step 4, for every replica whose broker is not fenced."""
    dropping = _Dropping(work)
    for broker in work.replicas.view.replicas:
        if not work.replicas.view.brokers[broker].fenced:
            dropping.on(broker)
    return dropping.done


@dataclass(slots=True)
class _Dropping:
    """Processes the replicas of one partition, one after the other."""

    work: RetainWork
    done: Dropped = field(default_factory=Dropped)
    sound: set[str] = field(default_factory=set)
    """Paths of remote segments that were read and are intact."""
    objects: dict[str, StoredObject] = field(init=False)
    """The objects of the remote segments, by path."""

    def __post_init__(self) -> None:
        remote = self.work.remote
        there = () if remote is None else zip(remote.listed, remote.objects, strict=False)
        self.objects = {segment.path: stored for segment, stored in there}

    def on(self, broker: int) -> None:
        """Move the local start of one replica, and delete files that left its log long enough ago."""
        try:
            replica = self.work.replicas.replica(broker)
            while_it_changes(lambda: self._drop(broker, replica))
        except StratalogError as error:
            self.done.failed.append((f"{self.work} on broker {broker}", error))

    def _drop(self, broker: int, replica: Replica) -> None:
        work = self.work
        log, now_ms = self._log(replica)
        check_whole(replica, log)
        wanted = self._relied_upon(log, local_start_for(log, self._wanted_local_start(replica, log)))
        start = local_start_for(log, wanted)
        if start > log.local_start:
            self.done.moves += 1
            producers = encode(replica.producers_at(log, start))
            if not work.dry_run:
                replica.store.create(replica.path(LocalStartName(start)), producers)
        names, damaged = covered(replica, log, [] if now_ms is None else self._deletable(replica, log, now_ms))
        self.done.failed += [(f"{self.work} on broker {broker}", error) for error in damaged]
        sizes = {str(file.name): file.object.size_bytes for file in log.listing.data}
        if names and not work.dry_run:
            replica.store.delete([replica.path(name) for name in names])
        self.done.local_starts.append((broker, start))
        removal_ms = 0 if now_ms is None else next_removal_ms(log, now_ms, work.delay_ms)
        self.done.next_ms = min(self.done.next_ms, removal_ms)
        if now_ms is None:
            self.done.why = NO_TIME
        elif start > log.local_start:
            self.done.why = (
                f"files below offset {start} are deleted from this broker after {span_text(work.delay_ms)}"
            )
        elif removal_ms < FOREVER_MS:
            self.done.why = f"files that have left the log are deleted in {span_text(removal_ms - now_ms)}"
        gone = [sizes[name] for name in names if name in sizes]
        self.done.deleted += len(gone)
        self.done.deleted_bytes += sum(gone)

    def _log(self, replica: Replica) -> tuple[ReplicaLog, int | None]:
        """The current log, and the current time for deleting files (None: unknown). If the log was already listed
        after ``since``, and only superseded high watermarks can be deleted now, returns the log of that listing: a
        superseded high watermark stays superseded, whatever else has changed.
        """
        work = self.work
        if work.since is not None and not work.tiered and not work.snapshots:
            log, now_ms = replica.log(since=work.since), agreed_ms(work.clock, replica.store)
            moves = local_start_for(log, work.replicas.view.log_start_offset) > log.local_start
            names = [] if now_ms is None else removable(log, now_ms, work.delay_ms, work.replicas.epoch)
            superseded = all(isinstance(parse_name(name), WatermarkName) for name in names)
            if now_ms is not None and not moves and superseded:
                return log, now_ms
        log = replica.log()
        return log, agreed_ms(work.clock, replica.store)

    def _wanted_local_start(self, replica: Replica, log: ReplicaLog) -> int:
        work, log_start = self.work, self.work.replicas.view.log_start_offset
        if work.snapshots:
            return log.local_start if log_start <= log.local_start else self._snapshot_end(replica, log)
        if not work.tiered:
            return log_start
        safe = work.safe(log)
        # The last file is kept for readers of the log's end, unless the time limit expires it.
        at_least = RetentionLimits(work.local.retention_ms, work.local.retention_bytes or 1)
        extents = local_extents(replica, log, work.local)
        now_ms = work.clock.now_ms() if work.now_ms is None else work.now_ms
        by_limits = retained_from(extents, at_least, now_ms) or 0
        self.done.next_ms = min(self.done.next_ms, next_expiry_ms(extents, at_least, now_ms))
        if not safe and extents:
            self.done.why = "nothing is tiered, so all records remain on the brokers"
        elif extents and work.local != work.total:
            self.done.why = f"on brokers {why_kept(extents, at_least, now_ms)}"
        return max(min(by_limits, safe[-1].next_offset if safe else 0), log_start)

    def _snapshot_end(self, replica: Replica, log: ReplicaLog) -> int:
        """The local start that the replica's greatest intact snapshot permits, because the snapshot replaces the
        log below its end. Damaged snapshots are reported.
        """
        usable = usable_snapshot(replica, log)
        for _, error in usable.damaged:
            named = CorruptSegmentError(
                f"{error}; the part of the log that the snapshot would replace remains: take a new snapshot"
            )
            self.done.failed.append((f"{self.work} on broker {replica.broker_id}", named))
        held = [] if usable.snapshot is None else [usable.snapshot.snapshot_id]
        return follower_start_offset(log.local_start, self.work.replicas.view.log_start_offset, held)

    def _deletable(self, replica: Replica, log: ReplicaLog, now_ms: int) -> list[str]:
        """The files whose delay has passed. A file is kept if the only other copy of its records, in the remote
        tier or in a snapshot, is now missing or damaged.
        """
        work, log_start = self.work, self.work.replicas.view.log_start_offset
        names = removable(log, now_ms, work.delay_ms, work.replicas.epoch)
        if work.snapshots:
            return self._beside_snapshot(replica, log, names)
        if work.remote is None or log.local_start <= log_start:
            return names
        parsed = {name: parse_name(name) for name in names}
        begins = {
            name: max(of.base_offset, log_start)
            for name, of in parsed.items()
            if isinstance(of, DataName)
            and of.base_offset < log.local_start  # later files are hidden, or belong to another history
        }
        if not begins:
            return names
        safe, first = work.safe(log), min(begins.values())
        held_from = log.local_start
        if safe and safe[-1].next_offset >= log.local_start:
            needed = [s for s in safe if s.next_offset > first and s.base_offset < log.local_start]
            doubtful = [s.next_offset for s in reversed(needed) if not self._is_sound(s)]
            held_from = max([safe[0].base_offset, *doubtful])
        free = [name for name in names if name not in begins or begins[name] >= held_from]
        if len(free) < len(names):  # the remaining files stay until the remote tier is complete again
            self.done.next_ms = 0
        return free

    def _beside_snapshot(self, replica: Replica, log: ReplicaLog, names: list[str]) -> list[str]:
        """The names of the files to delete. Files below the local start are left out if no intact snapshot
        replaces them.
        """
        parsed = {name: parse_name(name) for name in names}
        below = {
            name for name, of in parsed.items() if isinstance(of, DataName) and of.base_offset < log.local_start
        }
        newest = newest_id(log)
        if not below or newest is None or newest.end_offset < log.local_start:
            return names  # retention moved the start before the topic had this policy
        held = latest_snapshot(replica, log)
        if held is not None and held.snapshot_id.end_offset >= log.local_start:
            return names
        error = CorruptSegmentError(
            f"{replica}: no intact snapshot covers the records below offset {log.local_start}, so "
            "the files of these records remain: take a snapshot"
        )
        self.done.failed.append((f"{self.work} on broker {replica.broker_id}", error))
        return [name for name in names if name not in below]

    def _relied_upon(self, log: ReplicaLog, wanted: int) -> int:
        """The greatest offset, at most ``wanted``, below which the remote copies are reliable."""
        begin = max(log.local_start, self.work.replicas.view.log_start_offset)
        needed = [s for s in self.work.safe(log) if s.next_offset > begin and s.base_offset < wanted]
        for count, segment in enumerate(needed):
            self.done.left = self.done.left or count == self.work.most
            if count == self.work.most or not self._is_sound(segment):
                return segment.base_offset
        return wanted

    def _is_sound(self, segment: RemoteSegment) -> bool:
        remote = self.work.remote
        assert remote is not None
        if segment.path not in self.sound and segment.path not in self.done.bad:
            try:
                verify_remote(remote.store, segment, self.objects[segment.path])
                self.sound.add(segment.path)
            except StratalogError as error:
                self.done.bad[segment.path] = error
        return segment.path in self.sound

"""Keeps the metadata log short: takes a snapshot, copies it to every voter, moves the log start, deletes files.

A commit does this after enough batches (``stratalog.engine.quorum.client``), so the log stays short without a job;
the snapshot job decides by bytes, changes and age.

The steps, each of which may be the last one of a run (protocol I7):

1. *Settle* the log: everything in the snapshot is committed, and its end is a batch boundary. The snapshot never
   ends before an earlier snapshot ("never regressing"), because a linearizable read does not go back.
2. *Freeze* the snapshot on one voter that shows the log.
3. *Copy* the snapshot to the other voters; read back and verify every copy.
4. *Delete* files below the new log start, and claims below the greatest, on each live voter.

When the log start moves
    KIP-630 ("When to Increase the LogStartOffset") moves it to a snapshot's end offset when all *live* replicas
    have fetched past that offset, or the snapshot is old. A voter here runs nothing; it is *live* in a run that
    could list it as the incarnation in the metadata, and verify its files. For voters that are not live, a later
    move would only save work: a returning voter, or an observer that is behind, loads a snapshot.

    If a majority is live, the log start is the end of the *second latest* snapshot that every live voter holds
    intact. Once the latest such snapshot is as old as ``metadata.start.offset.lag.time.max.ms``, the log start is
    the end of that snapshot. So if a snapshot turns out to be damaged, even on all voters, it is not needed: the
    snapshot before it, and the log after that earlier snapshot, still exist.

Why it is safe
    Files are deleted on a voter only if the voter's own verified snapshot replaces them, so the voter is still
    counted as a holder of the log. A deleted name that a zombie creates again is below that snapshot, and in no
    log; a claim below the greatest has no effect. A late run only deletes names below an end offset that stays
    covered. A snapshot is never replaced, because a deletion by name might hit its repaired successor. A damaged
    copy is superseded by the next snapshot, and deleted like any older snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from stratalog.engine.metadata.dump import count_changes
from stratalog.engine.metadata.records import NoOpRecord
from stratalog.engine.quorum.checkpoints import (
    copy_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from stratalog.engine.quorum.damage import DAMAGED, check_voter
from stratalog.engine.quorum.log import MetadataLog
from stratalog.engine.quorum.state import CommittedLog, LogState, is_majority
from stratalog.engine.quorum.voter import Voter, VoterListing, position_of
from stratalog.partitions.agreed_time import agreed_by_most
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    NotControllerError,
    OutcomeUnknownError,
    RetriableError,
    SourceChangedError,
    StaleMetadataError,
    StratalogError,
)
from stratalog.partitions.paths import CheckpointName, ChunkName, ClaimName, DataName
from stratalog.partitions.store.protocol import StoredObject
from stratalog.snapshots.chunks import stale_chunks
from stratalog.snapshots.policy import SinceSnapshot, SnapshotPolicy, is_old, reason_to_wait
from stratalog.snapshots.snapshot_id import EMPTY, SnapshotId

NEVER_MS = 1 << 62
"""An age that no snapshot reaches, so that the log starts at the second latest snapshot."""

_UNREACHABLE = (RetriableError, StaleMetadataError, OutcomeUnknownError)


@dataclass(slots=True)
class VoterUpkeep:
    """The result for one voter."""

    voter: Voter
    created: bool = False
    """Whether the snapshot was frozen on this voter, not copied."""
    copied: bool = False
    whole: dict[CheckpointName, int] = field(default_factory=dict)
    """The verified snapshots on this voter, with the times when they were frozen, in ms."""
    deleted: int = 0
    """The number of deleted files."""
    failure: StratalogError | None = None
    """The reason why this voter is not live."""
    damaged: list[StratalogError] = field(default_factory=list)
    """The damaged snapshots on this voter."""


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """A snapshot that this run has made."""

    records: int
    ms: float
    """GenSnapshotLatencyMs."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The result of a run."""

    snapshot: CheckpointName
    size_bytes: int
    log_start: int
    voters: tuple[VoterUpkeep, ...]
    made: NewSnapshot | None
    """None if another driver has made it."""


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The metadata log and its latest snapshot."""

    latest: SnapshotId
    """``EMPTY`` before the first snapshot."""
    size_bytes: int
    """SnapshotSizeBytes: the size of the latest snapshot."""
    log_start: int
    end: SnapshotId
    """The high watermark, and the id of a new snapshot."""

    @property
    def lag(self) -> int:
        """SnapshotLag."""
        return self.end.end_offset - self.latest.end_offset


def snapshot_state(committed: CommittedLog) -> SnapshotState:
    """The state of a committed log, from its listings. Pure."""
    latest = _latest(committed)
    copies = [one.checkpoints[latest] for one in committed.listings if latest in one.checkpoints] if latest else []
    return SnapshotState(
        latest=EMPTY if latest is None else SnapshotId.of(latest),
        size_bytes=max((stored.size_bytes for stored in copies), default=0),
        log_start=min((one.log_start for one in committed.listings), default=0),
        end=SnapshotId.of(committed.state.snapshot),
    )


def _latest(committed: CommittedLog) -> CheckpointName | None:
    return max((name for one in committed.listings for name in one.checkpoints), key=position_of, default=None)


def log_start_of(live: Sequence[VoterUpkeep], now_ms: int | None, lag_ms: int) -> int:
    """The allowed start of the log, given the snapshots on its live voters; see the module. ``now_ms`` None: all
    ages are unknown. Pure.
    """
    if not live:
        return 0
    shared = sorted(set.intersection(*(set(one.whole) for one in live)), key=lambda name: name.end_offset)
    if not shared:
        return 0
    latest = shared[-1]
    if now_ms is not None and all(one.whole[latest] + lag_ms <= now_ms for one in live):
        return latest.end_offset
    return shared[-2].end_offset if len(shared) > 1 else 0


def doomed_on(listing: VoterListing, log_start: int) -> list[DataName | CheckpointName | ChunkName | ClaimName]:
    """The names that may be deleted on a voter when the log starts at ``log_start``: whether a name below that
    offset is in the log no longer changes. Never includes the latest snapshot or the greatest claim. Pure.
    """
    if log_start > listing.snapshot_end:
        return []
    latest = max(listing.checkpoints, key=position_of, default=None)
    return [
        *([] if latest is None else sorted(stale_chunks(listing.chunks, SnapshotId.of(latest)))),
        *sorted(name for name in listing.files if name.base_offset < log_start),
        *sorted(name for name in listing.checkpoints if name.end_offset < log_start),
        *(name for name in listing.claim_names if name.epoch < listing.claimed_epoch),
    ]


def due(
    log: MetadataLog, policy: SnapshotPolicy, now_ms: int, *, by_hand: bool
) -> tuple[SnapshotState, str | None]:
    """The log, and the reason not to take a snapshot now, which is None if a snapshot is due (KIP-630, "When to
    Snapshot"). The log since the latest snapshot is measured in bytes of its files. Comparing the images shows the
    changed records; a record that is new and has changed again counts as new.

    Raises: see ``MetadataLog.committed_log``.
    """
    committed = log.committed_log()
    looked, latest = snapshot_state(committed), _latest(committed)
    files = {name: stored for one in committed.listings for name, stored in one.files.items()}
    since_snapshot = [stored for name, stored in files.items() if looked.latest.end_offset <= name.base_offset]
    log_bytes = sum(stored.size_bytes for stored in since_snapshot)
    age_ms = now_ms - _since_ms(committed, latest, files, now_ms)
    held = changed = 0
    enough = log_bytes >= policy.max_record_bytes_between_snapshots
    if latest is not None and enough and not by_hand and not is_old(policy, age_ms):
        held, changed = _changes(log, latest, committed)
    since = SinceSnapshot(
        latest=looked.latest,
        next=looked.end,
        log_bytes=log_bytes,
        snapshot_records=held,
        changed_records=changed,
        age_ms=age_ms,
    )
    wait = reason_to_wait(policy, since, by_hand=by_hand)
    return looked, None if by_hand and _is_damaged(log, committed) else wait


def _since_ms(
    committed: CommittedLog, latest: CheckpointName | None, files: Mapping[DataName, StoredObject], now_ms: int
) -> int:
    """The time of the latest snapshot, on the voter that has had it longest. Without a snapshot, the time when the
    log began.
    """
    made = [one.checkpoints[latest] for one in committed.listings if latest in one.checkpoints] if latest else []
    return min((stored.modified_ms for stored in made or files.values()), default=now_ms)


def _changes(log: MetadataLog, latest: CheckpointName, committed: CommittedLog) -> tuple[int, int]:
    """The number of records in the snapshot, and the number of them that have changed or are gone. If no copy of
    the snapshot is intact, everything is treated as changed.
    """
    for listing in committed.listings:
        if latest in listing.checkpoints:
            with suppress(*_UNREACHABLE, *DAMAGED):
                before = read_checkpoint(log.cluster_id, listing.voter, latest, listing.checkpoints[latest])
                return count_changes(before.image, committed.state.image)
    return 1, 1


def keep_up(log: MetadataLog, clock: Clock, *, lag_ms: int) -> Upkeep:
    """Take a snapshot of everything that is committed, then do the other steps that the module describes.

    Raises: NoMajorityError and other RetriableError kinds; CorruptionError kinds. The result has the errors of
        single voters.
    """
    committed = log.committed_log()
    log.check_may_write()
    voters = {voter.id: VoterUpkeep(voter) for voter in log.voters}
    if _is_damaged(log, committed):
        with suppress(NotControllerError, OutcomeUnknownError):  # another driver also commits something
            log.claim()
            log.commit((NoOpRecord(),))  # so that there is another offset to take a snapshot of
        committed = log.committed_log()
    name = committed.state.snapshot
    source, made = _frozen(log, committed, clock, voters.values())
    for one in voters.values():
        _give(log, one, committed.state, source)
    live = [one for one in voters.values() if one.failure is None and name in one.whole]
    start = 0
    if is_majority((one.voter.id for one in live), list(voters)):
        now_ms = agreed_by_most(clock.now_ms(), [one.voter.store.now_ms() for one in live])
        start = log_start_of(live, now_ms, lag_ms)
        for one in live:
            _delete(one, start)
    size_bytes = source.checkpoints[name].size_bytes
    return Upkeep(name, size_bytes, start, tuple(voters.values()), made)


def _is_damaged(log: MetadataLog, committed: CommittedLog) -> bool:
    """Whether a snapshot of this log exists, and a copy of it is damaged."""
    name = committed.state.snapshot
    for listing in committed.listings:
        if name in listing.checkpoints:
            try:
                verify_checkpoint(log.cluster_id, listing.voter, listing.checkpoints[name])
            except DAMAGED:
                return True
            except _UNREACHABLE:
                continue
    return False


def _frozen(
    log: MetadataLog, committed: CommittedLog, clock: Clock, voters: Iterable[VoterUpkeep]
) -> tuple[VoterListing, NewSnapshot | None]:
    """A listing of a voter that has the snapshot, which is made now if necessary.

    Raises: RetriableError when no voter takes it.
    """
    state = committed.state
    there = [listing for listing in committed.listings if state.snapshot in listing.checkpoints]
    failure: StratalogError | None = None
    for listing in there:
        try:  # another writer may have created anything under the name
            verify_checkpoint(log.cluster_id, listing.voter, listing.checkpoints[state.snapshot])
            return listing, None
        except (*_UNREACHABLE, *DAMAGED) as error:
            failure = error
    for listing in (one for one in committed.listings if one not in there):
        made: NewSnapshot | None = None
        began_s = clock.monotonic_s()
        try:
            with suppress(OutcomeUnknownError):  # the listing shows the outcome
                records = write_checkpoint(log.cluster_id, listing.voter, state, clock)
                if records is not None:
                    made = NewSnapshot(records, 1000 * (clock.monotonic_s() - began_s))
            after = listing.voter.list()
            if state.snapshot in after.checkpoints:
                for one in voters:
                    one.created = one.voter == listing.voter
                return after, made
        except _UNREACHABLE as error:
            failure = error
    raise failure or SourceChangedError(f"snapshot {state.snapshot} was deleted immediately after it was written")


def _give(log: MetadataLog, one: VoterUpkeep, state: LogState, source: VoterListing) -> None:
    """Copy the snapshot of ``state`` to the voter, and check which of the two latest snapshots are intact
    there.
    """
    name = state.snapshot
    try:
        listing = one.voter.list()
        check_voter(listing, state)
        if name not in listing.checkpoints:
            with suppress(OutcomeUnknownError):
                copy_checkpoint(log.cluster_id, source, name, one.voter)
            listing = one.voter.list()
            one.copied = name in listing.checkpoints
        for held in sorted(listing.checkpoints, key=lambda name: name.end_offset)[-2:]:
            stored = listing.checkpoints[held]
            try:
                verify_checkpoint(log.cluster_id, one.voter, stored)
                one.whole[held] = stored.modified_ms
            except DAMAGED as error:
                one.damaged.append(error)
    except (*_UNREACHABLE, *DAMAGED) as error:
        one.failure = error


def _delete(one: VoterUpkeep, log_start: int) -> None:
    try:
        listing = one.voter.list()
        doomed = doomed_on(listing, log_start)
        one.voter.store.delete(one.voter.path(name) for name in doomed)
        one.deleted = len(doomed)
    except _UNREACHABLE as error:
        one.failure = error

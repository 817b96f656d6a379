"""Sync: bring followers to their leader's log (protocol section 3; KIP-405, "Follower fetch"; KIP-1023)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

from stratalog.engine.replication.damage import (
    check_claimed_high_watermark,
    check_same_history,
    check_starts,
    first_lost,
)
from stratalog.engine.replication.later_rule import under_known_rules
from stratalog.engine.replication.leader import (
    check_joined,
    check_not_fenced,
    compare_with_remote,
    join,
    leader_log,
)
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import RemoteTail
from stratalog.engine.replication.snapshots import fetch_latest, newest_id, usable_snapshot
from stratalog.engine.replication.throttle import SharedThrottle
from stratalog.engine.replication.watermark import record_high_watermark
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import (
    CorruptSegmentError,
    LogGapError,
    OffsetOutOfRangeError,
    RemoteNotReadyError,
    SourceChangedError,
)
from stratalog.partitions.listing import (
    DataFile,
    Link,
    Listing,
    ReplicaLog,
    check_boundaries,
    missing_file,
    resolve,
)
from stratalog.partitions.paths import DataName, LocalStartName
from stratalog.partitions.producers import ProducerEntry, encode
from stratalog.partitions.replica import Replica, errors_of, writes_of
from stratalog.partitions.runner import Done, Failed, Outcome, Runner, SerialRunner
from stratalog.partitions.segments.check import check_copy
from stratalog.partitions.store import Staged, Store
from stratalog.tiering.bootstrap import (
    FromLeader,
    FromRemote,
    LastTiered,
    LeaderOffsets,
    RemoteNotReady,
    StartOver,
    auxiliary_state,
    fetch_origin,
)

_ATTEMPTS = 5
_GROUP_FILES = 32
_GROUP_BYTES = 512 * 1024 * 1024
_REMEMBERED = 100_000
"""The number of up-to-date followers to remember; each takes half a KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    copies: Runner
    remote: RemoteTail | None = None
    """The remote log; None if the topic is not tiered, or all followers are members of the ISR and do not need it.
    """
    last_tiered: LastTiered = LastTiered.NEVER
    """The settings ``follower.fetch.last.tiered.offset.enable`` and ``...always.enable``."""
    throttle: SharedThrottle | None = None
    """Limits copies to followers that a reassignment is adding."""
    snapshots: bool = False
    """Whether followers also get the leader's latest snapshot (cleanup.policy=snapshot). False for an append,
    which does not wait for snapshots."""
    most_groups: int | None = None
    """The number of groups of files to copy to a follower, each at most 512 MiB; None: all missing files."""


@dataclass(frozen=True, slots=True)
class Synced:
    """The follower is synced up to the leader's log end as listed at the start, unless files are ``left``."""

    broker_id: int
    log_end: int
    """The log end of both replicas; the end of the copies if files are left."""
    high_watermark: int
    copied_files: int
    copied_bytes: int
    avoided_bytes: int = 0
    """Bytes of the leader's local files that the follower did not copy, because its log began at the earliest
    pending upload offset.
    """
    left: int = 0
    """Files that the follower still lacks, because of ``SyncOptions.most_groups`` or the throttle."""
    throttled: bool = False
    """Whether the throttle left these files to the next run."""


def sync_followers(
    replicas: PartitionReplicas, followers: Sequence[int], options: SyncOptions
) -> tuple[ReplicaLog, list[Outcome[int, Synced]]]:
    """Make the logs of these followers equal to the leader's, by copying complete files under their own names. The
    failure of one follower does not affect another.

    Returns the leader's log, as listed after all followers, and the outcome of each follower. An outcome is
    Synced, or Failed with FencedLeaderEpochError kinds or StaleBrokerError when the view is stale; CorruptionError
    kinds, whose ``broker_id`` names the damaged storage; RemoteNotReadyError; SourceChangedError when the leader's
    files kept changing; StorageError kinds.

    Raises: errors from listing the leader (see ``leader_log``); see ``check_reaches_remote``.
    """
    listed: dict[int, Listing] = {}
    outcomes: list[Outcome[int, Synced]] = []
    # List the followers first, so that the leader, listed later, is not behind any follower.
    for outcome in options.copies.run(lambda follower: list_follower(replicas, follower), followers):
        match outcome:
            case Done(follower, listing):
                listed[follower] = listing
            case Failed():
                outcomes.append(outcome)
    leader = leader_log(replicas)
    compare_with_remote(replicas, leader)
    for follower in [*listed]:
        if (done := _still_done(replicas, follower, options, listed[follower], leader)) is not None:
            del listed[follower]
            outcomes.append(Done(follower, done))
    names = {link.name for link in leader.chain} if listed else set()
    idle = [follower for follower, before in listed.items() if names <= {file.name for file in before.data}]
    # Followers that lack nothing need almost no I/O, so run them inline.
    for runner, some in ((SerialRunner(), idle), (options.copies, [f for f in listed if f not in idle])):
        outcomes += runner.run(lambda follower: _sync(replicas, follower, options, listed[follower], leader), some)
    return leader, outcomes


def list_follower(replicas: PartitionReplicas, follower_id: int) -> Listing:
    follower = replicas.replica(follower_id)
    listing = follower.list()
    check_not_fenced(follower, listing, replicas.epoch)
    return listing


def resolve_follower(follower: Replica, listing: Listing, log: ReplicaLog) -> ReplicaLog:
    """The follower's log under its leader's lineage. No file of an idle follower is opened."""
    with errors_of(follower):
        return resolve(listing, log.lineage, ends_as_in(log, follower))


def ends_as_in(leader: ReplicaLog, follower: Replica) -> Callable[[DataFile], int]:
    """Returns the end of an append of a follower: the end of the leader's file with the same name and size, or
    else the end in the footer of the follower's file.
    """
    ends = {(link.name, link.file.object.size_bytes): link.end for link in leader.chain}
    return lambda file: ends.get((file.name, file.object.size_bytes)) or follower.end_of_append(file)


def _sync(
    replicas: PartitionReplicas, follower_id: int, options: SyncOptions, before: Listing, log: ReplicaLog
) -> Synced:
    """Sync a follower, listed as ``before``, to the leader, listed as ``log`` after it."""
    files = size_bytes = 0

    def copied(link: Link) -> None:
        nonlocal files, size_bytes
        files += 1
        size_bytes += link.file.object.size_bytes

    for _ in range(_ATTEMPTS):
        try:
            follower = replicas.replica(follower_id)
            with writes_of(follower, replicas.leader), under_known_rules(replicas, follower):
                done = _sync_once(replicas, follower_id, options, before, log, copied)
            return replace(done, copied_files=files, copied_bytes=size_bytes)
        except SourceChangedError as error:  # the leader deleted a file: start again, and never skip the file
            change = error
        before = list_follower(replicas, follower_id)
        log = leader_log(replicas)
    raise change


def _sync_once(
    replicas: PartitionReplicas,
    follower_id: int,
    options: SyncOptions,
    before: Listing,
    log: ReplicaLog,
    copied: Callable[[Link], None],
) -> Synced:
    leader, follower = replicas.leader, replicas.replica(follower_id)
    # 2. Join. From here on, the follower's files beyond the common prefix are not part of its log.
    if before.joined_epoch == replicas.epoch:
        check_joined(follower, before, leader, log)
    else:
        if follower_id in replicas.view.isr:
            check_same_history(follower, before, leader, log)
        join(follower, leader, replicas.epoch, log)
    first = mine = resolve_follower(follower, before, log)
    check_claimed_high_watermark(follower, mine, leader, log)
    if follower_id in replicas.view.isr:
        check_starts(follower, mine, leader, log)
    with errors_of(leader):
        check_boundaries(str(leader), log, mine)

    # 3. Find the start offset.
    mine, avoided = _start(replicas, follower, mine, log, options)
    lacks_snapshot = options.snapshots and _lacks_snapshot(mine, log)
    if lacks_snapshot:
        fetch_latest(replicas, follower)

    # 4. Copy. A follower outside the ISR also gets files that it has lost. A member must have lost none.
    missing = missing_files(leader, follower, mine, log)
    if follower_id in replicas.view.isr and first_lost(mine, log, missing) is not None:
        # The high watermark may have passed the follower's log end since the first listing: list it again.
        mine = resolve_follower(follower, follower.list(), log)
        missing = missing_files(leader, follower, mine, log)
        lost = first_lost(mine, log, missing)
        if lost is not None:
            raise LogGapError(
                f"{follower} is in sync and lacks offset {lost}, below the high watermark "
                f"{log.high_watermark}: its storage has lost records; the records are copied to it again after "
                "it has left the ISR",
                broker_id=follower.broker_id,
            )
    left = len(missing)
    throttle = options.throttle if _is_throttled(replicas, follower_id) else None
    for number, group in enumerate(_groups(missing)):
        if number == options.most_groups:
            end = group[0].start
            return Synced(follower_id, end, mine.high_watermark, 0, 0, avoided, left)
        size_bytes = sum(link.file.object.size_bytes for link in group)
        if throttle is not None and not throttle.spend(follower, size_bytes):
            end = group[0].start
            return Synced(follower_id, end, mine.high_watermark, 0, 0, avoided, left, throttled=True)
        left -= len(group)
        _copy(leader, follower, group, options.copies)
        for link in group:
            copied(link)

    # 5. Advance the high watermark: after step 4 the follower's log ends at the leader's end, so the watermark
    # does not pass it (I4).
    knows = log.high_watermark <= mine.high_watermark
    if not knows:
        record_high_watermark(follower, replicas.epoch, log.high_watermark)
    synced = Synced(
        broker_id=follower_id,
        log_end=log.log_end,
        high_watermark=log.high_watermark,
        copied_files=0,
        copied_bytes=0,
        avoided_bytes=avoided,
    )
    if mine is first and knows and not missing and not lacks_snapshot and before.joined_epoch == replicas.epoch:
        given = _given(replicas, options)
        _done.put((follower.store, follower.folder), _Done(given, weakref.ref(before), weakref.ref(log), synced))
    return synced


def _is_throttled(replicas: PartitionReplicas, follower_id: int) -> bool:
    """Whether the replica is being added, so that no append waits for it yet."""
    return follower_id in replicas.view.joining and follower_id not in replicas.acknowledging


@dataclass(frozen=True, slots=True)
class _Done:
    """A sync that found nothing to do. Has the logs that it compared."""

    given: tuple[object, ...]
    follower: weakref.ref[Listing]
    leader: weakref.ref[ReplicaLog]
    synced: Synced


_done: BoundedCache[tuple[Store, str], _Done] = BoundedCache(_REMEMBERED)
"""Keyed by the folder of the follower. ``known_logs`` holds the two logs."""


def _given(replicas: PartitionReplicas, options: SyncOptions) -> tuple[object, ...]:
    return replicas.view, replicas.leader, options.remote, options.last_tiered, options.snapshots


def _still_done(
    replicas: PartitionReplicas, follower_id: int, options: SyncOptions, before: Listing, log: ReplicaLog
) -> Synced | None:
    """The earlier sync that found nothing to do, if neither side has changed since."""
    follower = replicas.replica(follower_id)
    done = _done.get((follower.store, follower.folder))
    if done is None or done.follower() is not before or done.leader() is not log:
        return None
    return done.synced if done.given == _given(replicas, options) else None


def leader_offsets(replicas: PartitionReplicas, log: ReplicaLog, remote: RemoteTail | None) -> LeaderOffsets:
    """The leader's answer, from this log, to a follower that asks for the start offset."""
    return LeaderOffsets(
        log_start=replicas.view.log_start_offset,
        local_start=log.local_start,
        log_end=log.log_end,
        earliest_pending_upload=None if remote is None else remote.end,
        tiered=remote is not None,
    )


def _start(
    replicas: PartitionReplicas,
    follower: Replica,
    mine: ReplicaLog,
    log: ReplicaLog,
    options: SyncOptions,
) -> tuple[ReplicaLog, int]:
    """Start the follower over or bootstrap it, if necessary. Returns the follower's log after that, and the bytes
    of the leader's files that the follower leaves to the remote tier.
    """
    if options.snapshots and mine.log_end < max(replicas.view.log_start_offset, log.local_start):
        started = _start_at_snapshot(replicas, follower, log)
        if started is not None:
            return started, 0
    remote = options.remote
    origin = fetch_origin(
        leader_offsets(replicas, log, remote),
        fetch_offset=mine.log_end,
        follower_is_empty=not mine.chain,
        # An empty member of the ISR has lost records: report that, and do not fill it again.
        last_tiered=LastTiered.NEVER if follower.broker_id in replicas.view.isr else options.last_tiered,
    )
    match origin:
        case FromLeader():
            return mine, 0
        case RemoteNotReady(reason):
            raise RemoteNotReadyError(f"{follower} cannot start yet: {reason}, then try again")
        case StartOver(offset):
            offset = max(offset, mine.local_start)
            state = encode(replicas.leader.producers_at_local_start(log))
        case FromRemote(offset):
            state = encode(_producers_at(offset, replicas.leader, log, remote))
        case _:
            assert_never(origin)
    if mine.chain and mine.log_end > log.log_end:
        raise LogGapError(
            f"{follower} holds [{mine.local_start}, {mine.log_end}) of its leader's history, the leader "
            f"holds [{log.local_start}, {log.log_end}): the leader's storage has lost records",
            broker_id=replicas.leader.broker_id,
        )
    if mine.local_start > offset or mine.local_start > log.log_end:
        raise OffsetOutOfRangeError(
            f"{follower} has dropped everything below offset {mine.local_start}, but its leader's log ends at "
            f"{log.log_end}, so it cannot follow; reassign the replica to another broker, or move it away and back"
        )
    # Create the register before the first copy: the register immediately discards everything below it.
    follower.store.create(follower.path(LocalStartName(offset)), state)
    avoided = 0
    if isinstance(origin, FromRemote):
        avoided = sum(link.file.object.size_bytes for link in log.chain if link.end <= offset)
    return resolve_follower(follower, follower.list(), log), avoided


def _start_at_snapshot(replicas: PartitionReplicas, follower: Replica, log: ReplicaLog) -> ReplicaLog | None:
    """Start a follower that has none of the leader's current log. The follower fetches the snapshot first, and
    begins its log at the snapshot's end (KIP-630, "Changes to Leader Election"). Returns None when no snapshot
    replaces the records that the follower lacks.
    """
    fetched = fetch_latest(replicas, follower)
    start = 0 if fetched is None else fetched.snapshot_id.end_offset
    if fetched is None or not max(replicas.view.log_start_offset, log.local_start) <= start <= log.log_end:
        return None
    listing = follower.list()
    found = usable_snapshot(follower, resolve_follower(follower, listing, log), until=start).snapshot
    if found is None or found.snapshot_id != fetched.snapshot_id:
        return None
    # The snapshot is complete. Only now may the records below its end be discarded.
    follower.store.create(follower.path(LocalStartName(start)), encode(found.producers))
    return resolve_follower(follower, follower.list(), log)


def _lacks_snapshot(mine: ReplicaLog, log: ReplicaLog) -> bool:
    wanted, held = newest_id(log), newest_id(mine)
    return wanted is not None and (held is None or held < wanted)


def _producers_at(
    offset: int, leader: Replica, log: ReplicaLog, remote: RemoteTail | None
) -> dict[str, ProducerEntry]:
    """The producer state at an offset up to which the log is tiered: from the leader if its local log starts
    there, otherwise from the remote segment that ends there. (The leader epochs came with its ``.epoch`` file.)

    Raises: CorruptionError if the remote log and the leader have different histories; see
        ``auxiliary_state``.
    """
    if offset == log.local_start or remote is None or remote.last is None:
        return leader.producers_at_local_start(log)
    state = auxiliary_state(remote.store, remote.folder, remote.last)
    state.check_history(log.lineage, str(leader))
    return state.producers


def missing_files(leader: Replica, follower: Replica, mine: ReplicaLog, log: ReplicaLog) -> list[Link]:
    """The leader's files that the follower lacks, in order. A merged segment of the follower replaces the leader's
    single appends.

    Raises: CorruptSegmentError for a name with two sizes.
    """
    present = {file.name: file.object for file in mine.listing.data}
    for link in log.chain:
        held = present.get(link.name)
        if held is not None and held.size_bytes != link.file.object.size_bytes:
            _check_other_size(leader, follower, mine, link, DataFile(link.name, held))
    missing: dict[DataName, Link] = {}  # a file may have several links: it is copied at the position of the first
    for link in log.chain:
        if link.name not in present and not _needless(mine, link):
            missing.setdefault(link.name, link)
    return [*missing.values()]


def _check_other_size(leader: Replica, follower: Replica, mine: ReplicaLog, link: Link, held: DataFile) -> None:
    """Raises: CorruptSegmentError, unless the follower's file is also valid, or is not part of its log."""
    if not mine.holds(held.name) and _needless(mine, link):
        return  # a zombie may have written it, after retention or a merge freed the name
    leader.segment(link.file)  # a truncated file has no footer
    if held.name.merged:
        follower.segment(held)
        return  # the same records, merged with other settings
    raise CorruptSegmentError(
        f"{follower}: {link.name} has {held.object.size_bytes} bytes, but {link.file.object.size_bytes} on the "
        "leader: one of the copies is damaged; run heal",
        broker_id=follower.broker_id,
    )


def _needless(mine: ReplicaLog, link: Link) -> bool:
    return link.end <= mine.local_start or _merged_over(mine, link)


def _merged_over(mine: ReplicaLog, link: Link) -> bool:
    """Whether merged segments of the follower replace the leader's file: one segment of the same generation, or
    any number of segments of later generations. A segment of an earlier generation does not replace the file,
    because the segment has records that a rule has removed.
    """
    over = mine.over(link.start, link.end)
    if not over or over[0].start > link.start or over[-1].end < link.end:
        return False
    if len(over) == 1:
        return over[0].name.merged and over[0].name.generation >= link.name.generation
    return all(own.name.generation > link.name.generation for own in over)


def _groups(links: Sequence[Link]) -> Iterator[list[Link]]:
    """The files to stage together: in order, bounded in number and bytes."""
    group: list[Link] = []
    size = 0
    for link in links:
        if group and (len(group) >= _GROUP_FILES or size + link.file.object.size_bytes > _GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(link)
        size += link.file.object.size_bytes
    if group:
        yield group


def _copy(leader: Replica, follower: Replica, group: list[Link], copies: Runner) -> None:
    """Stage and check all bytes, then name the files; files before a failed one are named.

    The store reads exactly the listed object, never other bytes under the same name (I2, I8), so the leader is not
    listed again (protocol section 3, step 4).

    Raises: CorruptSegmentError if the leader returned bytes that differ from those written; LogGapError,
        SourceChangedError; StorageError kinds.
    """
    staged: dict[DataName, Staged] = {}

    def stage(link: Link) -> None:
        with errors_of(leader):
            segment = leader.segment(link.file)
            end = segment.footer.next_offset
            if not link.name.merged and end != link.end:
                raise missing_file(f"{leader}: {link.name}", end, link.end)
            copy = follower.store.stage_copy(leader.store, link.file.object, follower.path(link.name))
            staged[link.name] = copy
            check_copy(leader.store, segment, copy)

    try:
        failed = {one.item: one.error for one in copies.run(stage, group) if isinstance(one, Failed)}
        for link in group:
            if link in failed:
                raise failed[link]
            staged.pop(link.name).commit()
    finally:
        for left in staged.values():
            with suppress(Exception):
                left.abort()

"""Sync: bring a follower to its leader's log (protocol section 3; KIP-405, "Follower fetch"; KIP-1023)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import assert_never

from engine.replication.leader import check_not_fenced, check_whole, join, leader_log
from engine.replication.site import Site
from engine.replication.watermark import record_high_watermark
from partitions.errors import (
    CorruptSegmentError,
    LogGapError,
    OffsetOutOfRangeError,
    RemoteNotReadyError,
    SourceChangedError,
)
from partitions.listing import Link, ReplicaLog, resolve
from partitions.paths import DataName, LocalStartName
from partitions.producers import ProducerEntry, encode
from partitions.replica import Replica
from partitions.runner import Runner, values
from partitions.segment import read_segment
from partitions.store import Staged, Store
from tiering.bootstrap import (
    FromLeader,
    FromRemote,
    LeaderOffsets,
    RemoteNotReady,
    StartOver,
    auxiliary_state,
    fetch_origin,
)
from tiering.remote_segment import RemoteSegment

_ATTEMPTS = 5
_GROUP_FILES = 32
_GROUP_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RemoteTail:
    """What is tiered of a partition, as a follower needs to know it: its last segment, if any."""

    store: Store
    folder: str
    last: RemoteSegment | None

    @property
    def end(self) -> int | None:
        """The earliest pending upload offset, as far as the remote knows it."""
        return None if self.last is None else self.last.next_offset


@dataclass(frozen=True, slots=True)
class Synced:
    """A sync that reached the leader's log end, as listed when it began."""

    broker_id: int
    log_end: int
    """Both replicas' log end."""
    high_watermark: int
    started_at: int
    """The offset from which on the follower took files of the leader."""
    copied_files: int
    copied_bytes: int


def sync(
    site: Site,
    follower_id: int,
    *,
    copies: Runner,
    remote: RemoteTail | None = None,
    from_last_tiered: bool = False,
) -> Synced:
    """Make the follower's log equal to the leader's, by copying whole files under their own names.

    ``remote`` is what is tiered of the partition, None when the topic is not tiered (or when the follower
    is known not to need it: a member of the ISR); ``from_last_tiered`` is the setting
    ``follower.fetch.last.tiered.offset.enable``.

    Raises: FencedLeaderEpochError, StaleBrokerError when the view is stale; CorruptionError, LogGapError;
        RemoteNotReadyError; SourceChangedError when the leader's files kept changing.
    """
    change: SourceChangedError | None = None
    files = bytes_ = 0

    def copied(link: Link) -> None:
        nonlocal files, bytes_
        files += 1
        bytes_ += link.file.object.size_bytes

    for _ in range(_ATTEMPTS):
        try:
            done = _sync_once(site, follower_id, copies, remote, from_last_tiered, copied)
            return replace(done, copied_files=files, copied_bytes=bytes_)
        except SourceChangedError as error:  # a file is gone from the leader: start again, never skip
            change = error
    assert change is not None
    raise change


def _sync_once(
    site: Site,
    follower_id: int,
    copies: Runner,
    remote: RemoteTail | None,
    from_last_tiered: bool,
    copied: Callable[[Link], None],
) -> Synced:
    # 1. The follower first: the leader, listed later, is not behind it.
    leader, follower = site.leader, site.replica(follower_id)
    before = follower.log()
    check_not_fenced(follower, before, site.epoch)
    log = leader_log(site)

    # 2. Join. What the follower has beyond the common prefix is dead from here on.
    if before.joined_epoch < site.epoch:
        join(follower, leader, site.epoch, log)
    mine = resolve(before.listing, log.lineage, follower.end_of_append)
    if not mine.stranded:  # a gap is healed by the copies below; a loss at the end is not seen otherwise
        check_whole(follower, mine)

    _check_boundaries(leader, log, mine)

    # 3. Where to start.
    mine = _start(site, follower, mine, log, remote, from_last_tiered)

    # 4. Copy.
    missing = _missing(follower, mine, log)
    for group in _groups(missing):
        _copy(leader, follower, group, copies)
        for link in group:
            copied(link)

    # 5. The high watermark, bounded by the follower's log end, which is the leader's now.
    if log.high_watermark > mine.high_watermark:
        record_high_watermark(follower, site.epoch, log.high_watermark)
    return Synced(
        broker_id=follower_id,
        log_end=log.log_end,
        high_watermark=log.high_watermark,
        started_at=missing[0].start if missing else mine.log_end,
        copied_files=0,
        copied_bytes=0,
    )


def _check_boundaries(leader: Replica, log: ReplicaLog, mine: ReplicaLog) -> None:
    """A listing infers the end of an append from the file that follows it. Where a follower has a file that
    begins inside an append of the leader, the leader has lost the one that began there.

    Raises: LogGapError.
    """
    starts = [link.start for link in log.chain]
    for own in mine.chain:
        index = bisect_right(starts, own.start) - 1
        if own.name.merged or index < 0:
            continue
        link = log.chain[index]
        if link.start < own.start < link.end and not link.name.merged:
            raise LogGapError(
                f"{leader}: offset {own.start} is missing, where {own.file.object.name} begins on a follower; "
                "restore it from there"
            )


def _start(
    site: Site,
    follower: Replica,
    mine: ReplicaLog,
    log: ReplicaLog,
    remote: RemoteTail | None,
    from_last_tiered: bool,
) -> ReplicaLog:
    """The follower's log after it starts over or bootstraps, where it must; else as it is."""
    leader = LeaderOffsets(
        log_start=site.view.log_start_offset,
        local_start=log.local_start,
        log_end=log.log_end,
        earliest_pending_upload=None if remote is None else remote.end,
        tiered=remote is not None,
    )
    origin = fetch_origin(
        leader,
        fetch_offset=mine.log_end,
        follower_is_empty=not mine.chain,
        from_last_tiered=from_last_tiered,
    )
    match origin:
        case FromLeader():
            return mine
        case RemoteNotReady(reason):
            raise RemoteNotReadyError(f"{follower} cannot start yet: {reason}; run tier, then try again")
        case StartOver(offset):
            offset = max(offset, mine.local_start)
            state = encode(site.leader.producers_at_local_start(log))
        case FromRemote(offset):
            state = encode(_producers_at(offset, site.leader, log, remote))
        case _:
            assert_never(origin)
    if mine.log_end > log.log_end or mine.local_start > offset:
        raise OffsetOutOfRangeError(
            f"{follower} holds [{mine.local_start}, {mine.log_end}) of its leader's history, the leader holds "
            f"[{log.local_start}, {log.log_end}): the leader has lost data; verify the partition"
        )
    # The register before the first copy: what lies below it is dead at once (V12 of the attack).
    follower.store.create(follower.path(LocalStartName(offset)), state)
    return resolve(follower.list(), log.lineage, follower.end_of_append)


def _producers_at(
    offset: int, leader: Replica, log: ReplicaLog, remote: RemoteTail | None
) -> dict[str, ProducerEntry]:
    """The producer state at an offset up to which the log is tiered: the leader's own where its local log
    starts there, else that of the last remote segment, which ends there.
    """
    if offset == log.local_start or remote is None or remote.last is None:
        return leader.producers_at_local_start(log)
    return auxiliary_state(remote.store, remote.folder, remote.last).producers


def _missing(follower: Replica, mine: ReplicaLog, log: ReplicaLog) -> list[Link]:
    """The leader's files that the follower lacks, in order. Where the follower has a merged segment over
    what the leader still has as appends, it lacks nothing.

    Raises: CorruptSegmentError for a name with two sizes.
    """
    present = {file.name: file.object for file in mine.listing.data}
    for link in log.chain:
        held = present.get(link.name)
        if held is not None and held.size_bytes != link.file.object.size_bytes:
            raise CorruptSegmentError(
                f"{follower}: {link.name} has {held.size_bytes} bytes, on the leader it has "
                f"{link.file.object.size_bytes}: one of the two is damaged; verify the partition"
            )
    return [
        link
        for link in log.chain
        if link.name not in present and link.end > mine.local_start and not _merged_over(mine, link)
    ]


def _merged_over(mine: ReplicaLog, link: Link) -> bool:
    return any(own.name.merged and own.start <= link.start and link.end <= own.end for own in mine.chain)


def _groups(links: Sequence[Link]) -> Iterator[list[Link]]:
    """In order, bounded in number and bytes: what is staged before one look at the leader."""
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
    """Bytes first, then a look at the leader, then the names, in order."""
    for link in group:
        _check_end(leader, link)
    staged: dict[DataName, Staged] = {}

    def stage(link: Link) -> None:
        staged[link.name] = follower.store.stage_copy(leader.store, link.file.object, follower.path(link.name))

    try:
        values(copies.run(stage, group))
        present = {link.name: link.file.object.version for link in leader.log().chain}
        for link in group:
            if present.get(link.name) != link.file.object.version:
                raise SourceChangedError(f"{leader}: {link.name} left the log while it was being copied")
            staged.pop(link.name).commit()
    finally:
        for left in staged.values():
            with suppress(Exception):
                left.abort()


def _check_end(leader: Replica, link: Link) -> None:
    """The listing inferred where an append ends from what follows it; its footer must agree.

    Raises: LogGapError when a file between them is missing.
    """
    if link.name.merged:
        return
    end = read_segment(leader.store, link.file).footer.next_offset
    if end != link.end:
        raise LogGapError(
            f"{leader}: {link.name} ends at offset {end}, the next file starts at {link.end}: a file "
            "is missing between them; restore it from another replica"
        )

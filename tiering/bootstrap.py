"""Where a follower begins to fetch, and what it must know of the log before that (KIP-405, KIP-1023).

``fetch_origin`` is the whole decision, pure, a table in code. ``auxiliary_state`` reads what KIP-405
calls the remote log auxiliary state: here both parts of it, the leader epoch sequence and the producer
state, stand in the footer of the last remote segment, so building it is one ranged read.

    follower's fetch offset            empty, KIP-1023 on             otherwise
    in the leader's local log          FromLeader                     FromLeader
    outside, topic not tiered          StartOver(local start)         StartOver(local start)
    past the leader's log end          StartOver(local start)         StartOver(local start)
    below the local start, tiered:
      nothing below is tiered (1)      StartOver(local start)         StartOver(local start)
      remote ends in the local log     FromRemote(remote end)         FromRemote(local start)
      remote ends elsewhere, unknown   RemoteNotReady                 RemoteNotReady

(1) log start = local start and no upload is known, or the remote ends below the log start.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitions.lineage import Lineage
from partitions.producers import ProducerEntry
from partitions.store.protocol import Store
from tiering.remote_file import read_remote
from tiering.remote_segment import RemoteSegment


@dataclass(frozen=True, slots=True)
class LeaderOffsets:
    """What a follower learns of its leader. ``local_start <= log_end``; ``log_start`` is above
    ``local_start`` where data below it still waits to be deleted locally.
    """

    log_start: int
    local_start: int
    log_end: int
    earliest_pending_upload: int | None
    """``RemoteLog.end`` read *after* the leader was listed; None when it is unknown."""
    tiered: bool
    """remote.storage.enable of the topic."""


@dataclass(frozen=True, slots=True)
class FromLeader:
    """Fetch on from ``offset``: the leader has it locally."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """OFFSET_OUT_OF_RANGE: drop what is there, begin at ``offset``, the leader's first local one."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromRemote:
    """OFFSET_MOVED_TO_TIERED_STORAGE: everything in ``[log_start, offset)`` stays in the remote tier;
    build the auxiliary state for it and begin at ``offset``.
    """

    offset: int
    log_start: int


@dataclass(frozen=True, slots=True)
class RemoteNotReady:
    """The remote log does not say yet where to begin; try again later."""

    reason: str


FetchOrigin = FromLeader | StartOver | FromRemote | RemoteNotReady


def fetch_origin(
    leader: LeaderOffsets, *, fetch_offset: int, follower_is_empty: bool, from_last_tiered: bool
) -> FetchOrigin:
    """Where a follower begins (KIP-1023, "High-Level Design" and "ReplicaFetcher Changes").

    ``fetch_offset`` is the follower's log end offset under the leader's lineage;
    ``from_last_tiered`` is ``follower.fetch.last.tiered.offset.enable``.
    """
    if leader.local_start <= fetch_offset <= leader.log_end:
        return FromLeader(fetch_offset)
    if not leader.tiered or fetch_offset > leader.log_end:
        return StartOver(leader.local_start)
    pending = leader.earliest_pending_upload
    if pending is None and leader.log_start >= leader.local_start:
        return StartOver(leader.local_start)  # nothing was uploaded yet: the leader holds the whole log
    if pending is not None and pending < leader.log_start:
        return StartOver(leader.local_start)  # what was uploaded has expired: the remote holds none of the log
    if not (follower_is_empty and from_last_tiered) and leader.log_start >= leader.local_start:
        return StartOver(leader.local_start)
    if pending is None:
        return RemoteNotReady(
            f"the log starts at offset {leader.log_start} and on the leader at {leader.local_start}, but no "
            "upload is known"
        )
    if not leader.local_start <= pending <= leader.log_end:
        return RemoteNotReady(
            f"the remote log ends at offset {pending}, outside the leader's local log "
            f"[{leader.local_start}, {leader.log_end}]"
        )
    begin = pending if follower_is_empty and from_last_tiered else leader.local_start
    return FromRemote(begin, leader.log_start)


@dataclass(frozen=True, slots=True)
class AuxiliaryState:
    """What a replica must know of the log below ``offset`` to go on from there."""

    offset: int
    lineage: Lineage
    """The leader epochs that wrote it, without those that start at or above ``offset``."""
    producers: dict[str, ProducerEntry]


def auxiliary_state(remote: Store, folder: str, segment: RemoteSegment) -> AuxiliaryState:
    """The state at the end of a remote segment, from its footer (KIP-1023, "Follower Fetch Scenarios":
    "fetch remote segment info and build local leader epoch sequence"). ``folder`` is the topic's in the remote.

    Raises: RemoteObjectMissingError; CorruptSegmentError; CorruptionError when the file is of another
        partition, or ends elsewhere, than the table says.
    """
    footer = read_remote(remote, folder, segment).footer
    lineage = Lineage(entry for entry in footer.lineage if entry[1] < segment.next_offset)
    return AuxiliaryState(segment.next_offset, lineage, footer.producers)

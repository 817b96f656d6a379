"""Finds the offset at which a follower starts, and the state of the earlier log that it needs (KIP-405, KIP-1023).

``fetch_origin`` makes the decision. It is pure: the following table in code. ``auxiliary_state`` reads KIP-405's
remote log auxiliary state: the leader epoch sequence and the producer state. Both are in the footer of the last
remote segment, so one ranged read is enough.

    the leader answers a fetch with         an empty follower that bootstraps   any other
    records (the offset is local)           FromLeader; with ALWAYS (2)         FromLeader
    OFFSET_OUT_OF_RANGE, or
    OFFSET_MOVED_TO_TIERED_STORAGE:
      topic not tiered                      StartOver(local start)              StartOver(local start)
      offset past the leader's log end      StartOver(local start)              StartOver(local start)
      nothing of the log is tiered (1)      StartOver(local start)              StartOver(local start)
      log start = local start               as in the next two rows             StartOver(local start)
      remote ends in the local log          FromRemote(pending upload)          FromRemote(local start)
      remote ends elsewhere, or unknown     RemoteNotReady                      RemoteNotReady

(1) log start = local start and no upload is known, or the remote ends below the log start.

(2) FromRemote(pending upload) if the remote ends in the local log, above the follower's end.

If Kafka 4.3 differs from the KIP's text, this module follows the text. If the pending upload offset is below the
log start, Kafka's leader answers with the log start instead. Followers begin there in both cases. Kafka's follower
checks whether the leader's log end is 0; if both logs are empty, there is nothing to skip either way. Followers of
compacted topics, which Kafka excludes, use the same table, because rewritten segments keep the state in their
footers.

``docs/kips.md`` lists the parts of KIP-1023 without a counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stratalog.partitions.errors import CorruptionError, CorruptSegmentError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.producer_changes import applied
from stratalog.partitions.producers import ProducerEntry, without_transactions
from stratalog.partitions.store.protocol import Store
from stratalog.tiering.remote_file import read_remote
from stratalog.tiering.remote_segment import RemoteSegment


class LastTiered(Enum):
    """The cases in which an empty follower starts at the earliest pending upload offset, which follows the last
    tiered offset. In these cases, everything before the start offset is only in the remote tier.
    """

    NEVER = "never"
    MOVED = "moved"
    """KIP-1023: only if the leader no longer holds the log from its start."""
    ALWAYS = "always"
    """Beyond KIP-1023: also if the leader still holds the log from its start."""

    @classmethod
    def of(cls, enable: bool, always: bool) -> LastTiered:
        """The case for the values of ``follower.fetch.last.tiered.offset.enable`` and
        ``follower.fetch.last.tiered.offset.always.enable``.
        """
        if not enable:
            return cls.NEVER
        return cls.ALWAYS if always else cls.MOVED


class FetchError(Enum):
    """A leader's answer to a fetch that it cannot serve from its local log."""

    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    OFFSET_MOVED_TO_TIERED_STORAGE = "OFFSET_MOVED_TO_TIERED_STORAGE"


@dataclass(frozen=True, slots=True)
class LeaderOffsets:
    """The leader's offsets, as a follower reads them. ``local_start <= log_end``; ``log_start`` is above
    ``local_start`` if the leader has not yet deleted its local data below ``log_start``.
    """

    log_start: int
    local_start: int
    log_end: int
    earliest_pending_upload: int | None
    """``RemoteLog.end``; None if unknown. A value older than the leader's listing costs extra bytes, or a retry if
    the leader has since dropped records.
    """
    tiered: bool
    """Whether remote.storage.enable is set for the topic."""

    @property
    def pending_is_local(self) -> bool:
        """Whether the leader could serve a fetch from the earliest pending upload offset."""
        pending = self.earliest_pending_upload
        return pending is not None and self.local_start <= pending <= self.log_end

    @property
    def nothing_is_tiered(self) -> bool:
        """Whether it is certain that the remote tier contains no part of the log."""
        pending = self.earliest_pending_upload
        return self.log_start >= self.local_start if pending is None else pending < self.log_start


@dataclass(frozen=True, slots=True)
class FromLeader:
    """Continue to fetch from ``offset``, which the leader has locally."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Drop the local log and begin at ``offset``, the leader's first local offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromRemote:
    """Everything in ``[log_start, offset)`` is only in the remote tier. Build the auxiliary state for that range,
    and begin at ``offset``.
    """

    offset: int
    log_start: int


@dataclass(frozen=True, slots=True)
class RemoteNotReady:
    """The remote log does not yet show the offset to begin at; try again later."""

    reason: str


FetchOrigin = FromLeader | StartOver | FromRemote | RemoteNotReady


def fetch_error(leader: LeaderOffsets, fetch_offset: int) -> FetchError | None:
    """The leader's answer to a fetch from ``fetch_offset`` (KIP-1023, "High-Level Design", the current protocol):
    None if the leader has that offset (case 1), OFFSET_OUT_OF_RANGE (case 2.1), OFFSET_MOVED_TO_TIERED_STORAGE
    (case 2.2).
    """
    if leader.local_start <= fetch_offset <= leader.log_end:
        return None
    if leader.tiered and leader.log_start <= fetch_offset < leader.local_start:
        return FetchError.OFFSET_MOVED_TO_TIERED_STORAGE
    return FetchError.OFFSET_OUT_OF_RANGE


def fetch_origin(
    leader: LeaderOffsets, *, fetch_offset: int, follower_is_empty: bool, last_tiered: LastTiered
) -> FetchOrigin:
    """The offset at which a follower begins (KIP-1023, "High-Level Design" and "ReplicaFetcher Changes").

    ``fetch_offset`` is the follower's log end offset under the leader's lineage. The follower is empty if it has
    no record, including after it has started over.
    """
    pending = leader.earliest_pending_upload
    if fetch_error(leader, fetch_offset) is None:
        always = follower_is_empty and leader.tiered and last_tiered is LastTiered.ALWAYS
        if always and leader.pending_is_local and not leader.nothing_is_tiered:
            assert pending is not None
            if pending > fetch_offset:
                return FromRemote(pending, leader.log_start)
        return FromLeader(fetch_offset)
    if not leader.tiered or fetch_offset > leader.log_end or leader.nothing_is_tiered:
        return StartOver(leader.local_start)
    bootstraps = follower_is_empty and last_tiered is not LastTiered.NEVER
    if not bootstraps and leader.log_start >= leader.local_start:
        return StartOver(leader.local_start)
    if pending is None:
        return RemoteNotReady(
            f"the log starts at offset {leader.log_start}, but the leader's local log starts at "
            f"{leader.local_start}, and no upload is known; run tier, which names the missing offsets"
        )
    if not leader.pending_is_local:
        remedy = (
            "run heal, which uploads the records that a replica still has; if no replica has them, "
            f"run delete_records before offset {leader.local_start}. Afterwards, run tier"
            if pending < leader.local_start
            else "verify the topic"
        )
        return RemoteNotReady(
            f"the remote log ends at offset {pending}, outside the leader's local log "
            f"[{leader.local_start}, {leader.log_end}]; {remedy}"
        )
    return FromRemote(pending if bootstraps else leader.local_start, leader.log_start)


@dataclass(frozen=True, slots=True)
class AuxiliaryState:
    """The state of the log below ``offset`` that a replica needs to continue from there."""

    offset: int
    lineage: Lineage
    """The leader epochs of the records below ``offset``."""
    producers: dict[str, ProducerEntry]

    def check_history(self, lineage: Lineage, what: str) -> None:
        """Check that the remote log belongs to the leader's history, because a follower may leave only its
        leader's records to the remote tier. ``lineage`` is the leader's lineage; ``what`` names the partition.

        Raises: CorruptionError if the remote log belongs to another history (after an unclean election, or after a
        late commit of a leader that lost an unclean election).
        """
        wrote = Lineage(entry for entry in lineage if entry.start_offset < self.offset)
        if wrote != self.lineage:
            raise CorruptionError(
                f"{what}: the remote log up to offset {self.offset} was written by the leader epochs "
                f"{self.lineage.to_json().decode()} (epoch, first offset), the leader's log by "
                f"{wrote.to_json().decode()}: the histories differ; verify the topic before any replica starts "
                "from the remote tier"
            )


def auxiliary_state(remote: Store, folder: str, segment: RemoteSegment) -> AuxiliaryState:
    """Read the state at the end of a remote segment from its footer (KIP-1023, "Follower Fetch Scenarios": "fetch
    remote segment info and build local leader epoch sequence"). ``folder`` is the topic's folder in the remote
    store. No transaction is open at the end of the segment, because the remote tier stops at the last stable
    offset.

    Raises: RemoteObjectMissingError; CorruptSegmentError; CorruptionError if the file's partition or end differs
        from the table.
    """
    footer = read_remote(remote, folder, segment).footer
    if footer.producers_since is not None:
        raise CorruptSegmentError(
            f"{segment.path} lacks the state of some producers: a remote segment must have the state of all"
        )
    lineage = Lineage(entry for entry in footer.lineage if entry[1] < segment.next_offset)
    return AuxiliaryState(segment.next_offset, lineage, without_transactions(applied({}, footer.producers)))

"""The remote end of a partition: its leader's log never ends below it, for both are one log.

Only committed records are tiered, so a leader that holds less than its remote log has lost them, with every
member of the ISR that holds no more: their storage was put back from an older copy, or emptied. A
take-over looks at the remote log before it writes down where the epoch begins; a driver looks before its first
append under a view. So no offset that the remote log holds is given to another record.

Where the leader's log is the beginning of the remote log, an election lets it go on from the end of it
(``Election.remote_epoch``): the new leader's register of its local start stands there, and its lineage is
that of the remote log (KIP-1023, "Follower Fetch Scenarios", for a leader). Where the two hold other records
at the same offsets, a person says which of them counts.

A remote tier that does not answer keeps nobody from appending: then it is not known whether the log ends too
early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from stratalog.engine.metadata.image import PartitionView
from stratalog.partitions.errors import CorruptionError, RetriableError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.paths import LocalStartName
from stratalog.partitions.producers import encode
from stratalog.partitions.replica import Replica
from stratalog.partitions.store import Store
from stratalog.tiering.bootstrap import auxiliary_state
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment


class LogBehindRemoteError(CorruptionError):
    """The leader's log ends before its remote log, of which it is the beginning: ``replicate`` lets it go on from
    the end of the remote log."""

    code = "LOG_BEHIND_REMOTE"

    remote_end: int = 0
    wrote: Lineage | None = None
    """The leader epochs of the remote log."""


class DivergentRemoteError(CorruptionError):
    """The leader's log and its remote log hold other records at the same offsets: ``recover`` shows both, and
    keeps one of them."""

    code = "DIVERGENT_REMOTE_LOG"


@dataclass(frozen=True, slots=True)
class RemoteTail:
    """The remote log of a partition, as far as a replica needs to know it: its last segment, if any."""

    store: Store
    folder: str
    last: RemoteSegment | None

    @property
    def end(self) -> int | None:
        """The earliest pending upload offset, as far as the remote knows it."""
        return None if self.last is None else self.last.next_offset


@dataclass(frozen=True, slots=True)
class RemotePart:
    """The remote log of one partition of a tiered topic."""

    store: Store
    folder: str
    partition: int
    read: Callable[[], RemoteLog]
    """Reads the remote log of the topic."""
    known: RemoteTail | None = None
    """As somebody has read it for this purpose; None: nobody has."""
    unknown: bool = False
    """The remote tier was asked, and did not answer."""

    def asked(self) -> RemotePart:
        """The same with its tail, or ``unknown``.

        Raises: as ``DeltaTopicReader.load``, but for what may pass.
        """
        if self.known is not None or self.unknown:
            return self
        try:
            return self.with_log(self.read())
        except RetriableError:
            return replace(self, unknown=True)

    def with_log(self, log: RemoteLog) -> RemotePart:
        """The same, with its tail in a remote log that was read before the leader is listed."""
        segments = log.of_partition(self.partition)
        return replace(self, known=RemoteTail(self.store, self.folder, segments[-1] if segments else None))


def check_reaches_remote(view: PartitionView, leader: Replica, log: ReplicaLog, tail: RemoteTail) -> None:
    """The leader's ``log`` holds, or is behind, all that the remote log holds; it was listed after ``tail``
    was read.

    Segments of a history that an unclean election has given up are no measure: ``tier`` lets them go.

    Raises: LogBehindRemoteError, DivergentRemoteError; as ``auxiliary_state``.
    """
    last = tail.last
    if last is None or last.next_offset <= view.log_start_offset:
        return
    if last.is_of(log.lineage) and last.next_offset <= log.log_end:
        return
    if _given_up(view, log, last):
        return
    wrote = auxiliary_state(tail.store, tail.folder, last).lineage
    same = same_until(wrote, last.next_offset, log, view.log_start_offset)
    if same < log.high_watermark:
        raise DivergentRemoteError(
            f"{view}: its leader, broker {leader.broker_id}, and its remote log hold other records from offset "
            f"{same} on: the leader's log ends at {log.log_end}, with leader epochs {_said(log.lineage)} (epoch, "
            f"first offset), the remote log at {last.next_offset}, with {_said(wrote)}. Nothing is appended; "
            "recover --keep remote --dry-run shows both; without --dry-run it keeps the remote log, with --keep "
            "brokers the other one"
        )
    behind = LogBehindRemoteError(
        f"{view}: the log of its leader, broker {leader.broker_id}, ends at offset {log.log_end}, its remote log "
        f"at {last.next_offset}: an older copy of the broker's storage was put back, or its folders are gone. "
        "Nothing is appended. Run replicate, or maintain: then the leader goes on from the end of the remote log",
        broker_id=leader.broker_id,
    )
    behind.remote_end, behind.wrote = last.next_offset, wrote
    raise behind


def same_until(wrote: Lineage, remote_end: int, log: ReplicaLog, log_start: int) -> int:
    """Up to which offset a log is the same as a remote one that these leader epochs wrote."""
    end = min(log.log_end, remote_end)
    known = [lineage.entries[0].start_offset for lineage in (wrote, log.lineage) if lineage.entries]
    parted = wrote.parts_from(log.lineage, max([log_start, *known]), end)
    return end if parted is None else parted


def begin_at_remote_end(leader: Replica, log: ReplicaLog, epoch: int, tail: RemoteTail) -> Lineage:
    """Let the leader's log begin where the remote log ends; its lineage then, with ``epoch``. Harmless when
    repeated.

    Raises: as ``auxiliary_state``.
    """
    assert tail.last is not None
    state = auxiliary_state(tail.store, tail.folder, tail.last)
    if log.local_start < state.offset:
        leader.store.create(leader.path(LocalStartName(state.offset)), encode(state.producers))
    return state.lineage.continued_by(epoch, state.offset)


def _given_up(view: PartitionView, log: ReplicaLog, last: RemoteSegment) -> bool:
    """Whether a segment is of a history that an unclean election, or one that went on from the remote log, has
    ended. (The leader that begins the view's epoch has looked at the remote log already. Commits since then are
    of the leader before it.)
    """
    ended = max(view.unclean_epoch, view.remote_epoch)
    if last.epoch >= ended:
        return False
    cut = next((entry.epoch for entry in log.lineage if entry.epoch > last.epoch), None)
    begins = log.joined_epoch < view.leader_epoch == ended
    return begins or (cut is not None and cut <= ended)


def _said(lineage: Lineage) -> str:
    return str([list(entry) for entry in lineage])

"""The remote end of a partition. The leader's log never ends below the remote end, because the two logs are one.

Only committed records are tiered. So a leader that has less than its remote log has lost records: its storage was
emptied or restored from an older copy. The same is true of each ISR member that has less than the remote log. A
take-over reads the remote log before it records the start of the leader epoch. A driver reads the remote log
before its first append under a view. So no offset of the remote log is assigned to another record.

If the leader's log is a prefix of the remote log, an election lets the log continue from the remote end
(``Election.remote_epoch``): the new leader's local start is there, and its lineage is the remote log's (KIP-1023,
"Follower Fetch Scenarios", for a leader). If the two logs have different records at the same offsets, an operator
decides which log to keep.

If the remote tier does not answer, appends continue, although it is unknown whether the log ends too early.
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


class LogBehindRemoteError(CorruptionError, code="LOG_BEHIND_REMOTE"):
    """The leader's log is a prefix of its remote log: ``replicate`` lets the leader's log continue from the remote
    end."""

    remote_end: int = 0
    wrote: Lineage | None = None
    """The leader epochs of the remote log."""


class DivergentRemoteError(CorruptionError, code="DIVERGENT_REMOTE_LOG"):
    """The leader's log and its remote log have different records at the same offsets: ``recover`` shows both, and
    keeps one of them.
    """


@dataclass(frozen=True, slots=True)
class RemoteTail:
    """The last segment of a partition's remote log, if any."""

    store: Store
    folder: str
    last: RemoteSegment | None

    @property
    def end(self) -> int | None:
        """The earliest pending upload offset that the remote log shows."""
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
    """The remote log if it has been read for this check, else None."""
    unknown: bool = False
    """Whether the remote log is unknown because the remote tier did not answer."""

    def asked(self) -> RemotePart:
        """Read the remote log: the remote part with its tail, or with ``unknown`` set after an error that may be
        temporary.

        Raises: see ``DeltaTopicReader.load``.
        """
        if self.known is not None or self.unknown:
            return self
        try:
            return self.with_log(self.read())
        except RetriableError:
            return replace(self, unknown=True)

    def with_log(self, log: RemoteLog) -> RemotePart:
        """The remote part with its tail from a remote log that was read before the leader is listed."""
        segments = log.of_partition(self.partition)
        return replace(self, known=RemoteTail(self.store, self.folder, segments[-1] if segments else None))


def check_reaches_remote(view: PartitionView, leader: Replica, log: ReplicaLog, tail: RemoteTail) -> None:
    """Check that the leader's ``log``, listed after ``tail`` was read, extends to the end of the remote log.

    Segments of a history that an unclean election abandoned are ignored; ``tier`` removes them.

    Raises: LogBehindRemoteError, DivergentRemoteError; see ``auxiliary_state``.
    """
    last = tail.last
    if last is None or last.next_offset <= view.log_start_offset:
        return
    if last.is_of(log.lineage) and last.next_offset <= log.log_end:
        return
    if _is_abandoned(view, log, last):
        return
    wrote = auxiliary_state(tail.store, tail.folder, last).lineage
    same = same_until(wrote, last.next_offset, log, view.log_start_offset)
    if same < log.high_watermark:
        raise DivergentRemoteError(
            f"{view}: its leader, broker {leader.broker_id}, and its remote log have different records from "
            f"offset {same} on: the leader's log ends at {log.log_end}, with leader epochs "
            f"{_epochs(log.lineage)} (epoch, first offset), and the remote log ends at {last.next_offset}, with "
            f"{_epochs(wrote)}. Nothing is appended; recover --keep remote --dry-run shows both logs. Then run "
            "recover with --keep remote to keep the remote log, or with --keep brokers to keep the leader's log"
        )
    behind = LogBehindRemoteError(
        f"{view}: the log of its leader, broker {leader.broker_id}, ends at offset {log.log_end}, but its "
        f"remote log ends at {last.next_offset}: the broker's storage was restored from an older copy, or its "
        "folders are gone. Nothing is appended. Run replicate or maintain, so that the leader continues from "
        "the end of the remote log",
        broker_id=leader.broker_id,
    )
    behind.remote_end, behind.wrote = last.next_offset, wrote
    raise behind


def same_until(wrote: Lineage, remote_end: int, log: ReplicaLog, log_start: int) -> int:
    """The offset (exclusive) up to which a log has the same records as a remote log with these leader epochs."""
    end = min(log.log_end, remote_end)
    known = [lineage.entries[0].start_offset for lineage in (wrote, log.lineage) if lineage.entries]
    parted = wrote.parts_from(log.lineage, max([log_start, *known]), end)
    return end if parted is None else parted


def begin_at_remote_end(leader: Replica, log: ReplicaLog, epoch: int, tail: RemoteTail) -> Lineage:
    """Make the leader's log begin at the end of the remote log. Returns the lineage of the remote log, with
    ``epoch`` added. Idempotent.

    Raises: see ``auxiliary_state``.
    """
    assert tail.last is not None
    state = auxiliary_state(tail.store, tail.folder, tail.last)
    if log.local_start < state.offset:
        leader.store.create(leader.path(LocalStartName(state.offset)), encode(state.producers))
    return state.lineage.continued_by(epoch, state.offset)


def _is_abandoned(view: PartitionView, log: ReplicaLog, last: RemoteSegment) -> bool:
    """Whether a segment belongs to a history that ended with an unclean election, or with an election from the
    remote end. A leader reads the remote log before it begins its epoch, so segments that were committed later
    come from an earlier leader.
    """
    ended = max(view.unclean_epoch, view.remote_epoch)
    if last.epoch >= ended:
        return False
    cut = next((entry.epoch for entry in log.lineage if entry.epoch > last.epoch), None)
    begins = log.joined_epoch < view.leader_epoch == ended
    return begins or (cut is not None and cut <= ended)


def _epochs(lineage: Lineage) -> str:
    return str([list(entry) for entry in lineage])

"""Acknowledges appends: waits for the ISR, makes one linearizable read for all partitions, then advances the high
watermark.

Runs on the driver after the tasks have done steps 1 to 5 of the protocol's Append (section 2). Repeats step 5 if a
replica is still behind, then does steps 6 and 7. The driver waits up to ``replica.lag.time.max.ms`` for a member
of the ISR that does not get the append. After this time, the member leaves the ISR, and the append is acknowledged
without it. A member whose root refuses writes leaves the ISR immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.chosen import cluster_config_of
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_commands import Altered, AlterPartition, IsrProposal
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.damaged import ahead_of_metadata
from stratalog.engine.replicas.foreign_files import note_foreign
from stratalog.engine.replicas.in_sync import is_current, lags, without
from stratalog.engine.replication.append import Appended, replicate
from stratalog.engine.replication.watermark import advance_high_watermark
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.partitions.runner import Failed
from stratalog.partitions.unwritable import UnwritableStorageError

_ROUNDS = 200
"""The number of times that the ISRs may change during an acknowledgement. Waits for a member are not counted:
they have their own limit.
"""
_BACKOFF = Backoff(first_s=0.1, longest_s=5.0, least=1.0)
_JUST_OVER_S = 0.001
"""The time added to a wait, because at the exact end of a wait, no member is out of sync yet."""


@dataclass(slots=True)
class PendingAppend:
    """A partition whose append is not acknowledged yet. If this has neither ``appended`` nor ``error``, the append
    was not tried.
    """

    view: PartitionView
    appended: Appended | None = None
    missed: Mapping[int, StratalogError] = field(default_factory=dict)
    """Members of the view's maximal ISR that do not have the append, with the error of each."""
    error: StratalogError | None = None
    tried: bool = False
    """Whether some records of the append may be in the log, now or later."""
    ours: bool = False
    """Whether this call may have written these records."""


def acknowledge(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    states: dict[int, PendingAppend],
    min_insync_replicas: int,
    notes: list[str],
) -> list[int]:
    """Acknowledge the appends of these partitions, or end them with an error. Returns the partitions to append to
    again: their leader has changed or refuses to write the high watermark, or their topic is deleted. Adds a note
    about members that had to leave an ISR.
    """
    again: list[int] = []
    patience = _Patience(metadata, clock)
    rounds = 0
    while states and rounds < _ROUNDS:
        image = metadata.image()
        if not patience.had_to_wait and any(state.missed for state in states.values()):
            probed = probe_brokers(metadata, storage)  # fence a lost broker now instead of waiting for it
            image = probed.image
            notes += [note for note in probed.notes if note not in notes]
        moved = {p: s for p, s in states.items() if not _same_log(image, s.view)}
        for partition, state in moved.items():
            del states[partition]
            state.error = _moved(image, state.view)
        again += moved
        done_with = {p: s for p, s in states.items() if not s.missed and is_current(image, s.view)}
        _record(storage, done_with, min_insync_replicas)
        for partition, state in done_with.items():
            del states[partition]
            again += [partition] if isinstance(state.error, UnwritableStorageError) else []
        changed = [p for p, s in states.items() if not is_current(image, s.view)]
        for state in states.values():
            if any(isinstance(error, FencedLeaderEpochError) for error in state.missed.values()):
                for error in state.missed.values():
                    note_foreign(metadata, storage, error)
                state.missed = {**state.missed, **_ahead(metadata, storage, state)}
        waited = False
        if not changed and states:
            waited = not _shrink(metadata, states, patience.over, notes) and patience.wait(states.values())
            image = metadata.image()
        rounds += not waited
        again += _sync_again(storage, image, states)
    notes += patience.notes
    for state in states.values():
        state.error = RetriableError("the ISR kept changing; run the append again with the same sequence")
    return again


def _moved(image: ClusterImage, view: PartitionView) -> StratalogError:
    if view.topic_id not in image.topics:
        return deleted(view)
    ruled = image.generation_of(view.key) != view.generation
    what = "records were removed from the log by a new rule" if ruled else "the leader changed"
    return StaleMetadataError(f"{what} before the append was acknowledged")


def deleted(view: PartitionView) -> UnknownTopicOrPartitionError:
    """The error of an append whose topic has been deleted. It replaces any error about the topic's folders,
    because they may be half deleted.
    """
    return UnknownTopicOrPartitionError(f"topic {view.topic!r} was deleted before the append was acknowledged")


def _ahead(metadata: MetadataClient, storage: Storage, state: PendingAppend) -> dict[int, StratalogError]:
    """The reason not to wait for members that have a register of an uncommitted epoch."""
    ahead = ahead_of_metadata(metadata, storage, state.view)
    return {broker: error for broker, error in ahead.items() if broker in state.missed}


class _Patience:
    """Waits for followers, with growing pauses, up to ``replica.lag.time.max.ms``."""

    def __init__(self, metadata: MetadataClient, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._waits = 0
        self._since_s: float | None = None
        self._lag_ms = 0
        self._missed: set[int] = set()
        self._spent_s = 0.0

    @property
    def had_to_wait(self) -> bool:
        return self._since_s is not None

    @property
    def over(self) -> bool:
        return self._since_s is not None and lags(self._waited_ms, self._lag_ms)

    @property
    def _waited_ms(self) -> float:
        assert self._since_s is not None
        return (self._clock.monotonic_s() - self._since_s) * 1000

    @property
    def notes(self) -> list[str]:
        """A note for the report: the brokers that the append waited for, and how long."""
        if not self._missed:
            return []
        who = ", ".join(f"broker {broker}" for broker in sorted(self._missed))
        return [f"the append waited {self._spent_s:.1f} s for {who}"]

    def wait(self, states: Iterable[PendingAppend]) -> bool:
        """Wait for members that missed an append. Returns False after the time limit."""
        clock = self._clock
        if self._since_s is None:
            self._since_s = clock.monotonic_s()
            self._lag_ms = cluster_config_of(self._metadata.image()).replica_lag_time_max_ms
        if self.over:
            return False
        self._waits += 1
        self._missed |= {broker for state in states for broker in state.missed}
        clock.sleep(min(_BACKOFF.pause_s(self._waits), (self._lag_ms - self._waited_ms) / 1000 + _JUST_OVER_S))
        self._spent_s = self._waited_ms / 1000
        return True


def _same_log(image: ClusterImage, view: PartitionView) -> bool:
    """Whether the metadata still has the leader and the removal rules of the view, so that the log has the same
    files. A later rule may have replaced and deleted a file. If the append then took the name of the deleted file,
    its records are in the log only according to the old view.
    """
    topic = image.topics.get(view.topic_id)
    if topic is None:
        return False
    partition = topic.partitions[view.partition]
    return (partition.leader, partition.leader_epoch, image.generation_of(view.key)) == (
        view.leader,
        view.leader_epoch,
        view.generation,
    )


def _shrink(
    metadata: MetadataClient, states: Mapping[int, PendingAppend], all_due: bool, notes: list[str]
) -> bool:
    """Remove members from the ISRs: after ``replica.lag.time.max.ms``, or immediately if their storage is damaged
    or refuses writes, or if they are only being added. Returns whether any member left. If the metadata refuses a
    removal, the next read of the metadata shows it.
    """
    proposals: list[IsrProposal] = []
    leaving: list[list[str]] = []
    for state in states.values():
        out = {
            broker
            for broker, error in state.missed.items()
            if all_due or _is_certain(broker, error) or broker in state.view.adding
        }
        if out:
            proposals.append(without(state.view, out))
            what = f"{state.view.topic}-{state.view.partition}"
            leaving.append([f"{what}: broker {b} leaves the ISR: {state.missed[b]}" for b in sorted(out)])
    if not proposals:
        return False
    answers = metadata.submit(AlterPartition(tuple(proposals)))
    left = [of_one for of_one, answer in zip(leaving, answers, strict=True) if isinstance(answer, Altered)]
    notes += chain.from_iterable(left)
    return bool(left)


def _is_certain(broker: int, error: StratalogError) -> bool:
    """Whether it is pointless to wait for a follower, because its storage has already refused the append."""
    if isinstance(error, UnwritableStorageError):
        return error.broker_id in (None, broker)
    return isinstance(error, CorruptionError)


def _sync_again(storage: Storage, image: ClusterImage, states: dict[int, PendingAppend]) -> list[int]:
    """Repeat step 5 for the current members of the ISR. A partition with a new leader waits for the next read of
    the metadata. Returns the partitions whose leader is damaged or cannot be listed.
    """

    def sync_all(partition: int) -> None:
        state = states[partition]
        if _same_log(image, state.view):
            state.view = image.view(state.view.topic_id, partition)
            state.missed = replicate(storage.replicas(state.view), storage.copies)

    _note_failures(storage, states, sync_all)
    failed = [p for p, s in states.items() if s.error is not None]
    for partition in failed:
        del states[partition]
    return failed


def _record(storage: Storage, states: dict[int, PendingAppend], min_insync_replicas: int) -> None:
    """Step 7: record the high watermark, which acknowledges the append. The leader comes first."""

    def write(partition: int) -> None:
        state = states[partition]
        if not state.view.has_min_isr(min_insync_replicas):
            raise NotEnoughReplicasAfterAppendError(
                f"only {len(state.view.isr)} replicas are in sync, but min.insync.replicas is "
                f"{min_insync_replicas}: the records are in the log, but not acknowledged"
            )
        assert state.appended is not None
        advance_high_watermark(storage.replicas(state.view), state.appended.next_offset, storage.copies)

    _note_failures(storage, states, write)


def _note_failures(storage: Storage, states: Mapping[int, PendingAppend], function: Callable[[int], None]) -> None:
    for outcome in storage.threads.run(function, list(states)):
        if isinstance(outcome, Failed):
            states[outcome.item].error = outcome.error

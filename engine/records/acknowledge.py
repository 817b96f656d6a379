"""Acknowledging appends: the ISR, one linearizable read for all partitions, then the high watermark.

Steps 5 to 7 of the protocol's Append (section 2), on the driver, after tasks have done steps 1 to 5. A member
of the ISR that cannot be brought to the append is waited for as long as ``replica.lag.time.max.ms``; then it
leaves the ISR, and the append is acknowledged without it. One whose root answers that it takes no writes leaves at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stratalog.engine.brokers.probe import probe_brokers
from stratalog.engine.driver.context import Context
from stratalog.engine.metadata.image import ClusterImage, PartitionView
from stratalog.engine.metadata.partition_commands import Altered, AlterPartition, IsrProposal
from stratalog.engine.replicas.damaged import ahead_of_metadata
from stratalog.engine.replicas.in_sync import is_current, lags, without
from stratalog.engine.replication.append import Appended, replicate
from stratalog.engine.replication.watermark import advance_high_watermark
from stratalog.partitions.backoff import Backoff
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    NotEnoughReplicasAfterAppendError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.unwritable import UnwritableStorageError

_ROUNDS = 200
"""How often the ISRs may change meanwhile. Waiting for a member counts for nothing: its patience ends."""
_BACKOFF = Backoff(first_s=0.1, longest_s=5.0, least=1.0)
_JUST_OVER_S = 0.001
"""Past the end of a wait: at the end itself nobody is out of sync yet."""


@dataclass(slots=True)
class PendingAppend:
    """A partition whose append is not acknowledged yet. Without ``appended`` and ``error`` it was not tried."""

    view: PartitionView
    appended: Appended | None = None
    missed: Mapping[int, StratalogError] = field(default_factory=dict)
    """Members of the view's maximal ISR that lack it."""
    error: StratalogError | None = None
    tried: bool = False
    """Something of it may be in the log, now or later."""
    ours: bool = False
    """It may be this very call that has put it there."""


def acknowledge(
    context: Context, states: dict[int, PendingAppend], min_insync_replicas: int, notes: list[str]
) -> list[int]:
    """Bring the partitions to an end: acknowledged, or with an error. Returns those that have to be appended
    again, under another leader, also where the present one takes no high watermark. Members that had to leave an
    ISR are noted.
    """
    again: list[int] = []
    patience = _Patience(context)
    rounds = 0
    while states and rounds < _ROUNDS:
        image = context.metadata.image()
        if not patience.had_to_wait and any(state.missed for state in states.values()):
            probed = probe_brokers(context)  # one that is gone for good is fenced now, not waited for
            image = probed.image
            notes += [note for note in probed.notes if note not in notes]
        moved = [p for p, s in states.items() if not _same_leader(image, s.view)]
        for partition in moved:
            states.pop(partition).error = StaleMetadataError(
                "the leader changed before the append was acknowledged"
            )
        again += moved
        done_with = {p: s for p, s in states.items() if not s.missed and is_current(image, s.view)}
        _record(context, done_with, min_insync_replicas)
        for partition, state in done_with.items():
            del states[partition]
            again += [partition] if isinstance(state.error, UnwritableStorageError) else []
        changed = [p for p, s in states.items() if not is_current(image, s.view)]
        for state in states.values():
            if any(isinstance(error, FencedLeaderEpochError) for error in state.missed.values()):
                state.missed = {**state.missed, **_ahead(context, state)}
        waited = False
        if not changed and states:
            waited = not _shrink(context, states, patience.over, notes) and patience.wait(states.values())
            image = context.metadata.image()
        rounds += not waited
        again += _sync_again(context, image, states)
    notes += patience.notes
    for state in states.values():
        state.error = RetriableError("the ISR kept changing; run the append again with the same sequence")
    return again


def _ahead(context: Context, state: PendingAppend) -> dict[int, StratalogError]:
    """Why those that have missed it by the register of an epoch that nobody committed are not waited for."""
    ahead = ahead_of_metadata(context, state.view)
    return {broker: error for broker, error in ahead.items() if broker in state.missed}


class _Patience:
    """Waits for followers, longer each time, until ``replica.lag.time.max.ms`` is over."""

    def __init__(self, context: Context) -> None:
        self._context = context
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
        return (self._context.clock.monotonic_s() - self._since_s) * 1000

    @property
    def notes(self) -> list[str]:
        """For the report: the brokers that were waited for, and how long."""
        if not self._missed:
            return []
        who = ", ".join(f"broker {broker}" for broker in sorted(self._missed))
        return [f"the append waited {self._spent_s:.1f} s for {who}"]

    def wait(self, states: Iterable[PendingAppend]) -> bool:
        """Wait a while for those that some have missed; False when it is over already."""
        clock = self._context.clock
        if self._since_s is None:
            self._since_s = clock.monotonic_s()
            self._lag_ms = self._context.cluster_config(self._context.metadata.image()).replica_lag_time_max_ms
        if self.over:
            return False
        self._waits += 1
        self._missed |= {broker for state in states for broker in state.missed}
        clock.sleep(min(_BACKOFF.pause_s(self._waits), (self._lag_ms - self._waited_ms) / 1000 + _JUST_OVER_S))
        self._spent_s = self._waited_ms / 1000
        return True


def _same_leader(image: ClusterImage, view: PartitionView) -> bool:
    topic = image.topics.get(view.topic_id)
    if topic is None:
        return False
    partition = topic.partitions[view.partition]
    return (partition.leader, partition.leader_epoch) == (view.leader, view.leader_epoch)


def _shrink(context: Context, states: Mapping[int, PendingAppend], all_due: bool, notes: list[str]) -> bool:
    """Take those out of the ISRs that are not waited for any longer: after ``replica.lag.time.max.ms``, at
    once where their storage is damaged or takes no writes, or where they are only being added. Whether any left; a
    refusal shows in the next look at the metadata.
    """
    proposals: list[IsrProposal] = []
    for state in states.values():
        out = {
            broker
            for broker, error in state.missed.items()
            if all_due or _is_certain(broker, error) or broker in state.view.adding
        }
        if out:
            proposals.append(without(state.view, out))
            what = f"{state.view.topic}-{state.view.partition}"
            notes += [f"{what}: broker {broker} leaves the ISR: {state.missed[broker]}" for broker in sorted(out)]
    if not proposals:
        return False
    answers = context.metadata.submit(AlterPartition(tuple(proposals)))
    return any(isinstance(answer, Altered) for answer in answers)


def _is_certain(broker: int, error: StratalogError) -> bool:
    """Whether waiting for a follower helps nobody: its storage has answered, and will not take the append."""
    if isinstance(error, UnwritableStorageError):
        return error.broker_id in (None, broker)
    return isinstance(error, CorruptionError)


def _sync_again(context: Context, image: ClusterImage, states: dict[int, PendingAppend]) -> list[int]:
    """Step 5 again, for the members of the ISR as it is now. A partition with a new leader is left for the next
    look. Returns those whose leader cannot be listed, or is damaged.
    """

    def sync_all(partition: int) -> None:
        state = states[partition]
        if _same_leader(image, state.view):
            state.view = image.view(state.view.topic_id, partition)
            state.missed = replicate(context.replicas(state.view), context.copies)

    _note_failures(context, states, sync_all)
    failed = [p for p, s in states.items() if s.error is not None]
    for partition in failed:
        del states[partition]
    return failed


def _record(context: Context, states: dict[int, PendingAppend], min_insync_replicas: int) -> None:
    """Step 7: the high watermark, on the leader first. Acknowledged."""

    def write(partition: int) -> None:
        state = states[partition]
        if not state.view.has_min_isr(min_insync_replicas):
            raise NotEnoughReplicasAfterAppendError(
                f"only {len(state.view.isr)} replicas are in sync, but min.insync.replicas is "
                f"{min_insync_replicas}: the records are in the log, but not acknowledged"
            )
        assert state.appended is not None
        advance_high_watermark(context.replicas(state.view), state.appended.next_offset)

    _note_failures(context, states, write)


def _note_failures(context: Context, states: Mapping[int, PendingAppend], function: Callable[[int], None]) -> None:
    for outcome in context.threads.run(function, list(states)):
        match outcome:
            case Failed(partition, error):
                states[partition].error = error
            case Done():
                pass

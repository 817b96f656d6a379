"""Acknowledging appends: one linearizable read for all partitions, then the high watermark.

Steps 6 and 7 of the protocol's Append (section 2), on the driver, after tasks have done steps 1 to 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView
from engine.operations.in_sync import is_current
from engine.operations.replicate import COPY_THREADS
from engine.replication.append import Appended, replicate
from engine.replication.watermark import advance_high_watermark
from partitions.errors import (
    NotEnoughReplicasAfterAppendError,
    RetriableError,
    StaleMetadataError,
    StratalogError,
)
from partitions.runner import Done, Failed, Outcome, ThreadRunner

_ROUNDS = 10
"""How often the ISR may change while an append waits for it."""


@dataclass(slots=True)
class PendingAppend:
    """A partition whose append is not acknowledged yet."""

    view: PartitionView
    appended: Appended | None = None
    error: StratalogError | None = None


def acknowledge(context: Context, states: dict[int, PendingAppend], min_insync_replicas: int) -> list[int]:
    """Bring the partitions to an end: acknowledged, or with an error. Returns those that have to be appended
    again, under another leader.
    """
    again: list[int] = []
    for _ in range(_ROUNDS):
        if not states:
            return again
        image = context.metadata.image()
        settled = {p: s for p, s in states.items() if is_current(image, s.view)}
        moved = [p for p, s in states.items() if not _same_leader(image, s.view)]
        _record(context, settled, min_insync_replicas)
        for partition in moved:
            states[partition].error = StaleMetadataError("the leader changed before the append was acknowledged")
        states = {p: s for p, s in states.items() if p not in settled and p not in moved}
        again += moved
        _sync_again(context, image, states)
    for state in states.values():
        state.error = RetriableError("the ISR kept changing; run it again with the same sequence")
    return again


def _same_leader(image: ClusterImage, view: PartitionView) -> bool:
    topic = image.topics.get(view.topic_id)
    if topic is None:
        return False
    partition = topic.partitions[view.partition]
    return (partition.leader, partition.leader_epoch) == (view.leader, view.leader_epoch)


def _sync_again(context: Context, image: ClusterImage, states: dict[int, PendingAppend]) -> None:
    """Step 6 with another view: step 5 again, for the members of the ISR as it is now."""

    def sync_all(partition: int) -> None:
        state = states[partition]
        state.view = image.view(state.view.topic_id, partition)
        replicate(context.site(state.view), ThreadRunner(COPY_THREADS))

    _note_failures(states, context.threads.run(sync_all, list(states)))
    for partition in [p for p, s in states.items() if s.error is not None]:
        del states[partition]


def _record(context: Context, states: dict[int, PendingAppend], min_insync_replicas: int) -> None:
    """Step 7: the high watermark, on the leader first. Acknowledged."""

    def write(partition: int) -> None:
        state = states[partition]
        if len(state.view.isr) < min_insync_replicas:
            raise NotEnoughReplicasAfterAppendError(
                f"{len(state.view.isr)} replicas are in sync by now, min.insync.replicas is "
                f"{min_insync_replicas}: the records are in the log, but not acknowledged"
            )
        assert state.appended is not None
        advance_high_watermark(context.site(state.view), state.appended.next_offset)

    _note_failures(states, context.threads.run(write, list(states)))


def _note_failures(states: dict[int, PendingAppend], outcomes: Iterator[Outcome[int, None]]) -> None:
    for outcome in outcomes:
        match outcome:
            case Failed(partition, error):
                states[partition].error = error
            case Done():
                pass

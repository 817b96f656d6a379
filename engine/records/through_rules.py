"""Acknowledges appends that tasks made elsewhere, so that the driver does not have their records.

Such an append cannot be repeated if a removal rule is committed during the acknowledgement. Instead, the driver
finds the append in the log by its sequence.
"""

from __future__ import annotations

from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.records.acknowledge import PendingAppend, acknowledge
from stratalog.engine.replication.append import Appended, replicate
from stratalog.engine.replication.log_end import look_at_end
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import RetriableError, StratalogError
from stratalog.partitions.producers import ProducerAppend, earlier_attempt

_ROUNDS = 10
"""The maximum number of rules that may be committed during one acknowledgement."""


def acknowledge_through_rules(
    metadata: MetadataClient,
    storage: Storage,
    clock: Clock,
    states: dict[int, PendingAppend],
    who: ProducerAppend,
    min_insync_replicas: int,
    notes: list[str],
) -> None:
    """Acknowledge the appends of these partitions, or end them with an error, as ``acknowledge`` does. An append
    that is still in the log after a new removal rule is acknowledged under the current view.
    """
    for _ in range(_ROUNDS):
        pending = {partition: state for partition, state in states.items() if state.error is None}
        if not pending:
            break
        again = acknowledge(metadata, storage, clock, pending, min_insync_replicas, notes)
        states = {partition: states[partition] for partition in again}
        for state in states.values():
            _look_up(metadata, storage, clock, state, who)
    for state in states.values():
        state.error = state.error or RetriableError(
            f"{_ROUNDS} removal rules were committed before the append was acknowledged; run the append again "
            "with the same sequence"
        )


def _look_up(
    metadata: MetadataClient, storage: Storage, clock: Clock, state: PendingAppend, who: ProducerAppend
) -> None:
    """Clear the error of an append that is in the log under the current view, if only a removal rule is new."""
    image, before = metadata.image(), state.view
    if before.topic_id not in image.topics or state.appended is None:
        return
    view = image.view(before.topic_id, before.partition)
    same_leader = (view.leader, view.leader_epoch) == (before.leader, before.leader_epoch)
    if not same_leader or view.generation == before.generation or who.base_offset is not None:
        return
    replicas = storage.replicas(view)
    try:
        end, _ = look_at_end(replicas, None, clock, storage.copies)
        earlier = earlier_attempt(end.state.producers, who, str(replicas))
        if earlier is None or earlier.base_offset is None:
            return
        missed = replicate(replicas, storage.copies)
    except StratalogError as error:
        state.error = error
        return
    state.appended = Appended(
        earlier.base_offset, earlier.next_offset, state.appended.duplicate, state.appended.bytes, missed
    )
    state.view, state.missed, state.error = view, missed, None

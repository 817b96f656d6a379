"""Advances the high watermark. It advances only by proof, and is recorded on every replica that has reached it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.partitions.errors import OutcomeUnknownError, RetriableError, StratalogError
from stratalog.partitions.listing import ReplicaLog, claimed_high_watermark_of
from stratalog.partitions.paths import WatermarkName
from stratalog.partitions.replica import Replica, writes_of
from stratalog.partitions.runner import Runner, side_by_side


def record_high_watermark(replica: Replica, epoch: int, offset: int) -> None:
    """Record on a replica that has joined ``epoch`` that the high watermark reached ``offset``.

    Call this only after two checks. First, under one view, the replicas of the ISR and the replicas being added
    have joined, and have the log up to ``offset``. Second, a linearizable read has found the view unchanged.
    """
    replica.store.create(replica.path(WatermarkName(offset, epoch)), b"")


def with_known_watermark(replicas: PartitionReplicas, log: ReplicaLog) -> ReplicaLog:
    """Return the leader's log with a high watermark. If the leader has none, because its registers are gone or
    nothing was ever acknowledged, the high watermark of the other members of the ISR is used."""
    if log.listing.watermarks or not log.chain:
        return log
    known = log.high_watermark
    for broker in sorted({*replicas.view.isr} - {replicas.view.leader}):
        with suppress(StratalogError):
            known = max(known, claimed_high_watermark_of(replicas.replica(broker).list(), log.lineage))
    return replace(log, high_watermark=min(known, log.log_end))


def advance_high_watermark(replicas: PartitionReplicas, offset: int, copies: Runner) -> None:
    """Record the high watermark on the leader, where readers and followers find it, then concurrently on the other
    brokers that the acknowledgement needed. An unreachable broker gets it at its next sync.

    Raises: errors from writing to the leader.
    """
    # The leader comes first, for safety: a higher watermark on a follower than on the leader would mean that the
    # leader has lost files.
    with writes_of(replicas.leader):
        record_high_watermark(replicas.leader, replicas.epoch, offset)

    def on(broker_id: int) -> None:
        with suppress(RetriableError, OutcomeUnknownError):
            record_high_watermark(replicas.replica(broker_id), replicas.epoch, offset)

    side_by_side(copies, *(partial(on, broker_id) for broker_id in replicas.acknowledging))

"""OffsetsForLeaderEpoch: where a leader epoch ends, for consumers (KIP-320; KIP-392, "Protocol Changes")."""

from __future__ import annotations

from stratalog.engine.driver.context import Context
from stratalog.engine.replicas.offsets_for_epoch import EpochEndOffset, end_for_consumers
from stratalog.engine.replication.leader import look_at_leader
from stratalog.partitions.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import UnknownOffset


def offset_for_leader_epoch(
    context: Context,
    topic: str,
    partition: int,
    leader_epoch: int,
    *,
    current_leader_epoch: int | None = None,
) -> EpochEndOffset | UnknownOffset:
    """The end of ``leader_epoch`` in the leader's log, at most the high watermark. ``current_leader_epoch`` is the
    one that the caller takes for the partition's.

    Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError; OffsetNotAvailableError while the recently
        elected leader does not yet know the high watermark; FencedLeaderEpochError, UnknownLeaderEpochError when
        ``current_leader_epoch`` is another one; InvalidCallError; errors of listing the leader.
    """
    leader_epoch = whole(leader_epoch, "leader epoch", 0)
    image = context.metadata.image()
    replicas = context.replicas(image.view(image.topic(topic).topic_id, partition))
    if current_leader_epoch is not None and current_leader_epoch != replicas.epoch:
        kind = FencedLeaderEpochError if current_leader_epoch < replicas.epoch else UnknownLeaderEpochError
        raise kind(f"{replicas}: the leader epoch is {replicas.epoch}, but the call says {current_leader_epoch}")
    return end_for_consumers(str(replicas), look_at_leader(replicas), replicas.epoch, leader_epoch)

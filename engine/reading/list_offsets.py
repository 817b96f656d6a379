"""ListOffsets: finds named positions of partitions, and positions by time, in both tiers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.look import PartitionState, look
from stratalog.engine.reading.positions import FirstAt, Place, Spec, spec_of
from stratalog.engine.replicas.nearest import SeenLeader
from stratalog.engine.replicas.offsets_for_epoch import EpochEndOffset, end_for_consumers
from stratalog.engine.replication.leader import look_at_leader
from stratalog.partitions.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from stratalog.partitions.isolation import Isolation, isolation_of
from stratalog.partitions.lookup import first_at_or_after, largest_timestamp
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import Answer, FoundOffset, OffsetSpec, UnknownOffset, named_offset


def list_offsets(
    metadata: MetadataClient,
    storage: Storage,
    memory: Memory,
    topic: str,
    spec: Spec | datetime | str,
    isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
) -> dict[int, Answer]:
    """ListOffsets: find in each partition a named position, or the first record at or after a time, for a reader
    of that isolation level.

    Raises: UnknownTopicOrPartitionError; InvalidCallError for an invalid position, a time without a zone, or an
        unknown level.
    """
    level, wanted = isolation_of(isolation), spec_of(spec, "spec =")
    _, states = look(metadata, storage, memory, topic, takes_remote=lambda seen: takes_remote(seen, wanted))
    return {state.leader.view.partition: position(state, wanted, level) for state in states}


def takes_remote(seen: SeenLeader, spec: Spec) -> bool:
    """Whether the position needs the remote log."""
    if isinstance(spec, FirstAt) or spec is OffsetSpec.MAX_TIMESTAMP:
        return seen.view.log_start_offset < seen.log.local_start
    return spec in (OffsetSpec.LAST_TIERED, OffsetSpec.EARLIEST_PENDING_UPLOAD)


def position(state: PartitionState, spec: Spec, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Answer:
    """The answer for one partition, with the leader epoch of the offset. For readers of committed records, LATEST
    is the last stable offset, and a lookup by time ends there (KIP-98, "ListOffsetRequest").

    Raises: OffsetNotAvailableError while a recently elected leader does not know the high watermark yet (KIP-207),
        for LATEST and for a time after all known records.
    """
    end = state.leader.latest(isolation) if spec is OffsetSpec.LATEST else state.leader.end(isolation)
    if isinstance(spec, FirstAt):
        found = first_at_or_after(state.readable.pieces, spec.timestamp_us)
    elif spec is OffsetSpec.MAX_TIMESTAMP:
        found = largest_timestamp(state.readable.pieces)
    else:
        found = named_offset(replace(state.positions, high_watermark=end), spec)
    if isinstance(found, FoundOffset) and found.timestamp_us is not None and found.offset >= end:
        found = UnknownOffset(f"offset {found.offset} is undecided: its transaction is still open")
    if isinstance(spec, FirstAt) and isinstance(found, UnknownOffset):
        state.leader.latest(isolation)  # a record that is not known to be committed may be late enough
    if isinstance(found, FoundOffset):
        return FoundOffset(found.offset, found.timestamp_us, state.leader.log.lineage.epoch_at(found.offset))
    return found


def offset_at(state: PartitionState, place: Place, isolation: Isolation) -> int | UnknownOffset:
    """The offset of a place in a partition for the reader. For a time after all records, this is the end of the
    reader's records.

    Raises: see ``position``.
    """
    if not isinstance(place, OffsetSpec | FirstAt):
        return place
    found = position(state, place, isolation)
    if isinstance(found, FoundOffset):
        return found.offset
    if isinstance(place, FirstAt):
        return state.leader.latest(isolation)
    return UnknownOffset(f"{state.leader}: {place.name} is not known: {found.reason}")


def offset_for_leader_epoch(
    metadata: MetadataClient,
    storage: Storage,
    topic: str,
    partition: int,
    leader_epoch: int,
    *,
    current_leader_epoch: int | None = None,
) -> EpochEndOffset | UnknownOffset:
    """The end of ``leader_epoch`` in the leader's log (OffsetsForLeaderEpoch, KIP-320; KIP-392, "Protocol
    Changes"); see ``Cluster.offset_for_leader_epoch``. Also raises errors from listing the leader.
    """
    leader_epoch = whole(leader_epoch, "leader epoch", 0)
    image = metadata.image()
    replicas = storage.replicas(image.view(image.topic(topic).topic_id, partition))
    if current_leader_epoch is not None and current_leader_epoch != replicas.epoch:
        kind = FencedLeaderEpochError if current_leader_epoch < replicas.epoch else UnknownLeaderEpochError
        raise kind(
            f"{replicas}: the leader epoch is {replicas.epoch}, but the call expects {current_leader_epoch}"
        )
    return end_for_consumers(str(replicas), look_at_leader(replicas), replicas.epoch, leader_epoch)

"""FetchSnapshot, request and response (KIP-630, "Fetching Snapshots"), and how a response is shared out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitions.errors import InvalidCallError, StratalogError
from snapshots.snapshot_id import SnapshotId

RESPONSE_MAX_BYTES = 10 * 1024 * 1024
"""``replica.fetch.response.max.bytes``, Kafka's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """Bytes of one snapshot, from ``position`` on."""

    topic_id: str
    partition: int
    current_leader_epoch: int | None
    """The leader epoch that the follower knows; None: it knows none."""
    snapshot_id: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotRequest:
    """Raises: InvalidCallError when ``max_bytes`` is not positive: no answer could ever get anywhere."""

    cluster_id: str | None
    """None: the follower does not know it yet."""
    replica_id: int
    """The broker id of the follower."""
    max_bytes: int
    """Of all the snapshots of a response together."""
    partitions: tuple[PartitionRequest, ...]

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise InvalidCallError(f"a fetch of snapshots asks for {self.max_bytes} bytes: ask for at least one")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of a snapshot."""

    snapshot_id: SnapshotId
    size_bytes: int
    """Of the whole snapshot."""
    position: int
    """Where ``data`` starts in it."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there are no bytes."""

    error: StratalogError
    leader: int | None = None
    """The broker that leads the partition, as far as the one who answers knows."""
    leader_epoch: int | None = None


PartitionAnswer = Chunk | Refused


def share(max_bytes: int, remaining: Sequence[int]) -> list[int]:
    """How many bytes each of several snapshots gets of a response, by what remains of each.

    Each gets at least the average, if it has as much; what one leaves of its share goes to the others. All of
    ``max_bytes`` is used if there is enough to send.
    """
    shares = [0] * len(remaining)
    ascending = sorted(range(len(remaining)), key=lambda index: remaining[index])
    for served, index in enumerate(ascending):
        shares[index] = min(remaining[index], max_bytes // (len(remaining) - served))
        max_bytes -= shares[index]
    return shares

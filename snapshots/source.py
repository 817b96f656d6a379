"""The leader's side of FetchSnapshot (KIP-630, "Fetching Snapshots", "Request Handling").

A folder answers nothing by itself: a source is the code that any driver runs over the leader's folder. It checks
what a broker would check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partitions.errors import (
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    NotLeaderOrFollowerError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    SourceChangedError,
    StratalogError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from partitions.paths import join
from partitions.store.protocol import Store, StoredObject
from snapshots.messages import (
    RESPONSE_MAX_BYTES,
    Chunk,
    FetchSnapshotRequest,
    PartitionAnswer,
    PartitionRequest,
    Refused,
    share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPartition:
    """A partition as the replica that answers knows it."""

    store: Store
    folder: str
    broker_id: int
    """Whose folder that is."""
    leader: int | None
    leader_epoch: int


class SnapshotSource:
    """Answers requests out of the folders of one broker.

    ``hosted(topic_id, partition)`` is asked for every request anew; None: no such partition there.
    """

    def __init__(
        self,
        hosted: Callable[[str, int], HostedPartition | None],
        *,
        cluster_id: str | None = None,
        response_max_bytes: int = RESPONSE_MAX_BYTES,
    ) -> None:
        """``cluster_id`` None: whose a partition is, its topic id says."""
        self._cluster_id = cluster_id
        self._hosted = hosted
        self._response_max_bytes = response_max_bytes

    def answer(self, request: FetchSnapshotRequest) -> list[PartitionAnswer]:
        """One answer for each partition of the request, in its order; one that fails keeps no other from its
        bytes.

        Raises: InconsistentClusterIdError when the request is of another cluster.
        """
        if None not in (request.cluster_id, self._cluster_id) and request.cluster_id != self._cluster_id:
            raise InconsistentClusterIdError(
                f"broker {request.replica_id} fetches snapshots of cluster {request.cluster_id}, and this is "
                f"cluster {self._cluster_id}"
            )
        found = [self._find(partition) for partition in request.partitions]
        remaining = [0 if isinstance(one, Refused) else one.remaining_bytes for one in found]
        sending = [index for index, size in enumerate(remaining) if size > 0]
        max_bytes = min(request.max_bytes, self._response_max_bytes)
        shares = dict(zip(sending, share(max_bytes, [remaining[index] for index in sending]), strict=True))
        return [
            one if isinstance(one, Refused) else one.read(shares.get(index, 0)) for index, one in enumerate(found)
        ]

    def _find(self, request: PartitionRequest) -> _Found | Refused:
        what = f"partition {request.partition} of topic {request.topic_id}"
        hosted = self._hosted(request.topic_id, request.partition)
        if hosted is None:
            return Refused(UnknownTopicOrPartitionError(f"there is no {what} here"))
        try:
            _check_leader(request, hosted, what)
            name = join(hosted.folder, str(request.snapshot_id.name))
            try:
                stored = hosted.store.stat(name)
            except FileNotFoundError as error:
                raise _not_found(hosted.store.uri_of(name)) from error
            if not 0 <= request.position <= stored.size_bytes:
                raise PositionOutOfRangeError(
                    f"{hosted.store.uri_of(name)} has {stored.size_bytes} bytes, and is asked for from "
                    f"{request.position} on"
                )
        except StratalogError as error:
            return Refused(error, hosted.leader, hosted.leader_epoch)
        return _Found(request, hosted, stored)


@dataclass(frozen=True, slots=True)
class _Found:
    """A snapshot that is there."""

    request: PartitionRequest
    hosted: HostedPartition
    stored: StoredObject

    @property
    def remaining_bytes(self) -> int:
        return self.stored.size_bytes - self.request.position

    def read(self, size_bytes: int) -> PartitionAnswer:
        """Its next bytes."""
        store, position = self.hosted.store, self.request.position
        data = b""
        try:
            if size_bytes > 0:
                with store.open(self.stored) as source:
                    source.seek(position)
                    data = source.read(size_bytes)
        except SourceChangedError:
            error = _not_found(store.uri_of(self.stored.name))
            return Refused(error, self.hosted.leader, self.hosted.leader_epoch)
        except StratalogError as error:
            return Refused(error, self.hosted.leader, self.hosted.leader_epoch)
        return Chunk(self.request.snapshot_id, self.stored.size_bytes, position, data)


def _check_leader(request: PartitionRequest, hosted: HostedPartition, what: str) -> None:
    epoch = request.current_leader_epoch
    if epoch is not None and epoch < hosted.leader_epoch:
        raise FencedLeaderEpochError(f"{what} is in leader epoch {hosted.leader_epoch}, and not {epoch} any more")
    if epoch is not None and epoch > hosted.leader_epoch:
        raise UnknownLeaderEpochError(f"leader epoch {epoch} of {what} is not known here yet: try again")
    if hosted.leader != hosted.broker_id:
        raise NotLeaderOrFollowerError(f"broker {hosted.broker_id} does not lead {what}: ask {hosted.leader}")


def _not_found(what: str) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(f"{what} is not there, or no longer: fetch again, to hear of a later snapshot")

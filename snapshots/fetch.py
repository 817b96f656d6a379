"""The follower's side of FetchSnapshot (KIP-630, "Fetching Snapshots", "Changes to Leader Election").

The steps, in this order: hear of a snapshot by a fetch; get it chunk by chunk; verify the whole of it; give it its
name; drop the chunks. Whoever stops in between leaves chunks, which the next run goes on from or drops. What comes
then, the log that starts at the snapshot's end and the state that is loaded from it, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    NotLeaderOrFollowerError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
    SourceChangedError,
    StorageError,
    StratalogError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from partitions.store.protocol import Store, StoredObject
from snapshots.chunks import PartialSnapshot
from snapshots.messages import Chunk, FetchSnapshotRequest, PartitionAnswer, PartitionRequest, Refused
from snapshots.reader import read_snapshot
from snapshots.snapshot_id import SnapshotId

ATTEMPTS = 5
"""How often a follower asks for a snapshot anew before it gives up."""


class Rule(Enum):
    """What a follower does when it is refused."""

    REDISCOVER = "fetch again, and go on with the snapshot that the leader names then"
    START_OVER = "drop what was fetched, fetch again, and begin with the snapshot that the leader names then"
    GIVE_UP = "tell the caller, and keep what was fetched for the next run"


RULES: dict[type[StratalogError], Rule] = {
    SnapshotNotFoundError: Rule.REDISCOVER,
    NotLeaderOrFollowerError: Rule.REDISCOVER,
    PositionOutOfRangeError: Rule.START_OVER,
    FencedLeaderEpochError: Rule.GIVE_UP,
    UnknownLeaderEpochError: Rule.GIVE_UP,
    UnknownTopicOrPartitionError: Rule.GIVE_UP,
}
"""KIP-630, "Response Handling": the first three are discovered anew "by sending another Fetch request". The others
say that the view of one of the two is out of date: the caller reads the metadata again, or waits for the leader
to (KIP-320). Whatever is not here, storage that fails for example, is for the caller, too."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a fetch told a follower: the leader's log starts after its own ends, or parts ways below its start."""

    snapshot_id: SnapshotId
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The snapshot is frozen in the follower's folder: start the log at its end, and load it."""

    snapshot_id: SnapshotId
    size_bytes: int
    """Fetched by this run; 0 when it was there already."""


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """The leader's log has what the follower lacks."""


@dataclass(frozen=True, slots=True)
class NotFetched:
    """It was not to be had."""

    error: StratalogError


Outcome = Fetched | NotNeeded | NotFetched


class SnapshotFetch:
    """One partition of a follower on its way to its leader's snapshot.

    ``discover`` sends a fetch to whom it now takes for the leader, and hears of a snapshot; None: the log has what
    is needed.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        *,
        topic_id: str,
        partition: int,
        discover: Callable[[], Wanted | None],
        owner: str | None = None,
    ) -> None:
        """``owner`` as of ``read_snapshot``; ``topic_id`` unless given."""
        self._store = store
        self._folder = folder
        self._topic_id = topic_id
        self._partition = partition
        self._owner = topic_id if owner is None else owner
        self._discover = discover
        self._wanted: Wanted | None = None
        self._partial: PartialSnapshot | None = None
        self._damaged: StoredObject | None = None
        """What has the snapshot's name in the folder, and does not verify."""
        self._attempts_left = ATTEMPTS
        self._received_bytes = 0
        self.outcome: Outcome | None = None
        """None while there is more to do."""

    def next_request(self) -> PartitionRequest | None:
        """What to ask the leader for; None when ``outcome`` says how it ended."""
        try:
            if self.outcome is None and self._partial is None:
                self._begin()
        except StratalogError as error:
            self.outcome = NotFetched(error)
        if self.outcome is not None or self._wanted is None or self._partial is None:
            return None
        return PartitionRequest(
            topic_id=self._topic_id,
            partition=self._partition,
            current_leader_epoch=self._wanted.leader_epoch,
            snapshot_id=self._wanted.snapshot_id,
            position=self._partial.position,
        )

    def _begin(self) -> None:
        self._wanted = self._discover()
        if self._wanted is None:
            self.outcome = NotNeeded()
            return
        self._partial = PartialSnapshot(self._store, self._folder, self._wanted.snapshot_id)
        self._damaged = None
        if self._partial.frozen is None:
            return
        try:
            read_snapshot(
                self._store, self._folder, self._partial.frozen, owner=self._owner, partition=self._partition
            )
        except CorruptSegmentError:
            self._damaged = self._partial.frozen
        else:
            self._partial.drop()
            self.outcome = Fetched(self._wanted.snapshot_id, 0)

    def accept(self, answer: PartitionAnswer) -> None:
        """Take the answer to ``next_request``."""
        partial = self._partial
        if partial is None or self.outcome is not None:
            return
        try:
            match answer:
                case Refused(error):
                    self._refused(partial, error)
                case Chunk():
                    partial.add(answer)
                    self._received_bytes += len(answer.data)
                    if partial.position == answer.size_bytes:
                        self._complete(partial)
        except SourceChangedError as error:
            self._again(error)  # somebody else fetches, too, and was faster
        except StratalogError as error:
            self.outcome = NotFetched(error)

    def _refused(self, partial: PartialSnapshot, error: StratalogError) -> None:
        match RULES.get(type(error), Rule.GIVE_UP):
            case Rule.REDISCOVER:
                self._again(error)
            case Rule.START_OVER:
                partial.drop()
                self._again(error)
            case Rule.GIVE_UP:
                self.outcome = NotFetched(error)

    def _complete(self, partial: PartialSnapshot) -> None:
        try:
            partial.freeze(owner=self._owner, partition=self._partition, damaged=self._damaged)
        except CorruptSegmentError as error:
            # Chunks of two files of one name, from two leaders, or of a damaged one.
            partial.drop()
            self._again(error)
        except (CorruptionError, InconsistentClusterIdError):
            partial.drop()  # a later attempt would get the same bytes
            raise
        else:
            partial.drop()
            self.outcome = Fetched(partial.snapshot_id, self._received_bytes)

    def _again(self, error: StratalogError) -> None:
        """Discover anew, unless it has gone on like this for too long."""
        self._partial = None
        self._attempts_left -= 1
        if self._attempts_left == 0:
            self.outcome = NotFetched(error)


def fetch_snapshots(
    fetches: Sequence[SnapshotFetch],
    ask: Callable[[FetchSnapshotRequest], Sequence[PartitionAnswer]],
    *,
    cluster_id: str | None = None,
    replica_id: int,
    max_bytes: int,
) -> list[Outcome]:
    """Bring a follower's partitions to the snapshots of the leader behind ``ask``, all of them at once, in chunks
    that share ``max_bytes``. One that fails keeps no other from it.

    Raises: what ``ask`` raises: then chunks stay, for the next run; StorageError when it sends nothing any more.
    """
    while True:
        asked = [(fetch, one) for fetch in fetches if (one := fetch.next_request()) is not None]
        if not asked:
            break
        request = FetchSnapshotRequest(
            cluster_id=cluster_id,
            replica_id=replica_id,
            max_bytes=max_bytes,
            partitions=tuple(one for _, one in asked),
        )
        answers = ask(request)
        for (fetch, _), answer in zip(asked, answers, strict=True):
            fetch.accept(answer)
        if all(map(_says_nothing, answers)):
            raise StorageError(f"the leader sends no more bytes of the snapshots that broker {replica_id} fetches")
    return [fetch.outcome for fetch in fetches if fetch.outcome is not None]


def _says_nothing(answer: PartitionAnswer) -> bool:
    return isinstance(answer, Chunk) and not answer.data and answer.position < answer.size_bytes

"""Reads the current state of partitions, from their leaders and the remote tier, for planning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

from stratalog.engine.driver.memory import Memory
from stratalog.engine.driver.storage import Storage
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.chosen import chosen_topics
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage, partition_of
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.reading.plan import PartitionPieces, check_end, readable_pieces
from stratalog.engine.replicas.foreign_files import note_foreign
from stratalog.engine.replicas.nearest import SeenLeader, seen_leader
from stratalog.engine.replication.replica_selector import NOWHERE, ClientMetadata
from stratalog.partitions.bulk import collector_paused
from stratalog.partitions.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    LogGapError,
    NoMajorityError,
    RetriableError,
    SourceChangedError,
    StorageAuthorizationError,
    StorageError,
)
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.lookup import FileSlice, LogSlices
from stratalog.partitions.offsets import OffsetSpec, Positions
from stratalog.partitions.replica import Replica
from stratalog.partitions.runner import values
from stratalog.partitions.store import Store
from stratalog.tiering.divergence import readable
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

T = TypeVar("T")

_LOOKS = 3
_local_pieces: WeakKeyDictionary[ReplicaLog, Sequence[FileSlice]] = WeakKeyDictionary()
"""The pieces by log. A replica whose folder is unchanged keeps its log object."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition, from one listing of its leader and one read of the remote tier."""

    leader: SeenLeader
    positions: Positions
    readable: PartitionPieces
    """The content of the leader's log and the remote log."""
    cold: Sequence[FileSlice]
    """All remote pieces, including pieces that are also local; empty if the remote tier was not read."""

    def readable_by(self, isolation: Isolation) -> PartitionPieces:
        """The readable pieces, without files in which the reader sees no record."""
        return replace(self.readable, hidden=self.leader.transactions.hidden(isolation))


TakesRemote = Callable[[SeenLeader], bool]
"""Whether a request needs the remote tier of a partition, to read records or to locate them."""


def always(_: SeenLeader) -> bool:
    """Every request needs the remote tier."""
    return True


def look(
    metadata: MetadataClient,
    storage: Storage,
    memory: Memory,
    topic: str,
    partitions: Sequence[int] | None = None,
    takes_remote: TakesRemote = always,
) -> tuple[ClusterImage, list[PartitionState]]:
    """Read the metadata, and the current state of these partitions of the topic (None: all). The end of every
    local file is checked against its footer. If the leaders have all wanted records, the states contain no remote
    log.

    During the read, records may move to the remote tier, and retention may delete them from either tier. So if a
    gap appears, everything is read again before an error is raised.

    Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError, LogGapError, CorruptionError kinds; StorageError
        when the remote tier is needed and unreachable.
    """
    return look_again(
        metadata, storage, lambda: _look_once(metadata, storage, memory, topic, partitions, takes_remote)
    )


def look_again(metadata: MetadataClient, storage: Storage, once: Callable[[], T]) -> T:
    """Run ``once``. Run it again if a leader has changed meanwhile, or if files have moved or seem to be missing.
    After an error about damage, run it again, too: the folders of a topic that was deleted meanwhile seem damaged,
    and the second run reads the metadata again.
    """

    def noting() -> T:
        try:
            return once()
        except FencedLeaderEpochError as error:
            note_foreign(metadata, storage, error)
            raise

    try:
        return while_it_changes(noting, FencedLeaderEpochError, LogGapError, SourceChangedError, looks=_LOOKS)
    except CorruptionError as error:
        try:
            return once()
        except NoMajorityError:  # it is unknown whether the topic was deleted
            raise error from None


def _look_once(
    metadata: MetadataClient,
    storage: Storage,
    memory: Memory,
    topic: str,
    partitions: Sequence[int] | None,
    takes_remote: TakesRemote,
) -> tuple[ClusterImage, list[PartitionState]]:
    image = metadata.image()
    topic_image = image.topic(topic)
    check_partitions(topic_image, partitions or ())
    states = partition_states(storage, memory, image, [topic_image], partitions, takes_remote)
    for state in states:
        what = str(state.leader)
        for piece in state.readable.pieces:
            if not piece.file.name.merged and piece.start >= state.readable.remote_until:
                check_end(what, piece)
    return image, states


def partition_states(
    storage: Storage,
    memory: Memory,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    partitions: Sequence[int] | None,
    takes_remote: TakesRemote = always,
    client: ClientMetadata = NOWHERE,
) -> list[PartitionState]:
    """Like ``look``, but only once, for several topics, in their order and by partition. The end of an append is
    inferred from the next file. The reader of the append checks this end (``check_end``).

    Raises: see ``look``.
    """

    def leader(view: PartitionView) -> SeenLeader:
        seen = seen_leader(storage, memory, image, view, client)
        _ = seen.transactions, seen.marked_below  # any reads of footers happen here, in a thread
        return seen

    views = [
        image.view(topic.topic_id, partition)
        for topic in topics
        for partition in (range(len(topic.partitions)) if partitions is None else dict.fromkeys(partitions))
    ]
    # List the leaders first: a segment that leaves a leader before the remote log is read is in the remote log.
    leaders = values(storage.threads.run(leader, views))
    asked = {seen.view.topic_id for seen in leaders if seen.tiered and takes_remote(seen)}
    load = storage.threads.run(lambda topic_id: (topic_id, _load(storage, image.topics[topic_id])), sorted(asked))
    remotes = dict(values(load))
    states = values(
        storage.threads.run(lambda seen: _state(storage, seen, remotes.get(seen.view.topic_id)), leaders)
    )
    order = {topic.topic_id: number for number, topic in enumerate(topics)}
    return sorted(states, key=lambda state: (order[state.leader.view.topic_id], state.leader.view.partition))


def _load(storage: Storage, topic: TopicImage) -> RemoteLog:
    try:
        return storage.remote_table(topic).load()
    except StorageAuthorizationError:
        raise
    except RetriableError as error:
        raise StorageError(
            f"topic {topic.name!r}: this read needs the remote tier: {error}; the records on the leaders, from "
            f"{OffsetSpec.EARLIEST_LOCAL.name} on, can be read without the remote tier"
        ) from error


def _state(storage: Storage, seen: SeenLeader, remote: RemoteLog | None) -> PartitionState:
    log, log_start = seen.log, seen.log_start
    cold = [] if remote is None else remote_log_pieces(storage, seen, remote.of_partition(seen.view.partition))
    high_watermark = seen.end(Isolation.READ_UNCOMMITTED)
    local = local_pieces(seen.replicas.leader, log)
    readable_from = log_start if remote is not None else max(log_start, log.local_start)
    positions = Positions(
        log_start=log_start,
        local_start=log.local_start,
        high_watermark=high_watermark,
        log_end=log.log_end,
        remote_end=cold[-1].end if cold else None,
        tiered=seen.tiered,
    )
    readable = PartitionPieces(
        topic=seen.view.topic,
        partition=seen.view.partition,
        log_start=log_start,
        high_watermark=high_watermark,
        pieces=readable_pieces(str(seen), cold, local, readable_from, high_watermark),
        remote_until=log.local_start,
        marked_below=high_watermark if seen.marked_below is None else seen.marked_below,
        gaps=seen.transactions.gaps,
    )
    return PartitionState(seen, positions, readable, cold)


def local_pieces(replica: Replica, log: ReplicaLog) -> Sequence[FileSlice]:
    """All pieces of a replica's ``log``, in order of offsets."""
    found = _local_pieces.get(log)
    if found is None:
        found = _local_pieces[log] = [*LogSlices(replica.store, log.chain, log.local_start, log.log_end)]
    return found


def remote_log_pieces(storage: Storage, seen: SeenLeader, segments: Iterable[RemoteSegment]) -> list[FileSlice]:
    """The pieces of a partition's remote log; see ``remote_pieces``."""
    store = storage.remote_store(f"topic {seen.topic.name!r} is tiered")
    return remote_pieces(store, seen.topic.folder, segments, seen.log.lineage)


def remote_pieces(
    store: Store, folder: str, segments: Iterable[RemoteSegment], lineage: Lineage
) -> list[FileSlice]:
    """The pieces of a part of a partition's remote log, in order of offsets; only those of the leader's
    history."""
    with collector_paused():
        return [
            FileSlice(
                store,
                remote_file(folder, segment),
                segment.base_offset,
                end,
                # Statistics are in milliseconds, and other writers may round down (Delta protocol).
                max_timestamp_us=segment.max_timestamp_ms * 1000 + 999,
                min_timestamp_us=segment.min_timestamp_ms * 1000,
            )
            for segment, end in readable(segments, lineage)
        ]


def check_partitions(topic: TopicImage, partitions: Iterable[int]) -> None:
    """Raises: UnknownTopicOrPartitionError; InvalidCallError for a partition that is not a whole number."""
    for partition in partitions:
        partition_of(topic, partition)


def chosen_views(
    image: ClusterImage, topics: Sequence[str] | None, partitions: Sequence[int] | None
) -> list[tuple[TopicImage, list[PartitionView]]]:
    """The partitions with these numbers (None: all) of each of the named topics (None: all).

    Raises: UnknownTopicOrPartitionError; see ``check_partitions``.
    """
    chosen = chosen_topics(image, topics)
    for topic in chosen:
        check_partitions(topic, partitions or ())
    return [
        (topic, [view for view in image.views(topic.name) if partitions is None or view.partition in partitions])
        for topic in chosen
    ]

"""Look: the present state of partitions, at their leaders and in the remote tier, to plan reads on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.while_it_changes import while_it_changes
from stratalog.engine.metadata.image import ClusterImage, PartitionView, TopicImage
from stratalog.engine.reading.plan import PartitionPieces, check_end, readable_pieces
from stratalog.engine.replicas.nearest import footer_nearby
from stratalog.engine.replicas.offsets_for_epoch import check_knows_end
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.replica_selector import NOWHERE, ClientMetadata
from stratalog.partitions.bulk import collector_paused
from stratalog.partitions.errors import LogGapError, RetriableError, StorageError, UnknownTopicOrPartitionError
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.numbers import whole
from stratalog.partitions.offsets import OffsetSpec, Positions
from stratalog.partitions.paths import DataName
from stratalog.partitions.replica import Replica, errors_of
from stratalog.partitions.runner import values
from stratalog.partitions.store import Store
from stratalog.partitions.transactions import LogTransactions, transactions_of
from stratalog.tiering.divergence import readable
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.remote_log import RemoteLog
from stratalog.tiering.remote_segment import RemoteSegment

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as one look at its leader and the remote saw it."""

    view: PartitionView
    log: ReplicaLog
    positions: Positions
    readable: PartitionPieces
    """The contents of leader and remote log."""
    cold: Sequence[FileSlice]
    """All that the remote holds of it, also where it is local too; none where it was not asked."""
    transactions: LogTransactions
    """Of the leader's log."""

    def end(self, isolation: Isolation) -> int:
        """Where such a reader stops: at the high watermark, or at the last stable offset."""
        return max(self.transactions.end(isolation, self.log), self.positions.log_start)

    def latest(self, isolation: Isolation) -> int:
        """The same, as an answer to a caller that asks for the end of the log: it never goes back (KIP-207).

        Raises: OffsetNotAvailableError while the recently elected leader does not yet know the high watermark.
        """
        check_knows_end(f"{self.view.topic}-{self.view.partition}", self.log, self.view.leader_epoch)
        return self.end(isolation)

    def readable_by(self, isolation: Isolation) -> PartitionPieces:
        """The readable pieces, without the files of which such a reader gets nothing."""
        return replace(self.readable, hidden=self.transactions.hidden(isolation))


@dataclass(frozen=True, slots=True)
class SeenLeader:
    """A partition's leader, as it was listed."""

    view: PartitionView
    replica: Replica
    log: ReplicaLog
    transactions: LogTransactions
    marked_below: int | None
    """Where the last append of a transaction begins, and behind it; None: the local log does not know."""


TakesRemote = Callable[[SeenLeader], bool]
"""Whether a request needs the remote tier of a partition, also to find out where its records are."""


def always(_: SeenLeader) -> bool:
    """Every request needs it."""
    return True


def look(
    context: Context, topic: str, partitions: Sequence[int] | None = None, takes_remote: TakesRemote = always
) -> tuple[TopicImage, list[PartitionState]]:
    """The topic, and the present state of these of its partitions (all when None), to plan reads on; the end of
    every local file is checked against its footer. Where the leaders alone have what is wanted, the remote tier
    is not asked, and states know nothing of it.

    Records wander from the leader to the remote, and retention drops them from either, while both are
    looked at: what seems to be a gap is looked at again before it is believed.

    Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError, LogGapError, CorruptionError kinds;
        StorageError when it takes the remote tier and that is down.
    """
    return while_it_changes(
        lambda: _look_once(context, topic, partitions, takes_remote), LogGapError, looks=_LOOKS
    )


def _look_once(
    context: Context, topic: str, partitions: Sequence[int] | None, takes_remote: TakesRemote
) -> tuple[TopicImage, list[PartitionState]]:
    image = context.metadata.image()
    topic_image = image.topic(topic)
    states = partition_states(context, image, [topic_image], partitions, takes_remote)
    for state in states:
        for piece in state.readable.pieces:
            if piece.start >= state.readable.remote_until:
                check_end(str(context.replicas(state.view)), piece)
    return topic_image, states


def partition_states(
    context: Context,
    image: ClusterImage,
    topics: Sequence[TopicImage],
    partitions: Sequence[int] | None,
    takes_remote: TakesRemote = always,
    client: ClientMetadata = NOWHERE,
) -> list[PartitionState]:
    """As ``look``, once, of several topics, in their order and by partition. The end of an append is inferred from
    the file that follows it: the reader of the file checks that (``check_end``). Files that leaders have in common
    with followers in the client's rack are read there.

    Raises: as ``look``.
    """
    chosen = {
        topic.topic_id: range(len(topic.partitions)) if partitions is None else dict.fromkeys(partitions)
        for topic in topics
    }
    views = [image.view(topic_id, partition) for topic_id, wanted in chosen.items() for partition in wanted]
    # The leaders first: what has left them by the time the remote is read is in the remote.
    leaders = values(
        context.threads.run(lambda view: _look_at_leader(context, context.replicas(view), client), views)
    )
    tiered = {topic.topic_id for topic in topics if context.topic_config(image, topic).remote_storage_enable}
    asked = {seen.view.topic_id for seen in leaders if seen.view.topic_id in tiered and takes_remote(seen)}
    by_id = {topic.topic_id: topic for topic in topics}
    loaded = values(
        context.threads.run(lambda topic_id: (topic_id, _load(context, by_id[topic_id])), sorted(asked))
    )
    remotes = dict(loaded)

    def state(seen: SeenLeader) -> PartitionState:
        topic_id = seen.view.topic_id
        return _state(context, by_id[topic_id], seen, remotes.get(topic_id), topic_id in tiered)

    states = values(context.threads.run(state, leaders))
    order = {topic.topic_id: number for number, topic in enumerate(topics)}
    return sorted(states, key=lambda state: (order[state.view.topic_id], state.view.partition))


def _load(context: Context, topic: TopicImage) -> RemoteLog:
    try:
        return context.remote_table(topic).load()
    except RetriableError as error:
        raise StorageError(
            f"topic {topic.name!r}: this read takes the remote tier: {error}; what the leaders hold, from "
            f"{OffsetSpec.EARLIEST_LOCAL.name} on, can be read without it"
        ) from error


def _look_at_leader(context: Context, replicas: PartitionReplicas, client: ClientMetadata) -> SeenLeader:
    replica, footer = replicas.leader, footer_nearby(context, replicas, client)
    log = look_at_leader(replicas, footer)
    with errors_of(replica):
        transactions = transactions_of(log, footer)
        marked_below = None
        if log.chain:
            last = footer(log.chain[-1].file).last_transactional_offset
            marked_below = 0 if last is None else last + 1
    return SeenLeader(replicas.view, replica, log, transactions, marked_below)


def _state(
    context: Context, topic: TopicImage, seen: SeenLeader, remote: RemoteLog | None, tiered: bool
) -> PartitionState:
    view, log = seen.view, seen.log
    cold = []
    if remote is not None:
        store = context.remote_store(f"topic {topic.name!r} is tiered")
        cold = remote_pieces(store, context.remote_folder(topic), remote.of_partition(view.partition), log.lineage)
    log_start = view.log_start_offset if tiered else max(view.log_start_offset, log.local_start)
    high_watermark = max(log.high_watermark, log_start)
    local = local_pieces(seen.replica, log)
    readable_from = log_start if remote is not None else max(log_start, log.local_start)
    pieces = readable_pieces(f"{topic.name}-{view.partition}", cold, local, readable_from, high_watermark)
    positions = Positions(
        log_start=log_start,
        local_start=log.local_start,
        high_watermark=high_watermark,
        log_end=log.log_end,
        remote_end=cold[-1].end if cold else None,
        tiered=tiered,
    )
    readable = PartitionPieces(
        topic=topic.name,
        partition=view.partition,
        log_start=log_start,
        high_watermark=high_watermark,
        pieces=pieces,
        remote_until=log.local_start,
        ends=known_ends(log),
        marked_below=high_watermark if seen.marked_below is None else seen.marked_below,
    )
    return PartitionState(view, log, positions, readable, cold, seen.transactions)


def known_ends(log: ReplicaLog) -> dict[DataName, int]:
    """The end of the last file of a replica's log, which is known since the log was resolved."""
    return {log.chain[-1].name: log.log_end} if log.chain else {}


def local_pieces(replica: Replica, log: ReplicaLog) -> list[FileSlice]:
    """All that a replica holds, in offset order."""
    return [FileSlice(replica.store, link.file, link.start, link.end) for link in log.chain]


def remote_pieces(
    store: Store, folder: str, segments: Iterable[RemoteSegment], lineage: Lineage
) -> list[FileSlice]:
    """A part of a partition's remote log, in offset order, as far as it is of the leader's history."""
    with collector_paused():
        return [
            FileSlice(
                store,
                remote_file(folder, segment),
                segment.base_offset,
                end,
                # Statistics are in milliseconds, and those of others need not be rounded up (Delta protocol).
                max_timestamp_us=segment.max_timestamp_ms * 1000 + 999,
                min_timestamp_us=segment.min_timestamp_ms * 1000,
            )
            for segment, end in readable(segments, lineage)
        ]


def check_partitions(topic: TopicImage, partitions: Iterable[int]) -> None:
    """Raises: UnknownTopicOrPartitionError; InvalidCallError for what is no whole number."""
    for partition in partitions:
        if not 0 <= whole(partition, f"topic {topic.name!r}: partition") < len(topic.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} has no partition {partition}: it has {len(topic.partitions)}, from 0 on"
            )

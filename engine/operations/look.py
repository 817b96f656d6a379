"""Look: the present state of partitions, at their leaders and in the remote tier, to plan reads on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.context import Context
from engine.metadata.image import ClusterImage, PartitionView, TopicImage
from engine.reading.plan import PartitionPieces, check_end, readable_pieces
from engine.replication.damage import blaming, check_whole
from engine.replication.site import Site
from partitions.errors import LogGapError, UnknownTopicOrPartitionError
from partitions.lineage import Lineage
from partitions.listing import ReplicaLog
from partitions.lookup import Piece
from partitions.offsets import Positions
from partitions.paths import DataName
from partitions.replica import Replica
from partitions.runner import values
from partitions.store import Store
from partitions.transactions import LogTransactions, transactions_of
from tiering.divergence import readable
from tiering.remote_file import remote_file
from tiering.remote_log import RemoteLog
from tiering.remote_segment import RemoteSegment

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition as one look at its leader and the remote saw it."""

    view: PartitionView
    log: ReplicaLog
    positions: Positions
    readable: PartitionPieces
    """What the leader and the remote hold of it."""
    cold: Sequence[Piece]
    """All that the remote holds of it, also where it is local too."""
    transactions: LogTransactions
    """Of the leader's log."""


def look(
    context: Context, topic: str, partitions: Sequence[int] | None = None
) -> tuple[TopicImage, list[PartitionState]]:
    """The topic, and the present state of these of its partitions (all when None), to plan reads on; the end of
    every local file is checked against its footer.

    Records wander from the leader to the remote, and retention drops them from either, while both are
    looked at: what seems to be a gap is looked at again before it is believed.

    Raises: UnknownTopicOrPartitionError, LeaderNotAvailableError, LogGapError, CorruptionError kinds.
    """
    for _ in range(_LOOKS - 1):
        with suppress(LogGapError):
            return _look_once(context, topic, partitions)
    return _look_once(context, topic, partitions)


def _look_once(
    context: Context, topic: str, partitions: Sequence[int] | None
) -> tuple[TopicImage, list[PartitionState]]:
    image = context.metadata.image()
    topic_image = image.topic(topic)
    states = glance(context, image, [topic_image], partitions)
    for state in states:
        for piece in state.readable.pieces:
            if piece.start >= state.readable.remote_until:
                check_end(str(context.site(state.view)), piece)
    return topic_image, states


def glance(
    context: Context, image: ClusterImage, topics: Sequence[TopicImage], partitions: Sequence[int] | None
) -> list[PartitionState]:
    """As ``look`` does it, once, of several topics, in their order and by partition. Where an append ends is
    inferred from what follows it: whoever reads the file checks that (``check_end``).

    Raises: as ``look``.
    """
    chosen = {
        topic.topic_id: range(len(topic.partitions)) if partitions is None else dict.fromkeys(partitions)
        for topic in topics
    }
    views = [image.view(topic_id, partition) for topic_id, wanted in chosen.items() for partition in wanted]
    # The leaders first: what has left them by the time the remote is read is in the remote.
    leaders = values(context.threads.run(lambda view: _look_at_leader(context.site(view)), views))
    tiered = [topic for topic in topics if context.topic_config(image, topic).remote_storage_enable]
    loaded = values(context.threads.run(lambda topic: (topic, context.remote_table(topic).load()), tiered))
    remotes = {topic.topic_id: remote for topic, remote in loaded}
    by_id = {topic.topic_id: topic for topic in topics}
    states = values(
        context.threads.run(
            lambda seen: _state(context, by_id[seen.view.topic_id], seen, remotes.get(seen.view.topic_id)), leaders
        )
    )
    order = {topic.topic_id: number for number, topic in enumerate(topics)}
    return sorted(states, key=lambda state: (order[state.view.topic_id], state.view.partition))


@dataclass(frozen=True, slots=True)
class _Leader:
    """A partition's leader, as it was listed."""

    view: PartitionView
    replica: Replica
    log: ReplicaLog
    transactions: LogTransactions
    marked_below: int | None
    """Where the last append of a transaction begins, and behind it; None: the local log does not know."""


def _look_at_leader(site: Site) -> _Leader:
    replica = site.leader
    log = replica.log()
    check_whole(replica, log)
    with blaming(replica):
        transactions = transactions_of(log, replica.footer)
        marked_below = None
        if log.chain:
            last = replica.footer(log.chain[-1].file).last_transactional_offset
            marked_below = 0 if last is None else last + 1
    return _Leader(site.view, replica, log, transactions, marked_below)


def _state(context: Context, topic: TopicImage, seen: _Leader, remote: RemoteLog | None) -> PartitionState:
    view, log = seen.view, seen.log
    cold = []
    if remote is not None:
        store = context.remote_store(f"topic {topic.name!r} is tiered")
        cold = remote_pieces(store, context.remote_folder(topic), remote.of_partition(view.partition), log.lineage)
    log_start = view.log_start_offset if remote is not None else max(view.log_start_offset, log.local_start)
    high_watermark = max(log.high_watermark, log_start)
    local = local_pieces(seen.replica, log)
    pieces = readable_pieces(f"{topic.name}-{view.partition}", cold, local, log_start, high_watermark)
    positions = Positions(
        log_start=log_start,
        local_start=log.local_start,
        high_watermark=high_watermark,
        log_end=log.log_end,
        remote_end=cold[-1].end if cold else None,
        tiered=remote is not None,
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
    """Where the last file of a replica's log ends: whoever resolved the log has looked there."""
    return {log.chain[-1].name: log.log_end} if log.chain else {}


def local_pieces(replica: Replica, log: ReplicaLog) -> list[Piece]:
    """All that a replica holds, in offset order."""
    return [Piece(replica.store, link.file, link.start, link.end) for link in log.chain]


def remote_pieces(store: Store, folder: str, segments: Iterable[RemoteSegment], lineage: Lineage) -> list[Piece]:
    """A part of a partition's remote log, in offset order, as far as it is of the leader's history."""
    return [
        Piece(store, remote_file(folder, segment), segment.base_offset, end)
        for segment, end in readable(segments, lineage)
    ]


def check_partitions(topic: TopicImage, partitions: Iterable[int]) -> None:
    """Raises: UnknownTopicOrPartitionError."""
    for partition in partitions:
        if not 0 <= partition < len(topic.partitions):
            raise UnknownTopicOrPartitionError(
                f"topic {topic.name!r} has no partition {partition}: it has {len(topic.partitions)}, from 0 on"
            )

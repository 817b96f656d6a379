"""Plans a sync, for an estimate: lists the leader and its followers, and writes nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import (
    SyncOptions,
    leader_offsets,
    list_follower,
    missing_files,
    resolve_follower,
)
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.listing import Link, Listing, ReplicaLog
from stratalog.partitions.runner import Done
from stratalog.partitions.store import StoredObject
from stratalog.tiering.bootstrap import FromLeader, FromRemote, LastTiered, RemoteNotReady, StartOver, fetch_origin

_EMPTY = Listing((), (), (), (), ())


@dataclass(frozen=True, slots=True)
class PlannedCopies:
    """The work of a sync on one follower."""

    broker_id: int
    files: tuple[StoredObject, ...]
    """The leader's files that the follower lacks."""
    high_watermark: int
    """The follower's high watermark before the sync."""
    joins: bool
    """Whether the follower has not joined the leader epoch."""
    starts: bool
    """Whether the follower's log starts over, at the leader's local start or at the end of the remote log."""
    error: StratalogError | None = None
    """The error if the follower could not be listed."""


@dataclass(frozen=True, slots=True)
class PlannedSync:
    """The work of a sync on one partition, and the leader's log before the sync."""

    log_end: int
    high_watermark: int
    leader_joins: bool
    """Whether the leader has not joined its leader epoch."""
    files: tuple[StoredObject, ...]
    """The files of the leader's log."""
    copies: tuple[PlannedCopies, ...]


def plan_sync(
    replicas: PartitionReplicas, followers: Sequence[int], options: SyncOptions, new: Collection[int] = ()
) -> PlannedSync:
    """Plan ``sync_followers``. A follower that cannot be listed has an ``error``. ``new``: brokers whose roots are
    not formatted yet; their replicas are planned as empty.

    Raises: errors from listing the leader (see ``look_at_leader``).
    """

    def listed(follower: int) -> Listing:
        return _EMPTY if follower in new else list_follower(replicas, follower)

    listings = [*options.copies.run(listed, followers)]
    log = look_at_leader(replicas)
    copies = [
        _planned(replicas, outcome.item, outcome.value, log, options)
        if isinstance(outcome, Done)
        else PlannedCopies(outcome.item, (), 0, joins=True, starts=False, error=outcome.error)
        for outcome in listings
    ]
    joins = log.joined_epoch < replicas.epoch
    return PlannedSync(log.log_end, log.high_watermark, joins, _objects(log.chain), tuple(copies))


def _planned(
    replicas: PartitionReplicas, follower_id: int, listing: Listing, log: ReplicaLog, options: SyncOptions
) -> PlannedCopies:
    leader, follower = replicas.leader, replicas.replica(follower_id)
    joins = listing.joined_epoch < replicas.epoch
    try:
        mine = resolve_follower(follower, listing, log)
        origin = fetch_origin(
            leader_offsets(replicas, log, options.remote),
            fetch_offset=mine.log_end,
            follower_is_empty=not mine.chain,
            last_tiered=LastTiered.NEVER if follower_id in replicas.view.isr else options.last_tiered,
        )
        links: Sequence[Link]
        match origin:
            case FromLeader():
                links = missing_files(leader, follower, mine, log)
            case StartOver(offset) | FromRemote(offset):
                links = [link for link in log.chain if link.end > offset]
            case RemoteNotReady():
                links = ()
    except CorruptionError as error:
        return PlannedCopies(follower_id, (), 0, joins=joins, starts=False, error=error)
    return PlannedCopies(
        follower_id,
        _objects(links),
        mine.high_watermark,
        joins=joins,
        starts=isinstance(origin, StartOver | FromRemote),
    )


def _objects(links: Sequence[Link]) -> tuple[StoredObject, ...]:
    """The files of these links, in order. A file may have several links."""
    return tuple({link.name: link.file.object for link in links}.values())

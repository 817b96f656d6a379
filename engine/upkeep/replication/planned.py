"""Plans runs that copy logs to followers: the files that followers lack, and the requests of the run that its dry
run does not send. The numbers were counted with stores in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from stratalog.engine.driver.planned import Planned, copies, pieces
from stratalog.engine.driver.run import OperationRun, PartitionRow
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replication.leader import look_at_leader
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.sync import (
    SyncOptions,
    leader_offsets,
    list_follower,
    missing_files,
    resolve_follower,
)
from stratalog.engine.upkeep.replication.syncing import SyncWork
from stratalog.partitions.errors import CorruptionError, StratalogError
from stratalog.partitions.listing import Link, Listing, ReplicaLog
from stratalog.partitions.runner import Done, Failed
from stratalog.partitions.segments.check import READ_BYTES, SMALL_BYTES
from stratalog.partitions.segments.parquet_decoding import TAIL_BYTES
from stratalog.partitions.store import Store, StoredObject
from stratalog.tiering.bootstrap import FromLeader, FromRemote, LastTiered, RemoteNotReady, StartOver, fetch_origin

_EMPTY = Listing((), (), (), (), ())
_COMMITS_TO_JOIN = 2


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


def plan_sync(work: SyncWork, new: Collection[int] = ()) -> PlannedSync:
    """The task: plans ``sync_followers``, and writes nothing. A follower that cannot be listed has an ``error``.
    ``new``: brokers whose roots are not formatted yet; their replicas are planned as empty.

    Raises: errors from listing the leader (see ``look_at_leader``).
    """
    replicas, options = work.replicas, work.options

    def listed(follower: int) -> Listing:
        return _EMPTY if follower in new else list_follower(replicas, follower)

    listings = [*options.copies.run(listed, work.followers)]
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
    starts = isinstance(origin, StartOver | FromRemote)
    return PlannedCopies(follower_id, _objects(links), mine.high_watermark, joins=joins, starts=starts)


def _objects(links: Sequence[Link]) -> tuple[StoredObject, ...]:
    """The files of these links, in order. A file may have several links."""
    return tuple({link.name: link.file.object for link in links}.values())


class ReplicatePlanRow(PartitionRow, frozen=True, kw_only=True):
    """A partition, in a dry run, with the files that its followers lack."""

    leader: int | None
    followers: str
    files: int
    bytes: int


def send_probe(sends: Planned, image: ClusterImage) -> None:
    """Add a probe of all roots."""
    for broker in image.brokers:
        sends.send(sends.storage.stores.get(broker), gets=1)


def plan_copies(
    sends: Planned, image: ClusterImage, works: Sequence[SyncWork], run: OperationRun, new: Collection[int] = ()
) -> list[ReplicatePlanRow]:
    """The rows of a ``replicate`` run with these works. Its requests are added to ``sends``. ``image`` may be the
    metadata after commits that are only planned. The roots of the brokers ``new`` are not formatted yet. A replica
    that cannot be listed is left out, with a note.
    """
    planned: list[tuple[SyncWork, PlannedSync]] = []
    failed: list[SyncWork] = []
    for outcome in run.tasks.run(partial(plan_sync, new=new), works):
        match outcome:
            case Done(work, found):
                planned.append((work, found))
            case Failed(work, error):
                failed.append(work)
                run.notes.append(f"{work}: not in the estimate: {error}")
    run.notes += [
        f"{work} on broker {each.broker_id}: not in the estimate: {each.error}"
        for work, found in planned
        for each in found.copies
        if each.error is not None
    ]
    _send(sends, image, planned)
    rows = [_row(work, [one for each in found.copies for one in each.files]) for work, found in planned]
    return sorted([*rows, *(_row(work, ()) for work in failed)], key=lambda row: (row.topic, row.partition))


def _send(sends: Planned, image: ClusterImage, planned: Sequence[tuple[SyncWork, PlannedSync]]) -> None:
    proving, joining, letting_go, writing = False, False, False, False
    for work, found in planned:
        view, leader = work.replicas.view, work.replicas.leader.store
        known = [each for each in found.copies if each.error is None]
        newcomers = [each.broker_id for each in known if each.broker_id not in view.isr]
        for each in known:
            _send_copies(sends, work, found, each)
        for one in {one for each in known for one in each.files}:
            sends.send(leader, gets=1, moved_bytes=min(one.size_bytes, TAIL_BYTES))
        if found.leader_joins:  # a leader that joins its epoch lists the members first, and then itself again
            sends.send(leader, puts=2, gets=1)
            for broker in {*view.isr} - {view.leader}:
                sends.send(work.replicas.stores.get(broker), puts=1, gets=2)
        enough = view.has_min_isr(work.min_insync_replicas)
        reached = {*work.replicas.acknowledging} <= {each.broker_id for each in known}
        proven = found.log_end if reached and enough else found.high_watermark
        if proven > found.high_watermark:
            proving = True
            for store in map(work.replicas.stores.get, work.replicas.acknowledging):
                sends.send(store, puts=1)
            sends.send(leader, puts=1)
        if newcomers:  # the followers are listed again, after the first of the two commits
            joining = True
            for store in (leader, *map(work.replicas.stores.get, newcomers)):
                sends.send(store, puts=1, gets=1)
            if view.target and not {*view.replicas} <= {*view.target}:
                letting_go = True
                send_reading(sends, work.replicas.stores.get(newcomers[0]), found)
        writing = writing or (proven > view.log_start_offset and proven >= 2 * view.written_to)
    sends.send_look(image, times=proving + letting_go)
    for _ in range(joining * _COMMITS_TO_JOIN):
        sends.send_commit_again(image)
        sends.send_look(image, times=2)
    if writing:
        sends.send_commit(image)


def send_reading(sends: Planned, store: Store | None, found: PlannedSync) -> None:
    """Add the read of every byte of one replica that has all files of its leader."""
    sizes = [one.size_bytes for one in found.files]
    reads = sum(1 if size <= SMALL_BYTES else 1 + pieces(size, READ_BYTES) for size in sizes)
    sends.send(store, puts=1, gets=1 + reads, moved_bytes=sum(sizes))


def _send_copies(sends: Planned, work: SyncWork, found: PlannedSync, each: PlannedCopies) -> None:
    """Add the copies to one follower, without the reads of footers, which are read once on the leader for all
    followers.
    """
    leader, follower = work.replicas.leader.store, work.replicas.stores.get(each.broker_id)
    for one in each.files:
        puts, gets = copies(one.size_bytes)
        sends.send(leader, gets=gets, moved_bytes=one.size_bytes)
        sends.send(follower, puts=puts, moved_bytes=one.size_bytes)
    sends.send(follower, puts=each.joins + 2 * each.starts + (found.high_watermark > each.high_watermark))


def _row(work: SyncWork, files: Collection[StoredObject]) -> ReplicatePlanRow:
    view = work.replicas.view
    return ReplicatePlanRow(
        topic=view.topic,
        partition=view.partition,
        leader=view.leader,
        followers=" ".join(map(str, work.followers)),
        files=len(files),
        bytes=sum(one.size_bytes for one in files),
    )

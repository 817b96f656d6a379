"""Makes another member of the ISR the leader if a leader's storage is damaged (protocol section 1).

When a copy or read finds that a leader's bytes differ from the bytes that were written, the leader resigns here.
Its damaged file is replaced immediately, while the replica is outside the ISR. Without this repair, the replica
would rejoin with the damaged file, because a sync compares only names and sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from stratalog.engine.driver.run import OperationRun
from stratalog.engine.driver.storage import Storage
from stratalog.engine.metadata.election_commands import Election, ElectLeaders
from stratalog.engine.metadata.image import PartitionView
from stratalog.engine.metadata.partition_commands import Altered
from stratalog.engine.quorum.client import MetadataClient
from stratalog.engine.replicas.in_sync import is_current
from stratalog.engine.replicas.repair import BadFile, Copy, HeldFile, Repair
from stratalog.engine.replicas.repairing import apply_repair
from stratalog.engine.replication.damage import check_whole, is_damage_of, uncommitted_epoch
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.remote_end import LogBehindRemoteError
from stratalog.partitions.errors import (
    CorruptionError,
    CorruptSegmentError,
    InvalidUpdateVersionError,
    StratalogError,
)
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.listing import DataFile
from stratalog.partitions.replica import Replica
from stratalog.partitions.runner import Done
from stratalog.partitions.segments.check import verify_bytes

Damaged = Mapping[TopicIdPartition, tuple[PartitionView, StratalogError]]
"""The partitions whose leader's storage is damaged, each with its view and the error."""


def replace_leaders(metadata: MetadataClient, storage: Storage, damaged: Damaged) -> dict[TopicIdPartition, str]:
    """Elect an intact member of the ISR for each partition that has such a member, and remove the old leader from
    the ISR; one commit for all. Returns a note for each partition with a new leader.

    Every member has all acknowledged records, so the election is clean. Without another intact member, the leader
    is kept, because the extent of its loss is unknown. A damaged file of a resigned leader is replaced by the new
    leader's copy, after that copy has been verified.
    """
    chosen: dict[TopicIdPartition, int] = {}
    for outcome in storage.threads.run(lambda key: _whole_member(storage, *damaged[key]), list(damaged)):
        if isinstance(outcome, Done) and outcome.value is not None:
            chosen[outcome.item] = outcome.value
    if not chosen:
        return {}
    elections = tuple(
        Election(*key, leader=broker, resign=True, partition_epoch=damaged[key][0].partition_epoch)
        for key, broker in chosen.items()
    )
    notes: dict[TopicIdPartition, str] = {}
    for answer in metadata.submit(ElectLeaders(elections)):
        key = answer.key
        view, error = damaged[key]
        if isinstance(answer, Altered):
            notes[key] = f"{view}: broker {view.leader} leaves the ISR, and broker {chosen[key]} leads: {error}"
            if isinstance(error, CorruptSegmentError) and error.file is not None and view.leader is not None:
                notes[key] += _repaired(metadata, storage, key, view.leader, error.file)
    return notes


def under_others(
    metadata: MetadataClient,
    storage: Storage,
    failed: Iterable[tuple[PartitionView, StratalogError]],
    run: OperationRun,
) -> dict[TopicIdPartition, PartitionReplicas]:
    """Replace the damaged leaders among these failures. Returns the partitions that now have another leader, with
    their replicas under that leader, and adds a note for each.
    """
    damaged = {view.key: (view, error) for view, error in failed if is_damage_of(view.leader, error)}
    replaced = replace_leaders(metadata, storage, damaged) if damaged else {}
    if not replaced:
        return {}
    run.notes += replaced.values()
    image = metadata.image()
    return {key: storage.replicas(image.view(*key)) for key in replaced if key[0] in image.topics}


def ahead_of_metadata(
    metadata: MetadataClient, storage: Storage, view: PartitionView
) -> dict[int, CorruptionError]:
    """The replicas with a register of an uncommitted leader epoch. (A legitimate writer writes only an epoch that
    it has read in the metadata.) The replicas are listed first; then a linearizable read must show that ``view``
    is current. Called when a view seems stale, but another read of the metadata returns the same view.
    """
    replicas = storage.replicas(view)
    found: dict[int, CorruptionError] = {}
    for broker in view.replicas:
        if view.brokers[broker].fenced:
            continue
        with suppress(StratalogError):
            replica = replicas.replica(broker)
            joined = replica.list(fresh=True).joined_epoch
            if joined > view.leader_epoch:
                found[broker] = uncommitted_epoch(replica, joined, view.leader_epoch)
    return found if found and is_current(metadata.image(), view) else {}


def check_aside(metadata: MetadataClient, view: PartitionView, broker: int, *, in_place: bool = False) -> None:
    """Check, by a linearizable read, that ``view`` is current, and that the replica may be changed: it is outside
    the ISR, or (``in_place``) is the leader and the last member of the ISR.

    Raises: InvalidUpdateVersionError.
    """
    what = f"{view} on broker {broker}"
    aside = broker not in (*view.isr, *view.adding)
    last = in_place and view.leader == broker and set(view.isr) == {broker} and not view.adding
    if not is_current(metadata.image(), view):
        raise InvalidUpdateVersionError(
            f"{what}: another driver changed the partition in the meantime; run the command again"
        )
    if not aside and not last:
        raise InvalidUpdateVersionError(f"{what} is in the ISR {sorted(view.isr)}, so its files were not changed")


def _repaired(metadata: MetadataClient, storage: Storage, key: TopicIdPartition, broker: int, file: str) -> str:
    """Replace a damaged file of a leader that has resigned. Returns the result for the note."""
    try:
        image = metadata.image()
        if key[0] not in image.topics:
            return ""
        view = image.view(*key)
        replicas = storage.replicas(view)
        repair = _repair(replicas, broker, file)
        if repair is None:
            return ""
        apply_repair(
            replicas.replica(broker), replicas.leader, repair, lambda: check_aside(metadata, view, broker)
        )
    except StratalogError as error:
        return f"; it could not be replaced there ({error.code}: {error}): run heal"
    return f"; it was replaced there by a good copy of broker {view.leader}"


def _repair(replicas: PartitionReplicas, broker: int, file: str) -> Repair | None:
    """The repair of the file from the leader's copies; None if the file is readable now, or the log does not need
    the file. This is so if the file belongs to an abandoned history, or if the leader has merged it and the next
    sync copies the merged segment.

    Raises: CorruptSegmentError when the leader's copy is damaged too; errors from reading either replica.
    """
    target, leader = replicas.replica(broker), replicas.leader
    bad = next((one for one in target.list(fresh=True).data if one.object.name == file), None)
    log = leader.log(fresh=True)
    if bad is None:
        return None
    start, end = bad.name.base_offset, bad.name.next_offset
    if end is None:
        end = next((link.end for link in log.chain if link.name == bad.name), start)
    links = [link for link in log.chain if start < link.end and link.start < end]
    if not links or links[-1].end < end or _reads_well(target, bad):
        return None
    put = [
        Copy(leader.broker_id, leader.store, held, verify_bytes(leader.store, held.file).crc32)
        for held in (HeldFile(link.file, link.start, link.end) for link in links)
    ]
    return Repair(broker, BadFile(bad, start, end), tuple(put))


def _reads_well(replica: Replica, file: DataFile) -> bool:
    try:
        verify_bytes(replica.store, file)
    except CorruptSegmentError:
        return False
    return True


def _whole_member(storage: Storage, view: PartitionView, error: StratalogError) -> int | None:
    """The intact member of the ISR, other than the leader, that has the most records. If the leader is behind the
    remote log, a member that is also behind it is not intact.
    """
    behind = error.remote_end if isinstance(error, LogBehindRemoteError) else 0
    replicas, least = storage.replicas(view), max(behind, view.written_to)
    best: tuple[int, int] | None = None
    for broker in view.replicas:
        if broker == view.leader or broker not in view.isr or view.brokers[broker].fenced:
            continue
        try:
            replica = replicas.replica(broker)
            log = replica.log(fresh=True)
            check_whole(replica, log)
            if log.joined_epoch > view.leader_epoch:
                continue  # the member has a foreign register
            if log.log_end < least:
                continue
        except StratalogError:
            continue
        if best is None or log.log_end > best[0]:
            best = log.log_end, broker
    return None if best is None else best[1]

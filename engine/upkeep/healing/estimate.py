"""The requests that a heal sends, but its dry run does not. The numbers were counted with stores in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stratalog.engine.driver.estimate import Estimate
from stratalog.engine.driver.planned import Planned, columns_of, pieces, uploads
from stratalog.engine.driver.stored_schedule import places_of_copies
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.replicas.repair import Copy
from stratalog.engine.upkeep.healing.plan import HealPlan
from stratalog.engine.upkeep.healing.rebuild import RebuildJob
from stratalog.engine.upkeep.verification.audit import Audited
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.segments.check import READ_BYTES

_COMMITS_TO_JOIN = 2
_SYNCS = 3
"""The number of listings of a repaired replica, and of its leader, until the replica is in the ISR again."""
_WALKS_OF_LOG = 3
"""The number of listings of a table's log by one commit."""


def send_heal(
    sends: Planned,
    image: ClusterImage,
    audits: Sequence[Audited],
    audited: Estimate,
    plans: Sequence[tuple[Audited, HealPlan]],
    jobs: Sequence[RebuildJob],
    touched: Collection[TopicIdPartition],
) -> None:
    """Add the repairs, the return to the ISR, and the second audit of the damaged partitions. The second audit
    costs their share of the first audit (``audited``). Repairs of snapshots, and of rewritten tables, are not
    counted.
    """
    for store in places_of_copies(sends.storage, image):
        sends.send(store, puts=1 + bool(touched))
    if plans:
        _send_repairs(sends, image, plans)
    for job in jobs:
        _send_rebuild(sends, image, job)
    if touched:
        sends.send_look(image)
        files = sum(1 + len(each.good) for each in audits)
        again = sum(1 + len(each.good) for each in audits if each.replicas.view.key in touched)
        puts, gets, moved = (n * again // files for n in (audited.puts, audited.gets, audited.moved_bytes))
        sends.more += Estimate(puts, gets, moved)


def _send_repairs(sends: Planned, image: ClusterImage, plans: Sequence[tuple[Audited, HealPlan]]) -> None:
    sends.send_commit(image)
    sends.send_look(image)
    if any(plan.resigns for _, plan in plans) and any(plan.leaving for _, plan in plans):
        sends.send_commit_again(image)
    for _ in range(_COMMITS_TO_JOIN):
        sends.send_commit_again(image)
        sends.send_look(image)
    for broker in image.brokers:
        sends.send(sends.storage.stores.get(broker), gets=1)
    for each, plan in plans:
        stores = each.replicas.stores
        for repair in plan.repairs:
            sends.send_look(image)
            for copy in repair.put:
                _send_copy(sends, copy)
                sends.send(
                    stores.get(repair.broker_id),
                    puts=uploads(copy.held.size_bytes),
                    gets=1,
                    moved_bytes=2 * copy.held.size_bytes,
                )
            sends.send(stores.get(repair.broker_id), puts=2, gets=2)
        for broker in {plan.leader, *(repair.broker_id for repair in plan.repairs)}:
            sends.send(stores.get(broker), puts=_SYNCS, gets=_SYNCS)


def _send_copy(sends: Planned, copy: Copy) -> None:
    size = copy.held.size_bytes
    sends.send(copy.store, gets=pieces(size, READ_BYTES), moved_bytes=size)


def _send_rebuild(sends: Planned, image: ClusterImage, job: RebuildJob) -> None:
    """Add one rebuilt object: the source files are read; then the object is written, read back and committed."""
    remote, stores = sends.storage.remote, job.each.replicas.stores
    columns = columns_of(image.topics[job.each.replicas.view.topic_id])
    for piece in job.plan.pieces:
        size = sum(link.file.object.size_bytes for link in piece.links)
        sends.send(remote, puts=uploads(size), gets=2 + pieces(size, READ_BYTES), moved_bytes=2 * size)
        reads = len(piece.links) * (1 + (columns if len(piece.links) > 1 else 0))
        sends.send(stores.get(piece.broker_id), puts=1, gets=1 + reads, moved_bytes=size)
    sends.send(remote, puts=_WALKS_OF_LOG)
    sends.send_look(image)

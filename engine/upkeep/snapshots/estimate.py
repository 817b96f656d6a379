"""The requests that a snapshot run sends and its dry run does not, counted with stores in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.engine.driver.planned import Planned, columns_of, pieces, uploads
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.snapshots.partition import SnapshotPlan, SnapshotWork
from stratalog.snapshots.fetch import RESPONSE_MAX_BYTES

_NOT_READ = 4
"""Columns of a segment that are not read for a snapshot: partition, offset, producer_id, control."""


def send_snapshots(
    sends: Planned, image: ClusterImage, plans: Sequence[tuple[SnapshotWork, SnapshotPlan]]
) -> None:
    """Add the listings of all replicas, each due snapshot with its copies, and one commit of the log starts. A
    snapshot has at most the size of the log that it replaces. The tables of snapshots in the remote tier are not
    counted.
    """
    if not plans:
        return
    for broker_id, image_of_broker in image.brokers.items():
        if not image_of_broker.fenced:
            sends.send(sends.storage.stores.get(broker_id), gets=1)
    sends.send_look(image)
    due = [(work, planned) for work, planned in plans if planned.wait is None]
    if due:
        sends.send_commit(image)
        sends.send_look(image)
    for work, _ in plans:
        for broker in work.replicas.followers:
            sends.send(work.replicas.stores.get(broker), puts=2, gets=4)
        sends.send(work.replicas.leader.store, puts=2, gets=2)
    for work, planned in due:
        _send_snapshot(sends, image, work, planned)


def _send_snapshot(sends: Planned, image: ClusterImage, work: SnapshotWork, planned: SnapshotPlan) -> None:
    """Add the requests of one snapshot. The leader's files are read, and the snapshot is written and read back.
    Followers fetch it in chunks. Each chunk is read, written and read again; then the whole snapshot is read,
    written and read again.
    """
    size, topic = planned.log_bytes, image.topics[work.replicas.view.topic_id]
    reads = planned.log_files * (columns_of(topic) - _NOT_READ)
    sends.send(work.replicas.leader.store, puts=1 + uploads(size), gets=3 + reads, moved_bytes=3 * size)
    more = pieces(size, RESPONSE_MAX_BYTES) - 1
    for broker in work.replicas.followers:
        store = work.replicas.stores.get(broker)
        times = 7 if more else 6  # several chunks are not checked in memory, so the snapshot is read once more
        sends.send(store, puts=6 + uploads(size) + 2 * more, gets=15 + 12 * more, moved_bytes=times * size)


def send_metadata_snapshot(sends: Planned, image: ClusterImage) -> None:
    """Add the snapshot of the metadata log, on each voter."""
    for store in sends.voters(image):
        sends.send(store, puts=6, gets=7)

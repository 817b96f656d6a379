"""The requests that a tier run sends, but its dry run does not. The numbers were counted with stores in memory."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.engine.driver.planned import Planned, copies, reads_to_rewrite, uploads
from stratalog.engine.driver.stored_schedule import places_of_copies
from stratalog.engine.metadata.image import ClusterImage
from stratalog.engine.upkeep.tiering.state import PartitionTiering, TopicTiering
from stratalog.partitions.merge import Run
from stratalog.partitions.parquet_decoding import TAIL_BYTES
from stratalog.partitions.store import Store

_WALKS_OF_LOG = 3
"""The number of listings of a table's log by one commit."""
_WALKS_TO_CREATE = 3


def send_uploads(sends: Planned, image: ClusterImage, parts: Sequence[PartitionTiering]) -> None:
    """Add the uploads of these partitions, a commit for each topic, the restore point, and the list of due
    partitions. The requests that delta-rs sends for the tables are not counted."""
    remote = sends.storage.remote
    if not parts or remote is None:
        return
    topics = {id(part.of): part.of for part in parts if part.waiting}.values()
    new = [of for of in topics if of.remote is not None and of.remote.version < 0]
    sends.send(remote, puts=1 + bool(new))
    for of in topics:
        sends.send(remote, puts=_WALKS_OF_LOG + (_WALKS_TO_CREATE if of in new else 0))
        sends.send_look(image, times=2)
    for part in parts:
        for run in part.waiting:
            _send_upload(sends, remote, part.of, part.replicas.leader.store, run)
    for store in places_of_copies(sends.storage, image):
        sends.send(store, puts=1, gets=1)


def _send_upload(sends: Planned, remote: Store, of: TopicTiering, leader: Store, run: Run) -> None:
    """Add the requests of one upload. The object is looked up before and after the upload; then its footer is
    read.
    """
    size = run.size_bytes
    sends.send(remote, gets=3, moved_bytes=size + min(size, TAIL_BYTES))
    if run.is_segment:  # the footer, the bytes, and a check that the file is still the same object
        puts, gets = copies(size)
        sends.send(remote, puts=puts)
        sends.send(leader, gets=2 + gets, moved_bytes=size + min(size, TAIL_BYTES))
    else:  # each file, and another listing of the log
        reads = sum(reads_to_rewrite(of.topic, link.file.object.size_bytes) for link in run.links)
        sends.send(remote, puts=uploads(size))
        sends.send(leader, puts=1, gets=1 + reads, moved_bytes=size)

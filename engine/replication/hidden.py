"""Files that merged segments have hidden, and what stands for them."""

from __future__ import annotations

from stratalog.partitions.errors import CorruptSegmentError
from stratalog.partitions.listing import ReplicaLog
from stratalog.partitions.paths import DataName, parse_name
from stratalog.partitions.replica import Replica
from stratalog.partitions.segment_check import verify_bytes


def covered(replica: Replica, log: ReplicaLog, names: list[str]) -> tuple[list[str], list[CorruptSegmentError]]:
    """Of the names that are to be deleted those that may be: without the files that a merge has hidden whose
    records cannot be had from what hides them, on this very replica. All bytes of that are read. And what is
    damaged."""
    doomed, bad = set(names), set[DataName]()
    damaged: list[CorruptSegmentError] = []
    hidden = [file.name for file in log.hidden if str(file.name) in doomed]
    for link in log.chain:
        over = [name for name in hidden if link.start < name.least_end and name.base_offset < link.end]
        if over:
            try:
                verify_bytes(replica.store, link.file)
            except CorruptSegmentError as error:
                damaged.append(error)
                bad |= set(over)
    return [name for name in names if parse_name(name) not in bad], damaged

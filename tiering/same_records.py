"""Where a leader's log and remote segments hold other records at the same offsets, whatever files they are in.

Leader epochs tell two histories apart, but not where brokers were put back together with their metadata: then an
epoch is used again for other records. Names and checksums do not tell either where one side was merged. So the
records themselves are compared: timestamps, keys, values, headers. The log adds other columns, which follow from
them or, like the outcome of a transaction, are only known in a merged file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from stratalog.partitions.digest import row_hashes
from stratalog.partitions.listing import Link, ReplicaLog
from stratalog.partitions.records import RECORD_COLUMNS
from stratalog.partitions.segment import read_row_groups
from stratalog.partitions.store.protocol import Store
from stratalog.tiering.divergence import readable
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.remote_segment import RemoteSegment


def first_difference(
    leader: Store, log: ReplicaLog, remote: Store, folder: str, segments: Iterable[RemoteSegment]
) -> int | None:
    """The first offset at which the leader's ``log`` and the ``segments``, in order, hold other records; None
    where they hold the same, or one side has nothing. Segments of other leader epochs are not looked at.

    Raises: CorruptSegmentError; SourceChangedError when a file of the log is gone; StorageError.
    """
    for segment, agreed in readable(segments, log.lineage):
        links = [link for link in log.chain if segment.base_offset < link.end and link.start < agreed]
        if not links:
            continue
        start, end = max(segment.base_offset, links[0].start), min(agreed, links[-1].end)
        for first, records in read_row_groups(remote, remote_file(folder, segment), start, end, [*RECORD_COLUMNS]):
            theirs = row_hashes(records)
            mine = _hashes(leader, links, first, first + len(theirs))
            differs = np.flatnonzero(mine != theirs)
            if len(differs):
                return first + int(differs[0])
    return None


def _hashes(leader: Store, links: Sequence[Link], start: int, end: int) -> npt.NDArray[np.uint64]:
    """Of the leader's records ``[start, end)``."""
    return np.concatenate(
        [
            row_hashes(records)
            for link in links
            if link.start < end and start < link.end
            for _, records in read_row_groups(
                leader, link.file, max(start, link.start), min(end, link.end), [*RECORD_COLUMNS]
            )
        ]
    )

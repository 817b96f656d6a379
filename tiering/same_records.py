"""Finds the offsets at which a leader's log and remote segments contain different records. The boundaries of the
files do not matter.

Leader epochs distinguish two histories, unless brokers were restored together with their metadata. After such a
restore, an epoch may be used again for other records. Names and checksums do not help if the files of one side
were merged. So the records themselves are compared: timestamps, keys, values, headers. Other columns are not
compared: they follow from the compared columns, or, like the outcome of a transaction, are known only in a merged
file. If files follow different removal rules, one side may have a gap in place of a record that the other side
still has. Such offsets are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.columns import bools_of
from stratalog.partitions.digest import row_hashes
from stratalog.partitions.listing import DataFile, Link, ReplicaLog
from stratalog.partitions.records import GAP, RECORD_COLUMNS
from stratalog.partitions.segments.reader import read_row_groups
from stratalog.partitions.store.protocol import Store
from stratalog.tiering.divergence import readable
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.remote_segment import RemoteSegment


def first_difference(
    leader: Store, log: ReplicaLog, remote: Store, folder: str, segments: Iterable[RemoteSegment]
) -> int | None:
    """The first offset at which the leader's ``log`` and the ``segments``, in order, hold different records; None
    if both have the same records, or if one side has no records. Segments of other leader epochs are skipped.

    Raises: CorruptSegmentError; SourceChangedError when a file of the log is gone; StorageError.
    """
    for segment, agreed in readable(segments, log.lineage):
        links = [link for link in log.chain if segment.base_offset < link.end and link.start < agreed]
        if not links:
            continue
        start, end = max(segment.base_offset, links[0].start), min(agreed, links[-1].end)
        for first, records in _records(remote, remote_file(folder, segment), start, end):
            differs = _differs(leader, links, first, records, segment.generation)
            if differs is not None:
                return differs
    return None


def _differs(leader: Store, links: Sequence[Link], first: int, theirs: pa.Table, generation: int) -> int | None:
    """The first offset at which the leader's record differs from the record in ``theirs``. These records begin at
    ``first``, and follow the rule of this generation. Records that the leader's files lack are damage, not a
    difference.
    """
    hashes, gaps = row_hashes(theirs), _gaps(theirs)
    for link in links:
        start, end = max(first, link.start), min(first + len(hashes), link.end)
        for at, records in _records(leader, link.file, start, end) if start < end else ():
            beside = slice(at - first, at - first + records.num_rows)
            other = row_hashes(records) != hashes[beside]
            if link.name.generation != generation:
                other &= ~(_gaps(records) | gaps[beside])
            differs = np.flatnonzero(other)
            if len(differs):
                return at + int(differs[0])
    return None


def _gaps(records: pa.Table) -> npt.NDArray[np.bool_]:
    """A boolean for each row: whether it is the gap of a removed record."""
    return bools_of(pc.fill_null(pc.equal(records["control"], GAP), False).combine_chunks())


def _records(store: Store, file: DataFile, start: int, end: int) -> Iterator[tuple[int, pa.Table]]:
    return read_row_groups(store, file, start, end, [*RECORD_COLUMNS, "control"])

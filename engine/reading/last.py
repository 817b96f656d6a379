"""Finds the start of the last n records of a partition. Markers and aborted records are not counted."""

from __future__ import annotations

import pyarrow as pa

from stratalog.engine.reading.look import PartitionState
from stratalog.engine.replicas.nearest import SeenLeader
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.segments.reader import read_row_groups
from stratalog.partitions.transactions import visible

_COLUMNS = ["offset", "control"]


def start_of_last(state: PartitionState, records: int, end: int, isolation: Isolation) -> int:
    """The offset from which the reader gets ``records`` records below ``end``; the log start if there are fewer
    records. Reads the column ``control`` of files that may hold hidden records.

    Raises: CorruptSegmentError, SourceChangedError.
    """
    readable = state.readable_by(isolation)
    missing = records
    for piece in reversed(readable.pieces) if missing else ():
        upper = min(piece.end, end)
        if piece.start >= upper or readable.hides(piece):
            continue
        if readable.may_be_marked(piece):
            offsets = _visible_offsets(piece, upper, isolation)
            if len(offsets) >= missing:
                return int(offsets[-missing].as_py())
            missing -= len(offsets)
        elif upper - piece.start >= missing:
            return upper - missing
        else:
            missing -= upper - piece.start
    return readable.log_start if missing else end


def leader_has_last(seen: SeenLeader, records: int, end: int, isolation: Isolation) -> bool:
    """Whether it is certain that the last records below ``end`` are in the leader's own unmarked files."""
    log, hidden, gaps = seen.log, seen.transactions.hidden(isolation), seen.transactions.gaps
    if seen.view.log_start_offset >= log.local_start:
        return True
    marked_below = seen.marked_below or 0
    sure = sum(
        max(0, min(link.end, end) - link.start)
        for link in log.chain
        if link.name not in hidden | gaps and not (link.name.merged and link.name.base_offset < marked_below)
    )
    return sure >= records


def _visible_offsets(piece: FileSlice, end: int, isolation: Isolation) -> pa.ChunkedArray:
    groups = read_row_groups(piece.store, piece.file, piece.start, end, _COLUMNS)
    chunks = [visible(rows, isolation).column("offset") for _, rows in groups]
    return pa.chunked_array([array for chunk in chunks for array in chunk.chunks], pa.int64())

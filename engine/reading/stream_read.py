"""A task of a stream's batch, on an executor: reads the records of parts of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from stratalog.engine.reading.look import local_pieces, remote_pieces
from stratalog.engine.reading.plan import readable_pieces
from stratalog.engine.reading.stream_tasks import Part
from stratalog.engine.replication.damage import check_whole
from stratalog.engine.replication.partition import PartitionReplicas
from stratalog.engine.replication.unreadable import unreadable, with_remedy
from stratalog.partitions.errors import (
    CorruptSegmentError,
    FencedLeaderEpochError,
    LogGapError,
    SourceChangedError,
)
from stratalog.partitions.isolation import Isolation
from stratalog.partitions.lookup import FileSlice
from stratalog.partitions.replica import ANY_GENERATION
from stratalog.partitions.segments.reader import read_row_groups
from stratalog.partitions.transactions import visible

if TYPE_CHECKING:
    from stratalog.tiering.delta_table import DeltaTopicTable

_LOOKS = 3
_CONTROL = "control"


@dataclass(frozen=True, slots=True)
class StreamTask:
    """The work of one task, with the stores for finding a file's successor. Picklable if the stores are
    picklable."""

    topic: str
    parts: tuple[Part, ...]
    replicas_of: Mapping[int, PartitionReplicas]
    remote: DeltaTopicTable | None
    isolation: Isolation


def read_task(task: StreamTask, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The records of a task's parts, in order, one row group at a time; ``columns`` by Parquet's names. If a
    planned file is gone, its successor in either tier is read. A successor that was written by a later removal
    rule has fewer records.

    Raises: SourceChangedError without a successor; CorruptSegmentError naming the damaged offsets; LogGapError and
        other CorruptionError kinds, StorageError.
    """
    wanted = list(dict.fromkeys([*columns, _CONTROL]))
    for one in task.parts:
        position, pieces, tries = one.piece.start, [one.piece], 0
        while pieces:
            piece = pieces[0]
            try:
                for first, records in read_row_groups(piece.store, piece.file, position, piece.end, wanted):
                    yield visible(records, task.isolation)
                    position = first + records.num_rows
            except SourceChangedError:
                tries += 1
                if tries >= _LOOKS:
                    raise
                pieces = _successors(task, one, position)
                continue
            except CorruptSegmentError as error:
                what = f"{task.topic}-{one.partition}"
                raise with_remedy(unreadable(what, position, piece.end, error)) from error
            if position < piece.end:
                raise LogGapError(
                    f"{task.topic}-{one.partition}: {piece.store.uri_of(piece.file.object.name)} ends at offset "
                    f"{position}, and no file has the offsets from there to {piece.end}; verify the topic"
                )
            pieces = pieces[1:]


def _successors(task: StreamTask, one: Part, position: int) -> list[FileSlice]:
    """The files that now contain the rest of a part."""
    replicas, end = task.replicas_of[one.partition], one.piece.end
    replica = replicas.leader
    # The log is not fenced, because a task cannot read the metadata again. The complete batch was committed when
    # it was planned, so the replica that led at that time has it. If that replica lacks records, the task notices
    # a gap.
    log = replica.log()
    try:
        check_whole(replica, log)
    # raised if a removal rule is newer than the plan; the footer of each file names its rule
    except FencedLeaderEpochError:
        replica = replace(replica, generation=ANY_GENERATION)
        log = replica.log()
        check_whole(replica, log)
    cold: list[FileSlice] = []
    if position < log.local_start and task.remote is not None:
        remote = task.remote.load().of_partition(one.partition)
        cold = remote_pieces(task.remote.remote, task.remote.folder, remote, log.lineage)
    elif position < log.local_start:
        raise SourceChangedError(
            f"{replicas}: offsets [{position}, {min(end, log.local_start)}) were deleted "
            "before they were read: start the query again, with failOnDataLoss = false to continue without them"
        )
    return readable_pieces(str(replicas), cold, local_pieces(replica, log), position, end)

"""The task that compares a leader's records with the records of its remote log, offset by offset."""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.engine.replication.partition import PartitionWork
from stratalog.partitions.errors import SourceChangedError
from stratalog.partitions.store import Store
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.same_records import first_difference

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class RecordsWork(PartitionWork):
    """Compares some remote segments, in order, with the leader's records at the same offsets."""

    store: Store
    folder: str
    segments: tuple[RemoteSegment, ...]


def compare_records(work: RecordsWork) -> int | None:
    """The task: returns the first offset at which the two sides differ; None if they match.

    Raises: see ``first_difference``; errors from listing the leader.
    """
    leader = work.replicas.leader
    for _ in range(_ATTEMPTS):
        log = leader.log(fresh=True)
        try:
            return first_difference(leader.store, log, work.store, work.folder, work.segments)
        except SourceChangedError as error:  # a merge or retention has removed a file
            changed = error
    raise SourceChangedError(f"{work}: its files change faster than they can be compared; try again: {changed}")

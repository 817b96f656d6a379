"""Rebuilds an object of the remote tier from a replica that still has its records, or from files that other
writers have put in place of its segment.

This module does not delete or change existing objects. A damaged object keeps its name until the table has dropped
it and the delay is over; a rebuilt one gets a new name. There is one exception: a missing object is restored under
its old name, if its old bytes still exist. If it has its old name, every version of the table that lists the
object is readable again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions import paths
from stratalog.partitions.errors import CorruptSegmentError, StorageError
from stratalog.partitions.lineage import Lineage
from stratalog.partitions.listing import DataFile
from stratalog.partitions.producers import ProducerEntry, ProducerState
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.merge import Run
from stratalog.partitions.rewrites.rewrite import as_whole, stage_run
from stratalog.partitions.segments.check import check_copy, verify_segment
from stratalog.partitions.segments.footer import SegmentFooter
from stratalog.partitions.segments.reader import Segment, read_segment
from stratalog.partitions.segments.writer import SegmentWriter
from stratalog.partitions.store.protocol import Staged, Store, StoredObject
from stratalog.tiering.copier import MOST_OF_A_NAME, found_object, segment_of
from stratalog.tiering.remote_segment import RemoteSegment, Uploaded
from stratalog.tiering.statistics import statistics_json

_FROM_RECORDS = Lock()


def rebuild(
    source: Replica,
    run: Run,
    lost: RemoteSegment | None,
    remote: Store,
    folder: str,
    *,
    compression: str,
    state: Callable[[], ProducerState],
) -> Uploaded:
    """Copy ``run``, files of a replica, into the topic's ``folder`` of ``remote``: the offsets of ``lost``, whose
    object is damaged or missing; None if the table does not list these offsets. ``state`` is the producer state at
    the end of ``run``, if the files do not show it.

    1. Stage the bytes, and check them during the copy.
    2. Give them a free name.
    3. Read everything back, and verify every checksum.

    A crash leaves an uncommitted object.

    Raises: CorruptSegmentError when the replica, or the remote tier, returns different bytes than were written;
        SourceChangedError, StorageError, OutcomeUnknownError.
    """
    run = as_whole(source, run)
    rebuilt, there, found = bring(
        lambda name: _stage(source, run, remote, name, compression, state),
        remote,
        partial(paths.remote_segment_path, source.partition, run.segment_name),
        folder,
        _first_name(run, lost),
    )
    if found.footer.next_offset != run.end:
        raise CorruptSegmentError(
            f"{remote.uri_of(there.name)} ends at {found.footer.next_offset}, not at {run.end}"
        )
    segment = replace(segment_of(source, run, found.footer, there.size_bytes), rebuilt=rebuilt)
    return Uploaded(segment, there.modified_ms, statistics_json(found), there.size_bytes)


@dataclass(frozen=True, slots=True)
class Beside:
    """The footer data of a segment that its records do not contain."""

    topic_id: str
    lineage: Lineage
    """The leader's lineage, which includes the segment."""
    producers: Mapping[str, ProducerEntry]
    """The producer state at the end of the segment, if the remote log ends there. Empty if the remote log
    continues, because no replica begins at that offset.
    """


def rebuild_from_records(
    records: Callable[[], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    lost: RemoteSegment,
    beside: Beside,
    remote: Store,
    folder: str,
    *,
    compression: str,
) -> Uploaded:
    """Rebuild a segment from all of its records, in order. Needed if other writers have rewritten the table, and a
    VACUUM has deleted the segment's object. In that case, the other writers' files have the only copy of the
    records. A rebuild takes much memory, so segments are rebuilt one at a time.

    Raises: see ``rebuild``; errors from ``records``.
    """
    with _FROM_RECORDS:
        rebuilt, there, found = bring(
            lambda name: _write(records(), schema, lost, beside, remote, name, compression),
            remote,
            partial(paths.remote_segment_path, lost.partition, lost.name),
            folder,
            lost.rebuilt + 1,
        )
    segment = replace(lost, rebuilt=rebuilt, size_bytes=there.size_bytes)
    return Uploaded(segment, there.modified_ms, statistics_json(found), there.size_bytes)


def bring(
    stage: Callable[[str], tuple[Staged, SegmentFooter]],
    remote: Store,
    path: Callable[[int], str],
    folder: str,
    first: int,
) -> tuple[int, StoredObject, Segment]:
    """Stage a file under the first free name, give it that name, and read every byte back. ``path`` gives the path
    in the topic's ``folder`` for the number of an object of that name, starting at ``first``. Returns that number.

    Raises: CorruptSegmentError, StorageError, OutcomeUnknownError; errors from ``stage``.
    """
    for rebuilt in range(first, MOST_OF_A_NAME):
        name = paths.join(folder, path(rebuilt))
        if _is_there(remote, name):
            continue
        staged, footer = stage(name)
        try:
            created = staged.commit()
        except BaseException:
            with suppress(Exception):
                staged.abort()
            raise
        if created:
            there = found_object(remote, name)
            parsed = paths.parse_name(paths.base_name(name))
            assert isinstance(parsed, paths.DataName)
            found = verify_segment(remote, DataFile(parsed, there))
            if found.footer != footer:
                raise CorruptSegmentError(f"{remote.uri_of(name)} reads back differently from what was written")
            return rebuilt, there, found
    raise StorageError(
        f"{remote.uri_of(folder)}: {MOST_OF_A_NAME} objects replace {path(0)}; run vacuum for the topic"
    )


def _write(
    records: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    lost: RemoteSegment,
    beside: Beside,
    remote: Store,
    name: str,
    compression: str,
) -> tuple[Staged, SegmentFooter]:
    staged = remote.stage_writer(name)
    marked: int | None = None
    try:
        writer = SegmentWriter(
            staged.file,
            schema,
            topic_id=beside.topic_id,
            partition=lost.partition,
            base_offset=lost.base_offset,
            compression=compression,
        )
        try:
            for batch in records:
                of_transactions = pc.or_(batch["control"].is_valid(), batch["producer_id"].is_valid())
                last = pc.max(batch["offset"].filter(of_transactions)).as_py()
                marked = marked if last is None else last
                writer.write(batch)
        except BaseException:
            writer.abort()
            raise
        footer = writer.close(
            lineage=Lineage(entry for entry in beside.lineage if entry.start_offset < lost.next_offset),
            producers=lambda _: dict(beside.producers),
            created_ms=lost.modified_ms,
            last_transactional_offset=marked,
        )
    except BaseException:
        with suppress(Exception):
            staged.abort()
        raise
    return staged, footer


def _first_name(run: Run, lost: RemoteSegment | None) -> int:
    if lost is None:
        return 0
    itself = run.is_segment and run.segment_name == lost.name and run.size_bytes == lost.size_bytes
    return lost.rebuilt if itself else lost.rebuilt + 1


def _is_there(remote: Store, name: str) -> bool:
    try:
        remote.stat(name)
    except FileNotFoundError:
        return False
    return True


def _stage(
    source: Replica, run: Run, remote: Store, name: str, compression: str, state: Callable[[], ProducerState]
) -> tuple[Staged, SegmentFooter]:
    if not run.is_segment:
        return stage_run(source.store, run, remote, name, compression=compression, state=state, leaves=True)
    file = run.links[0].file
    segment = read_segment(source.store, file, remembered=False)
    staged = remote.stage_copy(source.store, file.object, name)
    try:
        check_copy(source.store, segment, staged)
    except BaseException:
        staged.abort()
        raise
    return staged, segment.footer

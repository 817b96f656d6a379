"""An object of the remote tier made anew, from a replica that still has its records.

Nothing that lies there is deleted or changed. What was damaged stays under its name until the table has
forgotten it and its delay is over; what is rebuilt gets a name of its own. Only an object that is gone
altogether is put back under the very name, where its very bytes are to be had: then every version of the table
that lists it can be read again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from partitions import paths
from partitions.errors import CorruptSegmentError, StorageError
from partitions.listing import DataFile
from partitions.merge import Run
from partitions.replica import Replica
from partitions.rewrite import stage_run
from partitions.segment import read_segment
from partitions.segment_check import check_copy, verify_segment
from partitions.segment_footer import SegmentFooter
from partitions.store.protocol import Staged, Store
from tiering.copier import found_object, segment_of
from tiering.remote_segment import RemoteSegment, Uploaded
from tiering.statistics import statistics_json

_MOST = 1000
"""Objects of one name: so often nobody heals."""


def rebuild(
    source: Replica, run: Run, lost: RemoteSegment | None, remote: Store, folder: str, *, compression: str
) -> Uploaded:
    """Bring ``run``, files of a replica, into the topic's ``folder`` of ``remote``: offsets of ``lost``, of which
    the object is damaged or missing; None where the table does not list these offsets at all.

    1. stage the bytes, checked as they pass; 2. give them a name that nobody has; 3. read all of it back, every
    checksum. What a crash leaves is not committed, and is litter.

    Raises: CorruptSegmentError when the replica, or the remote tier, does not give what was written there;
        SourceChangedError, StorageError, OutcomeUnknownError.
    """
    for rebuilt in range(_first_name(run, lost), _MOST):
        path = paths.remote_segment_path(source.partition, run.segment_name, rebuilt)
        name = paths.join(folder, path)
        if _is_there(remote, name):
            continue
        staged, footer = _stage(source, run, remote, name, compression)
        try:
            created = staged.commit()
        except BaseException:
            with suppress(Exception):
                staged.abort()
            raise
        if created:
            there = found_object(remote, name)
            found = verify_segment(remote, DataFile(run.segment_name, there))
            if found.footer != footer or footer.next_offset != run.end:
                raise CorruptSegmentError(f"{remote.uri_of(name)} does not read back as it was written")
            segment = replace(segment_of(source, run, footer, there.size_bytes), rebuilt=rebuilt)
            return Uploaded(segment, there.modified_ms, statistics_json(found.parquet), there.size_bytes)
    raise StorageError(f"{remote.uri_of(folder)}: {_MOST} objects stand for {run.segment_name}; vacuum the topic")


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


def _stage(source: Replica, run: Run, remote: Store, name: str, compression: str) -> tuple[Staged, SegmentFooter]:
    if not run.is_segment:
        return stage_run(source.store, run, remote, name, compression=compression)
    file = run.links[0].file
    segment = read_segment(source.store, file, remembered=False)
    staged = remote.stage_copy(source.store, file.object, name)
    try:
        check_copy(source.store, segment, staged)
    except BaseException:
        staged.abort()
        raise
    return staged, segment.footer

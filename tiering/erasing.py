"""Finds the records of given keys in remote segments, and rewrites segments without the erased records
(``stratalog.tiering.erasure``).

A task only creates objects; the driver commits them (``DeltaTopicTable.remove_records``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from stratalog.partitions.erasure import Erasure
from stratalog.partitions.removal import Rule
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrites.erasing import marks
from stratalog.partitions.rewrites.removing import RemovingOptions
from stratalog.partitions.rewrites.rewrite import Removal
from stratalog.partitions.rewrites.wanted_where import RecordFinder
from stratalog.partitions.store.protocol import Store
from stratalog.tiering.erasure import generation_needed, to_erase_remotely
from stratalog.tiering.remote_file import remote_file
from stratalog.tiering.remote_segment import RemoteSegment
from stratalog.tiering.removing import RemovedRemotely, rewrite_segments


def find_remotely(
    remote: Store, folder: str, segments: Iterable[RemoteSegment], keys: RecordFinder, start: int, end: int
) -> Iterator[tuple[RemoteSegment, list[int]]]:
    """The segments of a partition that contain records of the keys at offsets ``[start, end)``, with these
    offsets, ascending. Only row groups that may contain a key, according to the footers, are read.

    Raises: see ``WantedKeys.offsets_in``.
    """
    for segment in segments:
        first, last = max(segment.base_offset, start), min(segment.next_offset, end)
        if first < last and (found := [*keys.offsets_in(remote, remote_file(folder, segment), first, last)]):
            yield segment, found


def erase_remotely(
    replica: Replica,
    remote: Store,
    folder: str,
    segments: Iterable[RemoteSegment],
    erasures: Sequence[Erasure],
    compacted: Rule,
    options: RemovingOptions,
) -> RemovedRemotely:
    """Step 2, without its commit: rewrite the segments of a partition that contain offsets of its erasures.
    ``replica`` is any replica of the partition; ``compacted``: see ``ErasingOptions``.

    Raises: see ``rewrite_segments``.
    """
    done = RemovedRemotely()
    doomed = to_erase_remotely(segments, erasures)
    for generation, some in groupby(doomed, key=lambda segment: generation_needed(segment, erasures)):
        named = [one for one in erasures if one.generation <= generation]
        removal = Removal(
            Rule(generation, compacted.bound, compacted.tombstones_before),
            partial(marks, named),
        )
        part = rewrite_segments(replica, remote, folder, [*some], removal, options)
        done = RemovedRemotely(
            replaced=(*done.replaced, *part.replaced),
            gaps=done.gaps + part.gaps,
            read_bytes=done.read_bytes + part.read_bytes,
            written_bytes=done.written_bytes + part.written_bytes,
        )
    return done

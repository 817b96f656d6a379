"""Reads objects of the remote tier that the table lists, or that a commit is about to add."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.partitions import paths
from stratalog.partitions.cache import BoundedCache
from stratalog.partitions.errors import CorruptionError, RemoteObjectMissingError, SourceChangedError
from stratalog.partitions.listing import DataFile
from stratalog.partitions.segments.check import verify_bytes
from stratalog.partitions.segments.reader import Segment, read_segment
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.tiering.remote_segment import RemoteSegment

REMEMBERED_BYTES = 64 * 1024 * 1024
"""The memory for a record of the objects that a process has fully verified: about 100,000 objects."""

_verified: BoundedCache[tuple[Store, StoredObject, RemoteSegment], bool] = BoundedCache(REMEMBERED_BYTES)


def remote_file(folder: str, segment: RemoteSegment) -> DataFile:
    """A remote segment as a data file of the remote store; ``folder`` is the topic's. No listing is needed: the
    table gives the size, and names in the remote tier are never reused.
    """
    name = paths.join(folder, segment.path)
    return DataFile(segment.name, StoredObject(name, segment.size_bytes, 0, ""))


def read_remote(remote: Store, folder: str, segment: RemoteSegment) -> Segment:
    """The footers of a remote segment, checked against the table's entry: size, partition, offsets.

    Raises: RemoteObjectMissingError, CorruptSegmentError, CorruptionError.
    """
    return _read(remote, remote_file(folder, segment), segment, read_segment)


def verify_remote(remote: Store, segment: RemoteSegment, there: StoredObject) -> None:
    """Read all bytes of a remote segment's object ``there``, and compare them with the checksum that was computed
    at the write. A process reads each object once: an object is written only once, and its version identifies it.

    Raises: see ``read_remote``.
    """
    key = remote, there, segment
    if _verified.get(key) is None:
        _read(remote, DataFile(segment.name, there), segment, verify_bytes)
        if there.version:
            _verified.put(key, True, 500 + len(there.name) + len(there.version))


def _read(
    remote: Store, file: DataFile, segment: RemoteSegment, read: Callable[[Store, DataFile], Segment]
) -> Segment:
    what = remote.uri_of(file.object.name)
    try:
        found = read(remote, file)
    except SourceChangedError as error:
        raise RemoteObjectMissingError(
            f"the remote log lists {what} with {segment.size_bytes} bytes, but no such object exists"
        ) from error
    footer = found.footer
    if (footer.partition, footer.next_offset) != (segment.partition, segment.next_offset):
        raise CorruptionError(
            f"the footer of {what} names partition {footer.partition} and end {footer.next_offset}, "
            f"but the remote log lists it as partition {segment.partition} with end {segment.next_offset}"
        )
    return found

"""Looking into the objects of the remote tier that the table lists, or is about to."""

from __future__ import annotations

from partitions import paths
from partitions.errors import CorruptionError, RemoteObjectMissingError, SourceChangedError
from partitions.listing import DataFile
from partitions.segment import Segment, read_segment
from partitions.store.protocol import Store, StoredObject
from tiering.remote_segment import RemoteSegment


def remote_file(folder: str, segment: RemoteSegment) -> DataFile:
    """A remote segment as a data file of the remote store; ``folder`` is the topic's. No listing: the table
    vouches for the size, and names in the remote tier are never used again.
    """
    name = paths.join(folder, segment.path)
    return DataFile(segment.name, StoredObject(name, segment.size_bytes, 0, ""))


def read_remote(remote: Store, folder: str, segment: RemoteSegment) -> Segment:
    """The footers of a remote segment, checked against what the table says of it: size, partition, offsets.

    Raises: RemoteObjectMissingError, CorruptSegmentError, CorruptionError.
    """
    file = remote_file(folder, segment)
    what = remote.uri_of(file.object.name)
    try:
        found = read_segment(remote, file)
    except SourceChangedError as error:
        raise RemoteObjectMissingError(
            f"the remote log lists {what} with {segment.size_bytes} bytes, which is not there as such"
        ) from error
    footer = found.footer
    if (footer.partition, footer.next_offset) != (segment.partition, segment.next_offset):
        raise CorruptionError(
            f"{what} is of partition {footer.partition} and ends at offset {footer.next_offset}, its place says "
            f"partition {segment.partition} and {segment.next_offset}"
        )
    return found

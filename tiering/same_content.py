"""Whether an object of the remote tier is what a run of a log would be there, byte for byte. Names do not say so:
where brokers were put back to an older state, with their metadata, other records get the same offsets under the
same leader epoch, and an upload that nobody committed may have their name already.

Nothing is written for it. A file that is copied states the checksum of its bytes, and one that is rewritten is
written to nowhere (the same files always become the same bytes, ``stratalog.partitions.rewrite``).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import isal_zlib

from stratalog.partitions.merge import Run
from stratalog.partitions.replica import Replica
from stratalog.partitions.rewrite import stage_run, state_after

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def crc32_of(leader: Replica, run: Run, *, compression: str) -> int:
    """The CRC-32 of all bytes of the segment that holds a run of the leader's log.

    Raises: as ``stage_run``.
    """
    if run.is_segment:
        return leader.segment(run.links[0].file).crc32
    nowhere = _Nowhere()
    stage_run(
        leader.store,
        run,
        nowhere,
        str(run.segment_name),
        compression=compression,
        state=lambda: state_after(leader, run),
        leaves=True,
    )
    return nowhere.sink.crc32


class _Checksum(io.RawIOBase):
    def __init__(self) -> None:
        self.crc32 = 0
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        self.crc32 = isal_zlib.crc32(view, self.crc32)
        self.size_bytes += view.nbytes
        return view.nbytes


class _Nowhere:
    """Takes the bytes of one file, and keeps their checksum alone."""

    def __init__(self) -> None:
        self.sink = _Checksum()
        self.file = cast(BinaryIO, self.sink)

    def stage_writer(self, name: str) -> _Nowhere:
        return self

    @property
    def size_bytes(self) -> int:
        return self.sink.size_bytes

    def commit(self) -> bool:
        raise NotImplementedError

    def replace(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        """Nothing is there to drop."""

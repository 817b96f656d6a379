"""A file that is uploaded in parts while it is written."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from isal import isal_zlib

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.protocol import Staged

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PARTS_IN_FLIGHT = 2


class StagedWhole(Staged, Protocol):
    """Staged bytes that can get a new name, or replace an existing object."""

    def replace(self) -> None:
        """See ``StagedWriter.replace``."""
        ...


class StagedParts(StagedWhole, Protocol):
    """Bytes that are uploaded in parts, in any order, from any thread."""

    def put_part(self, index: int, data: bytes, crc32: int) -> None:
        """Upload part ``index``, counted from zero, which has this CRC-32."""
        ...


class UploadWriter:
    """A staged object that is still being written; implements ``StagedWriter``. Complete parts are uploaded in the
    background, at most ``PARTS_IN_FLIGHT`` at a time; an object smaller than one part is one ``PUT`` at
    ``commit``.
    """

    def __init__(
        self,
        uri: str,
        part_bytes: int,
        in_one: Callable[[bytes], StagedWhole],
        in_parts: Callable[[], StagedParts],
    ) -> None:
        self._uri = uri
        self._in_one = in_one
        self._in_parts = in_parts
        self._upload: StagedParts | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._in_flight: deque[Future[None]] = deque()
        self._count = 0
        self._done = False
        self._stream = _PartStream(part_bytes, self._send)
        self.file = cast(BinaryIO, self._stream)

    @property
    def size_bytes(self) -> int:
        return self._stream.tell()

    def commit(self) -> bool:
        try:
            return self._written().commit()
        finally:
            self.abort()

    def replace(self) -> None:
        try:
            self._written().replace()
        finally:
            self.abort()

    def abort(self) -> None:
        self._done = True
        self._stream.take()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._upload is not None:
            self._upload.abort()

    def _written(self) -> StagedWhole:
        """Send the rest of the bytes. Returns the staged object that gives them their name."""
        if self._done:
            raise InvalidCallError(f"{self._uri} has already been committed or aborted")
        rest = self._stream.take()
        if self._upload is None:
            return self._in_one(rest)
        if rest:
            self._send(rest)
        self._wait(0)
        return self._upload

    def _send(self, part: bytes) -> None:
        if self._upload is None or self._pool is None:
            self._upload = self._in_parts()
            self._pool = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="upload")
        self._wait(PARTS_IN_FLIGHT - 1)
        self._in_flight.append(self._pool.submit(self._upload.put_part, self._count, part, isal_zlib.crc32(part)))
        self._count += 1

    def _wait(self, most_in_flight: int) -> None:
        while len(self._in_flight) > most_in_flight:
            try:
                self._in_flight.popleft().result()
            except BaseException:
                self.abort()  # a later commit would create an object without this part
                raise


class _PartStream(io.RawIOBase):
    """Cuts the written bytes into parts, and passes each on once it is complete."""

    def __init__(self, part_bytes: int, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._part_bytes = part_bytes
        self._send = send
        self._buffer = bytearray()
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: ReadableBuffer, /) -> int:
        if self.closed:
            raise ValueError("write to a closed file")
        view = memoryview(data).cast("B")
        self._buffer += view
        self._written += len(view)
        while len(self._buffer) >= self._part_bytes:
            part = bytes(self._buffer[: self._part_bytes])
            del self._buffer[: self._part_bytes]
            self._send(part)
        return len(view)

    def take(self) -> bytes:
        """The rest of the last part. Closes the stream."""
        self.close()
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

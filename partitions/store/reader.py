"""A seekable file on top of ranged reads, and a read of one whole range."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

from stratalog.partitions.errors import SourceChangedError
from stratalog.partitions.store.protocol import Readable, StoredObject

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def read_range(source: BinaryIO, start: int, end: int, what: str) -> bytes:
    """Exactly the bytes ``[start, end)`` of a listed object, which ``what`` names in errors. Raises:
    SourceChangedError if the object no longer has all of these bytes; errors from ``source``.
    """
    source.seek(start)
    data = source.read(end - start)
    if len(data) != end - start:
        raise SourceChangedError(f"{what} has lost bytes: it ended at byte {start + len(data)}; list it again")
    return data


class HeldObject:
    """One small listed object, read by one request and held in memory; a ``Readable`` of that object alone."""

    def __init__(self, store: Readable, listed: StoredObject) -> None:
        """Raises: see ``Readable.open``; SourceChangedError if the object is not as it was listed."""
        self._store = store
        with store.open(listed) as source:
            self.data = read_range(source, 0, listed.size_bytes, store.uri_of(listed.name))

    def open(self, source_object: StoredObject) -> BinaryIO:
        return io.BytesIO(self.data)

    def uri_of(self, name: str) -> str:
        return self._store.uri_of(name)


class RangeReader(io.RawIOBase):
    """A read-only file of known size; every ``read`` is one ``fetch(start, end)`` of exactly that range.

    Unbuffered on purpose: Parquet readers request exactly the bytes that they need, and a buffer would fetch bytes
    twice. Not thread-safe: threads would share the position.
    """

    def __init__(
        self,
        size_bytes: int,
        fetch: Callable[[int, int], bytes],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        self._fetch = fetch
        self._on_close = on_close
        self._position = 0

    def as_file(self) -> BinaryIO:
        """This reader, typed as callers expect; it has all reading methods of that type."""
        return cast(BinaryIO, self)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if self.closed:
            raise ValueError("read of a closed file")
        start = min(self._position, self._size_bytes)
        end = self._size_bytes if size is None or size < 0 else min(start + size, self._size_bytes)
        if start >= end:
            return b""
        data = self._fetch(start, end)
        self._position = start + len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._on_close()
        super().close()

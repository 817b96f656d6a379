"""A large object that gets its bytes and its name in one request.

If completing a multipart upload is not exclusive, the server copies a staged object to its name, which moves all
bytes a second time. One ``PUT If-None-Match: *`` moves them once. The request is streamed, so memory holds only a
buffer.
"""

from __future__ import annotations

import io
from typing import Any, cast

from isal import isal_zlib

from stratalog.partitions.errors import InvalidCallError, SourceChangedError
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.partitions.store.s3_upload import Place, name_by

LARGEST_PUT_BYTES = 512 * 1024 * 1024
"""Larger objects are uploaded in parts, because a retry of one request sends all its bytes again. (S3 allows up to
5 GB.)
"""

_BUFFER_BYTES = 1024 * 1024


class StagedPut:
    """A checked object of another store, whose bytes are sent together with its name; implements
    ``StagedCopy``.
    """

    def __init__(self, place: Place, source: Store, source_object: StoredObject) -> None:
        """Reads the object once to compute the checksum, by which the server refuses bytes damaged in transit.

        Raises: SourceChangedError, StorageError.
        """
        self._place = place
        self._source = source
        self._object = source_object
        self._done = False
        self.size_bytes = source_object.size_bytes
        self.crc32 = self._checksum()

    def commit(self) -> bool:
        """See ``Staged.commit``. Also raises SourceChangedError."""
        if self._done:
            raise InvalidCallError(f"{self._place.uri} has already been committed or aborted")
        self._done = True

        def attempt(client: Any) -> None:
            with self._reader() as body:
                self._place.put(client, body, self.crc32, ContentLength=self.size_bytes, IfNoneMatch="*")

        created = name_by(self._place, attempt)
        if created:
            self._place.tally.add(written_bytes=self.size_bytes)
        return created

    def abort(self) -> None:
        self._done = True

    def _reader(self) -> io.BufferedReader:
        """The HTTP client reads a few kilobytes at a time."""
        return io.BufferedReader(cast(io.RawIOBase, self._source.open(self._object)), _BUFFER_BYTES)

    def _checksum(self) -> int:
        crc32 = length = 0
        with self._reader() as reader:
            while data := reader.read(_BUFFER_BYTES):
                crc32 = isal_zlib.crc32(data, crc32)
                length += len(data)
        if length != self.size_bytes:
            raise SourceChangedError(
                f"{self._source.uri_of(self._object.name)} has been replaced since it was listed"
            )
        return crc32

"""A large object that gets its bytes and its name in one request.

Where completing a multipart upload is not exclusive, a staged object is named by a copy on the server, which
moves all bytes a second time. One ``PUT If-None-Match: *`` moves them once. It is streamed: memory holds a
buffer, however large the object.
"""

from __future__ import annotations

import io
from typing import Any, cast

from isal import isal_zlib

from stratalog.partitions.errors import InvalidCallError, SourceChangedError
from stratalog.partitions.store.protocol import Store, StoredObject
from stratalog.partitions.store.s3_upload import Place, crc32_text, name_by

LARGEST_PUT_BYTES = 512 * 1024 * 1024
"""A larger object goes up in parts, since a failed request sends all its bytes again. (S3 takes up to 5 GB.)"""

_BUFFER_BYTES = 1024 * 1024


class StagedPut:
    """An object of another store, read and found whole, whose bytes travel with its name; ``StagedCopy``."""

    def __init__(self, place: Place, source: Store, source_object: StoredObject) -> None:
        """Reads the object once, for the checksum by which the server refuses bytes that were damaged on the way.

        Raises: SourceChangedError, StorageError.
        """
        self._place = place
        self._source = source
        self._object = source_object
        self._done = False
        self.size_bytes = source_object.size_bytes
        self.crc32 = self._checksum()

    def commit(self) -> bool:
        """See ``Staged.commit``. Raises also SourceChangedError."""
        if self._done:
            raise InvalidCallError(f"{self._place.uri} was committed or aborted before")
        self._done = True

        def attempt(client: Any) -> None:
            self._place.tally.add(creates=1)
            with self._reader() as body:
                answer = client.put_object(
                    Bucket=self._place.bucket,
                    Key=self._place.key,
                    Body=body,
                    ContentLength=self.size_bytes,
                    ChecksumCRC32=crc32_text(self.crc32),
                    IfNoneMatch="*",
                    **self._place.connection.encryption,
                )
            self._place.check_key(answer, client)

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
            raise SourceChangedError(f"{self._source.uri_of(self._object.name)} is not as it was listed")
        return crc32

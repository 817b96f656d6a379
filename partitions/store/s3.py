"""Storage in a bucket: ``s3://bucket/prefix``, on a synchronous botocore client.

With ``driver = "fsspec"`` s3fs sends the same requests (``s3_fsspec``), for 1.0 to 1.9 times the CPU
(``python -m bench.s3_clients``).

Exclusive create is ``PUT If-None-Match: *``. ``version`` is the ETag, so this store does not distinguish two
objects of one name with the same bytes, written in the same way.
"""

from __future__ import annotations

import random
from functools import partial

from isal import isal_zlib

from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import StorageError
from stratalog.partitions.paths import join
from stratalog.partitions.store.object import (
    INLINE_COPY_BYTES,
    MOST_PARTS,
    ObjectStore,
    StagedPartsCopy,
    missing_packages,
)
from stratalog.partitions.store.protocol import StagedCopy, Store, StoredObject, StoreOptions
from stratalog.partitions.store.rules import STAGING_FOLDER, check_name, drop_probes, run_pieces
from stratalog.partitions.store.s3_bucket import Bucket, only_if
from stratalog.partitions.store.s3_connection import S3Connection
from stratalog.partitions.store.s3_put import LARGEST_PUT_BYTES, StagedPut
from stratalog.partitions.store.s3_upload import Place, StagedBytes, StagedUpload

COPY_PART_BYTES = 64 * 1024 * 1024


class S3Store(ObjectStore):
    """The objects of a bucket whose keys start with a prefix."""

    _objects: Bucket
    _returns_checksums = True
    """Whether the server is still assumed to return checksums of copied parts. (Some servers do not.)"""

    def _open_objects(self, scheme: str, rng: random.Random) -> Bucket:
        return Bucket(_connection(self.options, self._clock, rng), self.bucket, self._tally)

    @property
    def _complete_exclusively(self) -> bool:
        exclusive = self.options.exclusive_multipart
        return self.options.endpoint_url is None if exclusive is None else exclusive

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """See ``Store.stage_copy``. The server copies within one endpoint and the same credentials, if it returns
        the checksums of its copies. In all other cases, parts are read and uploaded in parallel. With
        ``StoreOptions.bytes_with_name`` an object that would be moved twice is streamed once, when it gets its
        name.
        """
        # s3fs reads a body on its event loop, which cannot read from another store.
        streams = self.options.bytes_with_name and self.options.driver is None
        late = streams and not self._complete_exclusively
        by_put = INLINE_COPY_BYTES < source_object.size_bytes <= LARGEST_PUT_BYTES
        if late and by_put and not isinstance(source, S3Store):
            return StagedPut(self._place(name), source, source_object)
        return super().stage_copy(source, source_object, name)

    def _fill(self, source: Store, source_object: StoredObject, upload: StagedPartsCopy) -> None:
        copied = (
            isinstance(source, S3Store)
            and isinstance(upload, StagedUpload)
            and source.options == self.options
            and self._returns_checksums
            and self._copy_on_server(source, source_object, upload)
        )
        if not copied:
            super()._fill(source, source_object, upload)

    def _in_one(self, name: str, data: bytes) -> StagedBytes:
        return StagedBytes(self._place(name), data, isal_zlib.crc32(data))

    def _in_parts(self, name: str) -> StagedUpload:
        return StagedUpload(self._place(name), self._complete_exclusively)

    def instead(self) -> str:
        other = "false" if self._complete_exclusively else "true"
        return f"set exclusive_multipart = {other} in the storage table of the cluster file, or use another server"

    def _keeps_damaged_bytes(self, probe: str) -> bool:
        try:
            StagedBytes(self._place(probe), b"damaged", isal_zlib.crc32(b"sent")).commit()
        except StorageError:
            return False
        drop_probes(self, [probe])
        return True

    def _place(self, name: str) -> Place:
        staging_key = join(self.prefix, STAGING_FOLDER, self._new_id())
        return Place(
            self._objects.connection, self._tally, self.bucket, join(self.prefix, check_name(name)), staging_key
        )

    def _copy_on_server(self, source: S3Store, listed: StoredObject, upload: StagedUpload) -> bool:
        """False if the server returns no checksum of its copy; the caller then uploads the parts."""
        key, size = source._key(listed.name), listed.size_bytes
        condition = only_if(listed.version, "CopySourceIfMatch")
        part_bytes = max(COPY_PART_BYTES, -(-size // MOST_PARTS))
        parts = [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]

        def copy(index: int) -> None:
            if self._returns_checksums:
                self._returns_checksums = upload.copy_part(index, source.bucket, key, condition, *parts[index])

        run_pieces([partial(copy, index) for index in range(len(parts))])
        return self._returns_checksums


def _connection(options: StoreOptions, clock: Clock, rng: random.Random) -> S3Connection:
    if options.driver is None:
        return S3Connection(options, clock, rng)
    try:
        from stratalog.partitions.store.s3_fsspec import S3fsConnection
    except ModuleNotFoundError as missing:
        raise missing_packages("fsspec", "s3", missing) from None
    return S3fsConnection(options, clock, rng)

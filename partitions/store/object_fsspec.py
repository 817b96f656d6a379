"""Object storage through fsspec: ``abfss://`` and ``az://`` (adlfs), ``gs://`` (gcsfs).

Exclusive creation is the storage's own condition, for small and for large objects. Each upload has a checksum, and
the storage refuses bytes that do not match it. ``StagedCopy.crc32`` is computed from the buffers that were sent.
"""

from __future__ import annotations

import random
import threading
from contextlib import suppress

from isal import isal_zlib

from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError, StorageError
from stratalog.partitions.paths import join
from stratalog.partitions.store.crc32 import PiecewiseCrc32
from stratalog.partitions.store.object import ObjectStore, missing_packages
from stratalog.partitions.store.object_http import HttpObjects, HttpRequest
from stratalog.partitions.store.requests import Requests, name_exclusively
from stratalog.partitions.store.rules import STAGING_FOLDER, drop_probes


class FsspecStore(ObjectStore):
    """The objects of a bucket or a container whose keys start with a prefix."""

    _objects: HttpObjects

    def _open_objects(self, scheme: str, rng: random.Random) -> HttpObjects:
        arguments = self.options, self._clock, rng
        try:
            if scheme == "gs":
                from stratalog.partitions.store.object_gcs import GcsObjects, GcsRequests

                return GcsObjects(GcsRequests(self.bucket, *arguments), self._root_uri, self._tally)
            from stratalog.partitions.store.object_azure import AzureObjects, AzureRequests

            container = self.bucket.partition("@")[0]
            return AzureObjects(AzureRequests(container, *arguments), self._root_uri, self._tally)
        except ModuleNotFoundError as missing:
            raise missing_packages(f"{scheme}://", scheme, missing) from None

    @property
    def requests(self) -> Requests:
        """The requests to the store's bucket."""
        return self._objects.requests

    def _in_one(self, name: str, data: bytes) -> StagedObject:
        return StagedObject(self._objects, self._key(name), data)

    def _in_parts(self, name: str) -> StagedBlocks:
        return StagedBlocks(self._objects, self._key(name), join(self.prefix, STAGING_FOLDER, self._new_id()))

    def _keeps_damaged_bytes(self, probe: str) -> bool:
        key = self._key(probe)
        try:
            self._objects.put(key, "create", self._objects.put_request(key, b"damaged", b"sent", exclusive=True))
        except StorageError:
            return False
        drop_probes(self, [probe])
        return True


def _name_by(objects: HttpObjects, key: str, request: HttpRequest) -> bool:
    """``name_exclusively`` for an object in a bucket."""
    attempt = objects.attempt(request, creates=1)
    return name_exclusively(objects.requests, f"{objects.uri}/{key}", attempt, lambda: objects.head(key))


class StagedObject:
    """Staged bytes in memory; implements ``StagedWholeCopy``."""

    def __init__(self, objects: HttpObjects, key: str, data: bytes) -> None:
        self._objects = objects
        self._key = key
        self._data: bytes | None = data
        self.size_bytes = len(data)
        self.crc32 = isal_zlib.crc32(data)

    def commit(self) -> bool:
        data = self._take()
        objects, key = self._objects, self._key
        created = _name_by(objects, key, objects.put_request(key, data, data, exclusive=True))
        if created:
            objects.count_written(len(data))
        return created

    def replace(self) -> None:
        data = self._take()
        self._objects.put(self._key, "replace", self._objects.put_request(self._key, data, data, exclusive=False))
        self._objects.count_written(len(data))

    def abort(self) -> None:
        self._data = None

    def _take(self) -> bytes:
        if self._data is None:
            raise InvalidCallError(f"{self._objects.uri}/{self._key} has already been committed or aborted")
        data, self._data = self._data, None
        return data


class StagedBlocks:
    """Bytes that are uploaded in parts; implements ``StagedPartsCopy``."""

    def __init__(self, objects: HttpObjects, key: str, upload: str) -> None:
        self._objects = objects
        self._key = key
        self._upload = upload
        self._lock = threading.Lock()
        self._parts = 0
        self._passed = PiecewiseCrc32()
        self._done = False

    @property
    def size_bytes(self) -> int:
        return self._passed.size_bytes

    @property
    def crc32(self) -> int:
        return self._passed.value

    def put_part(self, index: int, data: bytes, crc32: int) -> None:
        with self._lock:
            self._parts = max(self._parts, index + 1)  # before the part exists, so that a failure also drops it
        self._objects.put(
            self._key, "upload a part of", self._objects.part_request(self._key, self._upload, index, data)
        )
        self._objects.count_written(len(data))
        self._passed.add(index, crc32, len(data))

    def commit(self) -> bool:
        self._begin_to_end()
        objects, key = self._objects, self._key
        try:
            objects.gather(key, self._upload, self._parts)
            request = objects.complete_request(key, self._upload, self._parts, exclusive=True)
            created = _name_by(objects, key, request)
        except OutcomeUnknownError:
            raise  # the server may still be working on it: leave the bytes to ``sweep_staging``
        except BaseException:
            self._drop()
            raise
        self._drop()
        return created

    def replace(self) -> None:
        self._begin_to_end()
        objects, key = self._objects, self._key
        try:
            objects.gather(key, self._upload, self._parts)
            objects.put(key, "replace", objects.complete_request(key, self._upload, self._parts, exclusive=False))
        finally:
            self._drop()

    def abort(self) -> None:
        if not self._done:
            self._done = True
            self._drop()

    def _begin_to_end(self) -> None:
        if self._done:
            raise InvalidCallError(f"{self._objects.uri}/{self._key} has already been committed or aborted")
        self._done = True

    def _drop(self) -> None:
        # ``sweep_staging`` removes parts that cannot be removed now.
        with suppress(StorageError):
            self._objects.drop(self._upload, self._parts)

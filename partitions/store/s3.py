"""Storage in a bucket: ``s3://bucket/prefix``, on a synchronous botocore client.

Exclusive create is ``PUT If-None-Match: *``. One page of a listing is a snapshot. Reads of a listed object
carry ``If-Match``; ``version`` is its ETag, so two objects of the same name with the same bytes, written in
the same way, are one and the same to this store.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO

from isal import isal_zlib

from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import (
    BrokerUnreachableError,
    CorruptionError,
    LogDirError,
    RetriableError,
    SourceChangedError,
    StorageAuthorizationError,
    StorageError,
    UnsupportedStoreError,
)
from stratalog.partitions.identity import NewId, random_id
from stratalog.partitions.paths import is_log_folder, is_probe, is_top_folder, join, probe_name
from stratalog.partitions.store.protocol import StagedCopy, StagedWriter, Store, StoredObject, StoreOptions
from stratalog.partitions.store.reader import RangeReader
from stratalog.partitions.store.rules import (
    CROWDED,
    MOST_NAMES,
    STAGING_FOLDER,
    Tally,
    byte_range,
    check_exclusive_create,
    check_name,
    copy_in_pieces,
    drop_probes,
    folder_prefix,
    run_pieces,
    special_key,
    stable_listing,
)
from stratalog.partitions.store.s3_bucket import Bucket, only_if
from stratalog.partitions.store.s3_connection import EndpointUnreachableError, S3Connection, S3Refusal
from stratalog.partitions.store.s3_put import LARGEST_PUT_BYTES, StagedPut
from stratalog.partitions.store.s3_upload import (
    MOST_PARTS,
    Place,
    StagedBytes,
    StagedUpload,
    UploadWriter,
    put_exclusively,
)

INLINE_COPY_BYTES = 4 * 1024 * 1024
"""Up to here a copy waits in memory for its name: two requests, where an upload takes three or more.
Callers stage many files before they commit them, so it is no more."""
COPY_PART_BYTES = 64 * 1024 * 1024

_Pages = tuple[int, Sequence[StoredObject]]
"""A walk through a folder: how many pages there were, and the objects."""
_Once = Callable[[], _Pages]

_DEFAULTS = StoreOptions()
_CLOCK = SystemClock()


class S3Store:
    """The objects of a bucket whose keys start with a prefix.

    Pickles carry addresses and options, never credentials or connections. Counts are requests as sent,
    repetitions included.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: StoreOptions = _DEFAULTS,
        clock: Clock = _CLOCK,
        new_id: NewId = random_id,
        rng: random.Random | None = None,
    ) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self.options = options
        self.uri = f"s3://{join(bucket, self.prefix)}"
        self._clock = clock
        self._new_id = new_id
        self._tally = Tally()
        self.counts = self._tally.counts
        connection = S3Connection(options, clock, random.Random() if rng is None else rng)
        self._objects = Bucket(connection, bucket, self._tally)
        self._tells_what_it_copied = True
        """Until a copied part comes without its checksum: some servers tell none."""
        self._complete_exclusively = (
            options.endpoint_url is None if options.exclusive_multipart is None else options.exclusive_multipart
        )

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, str, StoreOptions, Clock, NewId]]:
        return S3Store, (self.bucket, self.prefix, self.options, self._clock, self._new_id)

    def create(self, name: str, data: bytes) -> bool:
        """See ``Store.create``. False may be the echo of this call's own success, when an answer was lost
        on the way: read a name that is taken before you take it for another's."""
        return put_exclusively(self._place(name), data)

    def stage_writer(self, name: str) -> StagedWriter:
        return UploadWriter(self._place(name), self.options.part_bytes, self._complete_exclusively)

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> StagedCopy:
        """See ``Store.stage_copy``. The server copies what lies on the same endpoint under the same
        credentials, where it tells the checksum of what it has copied; else parts are read and uploaded a few at
        once, or (``StoreOptions.bytes_with_name``) what would be moved twice is streamed once, when it gets its
        name."""
        place = self._place(name)
        size = source_object.size_bytes
        same_server = isinstance(source, S3Store) and source.options == self.options
        if size <= INLINE_COPY_BYTES:
            with source.open(source_object) as reader:
                data = reader.read()
            if len(data) != size:
                raise SourceChangedError(f"{source.uri_of(source_object.name)} is not as it was listed")
            return StagedBytes(place, data)
        late = self.options.bytes_with_name and not self._complete_exclusively
        if late and size <= LARGEST_PUT_BYTES and not isinstance(source, S3Store):
            return StagedPut(place, source, source_object)
        upload = StagedUpload(place, self._complete_exclusively)
        try:
            told = (
                isinstance(source, S3Store)
                and same_server
                and self._tells_what_it_copied
                and self._copy_on_server(source, source_object, upload)
            )
            if not told:
                piece_bytes = max(self.options.part_bytes, -(-size // MOST_PARTS))

                def put(index: int, _start: int, data: bytes, crc32: int) -> None:
                    upload.put_part(index, data, crc32)

                copy_in_pieces(source, source_object, piece_bytes, put)
            if upload.size_bytes != size:
                raise StorageError(f"{place.uri}: {upload.size_bytes} of {size} bytes arrived")
        except BaseException:
            upload.abort()
            raise
        return upload

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See ``Store.read``. One request, but two for a range that only the size can tell."""
        key = self._key(name)
        try:
            if end is not None and (start < 0 or end <= start):
                start, end = byte_range(start, end, self._objects.head(key).size_bytes)
                if start >= end:
                    return b""
            if start < 0:
                return self._objects.get(key, {"Range": f"bytes={start}"})
            if start == 0 and end is None:
                return self._objects.get(key, {})
            return self._objects.get(key, {"Range": f"bytes={start}-{'' if end is None else end - 1}"})
        except S3Refusal as refused:
            answer = refused.answer
            if answer.status == 416:  # nothing of the object is in the range
                return b""
            if answer.code in ("NoSuchKey", "404"):
                raise FileNotFoundError(self.uri_of(name)) from refused
            raise refused.as_error(f"cannot read {self.uri_of(name)}", "read", self.uri_of(name)) from refused

    def stat(self, name: str) -> StoredObject:
        try:
            found = self._objects.head(self._key(name))
        except S3Refusal as refused:
            if refused.answer.status == 404:
                raise FileNotFoundError(self.uri_of(name)) from refused
            raise refused.as_error(f"cannot look for {self.uri_of(name)}", "read", self.uri_of(name)) from refused
        return StoredObject(name, found.size_bytes, found.modified_ms, found.version)

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. Asks nothing until the first read, unless the object is empty."""
        key = self._key(source_object.name)
        condition = only_if(source_object)

        def fetch(start: int, end: int) -> bytes:
            try:
                return self._objects.get(key, {"Range": f"bytes={start}-{end - 1}", **condition})
            except S3Refusal as refused:
                uri = self.uri_of(source_object.name)
                if refused.answer.status in (412, 416) or refused.answer.code == "NoSuchKey":
                    raise SourceChangedError(f"{uri} is not the object that was listed") from refused
                raise refused.as_error(f"cannot read {uri}", "read", uri) from refused

        if source_object.size_bytes == 0:  # no read will ever find out
            self._must_exist(source_object)
        return RangeReader(source_object.size_bytes, fetch).as_file()

    def list(
        self, prefix: str, after: str = "", known: Sequence[StoredObject] | None = None
    ) -> Sequence[StoredObject]:
        """See ``Store.list``. A server that cannot be reached, a bucket that is missing or refuses us: the
        root is not there."""

        def agreed(once: _Once, where: str) -> _Pages:
            return stable_listing(once, where, lambda pages: pages[0] == 1)

        return self._listed(prefix, agreed, after)

    def walk(self, prefix: str) -> Sequence[StoredObject]:
        return self._listed(prefix, lambda once, where: once())

    def _listed(
        self, prefix: str, look: Callable[[_Once, str], _Pages], after: str = ""
    ) -> Sequence[StoredObject]:
        folder = folder_prefix(prefix)
        where = self.uri_of(folder)
        try:
            _, listed = look(partial(self._list_once, folder, after), where)
        except S3Refusal as refused:
            error = refused.as_error(f"cannot list {where}", "list", where)
            if isinstance(error, StorageAuthorizationError):  # the root is there, but not for this caller
                raise error from refused
            raise BrokerUnreachableError(str(error)) from refused
        except EndpointUnreachableError as error:
            raise BrokerUnreachableError(f"cannot list {where}: {error}") from error
        return listed

    def names(self, prefix: str) -> frozenset[str]:
        return frozenset(listed.name for listed in self.list(prefix))

    def delete(self, names: Iterable[str]) -> None:
        self._objects.delete([self._key(name) for name in names])

    def uri_of(self, name: str) -> str:
        return f"s3://{join(self.bucket, self.prefix, name)}"

    def check(self) -> None:
        """See ``Store.check``. Large objects get their names in another way than small ones: both are
        tried. A race that the server decides twice cannot be told from here: see ``StoreOptions``. A server
        has to refuse bytes that were damaged on the way, too, by their CRC-32."""
        try:
            self._objects.check()
        except S3Refusal as refused:
            error = refused.as_error(f"the bucket {self.bucket!r} cannot be used", "list", self.uri)
            if isinstance(error, StorageAuthorizationError):
                raise error from refused
            raise LogDirError(str(error)) from refused
        except StorageAuthorizationError:
            raise
        except RetriableError as error:
            raise LogDirError(f"the bucket {self.bucket!r} cannot be used: {error}") from error
        check_exclusive_create(self, probe_name(self._new_id()))
        try:
            damaged = self._keeps_damaged_bytes(probe_name(self._new_id()))
            taken, large = [], probe_name(self._new_id())
            for _ in range(2):
                upload = StagedUpload(self._place(large), self._complete_exclusively)
                try:
                    upload.put_part(0, b"probe", isal_zlib.crc32(b"probe"))
                    taken.append(not upload.commit())
                finally:
                    upload.abort()
            drop_probes(self, [large])
        except StorageAuthorizationError:
            raise
        except RetriableError as error:
            raise LogDirError(f"{self.uri} cannot be written: {error}") from error
        if damaged:
            raise UnsupportedStoreError(
                f"{self.uri} took bytes that are not those of their x-amz-checksum-crc32: bytes that are damaged "
                "on the way there would be kept. Use another server"
            )
        if taken != [False, True]:
            raise UnsupportedStoreError(
                f"{self.uri} is a store without exclusive create of large objects: set exclusive_multipart "
                f"to {not self._complete_exclusively}, or use another server"
            )

    def _keeps_damaged_bytes(self, probe: str) -> bool:
        """Whether the server takes an object with a checksum that is not its own."""
        try:
            put_exclusively(self._place(probe), b"damaged", isal_zlib.crc32(b"sent"))
        except StorageError:
            return False
        drop_probes(self, [probe])
        return True

    def sweep_staging(self, older_than_ms: int, *, dry_run: bool = False) -> int:
        """See ``Store.sweep_staging``: uploads begun, and staged objects made, under this prefix. Other roots may
        lie deeper, all those of the bucket when the prefix is empty: uploads to other folders than a root has
        are not ours.
        """
        before_ms = self._clock.now_ms() - older_than_ms
        root = self.prefix and self.prefix + "/"

        def ours(key: str) -> bool:
            folder = key[len(root) :].partition("/")[0]
            return folder == STAGING_FOLDER or is_top_folder(folder) or is_probe(folder)

        try:
            begun = [u for u in self._objects.uploads(root) if u.begun_ms < before_ms and ours(u.key)]
            for upload in [] if dry_run else begun:
                self._objects.abort(upload)
            _, staged = self._objects.list(root + STAGING_FOLDER + "/")
        except S3Refusal as refused:
            where = self.uri_of(STAGING_FOLDER)
            raise refused.as_error(f"cannot sweep {self.uri}", "delete", where) from refused
        old = [listed.name for listed in staged if listed.modified_ms < before_ms]
        self._objects.delete([] if dry_run else old)
        return len(begun) + len(old)

    def _key(self, name: str) -> str:
        return join(self.prefix, check_name(name))

    def _place(self, name: str) -> Place:
        staging_key = join(self.prefix, STAGING_FOLDER, self._new_id())
        return Place(self._objects.connection, self._tally, self.bucket, self._key(name), staging_key)

    def _list_once(self, folder: str, after: str) -> tuple[int, Sequence[StoredObject]]:
        """One walk through the pages of a folder: how many there were, and the objects, by name."""
        root = self.prefix and self.prefix + "/"
        most = MOST_NAMES if is_log_folder(folder.rstrip("/")) else None
        pages, listed = self._objects.list(root + folder, most, after and root + folder + after)
        if most is not None and len(listed) > most:
            raise CorruptionError(f"{self.uri_of(folder)} holds {CROWDED}")
        named = (
            replace(o, name=o.name[len(root) :], special=special_key(o.name[len(root) :]))
            for o in listed
            if not o.name.endswith("/") and not o.name.startswith(STAGING_FOLDER + "/", len(root))
        )
        return pages, sorted(named, key=lambda o: o.name)

    def _must_exist(self, listed: StoredObject) -> None:
        try:
            self._objects.head(self._key(listed.name), **only_if(listed))
        except S3Refusal as refused:
            if refused.answer.status in (404, 412):
                raise SourceChangedError(
                    f"{self.uri_of(listed.name)} is not the object that was listed"
                ) from refused
            uri = self.uri_of(listed.name)
            raise refused.as_error(f"cannot look for {uri}", "read", uri) from refused

    def _copy_on_server(self, source: S3Store, listed: StoredObject, upload: StagedUpload) -> bool:
        """False: the server does not tell what it has copied; the parts are to be put instead."""
        key, size = source._key(listed.name), listed.size_bytes
        condition = only_if(listed, "CopySourceIfMatch")
        part_bytes = max(COPY_PART_BYTES, -(-size // MOST_PARTS))
        parts = [(start, min(start + part_bytes, size)) for start in range(0, size, part_bytes)]

        def copy(index: int) -> None:
            if self._tells_what_it_copied:
                self._tells_what_it_copied = upload.copy_part(index, source.bucket, key, condition, *parts[index])

        run_pieces([partial(copy, index) for index in range(len(parts))])
        return self._tells_what_it_copied

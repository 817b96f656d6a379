"""Storage in a bucket: ``s3://bucket/prefix``, on a synchronous botocore client.

Exclusive create is ``PUT If-None-Match: *``. One page of a listing is a snapshot. Reads of a listed object
carry ``If-Match``; ``version`` is its ETag, so two objects of the same name with the same bytes, written in
the same way, are one and the same to this store.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, BinaryIO

from botocore.exceptions import ClientError

from partitions.clock import Clock, SystemClock
from partitions.errors import (
    BrokerUnreachableError,
    LogDirError,
    RetriableError,
    SourceChangedError,
    StorageError,
    UnsupportedStoreError,
)
from partitions.identity import NewId, random_id
from partitions.paths import join
from partitions.store.protocol import Staged, StagedWriter, Store, StoredObject, StoreOptions
from partitions.store.reader import RangeReader
from partitions.store.rules import (
    STAGING_FOLDER,
    Tally,
    byte_range,
    check_exclusive_create,
    check_name,
    copy_in_pieces,
    folder_prefix,
    run_pieces,
    settle,
)
from partitions.store.s3_connection import PASSING_CODES, EndpointUnreachableError, Refused, S3Connection
from partitions.store.s3_upload import (
    MOST_PARTS,
    Place,
    StagedBytes,
    StagedUpload,
    UploadWriter,
    put_exclusively,
)

INLINE_COPY_BYTES = 1024 * 1024
"""Up to here a copy goes through memory: two requests, where a server-side one takes three."""
COPY_PART_BYTES = 64 * 1024 * 1024
KEYS_PER_DELETE = 1000

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
        self._connection = S3Connection(options, clock, random.Random() if rng is None else rng)
        self._complete_exclusively = (
            options.endpoint_url is None if options.exclusive_multipart is None else options.exclusive_multipart
        )

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    def __reduce__(self) -> tuple[type[S3Store], tuple[str, str, StoreOptions, Clock, NewId]]:
        return S3Store, (self.bucket, self.prefix, self.options, self._clock, self._new_id)

    def create(self, name: str, data: bytes) -> bool:
        """See ``Store.create``. False may be the echo of this call's own success, when an answer was lost
        on the way: whoever is told that a name is taken looks what is there."""
        return put_exclusively(self._place(name), data)

    def stage_writer(self, name: str) -> StagedWriter:
        """See ``Store.stage_writer``."""
        return UploadWriter(self._place(name), self.options.part_bytes, self._complete_exclusively)

    def stage_copy(self, source: Store, source_object: StoredObject, name: str) -> Staged:
        """See ``Store.stage_copy``. The server copies what lies on the same endpoint under the same
        credentials; else parts are read and uploaded a few at once."""
        place = self._place(name)
        size = source_object.size_bytes
        same_server = isinstance(source, S3Store) and source.options == self.options
        if size <= (INLINE_COPY_BYTES if same_server else self.options.part_bytes):
            with source.open(source_object) as reader:
                data = reader.read()
            if len(data) != size:
                raise SourceChangedError(f"{source.uri_of(source_object.name)} is not as it was listed")
            return StagedBytes(place, data)
        upload = StagedUpload(place, self._complete_exclusively)
        try:
            if isinstance(source, S3Store) and same_server:
                self._copy_on_server(source, source_object, upload)
            else:
                piece_bytes = max(self.options.part_bytes, -(-size // MOST_PARTS))
                copy_in_pieces(
                    source, source_object, piece_bytes, lambda i, _start, data: upload.put_part(i, data)
                )
        except BaseException:
            upload.abort()
            raise
        return upload

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See ``Store.read``. One request, but two for a range that only the size can tell."""
        key = self._key(name)
        try:
            if end is not None and (start < 0 or end <= start):
                start, end = byte_range(start, end, self._size(key))
                if start >= end:
                    return b""
            if start < 0:
                return self._get(key, {"Range": f"bytes={start}"})
            if start == 0 and end is None:
                return self._get(key, {})
            return self._get(key, {"Range": f"bytes={start}-{'' if end is None else end - 1}"})
        except Refused as refused:
            answer = refused.answer
            if answer.status == 416:  # nothing of the object is in the range
                return b""
            if answer.code in ("NoSuchKey", "404"):
                raise FileNotFoundError(self.uri_of(name)) from refused
            raise StorageError(f"cannot read {self.uri_of(name)}: {refused}") from refused

    def open(self, source_object: StoredObject) -> BinaryIO:
        """See ``Store.open``. Asks nothing until the first read, unless the object is empty."""
        key = self._key(source_object.name)
        etag = _etag(source_object)

        def fetch(start: int, end: int) -> bytes:
            try:
                return self._get(key, {"Range": f"bytes={start}-{end - 1}", "IfMatch": f'"{etag}"'})
            except Refused as refused:
                uri = self.uri_of(source_object.name)
                if refused.answer.status in (412, 416) or refused.answer.code == "NoSuchKey":
                    raise SourceChangedError(f"{uri} is not the object that was listed") from refused
                raise StorageError(f"cannot read {uri}: {refused}") from refused

        if source_object.size_bytes == 0:  # no read will ever find out
            self._must_exist(source_object)
        return RangeReader(source_object.size_bytes, fetch).as_file()

    def list(self, prefix: str) -> Sequence[StoredObject]:
        """See ``Store.list``. A server that cannot be reached, a bucket that is missing or refuses us: the
        root is not there."""
        folder = folder_prefix(prefix)
        where = self.uri_of(folder)
        try:
            _, listed = settle(partial(self._list_once, folder), where, lambda pages: pages[0] == 1)
        except Refused as refused:
            raise BrokerUnreachableError(f"cannot list {where}: {refused}") from refused
        except EndpointUnreachableError as error:
            raise BrokerUnreachableError(f"cannot list {where}: {error}") from error
        return listed

    def delete(self, names: Iterable[str]) -> None:
        """See ``Store.delete``."""
        keys = [self._key(name) for name in names]
        for start in range(0, len(keys), KEYS_PER_DELETE):
            self._delete_keys(keys[start : start + KEYS_PER_DELETE])

    def uri_of(self, name: str) -> str:
        """See ``Store.uri_of``."""
        return f"s3://{join(self.bucket, self.prefix, name)}"

    def check(self) -> None:
        """See ``Store.check``. Large objects get their names in another way than small ones: both are
        tried. A race that the server decides twice cannot be told from here: see ``StoreOptions``."""
        try:
            self._connection.repeatable(f"look for {self.bucket}", self._head_bucket)
        except (Refused, RetriableError) as error:
            raise LogDirError(f"the bucket {self.bucket!r} cannot be used: {error}") from error
        probe = f".check-{self._new_id()}"
        check_exclusive_create(self, probe)
        try:
            taken = []
            for _ in range(2):
                upload = StagedUpload(self._place(probe), self._complete_exclusively)
                try:
                    upload.put_part(0, b"probe")
                    taken.append(not upload.commit())
                finally:
                    upload.abort()
            self.delete([probe])
        except RetriableError as error:
            raise LogDirError(f"{self.uri} cannot be written: {error}") from error
        if taken != [False, True]:
            raise UnsupportedStoreError(
                f"{self.uri} is a store without exclusive create of large objects: set exclusive_multipart "
                f"to {not self._complete_exclusively}, or use another server"
            )

    def sweep_staging(self, older_than_ms: int) -> int:
        """Remove what writers that died left under this prefix: uploads begun, and staged objects made,
        longer ago than that by the clock passed in. Returns how many.

        Raises: StorageError, StoreTimeoutError.
        """
        before_ms = self._clock.now_ms() - older_than_ms
        folder = join(self.prefix, STAGING_FOLDER) + "/"
        removed = 0
        try:
            for upload in self._uploads():
                if _milliseconds(upload["Initiated"]) < before_ms:
                    self._connection.repeatable(f"abort {upload['Key']}", partial(self._abort, upload))
                    removed += 1
            _, staged = self._list_keys(folder)
        except Refused as refused:
            raise StorageError(f"cannot sweep {self.uri}: {refused}") from refused
        old = [listed.name for listed in staged if listed.modified_ms < before_ms]
        for start in range(0, len(old), KEYS_PER_DELETE):
            self._delete_keys(old[start : start + KEYS_PER_DELETE])
        return removed + len(old)

    # ------------------------------------------------------------------------------ requests

    def _key(self, name: str) -> str:
        return join(self.prefix, check_name(name))

    def _place(self, name: str) -> Place:
        staging_key = join(self.prefix, STAGING_FOLDER, self._new_id())
        return Place(self._connection, self._tally, self.bucket, self._key(name), staging_key)

    def _get(self, key: str, conditions: dict[str, str]) -> bytes:
        def attempt(client: Any) -> bytes:
            self._tally.add(reads=1)
            answer = client.get_object(Bucket=self.bucket, Key=key, **conditions)
            data: bytes = answer["Body"].read()
            self._tally.add(read_bytes=len(data))
            return data

        return self._connection.repeatable(f"read s3://{self.bucket}/{key}", attempt)

    def _size(self, key: str, **conditions: str) -> int:
        def attempt(client: Any) -> int:
            self._tally.add(reads=1)
            return int(client.head_object(Bucket=self.bucket, Key=key, **conditions)["ContentLength"])

        return self._connection.repeatable(f"look for s3://{self.bucket}/{key}", attempt)

    def _must_exist(self, listed: StoredObject) -> None:
        try:
            self._size(self._key(listed.name), IfMatch=f'"{_etag(listed)}"')
        except Refused as refused:
            if refused.answer.status in (404, 412):
                raise SourceChangedError(
                    f"{self.uri_of(listed.name)} is not the object that was listed"
                ) from refused
            raise StorageError(f"cannot look for {self.uri_of(listed.name)}: {refused}") from refused

    def _copy_on_server(self, source: S3Store, listed: StoredObject, upload: StagedUpload) -> None:
        key, etag, size = source._key(listed.name), _etag(listed), listed.size_bytes
        part_bytes = max(COPY_PART_BYTES, -(-size // MOST_PARTS))
        run_pieces(
            [
                partial(upload.copy_part, i, source.bucket, key, etag, start, min(start + part_bytes, size))
                for i, start in enumerate(range(0, size, part_bytes))
            ]
        )

    def _list_once(self, folder: str) -> tuple[int, list[StoredObject]]:
        """One walk through the pages of a folder: how many, and the objects under their names."""
        root = self.prefix and self.prefix + "/"
        skipped = len(root)
        pages, listed = self._list_keys(root + folder)
        named = [
            StoredObject(o.name[skipped:], o.size_bytes, o.modified_ms, o.version)
            for o in listed
            if not o.name.endswith("/") and not o.name.startswith(STAGING_FOLDER + "/", skipped)
        ]
        return pages, sorted(named, key=lambda o: o.name)

    def _list_keys(self, key_prefix: str) -> tuple[int, list[StoredObject]]:
        """The pages there were, and every object in them, under its key."""
        listed: list[StoredObject] = []
        pages = 0
        following: dict[str, str] = {}
        while True:

            def attempt(client: Any, following: dict[str, str] = following) -> Any:
                self._tally.add(lists=1)
                return client.list_objects_v2(Bucket=self.bucket, Prefix=key_prefix, **following)

            page = self._connection.repeatable(f"list s3://{self.bucket}/{key_prefix}", attempt)
            pages += 1
            listed += [
                StoredObject(o["Key"], o["Size"], _milliseconds(o["LastModified"]), _version(o["ETag"], o["Size"]))
                for o in page.get("Contents", [])
            ]
            if not page.get("IsTruncated"):
                return pages, listed
            following = {"ContinuationToken": page["NextContinuationToken"]}

    def _delete_keys(self, keys: list[str]) -> None:
        def attempt(client: Any) -> list[str]:
            self._tally.add(deletes=1)
            request = {"Quiet": True, "Objects": [{"Key": key} for key in keys]}
            errors = client.delete_objects(Bucket=self.bucket, Delete=request).get("Errors", [])
            for error in errors:
                if error["Code"] in PASSING_CODES:  # one of a thousand: ask for all again
                    raise ClientError({"Error": {"Code": error["Code"]}}, "DeleteObjects")
            return [f"{error['Key']} ({error['Code']})" for error in errors if error["Code"] != "NoSuchKey"]

        try:
            failed = self._connection.repeatable(f"delete in {self.uri}", attempt)
        except (Refused, RetriableError) as error:
            raise StorageError(f"cannot delete {keys[0]} and {len(keys) - 1} others: {error}") from error
        if failed:
            raise StorageError(f"cannot delete {', '.join(failed)} in s3://{self.bucket}")

    def _uploads(self) -> list[dict[str, Any]]:
        """Every uncompleted upload under the prefix."""
        found: list[dict[str, Any]] = []
        following: dict[str, str] = {}
        while True:

            def attempt(client: Any, following: dict[str, str] = following) -> Any:
                self._tally.add(lists=1)
                prefix = self.prefix and self.prefix + "/"
                return client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix, **following)

            page = self._connection.repeatable(f"list the uploads of {self.uri}", attempt)
            found += page.get("Uploads", [])
            if not page.get("IsTruncated"):
                return found
            following = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _abort(self, upload: dict[str, Any], client: Any) -> None:
        self._tally.add(deletes=1)
        client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _head_bucket(self, client: Any) -> None:
        self._tally.add(reads=1)
        client.head_bucket(Bucket=self.bucket)


def _version(etag: str, size: int) -> str:
    return f"{etag.strip(chr(34))}.{size:x}"


def _etag(listed: StoredObject) -> str:
    return listed.version.rpartition(".")[0]


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)

"""Objects that are being uploaded to a bucket: the bytes first, the name later.

    small     the bytes stay in memory; one exclusive ``PUT`` gives the name
    large     the bytes are uploaded in parts; the exclusive completion gives the name

Some servers do not complete uploads exclusively under a race (SeaweedFS 4.48: two completions of one name may both
succeed). On such servers the upload is completed under a name in ``.staging``, and ``CopyObject`` with
``If-None-Match: *``, which is atomic, gives the name.

Every part and every ``PUT`` has its CRC-32, and the server refuses bytes that do not match. Parts that the server
copies itself are accepted only if the server returns their CRC-32. So ``StagedCopy.crc32`` covers the server's
bytes before they have a name. A server returns no checksum when it completes an upload or copies a staged object
to its name: ``verify_bytes`` reads the result.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError, RetriableError, SourceChangedError
from stratalog.partitions.store.crc32 import PiecewiseCrc32
from stratalog.partitions.store.requests import Refusal, harmless, name_exclusively
from stratalog.partitions.store.rules import Tally, media_type
from stratalog.partitions.store.s3_connection import S3Connection

MOST_COPY_BYTES = 5 * 1024**3


@dataclass(frozen=True, slots=True)
class Place:
    """The target of an upload: its key, and a staging key unique to this upload."""

    connection: S3Connection
    tally: Tally
    bucket: str
    key: str
    staging_key: str

    @property
    def uri(self) -> str:
        """The address, for messages."""
        return f"s3://{self.bucket}/{self.key}"

    def check_key(self, answer: Mapping[str, Any]) -> None:
        """Check that the new object is encrypted with the key of the root.

        Raises: UnsupportedStoreError; OutcomeUnknownError if that cannot be read, because the object exists.
        """

        def head(client: Any) -> Mapping[str, Any]:
            self.tally.add(reads=1)
            found: Mapping[str, Any] = client.head_object(Bucket=self.bucket, Key=self.key)
            return found

        def look() -> Mapping[str, Any]:
            what = f"{self.uri} was created, but its key cannot be read"
            try:
                return self.connection.repeatable(f"look for {self.uri}", head)
            except Refusal as refused:
                raise OutcomeUnknownError(str(refused.as_error(what, "read", self.uri))) from refused
            except RetriableError as error:
                raise OutcomeUnknownError(f"{what}: {error}") from error

        self.connection.check_key(answer, self.uri, look)

    def put(self, client: Any, body: bytes | BinaryIO, crc32: int, **more: Any) -> None:
        """Create the object by one ``PUT``; the server refuses bytes that do not match ``crc32``."""
        self.tally.add(creates=1)
        answer = client.put_object(
            Bucket=self.bucket,
            Key=self.key,
            Body=body,
            ChecksumCRC32=crc32_text(crc32),
            **more,
            **self.connection.encryption,
        )
        self.check_key(answer)


def crc32_text(crc32: int) -> str:
    """The header by which the server refuses bytes damaged in transit (``ChecksumCRC32``)."""
    return base64.b64encode(crc32.to_bytes(4, "big")).decode()


def crc32_of_text(text: str) -> int:
    return int.from_bytes(base64.b64decode(text), "big")


def name_by(place: Place, attempt: Callable[[Any], Any]) -> bool:
    """``name_exclusively`` for an object in a bucket."""

    def look(client: Any) -> None:
        place.tally.add(reads=1)
        client.head_object(Bucket=place.bucket, Key=place.key)

    def repeat() -> None:
        place.connection.repeatable(f"look for {place.uri}", look)

    return name_exclusively(place.connection, place.uri, attempt, repeat)


class StagedBytes:
    """A small object in memory; implements ``StagedCopy``."""

    def __init__(self, place: Place, data: bytes, crc32: int) -> None:
        self._place = place
        self._data: bytes | None = data
        self.size_bytes = len(data)
        self.crc32 = crc32

    def commit(self) -> bool:
        data = self._take()
        created = name_by(self._place, lambda client: self._place.put(client, data, self.crc32, IfNoneMatch="*"))
        if created:
            self._place.tally.add(written_bytes=len(data))
        return created

    def replace(self) -> None:
        place, data = self._place, self._take()

        def attempt(client: Any) -> None:
            place.put(client, data, self.crc32, ContentType=media_type(place.key))

        harmless(place.connection, place.uri, "replace", attempt)
        place.tally.add(written_bytes=self.size_bytes)

    def abort(self) -> None:
        self._data = None

    def _take(self) -> bytes:
        if self._data is None:
            raise InvalidCallError(f"{self._place.uri} has already been committed or aborted")
        data, self._data = self._data, None
        return data


class StagedUpload:
    """An uncompleted multipart upload; implements ``StagedCopy``. Parts come in any order, from any thread."""

    def __init__(self, place: Place, complete_exclusively: bool) -> None:
        self._place = place
        self._exclusive = complete_exclusively
        self._key = place.key if complete_exclusively else place.staging_key
        self._lock = threading.Lock()
        self._parts: dict[int, dict[str, str]] = {}
        self._completed = False
        self._done = False
        self._passed = PiecewiseCrc32()

        def attempt(client: Any) -> str:
            place.tally.add(creates=1)
            answer = client.create_multipart_upload(
                Bucket=place.bucket,
                Key=self._key,
                ChecksumAlgorithm="CRC32",
                ContentType=media_type(place.key),
                **place.connection.encryption,
            )
            place.connection.check_key(answer, place.uri)
            return str(answer["UploadId"])

        self._upload_id = harmless(place.connection, place.uri, "begin", attempt)

    @property
    def size_bytes(self) -> int:
        return self._passed.size_bytes

    @property
    def crc32(self) -> int:
        return self._passed.value

    def put_part(self, index: int, data: bytes, crc32: int) -> None:
        checksum = crc32_text(crc32)

        def attempt(client: Any) -> dict[str, str]:
            self._place.tally.add(creates=1)
            answer = client.upload_part(**self._address, PartNumber=index + 1, Body=data, ChecksumCRC32=checksum)
            return {"ETag": answer["ETag"], "ChecksumCRC32": checksum}

        part = harmless(self._place.connection, self._place.uri, "upload a part of", attempt)
        self._place.tally.add(written_bytes=len(data))
        self._arrived(index, part, crc32, len(data))

    def copy_part(
        self, index: int, bucket: str, key: str, condition: dict[str, str], start: int, end: int
    ) -> bool:
        """Have the server copy ``[start, end)`` of an object, under ``CopySourceIfMatch``. False if the server
        returns no checksum of its copy: the caller then uploads the part.

        Raises: SourceChangedError, StorageError.
        """

        def attempt(client: Any) -> dict[str, str]:
            self._place.tally.add(copies=1)
            answer = client.upload_part_copy(
                **self._address,
                PartNumber=index + 1,
                CopySource={"Bucket": bucket, "Key": key},
                **condition,
                CopySourceRange=f"bytes={start}-{end - 1}",
            )
            result = answer["CopyPartResult"]
            return {name: result[name] for name in ("ETag", "ChecksumCRC32") if name in result}

        try:
            part = self._place.connection.repeatable(f"copy s3://{bucket}/{key} to {self._place.uri}", attempt)
        except Refusal as refused:
            if refused.answer.status == 412 or refused.answer.code == "NoSuchKey":
                raise SourceChangedError(f"s3://{bucket}/{key} is not the object that was listed") from refused
            what = f"cannot copy s3://{bucket}/{key} to {self._place.uri}"
            raise refused.as_error(what, "create", self._place.uri) from refused
        if "ChecksumCRC32" not in part:
            return False
        self._arrived(index, part, crc32_of_text(part["ChecksumCRC32"]), end - start)
        return True

    def commit(self) -> bool:
        if self._done:
            raise InvalidCallError(f"{self._place.uri} has already been committed or aborted")
        try:
            if self._exclusive:
                created = name_by(self._place, lambda client: self._complete(client, IfNoneMatch="*"))
                self._done = created  # a refused completion leaves the upload, which must be aborted
                return created
            self._complete_aside()
            return name_by(self._place, lambda client: self._copy_to_name(client, IfNoneMatch="*"))
        except OutcomeUnknownError:
            # the server may still be completing the upload: leave the bytes to ``sweep_staging``
            self._done = True
            raise
        finally:
            self.abort()

    def replace(self) -> None:
        try:
            if self._exclusive:
                harmless(self._place.connection, self._place.uri, "replace", self._complete)
                self._done = True
            else:
                self._complete_aside()
                harmless(self._place.connection, self._place.uri, "replace", self._copy_to_name)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._done:
            return
        self._done = True

        def attempt(client: Any) -> None:
            self._place.tally.add(deletes=1)
            if self._completed:
                client.delete_object(Bucket=self._place.bucket, Key=self._key)
            else:
                client.abort_multipart_upload(**self._address)

        # ``sweep_staging`` removes a part that cannot be removed now.
        with suppress(RetriableError, Refusal):
            self._place.connection.repeatable(f"discard the staged data for {self._place.uri}", attempt)

    def _complete(self, client: Any, **condition: str) -> None:
        parts = [{"PartNumber": i + 1, **self._parts[i]} for i in sorted(self._parts)]
        self._place.tally.add(creates=1)
        client.complete_multipart_upload(**self._address, MultipartUpload={"Parts": parts}, **condition)

    def _complete_aside(self) -> None:
        if self.size_bytes > MOST_COPY_BYTES:
            raise InvalidCallError(
                f"{self._place.uri}: a staged object of {self.size_bytes} bytes exceeds CopyObject's limit of "
                f"{MOST_COPY_BYTES}"
            )
        harmless(self._place.connection, self._place.uri, "complete", self._complete)
        self._completed = True

    def _copy_to_name(self, client: Any, **condition: str) -> None:
        self._place.tally.add(copies=1)
        answer = client.copy_object(
            Bucket=self._place.bucket,
            Key=self._place.key,
            CopySource={"Bucket": self._place.bucket, "Key": self._key},
            **condition,
            **self._place.connection.encryption,
        )
        self._place.check_key(answer)

    def _arrived(self, index: int, part: dict[str, str], crc32: int, size_bytes: int) -> None:
        with self._lock:
            self._parts[index] = part
        self._passed.add(index, crc32, size_bytes)

    @property
    def _address(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key, "UploadId": self._upload_id}

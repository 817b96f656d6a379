"""Objects on their way into a bucket: the bytes first, the name later.

    small     the bytes wait in memory; the name comes with one exclusive ``PUT``
    large     the bytes go up in parts; the name comes with the completion, exclusively

A server that completes uploads exclusively only while nobody races (SeaweedFS 4.48: two completions of
one name may both succeed) is asked differently: the upload is completed under a name in ``.staging``,
and ``CopyObject`` with ``If-None-Match: *``, which is atomic there, gives the name.

Verification: every part and every ``PUT`` carries its CRC-32, and the server refuses bytes that have another one.
Parts that the server copies itself count only where it tells their CRC-32. So ``StagedCopy.crc32`` is of the bytes
that the server has, before they have a name. A server does not report how it completes an upload or copies a
staged object to its name: ``verify_bytes`` reads the result.
"""

from __future__ import annotations

import base64
import io
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from isal import isal_zlib

from stratalog.partitions.errors import (
    InvalidCallError,
    OutcomeUnknownError,
    RetriableError,
    SourceChangedError,
    StorageError,
    StoreTimeoutError,
)
from stratalog.partitions.store.crc32 import PiecewiseCrc32
from stratalog.partitions.store.rules import Tally
from stratalog.partitions.store.s3_connection import S3Connection, S3Refusal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_PARTS = 10_000
MOST_COPY_BYTES = 5 * 1024**3
PARTS_IN_FLIGHT = 2
CONFLICT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Where an object is going to be: its key, and a key that only this upload knows."""

    connection: S3Connection
    tally: Tally
    bucket: str
    key: str
    staging_key: str

    @property
    def uri(self) -> str:
        """For messages."""
        return f"s3://{self.bucket}/{self.key}"


def crc32_text(crc32: int) -> str:
    """The header with which the server refuses bytes that were damaged on the way (``ChecksumCRC32``)."""
    return base64.b64encode(crc32.to_bytes(4, "big")).decode()


def crc32_of_text(text: str) -> int:
    """The CRC-32 in a text of ``crc32_text``."""
    return int.from_bytes(base64.b64decode(text), "big")


def put_exclusively(place: Place, data: bytes, crc32: int | None = None) -> bool:
    """One ``PUT If-None-Match: *``. False: the name is taken. ``crc32`` is that of ``data``, unless the caller
    wants to see what the server makes of another one."""
    checksum = crc32_text(isal_zlib.crc32(data) if crc32 is None else crc32)

    def attempt(client: Any) -> None:
        place.tally.add(creates=1)
        client.put_object(Bucket=place.bucket, Key=place.key, Body=data, ChecksumCRC32=checksum, IfNoneMatch="*")

    created = name_exclusively(place, attempt)
    if created:
        place.tally.add(written_bytes=len(data))
    return created


def name_exclusively(place: Place, attempt: Callable[[Any], None]) -> bool:
    """Carry out the request that gives an object its name. True: this call created it. False: the name
    is taken, which includes the echo of an attempt of our own whose answer was lost: the caller looks.

    Raises: StorageError, OutcomeUnknownError.
    """
    for _ in range(CONFLICT_ATTEMPTS):
        try:
            place.connection.exclusive(f"create {place.uri}", attempt)
        except S3Refusal as refused:
            answer = refused.answer
            if answer.status == 412:
                return False
            if answer.status == 409:  # ConditionalRequestConflict: somebody is creating it right now
                if _exists(place):
                    return False
                place.connection.back_off()
                continue
            if answer.ambiguous:
                if _exists(place):
                    return False
                raise OutcomeUnknownError(f"create {place.uri}: {refused}; read before you retry") from refused
            raise refused.as_error(f"cannot create {place.uri}", "create", place.uri) from refused
        else:
            return True
    raise StorageError(f"cannot create {place.uri}: {CONFLICT_ATTEMPTS} conflicts in a row, and nobody made it")


def _exists(place: Place) -> bool:
    def attempt(client: Any) -> None:
        place.tally.add(reads=1)
        client.head_object(Bucket=place.bucket, Key=place.key)

    try:
        place.connection.repeatable(f"look for {place.uri}", attempt)
    except S3Refusal as refused:
        if refused.answer.status == 404:
            return False
        raise OutcomeUnknownError(f"cannot look for {place.uri}: {refused}") from refused
    except RetriableError as error:
        raise OutcomeUnknownError(f"create {place.uri}: {error}") from error
    return True


def _request(place: Place, action: str, attempt: Callable[[Any], Any]) -> Any:
    """A request that may be sent again, and that nobody else's can conflict with: every refusal, and no answer, is
    a StorageError."""
    what = f"{action} {place.uri}"
    try:
        return place.connection.repeatable(what, attempt)
    except S3Refusal as refused:
        raise refused.as_error(f"cannot {what}", "create", place.uri) from refused
    except StoreTimeoutError as failure:
        raise StorageError(f"cannot {what}: {failure}") from failure


class StagedBytes:
    """A small object that waits in memory; ``StagedCopy``."""

    def __init__(self, place: Place, data: bytes) -> None:
        self._place = place
        self._data: bytes | None = data
        self.size_bytes = len(data)
        self.crc32 = isal_zlib.crc32(data)

    def commit(self) -> bool:
        if self._data is None:
            raise InvalidCallError(f"{self._place.uri} was committed or aborted before")
        data, self._data = self._data, None
        return put_exclusively(self._place, data, self.crc32)

    def replace(self) -> None:
        place, data = self._place, self._data

        def attempt(client: Any) -> None:
            place.tally.add(creates=1)
            client.put_object(Bucket=place.bucket, Key=place.key, Body=data, ChecksumCRC32=crc32_text(self.crc32))

        _request(place, "replace", attempt)
        place.tally.add(written_bytes=self.size_bytes)

    def abort(self) -> None:
        self._data = None


class StagedUpload:
    """An uncompleted multipart upload; ``StagedCopy``. Parts come in any order, from any thread."""

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
            answer = client.create_multipart_upload(Bucket=place.bucket, Key=self._key, ChecksumAlgorithm="CRC32")
            return str(answer["UploadId"])

        self._upload_id = _request(place, "begin", attempt)

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts so far."""
        return self._passed.size_bytes

    @property
    def crc32(self) -> int:
        return self._passed.value

    def put_part(self, index: int, data: bytes, crc32: int) -> None:
        """Upload part ``index``, counted from zero; the server refuses it unless ``crc32`` is that of the bytes
        that arrive."""
        checksum = crc32_text(crc32)

        def attempt(client: Any) -> dict[str, str]:
            self._place.tally.add(creates=1)
            answer = client.upload_part(**self._address, PartNumber=index + 1, Body=data, ChecksumCRC32=checksum)
            return {"ETag": answer["ETag"], "ChecksumCRC32": checksum}

        part = _request(self._place, "upload a part of", attempt)
        self._place.tally.add(written_bytes=len(data))
        self._arrived(index, part, crc32, len(data))

    def copy_part(
        self, index: int, bucket: str, key: str, condition: dict[str, str], start: int, end: int
    ) -> bool:
        """Have the server copy ``[start, end)`` of an object, under ``CopySourceIfMatch``. False: it does not tell
        the checksum of what it has copied, so nobody knows what that is: the part is to be put instead.

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
        except S3Refusal as refused:
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
            raise InvalidCallError(f"{self._place.uri} was committed or aborted before")
        try:
            if self._exclusive:
                created = name_exclusively(self._place, lambda client: self._complete(client, IfNoneMatch="*"))
                self._done = created  # a refused completion leaves the upload behind, to be aborted
                return created
            self._complete_aside()
            return name_exclusively(self._place, lambda client: self._copy_to_name(client, IfNoneMatch="*"))
        except OutcomeUnknownError:
            self._done = True  # the server may still be at it: leave it the bytes, they are swept later
            raise
        finally:
            self.abort()

    def replace(self) -> None:
        try:
            if self._exclusive:
                _request(self._place, "replace", self._complete)
                self._done = True
            else:
                self._complete_aside()
                _request(self._place, "replace", self._copy_to_name)
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

        # A part that cannot be removed now is litter under no name; ``sweep_staging`` removes it later.
        with suppress(RetriableError, S3Refusal):
            self._place.connection.repeatable(f"drop what was staged for {self._place.uri}", attempt)

    def _complete(self, client: Any, **condition: str) -> None:
        parts = [{"PartNumber": i + 1, **self._parts[i]} for i in sorted(self._parts)]
        self._place.tally.add(creates=1)
        client.complete_multipart_upload(**self._address, MultipartUpload={"Parts": parts}, **condition)

    def _complete_aside(self) -> None:
        if self.size_bytes > MOST_COPY_BYTES:
            raise InvalidCallError(
                f"{self._place.uri}: a staged object of {self.size_bytes} bytes is beyond CopyObject's "
                f"{MOST_COPY_BYTES}"
            )
        _request(self._place, "complete", self._complete)
        self._completed = True

    def _copy_to_name(self, client: Any, **condition: str) -> None:
        self._place.tally.add(copies=1)
        client.copy_object(
            Bucket=self._place.bucket,
            Key=self._place.key,
            CopySource={"Bucket": self._place.bucket, "Key": self._key},
            **condition,
        )

    def _arrived(self, index: int, part: dict[str, str], crc32: int, size_bytes: int) -> None:
        with self._lock:
            self._parts[index] = part
        self._passed.add(index, crc32, size_bytes)

    @property
    def _address(self) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key, "UploadId": self._upload_id}


class UploadWriter:
    """A staged object that is still being written; ``StagedWriter``. Whole parts go up in the background,
    at most ``PARTS_IN_FLIGHT`` at a time; what stays below one part is one ``PUT`` at ``commit``."""

    def __init__(self, place: Place, part_bytes: int, complete_exclusively: bool) -> None:
        self._place = place
        self._part_bytes = part_bytes
        self._exclusive = complete_exclusively
        self._upload: StagedUpload | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._in_flight: deque[Future[None]] = deque()
        self._count = 0
        self._done = False
        self._stream = _PartStream(part_bytes, self._send)
        self.file = cast(BinaryIO, self._stream)

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
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

    def _written(self) -> StagedBytes | StagedUpload:
        """All bytes are on their way; what gives them their name."""
        if self._done:
            raise InvalidCallError(f"{self._place.uri} was committed or aborted before")
        rest = self._stream.take()
        if self._upload is None:
            return StagedBytes(self._place, rest)
        if rest:
            self._send(rest)
        self._wait(0)
        return self._upload

    def _send(self, part: bytes) -> None:
        if self._upload is None or self._pool is None:
            self._upload = StagedUpload(self._place, self._exclusive)
            self._pool = ThreadPoolExecutor(PARTS_IN_FLIGHT, thread_name_prefix="upload")
        self._wait(PARTS_IN_FLIGHT - 1)
        self._in_flight.append(self._pool.submit(self._upload.put_part, self._count, part, isal_zlib.crc32(part)))
        self._count += 1

    def _wait(self, most_in_flight: int) -> None:
        while len(self._in_flight) > most_in_flight:
            self._in_flight.popleft().result()


class _PartStream(io.RawIOBase):
    """Cuts the bytes written into parts, and hands each over as soon as it is whole."""

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

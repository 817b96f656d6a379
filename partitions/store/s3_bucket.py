"""One bucket, by keys: the requests of ``S3Store`` except uploads. Each request is counted when it is sent. An
unsuccessful answer is raised as ``Refusal``, whose meaning depends on the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from stratalog.partitions.errors import RetriableError, StorageAuthorizationError, StorageError
from stratalog.partitions.store.object import Upload
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.requests import Refusal, names_of
from stratalog.partitions.store.rules import Tally
from stratalog.partitions.store.s3_connection import NOT_ALLOWED, PASSING_CODES, S3Connection
from stratalog.partitions.store.storage_time import StorageTime

KEYS_PER_DELETE = 1000


class Bucket:
    """The objects of a bucket. ``StoredObject.name`` is the whole key here."""

    def __init__(self, connection: S3Connection, name: str, tally: Tally) -> None:
        self.connection = connection
        self.name = name
        self._tally = tally

    @property
    def time(self) -> StorageTime:
        return self.connection.time

    def check(self) -> None:
        def attempt(client: Any) -> None:
            self._tally.add(lists=1)
            # the refusal of this request has a body with the reason
            client.list_objects_v2(Bucket=self.name, MaxKeys=1)

        self.connection.repeatable(f"look for s3://{self.name}", attempt)

    def get(self, key: str, start: int = 0, end: int | None = None, version: str = "") -> bytes:
        conditions = only_if(version)
        if start < 0:
            conditions["Range"] = f"bytes={start}"
        elif start > 0 or end is not None:
            conditions["Range"] = f"bytes={start}-{'' if end is None else end - 1}"

        def attempt(client: Any) -> bytes:
            self._tally.add(reads=1)
            answer = client.get_object(Bucket=self.name, Key=key, **conditions)
            data: bytes = answer["Body"].read()
            self._tally.add(read_bytes=len(data))
            return data

        return self.connection.repeatable(f"read s3://{self.name}/{key}", attempt)

    def head(self, key: str, version: str = "") -> StoredObject:
        def attempt(client: Any) -> StoredObject:
            self._tally.add(reads=1)
            answer = client.head_object(Bucket=self.name, Key=key, **only_if(version))
            return _stored_object({**answer, "Key": key, "Size": answer["ContentLength"]})

        return self.connection.repeatable(f"look for s3://{self.name}/{key}", attempt)

    def list(
        self, key_prefix: str, most: int | None = None, after: str = ""
    ) -> tuple[int, Sequence[StoredObject]]:
        def attempt(following: dict[str, str], client: Any) -> Any:
            self._tally.add(lists=1)
            return client.list_objects_v2(Bucket=self.name, Prefix=key_prefix, **following)

        pages = 0
        listed: list[StoredObject] = []
        following: dict[str, str] | None = {"StartAfter": after} if after else {}
        while following is not None:
            what = f"list s3://{self.name}/{key_prefix}"
            page = self.connection.repeatable(what, partial(attempt, following))
            pages += 1
            listed += map(_stored_object, page.get("Contents", []))
            truncated = page.get("IsTruncated", False) and (most is None or len(listed) <= most)
            following = {"ContinuationToken": page["NextContinuationToken"]} if truncated else None
        return pages, listed

    def delete(self, keys: Sequence[str]) -> None:
        def attempt(batch: Sequence[str], client: Any) -> Sequence[tuple[str, str]]:
            self._tally.add(deletes=1)
            request = {"Quiet": True, "Objects": [{"Key": key} for key in batch]}
            errors = client.delete_objects(Bucket=self.name, Delete=request).get("Errors", [])
            for error in errors:
                if error["Code"] in PASSING_CODES:  # if one of a thousand fails, the whole batch is repeated
                    raise ClientError({"Error": {"Code": error["Code"]}}, "DeleteObjects")
            return [(error["Key"], error["Code"]) for error in errors if error["Code"] != "NoSuchKey"]

        failed: list[tuple[str, str]] = []
        for start in range(0, len(keys), KEYS_PER_DELETE):
            batch = keys[start : start + KEYS_PER_DELETE]
            what = f"delete {batch[0]} and {len(batch) - 1} more of s3://{self.name}"
            try:
                failed += self.connection.repeatable(what, partial(attempt, batch))
            except Refusal as refused:
                raise refused.as_error(f"cannot {what}", "delete", f"s3://{self.name}/{batch[0]}") from refused
            except StorageAuthorizationError:
                raise
            except RetriableError as error:
                raise StorageError(f"cannot {what}: {error}") from error
            if len(failed) == start + len(batch):  # not one key so far: the reason is not in the keys
                break
        if failed:
            named = names_of((f"{key} ({code})" for key, code in failed), len(failed))
            refused_key = next((key for key, code in failed if code in NOT_ALLOWED), None)
            if refused_key is None:
                raise StorageError(f"cannot delete {named} of s3://{self.name}")
            raise StorageAuthorizationError(
                f"cannot delete {named} of s3://{self.name}: the credentials do not allow it: give their "
                "owner the right to delete there (s3:DeleteObject), or use different credentials",
                "delete",
                f"s3://{self.name}/{refused_key}",
            )

    def uploads(self, key_prefix: str) -> Iterator[Upload]:
        def attempt(following: dict[str, str], client: Any) -> Any:
            self._tally.add(lists=1)
            return client.list_multipart_uploads(Bucket=self.name, Prefix=key_prefix, **following)

        following: dict[str, str] | None = {}
        while following is not None:
            what = f"list the uploads of s3://{self.name}/{key_prefix}"
            page = self.connection.repeatable(what, partial(attempt, following))
            for upload in page.get("Uploads", []):
                yield Upload(upload["Key"], upload["UploadId"], _milliseconds(upload["Initiated"]))
            # Servers that do not distinguish the uploads of one key return no upload marker.
            marked = {
                name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")
            }
            following = marked if page.get("IsTruncated", False) and marked else None

    def abort(self, upload: Upload) -> None:
        def attempt(client: Any) -> None:
            self._tally.add(deletes=1)
            client.abort_multipart_upload(Bucket=self.name, Key=upload.key, UploadId=upload.upload_id)

        try:
            self.connection.repeatable(f"abort the upload of s3://{self.name}/{upload.key}", attempt)
        except Refusal as refused:
            if refused.answer.status != 404 or refused.answer.code == "NoSuchBucket":
                raise


def only_if(version: str, condition: str = "IfMatch") -> dict[str, str]:
    """The condition that an object is still the listed object; none if the object was not listed."""
    etag, _, _ = version.rpartition(".")
    return {condition: f'"{etag}"'} if etag else {}


def _stored_object(entry: dict[str, Any]) -> StoredObject:
    etag, size = entry["ETag"].strip('"'), int(entry["Size"])
    return StoredObject(entry["Key"], size, _milliseconds(entry["LastModified"]), f"{etag}.{size:x}")


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)

"""Buckets of Google Cloud Storage, through gcsfs and its JSON API.

A name is created with ``ifGenerationMatch=0``. ``version`` is the generation, which is unique per object. A large
object's parts are objects in ``.staging``; *compose* joins up to 32 of them under a name without moving their
bytes.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import aiohttp
import google.auth.exceptions
import google.oauth2.credentials
import google_crc32c
from gcsfs.core import GCSFileSystem
from gcsfs.credentials import LOCAL_REFRESH_BUFFER
from yarl import URL

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import StorageError
from stratalog.partitions.identity import random_id
from stratalog.partitions.store.credentials import NoCredentialsFoundError, renewing
from stratalog.partitions.store.object_http import (
    HttpObjects,
    HttpRequest,
    HttpRequests,
    HttpResponse,
    body_of,
    send_once,
)
from stratalog.partitions.store.object_loop import loop, of_this_process
from stratalog.partitions.store.protocol import StoredObject, StoreOptions
from stratalog.partitions.store.requests import CONNECT_TIMEOUT_S, Wording
from stratalog.partitions.store.resolving import EMULATOR, GOOGLE
from stratalog.partitions.store.rules import media_type

MOST_COMPOSED = 32
SHOW_CREDENTIALS = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or use the identity of the machine, "
    "where this runs, executors included"
)
_BOUNDARY = f"=={random_id()}=="
"""Separates the parts of a request. The server looks for it in the bytes, so no producer may know it."""
_THROTTLED = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "backendError"})
_WORDING = Wording(
    unknown_caller=frozenset({"authError", "required", "invalid_grant"}),
    not_allowed=frozenset({"forbidden", "insufficientPermissions", "accountDisabled", "SecurityPolicyViolated"}),
    actions={
        "list": "storage.objects.list",
        "read": "storage.objects.get",
        "create": "storage.objects.create",
        "delete": "storage.objects.delete",
    },
    credentials=SHOW_CREDENTIALS,
)


class GcsfsSendingOnce(GCSFileSystem):  # type: ignore[misc]
    """Repeats no request, neither after an error nor after a closed connection."""

    _once = GCSFileSystem._request.__wrapped__

    async def _request(self, *arguments: Any, **named: Any) -> Any:
        await self._set_session()
        send_once(self.session)
        return await self._once(*arguments, **named)


def open_gcsfs(options: StoreOptions) -> GCSFileSystem:
    """gcsfs with resolved options. Raises: NoCredentialsFoundError."""
    plain = (options.endpoint_url or "").startswith("http://")  # others on the network could read credentials
    # Without a server gcsfs would look for an emulator, and then for Google's server with mutual TLS.
    emulated = GOOGLE if os.environ.get(EMULATOR) else None
    try:
        return GcsfsSendingOnce(
            project="",
            token="anon" if plain else _token(options),
            endpoint_url=options.endpoint_url or emulated,
            loop=loop(),
            skip_instance_cache=True,
            use_listings_cache=False,
        )
    except (google.auth.exceptions.GoogleAuthError, ValueError) as error:
        raise NoCredentialsFoundError(f"no credentials could be found ({type(error).__name__})") from None


class GcsSession:
    """A bucket through gcsfs, which finds and renews its credentials."""

    def __init__(self, bucket: str, options: StoreOptions) -> None:
        """``options`` must be resolved. Raises: NoCredentialsFoundError."""
        self.server = (options.endpoint_url or GOOGLE).rstrip("/")
        self.fs = open_gcsfs(options)
        self._bucket = quote(bucket, safe="")
        self._source = options.credentials
        self._timeout = aiohttp.ClientTimeout(
            sock_connect=min(options.timeout_s, CONNECT_TIMEOUT_S), sock_read=options.timeout_s
        )

    async def send(self, request: HttpRequest) -> HttpResponse:
        fs = self.fs
        await fs._set_session()
        send_once(fs.session)
        uploading = "uploadType" in request.params
        kind = "upload/storage" if uploading else "storage"
        key, _, action = request.key.partition("\0")
        object_path = "" if uploading else "/" + quote(key, safe="") + (f"/{action}" if action else "")
        url = f"{fs._location}/{kind}/v1/b/{self._bucket}/o{object_path if key else ''}"
        async with fs.session.request(
            request.method,
            URL(url, encoded=True),
            params=dict(request.params),
            headers=await self._signed({"Content-Length": str(len(request.body)), **request.headers}),
            data=body_of(request),
            timeout=self._timeout,
            allow_redirects=False,
        ) as answer:
            body = await answer.read()
        return HttpResponse(answer.status, answer.headers, body, _code(answer.status, body))

    async def _signed(self, headers: dict[str, str]) -> dict[str, str]:
        """The headers with a token, which is renewed outside the event loop."""
        credentials = self.fs.credentials
        try:
            if credentials.credentials is not None and not credentials._credentials_valid(LOCAL_REFRESH_BUFFER):
                await asyncio.to_thread(credentials.maybe_refresh)
            signed: dict[str, str] = self.fs._get_headers(headers)
        except google.auth.exceptions.GoogleAuthError as error:
            raise _not_renewed(error) from None
        return signed

    def shown(self) -> dict[str, str]:
        """See ``Reached.shown``; empty for the machine's identity. A service account includes its token, for
        clients that accept no account.

        Raises: NoCredentialsFoundError, ConnectionError.
        """
        if self.fs.credentials.credentials is None:
            return {}
        if self._source is None:
            file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
            return {"application_credentials": file} if file else {}
        values = renewing(self._source).current().values
        account = values.get("service_account")
        if not account:
            return {"token": values["token"]}
        try:
            self.fs.credentials.maybe_refresh()
        except google.auth.exceptions.GoogleAuthError as error:
            raise _not_renewed(error) from None
        token = self.fs.credentials.credentials.token
        return {"service_account": account if isinstance(account, str) else json.dumps(account), "token": token}


def _not_renewed(error: google.auth.exceptions.GoogleAuthError) -> Exception:
    if isinstance(error, google.auth.exceptions.TransportError):
        return ConnectionError("credentials could not be renewed")
    return NoCredentialsFoundError(f"credentials could not be renewed ({type(error).__name__})")


def _token(options: StoreOptions) -> Any:
    """The argument ``token`` of gcsfs.

    Raises: NoCredentialsFoundError (from the provider).
    """
    if options.credentials is None:
        return "google_default"
    values = renewing(options.credentials).current().values
    account = values.get("service_account")
    if account:
        return parse_json(account) if isinstance(account, str) else dict(account)
    return google.oauth2.credentials.Credentials(values["token"])  # type: ignore[no-untyped-call]


class GcsRequests(HttpRequests):
    """Requests to a bucket."""

    wording = _WORDING
    passing_codes = _THROTTLED

    def __init__(self, bucket: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._bucket = bucket

    def client(self) -> GcsSession:
        key = ("gcs", self._bucket, self.options)
        return of_this_process(key, lambda: GcsSession(self._bucket, self.options), self.credentials_number())


class GcsObjects(HttpObjects):
    """The objects of a bucket."""

    def get_request(self, key: str, headers: dict[str, str], version: str, size_bytes: int) -> HttpRequest:
        return HttpRequest("GET", key, {"alt": "media", **_only_if(version)}, headers, expected_bytes=size_bytes)

    def head_request(self, key: str, version: str) -> HttpRequest:
        return HttpRequest("GET", key, _only_if(version))

    def head_answer(self, key: str, response: HttpResponse) -> StoredObject:
        return self._stored(self._fields(response))

    def page_request(self, key_prefix: str, after: str, marker: str) -> HttpRequest:
        params = {"prefix": key_prefix, "fields": "items(name,size,generation,timeCreated),nextPageToken"}
        if after:
            params["startOffset"] = after
        if marker:
            params["pageToken"] = marker
        return HttpRequest("GET", params=params)

    def page_answer(self, response: HttpResponse) -> tuple[Sequence[StoredObject], str]:
        fields = self._fields(response)
        return [self._stored(item) for item in fields.get("items", [])], fields.get("nextPageToken", "")

    def put_request(self, key: str, data: bytes, of: bytes, *, exclusive: bool) -> HttpRequest:
        about = json.dumps({"name": key, "crc32c": _crc32c(of), "contentType": media_type(key)})
        body = b"".join(
            (
                f"--{_BOUNDARY}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{about}\r\n".encode(),
                f"--{_BOUNDARY}\r\nContent-Type: {media_type(key)}\r\n\r\n".encode(),
                data,
                f"\r\n--{_BOUNDARY}--\r\n".encode(),
            )
        )
        headers = {"Content-Type": f'multipart/related; boundary="{_BOUNDARY}"'}
        return HttpRequest(
            "POST", key, {"uploadType": "multipart", **self._with_key, **_exclusively(exclusive)}, headers, body
        )

    def part_request(self, key: str, upload: str, index: int, data: bytes) -> HttpRequest:
        return self.put_request(_part(upload, 0, index), data, data, exclusive=False)

    def gather(self, key: str, upload: str, parts: int) -> None:
        """Compose the parts, 32 at a time, until at most 32 are left."""
        for level, count in enumerate(_levels(parts)[1:], start=1):
            for index in range(count):
                first, last = index * MOST_COMPOSED, min((index + 1) * MOST_COMPOSED, _levels(parts)[level - 1])
                names = [_part(upload, level - 1, each) for each in range(first, last)]
                target = _part(upload, level, index)
                self.put(key, "put together", self._compose(target, names, exclusive=False))

    def complete_request(self, key: str, upload: str, parts: int, *, exclusive: bool) -> HttpRequest:
        levels = _levels(parts)
        names = [_part(upload, len(levels) - 1, each) for each in range(levels[-1])]
        return self._compose(key, names, exclusive=exclusive)

    def _compose(self, key: str, names: Sequence[str], *, exclusive: bool) -> HttpRequest:
        body = json.dumps({"sourceObjects": [{"name": name} for name in names], "destination": {}}).encode()
        params = {**self._with_key, **_exclusively(exclusive)}
        return HttpRequest("POST", f"{key}\0compose", params, {"Content-Type": "application/json"}, body)

    @property
    def key(self) -> str | None:
        return self.requests.options.kms_key_id

    def key_in(self, response: HttpResponse) -> str | None:
        fields = self._fields(response)
        return fields.get("kmsKeyName") if isinstance(fields, dict) else None

    @property
    def _with_key(self) -> dict[str, str]:
        return {} if self.key is None else {"kmsKeyName": self.key}

    def drop(self, upload: str, parts: int) -> None:
        self.delete(list(_all_parts(upload, parts)))

    def _fields(self, response: HttpResponse) -> Any:
        try:
            return parse_json(response.body)
        except ValueError as error:
            raise StorageError(f"{self.uri} returned an unreadable answer: {error}") from error

    def _stored(self, item: Any) -> StoredObject:
        try:
            created = datetime.fromisoformat(item["timeCreated"])
            return StoredObject(
                item["name"], int(item.get("size", 0)), int(created.timestamp() * 1000), str(item["generation"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{self.uri} returned an unreadable answer: {error!r}") from error


def _code(status: int, body: bytes) -> str:
    """The reason in an error response, or its status if there is none."""
    if status < 300:
        return ""
    try:
        return str(parse_json(body)["error"]["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        return str(status)


def _only_if(version: str) -> dict[str, str]:
    """The condition that this object still has the name. (A bucket may keep deleted objects.)"""
    return {"generation": version, "ifGenerationMatch": version} if version else {}


def _exclusively(exclusive: bool) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if exclusive else {}


def _crc32c(data: bytes) -> str:
    """The checksum by which the service refuses bytes damaged in transit; it does not support CRC-32."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _part(upload: str, level: int, index: int) -> str:
    return f"{upload}.{level}.{index}"


def _levels(parts: int) -> list[int]:
    """The number of objects on each level: first the parts, then one object per 32 objects of the previous level;
    at most 32 on the last level.
    """
    levels = [parts]
    while levels[-1] > MOST_COMPOSED:
        levels.append(-(-levels[-1] // MOST_COMPOSED))
    return levels


def _all_parts(upload: str, parts: int) -> Iterator[str]:
    for level, count in enumerate(_levels(parts)):
        for index in range(count):
            yield _part(upload, level, index)

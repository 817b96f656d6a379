"""Containers of Azure Blob Storage and Data Lake Storage Gen2, through adlfs.

A name is created with ``If-None-Match: *`` (*Put Blob*, *Put Block List*). The uncommitted blocks of a large
object belong to its name. No listing shows them. The service drops them after a week, or when another writer
commits the name. ``version`` is the ETag, which is unique per object. A listing cannot begin after a name: it
starts at the folder's first name, with 5,000 names per request.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote, urlencode
from xml.etree import ElementTree

import aiohttp
from adlfs import AzureBlobFileSystem
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.rest import HttpRequest as PipelineRequest

from stratalog.partitions.clock import SystemClock
from stratalog.partitions.errors import StorageError, UnsupportedStoreError
from stratalog.partitions.store.credentials import CredentialSource, NoCredentialsFoundError, renewing
from stratalog.partitions.store.object_http import (
    HttpObjects,
    HttpRequest,
    HttpRequests,
    HttpResponse,
    body_of,
    send_once,
)
from stratalog.partitions.store.object_loop import loop, of_this_process, wait_for
from stratalog.partitions.store.protocol import StoredObject, StoreOptions
from stratalog.partitions.store.requests import CONNECT_TIMEOUT_S, Wording
from stratalog.partitions.store.resolving import (
    CONNECTION_STRING,
    account_of,
    another_account,
    azure_connection_string,
    connection_string,
)
from stratalog.partitions.store.rules import media_type

API_VERSION = "2021-12-02"
SHOW_CREDENTIALS = (
    "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, "
    "AZURE_STORAGE_SAS_TOKEN or the variables of an identity (AZURE_CLIENT_ID ...), where this runs, executors "
    "included"
)
_WORDING = Wording(
    unknown_caller=frozenset(
        {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation", "AccountIsDisabled"}
    ),
    not_allowed=frozenset(
        {
            *("AuthorizationFailure", "AuthorizationPermissionMismatch", "AuthorizationProtocolMismatch"),
            *(
                "AuthorizationResourceTypeMismatch",
                "AuthorizationServiceMismatch",
                "AuthorizationSourceIPMismatch",
            ),
            *("InsufficientAccountPermissions", "PublicAccessNotPermitted"),
        }
    ),
    actions={
        "list": "Storage Blob Data Reader",
        "read": "Storage Blob Data Reader",
        "create": "Storage Blob Data Contributor",
        "delete": "Storage Blob Data Contributor",
    },
    credentials=SHOW_CREDENTIALS,
)
_SCOPE = "x-ms-encryption-scope"
_BYTES = {"Content-Type": "application/octet-stream"}
_TAKEN = frozenset({"BlobAlreadyExists", "PathAlreadyExists", "TargetConditionNotMet", "ConditionNotMet"})
_CONFLICT = frozenset({"InvalidBlockList"})
"""The error when another writer has committed the name meanwhile, which dropped this upload's blocks."""


class AdlfsSendingOnce(AzureBlobFileSystem):  # type: ignore[misc]
    """Repeats no request, neither after an error nor after a closed connection."""

    def do_connect(self) -> None:
        super().do_connect()
        pipeline = self.service_client._pipeline
        for policy in pipeline._impl_policies:
            if hasattr(policy, "total_retries"):
                policy.total_retries = 0
        transport = pipeline._transport
        opened = transport.open

        async def open_once() -> None:
            await opened()
            send_once(transport.session)

        transport.open = open_once

    async def _find(self, path: str, *arguments: Any, **named: Any) -> Any:
        """Raises: FileNotFoundError if the container does not exist; adlfs finds nothing there."""
        found = await super()._find(path, *arguments, **named)
        if not found:
            with suppress(HttpResponseError):  # the caller may not read the properties of a container
                await self._info(path.partition("/")[0])
        return found


def open_adlfs(options: StoreOptions) -> AzureBlobFileSystem:
    """adlfs with resolved options. Raises: NoCredentialsFoundError, UnsupportedStoreError."""
    if options.account is None or options.endpoint_url is None:
        raise NoCredentialsFoundError("no storage account is named")
    try:
        found = _settings(options.account, options.endpoint_url, options)
        return AdlfsSendingOnce(loop=loop(), skip_instance_cache=True, use_listings_cache=False, **found)
    except ValueError as error:  # the error's text may repeat a secret
        raise NoCredentialsFoundError(f"they do not have Azure's format ({type(error).__name__})") from None


class AzureSession:
    """One storage account through adlfs, which finds and renews its credentials."""

    def __init__(self, container: str, options: StoreOptions) -> None:
        """``options`` must be resolved. Raises: NoCredentialsFoundError, UnsupportedStoreError."""
        self.fs = open_adlfs(options)
        service = self.fs.service_client
        self._service = service._client
        self._transport = service._pipeline._transport
        base, _, self._signature = str(service.url).partition("?")
        self.server = base.rstrip("/")
        self._base = f"{self.server}/{quote(container)}"
        self._timeouts = {
            "connection_timeout": min(options.timeout_s, CONNECT_TIMEOUT_S),
            "read_timeout": options.timeout_s,
            "retry_total": 0,
        }

    async def send(self, request: HttpRequest) -> HttpResponse:
        url = f"{self._base}/{quote(request.key, safe='~/')}" if request.key else self._base
        query = "&".join(filter(None, (urlencode(request.params), self._signature)))
        headers = {"x-ms-version": API_VERSION, **request.headers}
        if "Range" in headers:
            headers["x-ms-range"] = headers.pop("Range")  # the signed form of the header
        if request.method == "PUT":
            headers["Content-Length"] = str(len(request.body))
        sent = PipelineRequest(
            request.method, f"{url}?{query}" if query else url, headers=headers, content=body_of(request)
        )
        try:
            await self._transport.open()
            answer = await self._service._send_request(
                sent, stream=True, **self._timeouts
            )  # otherwise the client would parse it
            body = await answer.read()
        except ClientAuthenticationError as error:
            raise NoCredentialsFoundError(f"no identity could be found ({type(error).__name__})") from None
        except AzureError as error:
            cause = error.inner_exception
            if isinstance(cause, Exception) and not isinstance(cause, AzureError):
                raise cause from None  # Azure does not report a lost answer separately
            raise aiohttp.ClientError(type(error).__name__) from None
        status, code = answer.status_code, answer.headers.get("x-ms-error-code") or str(answer.status_code)
        if code in _TAKEN:
            status = 412
        elif code in _CONFLICT:
            status = 409
        return HttpResponse(status, answer.headers, body, code)

    def shown(self) -> dict[str, str]:
        """See ``Reached.shown``; for an identity this includes a token.

        Raises: NoCredentialsFoundError, TimeoutError.
        """
        if self._signature:
            return {"sas_token": self._signature}
        credential = self.fs.service_client.credential
        if hasattr(credential, "account_key"):
            return {"account_key": credential.account_key}
        if not hasattr(credential, "get_token"):
            return {}
        try:
            token = wait_for(credential.get_token("https://storage.azure.com/.default"), CONNECT_TIMEOUT_S)
        except AzureError as error:
            raise NoCredentialsFoundError(f"no identity could be found ({type(error).__name__})") from None
        return {"token": token.token}


def _settings(account: str, server: str, options: StoreOptions) -> dict[str, Any]:
    """The arguments of adlfs. adlfs looks up missing arguments in the environment, and prefers a connection string
    to all others.

    Raises: NoCredentialsFoundError (from the provider); UnsupportedStoreError.
    """
    if options.credentials is None:
        shown: Mapping[str, Any] = _shown_by_environment(account)
    else:
        shown = renewing(options.credentials).current().values
    if shown.get("account_key") or shown.get("sas_token"):
        return {"connection_string": azure_connection_string(server, account, shown)}
    known: dict[str, Any] = {"account_name": account, "account_host": server.partition("://")[2]}
    if options.credentials is None:
        return known
    if os.environ.get(CONNECTION_STRING):
        raise UnsupportedStoreError(
            f"{options.credentials} gives a token, and {CONNECTION_STRING} is set, which would be used instead: "
            "remove one of them"
        )
    return known | {"credential": _TokenOfProvider(options.credentials)}


def _shown_by_environment(account: str) -> Mapping[str, str]:
    parts = connection_string(os.environ)
    of_string = account_of(parts)
    if of_string is not None and of_string != account:
        raise another_account(account, of_string)
    shown = {"account_key": parts.get("ACCOUNTKEY", ""), "sas_token": parts.get("SHAREDACCESSSIGNATURE", "")}
    if any(shown.values()):
        return shown
    return {
        "account_key": os.environ.get("AZURE_STORAGE_ACCOUNT_KEY", ""),
        "sas_token": os.environ.get("AZURE_STORAGE_SAS_TOKEN", ""),
    }


class _TokenOfProvider:
    """A credential of Azure's library that returns the provider's tokens."""

    def __init__(self, source: CredentialSource) -> None:
        self._source = source

    async def get_token(self, *_scopes: str, **_more: Any) -> AccessToken:
        given = await asyncio.to_thread(renewing(self._source).current)
        expires_ms = given.expires_ms or SystemClock().now_ms() + 3_600_000
        return AccessToken(given.values["token"], expires_ms // 1000)

    async def close(self) -> None:
        """Nothing is open."""

    async def __aenter__(self) -> _TokenOfProvider:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is open."""


class AzureRequests(HttpRequests):
    """Requests to a container."""

    wording = _WORDING
    passing_codes = frozenset({"OperationTimedOut", "ServerBusy"})

    def __init__(self, container: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._container = container

    def client(self) -> AzureSession:
        key = ("azure", self._container, self.options, os.environ.get(CONNECTION_STRING))
        return of_this_process(key, lambda: AzureSession(self._container, self.options), self.credentials_number())


class AzureObjects(HttpObjects):
    """The blobs of a container."""

    suffix_ranges = False

    def get_request(self, key: str, headers: dict[str, str], version: str, size_bytes: int) -> HttpRequest:
        return HttpRequest("GET", key, headers={**headers, **_only_if(version)}, expected_bytes=size_bytes)

    def head_request(self, key: str, version: str) -> HttpRequest:
        return HttpRequest("HEAD", key, headers=_only_if(version))

    def head_answer(self, key: str, response: HttpResponse) -> StoredObject:
        headers = response.headers
        return _stored(key, headers["Content-Length"], headers["Last-Modified"], headers["ETag"])

    def page_request(self, key_prefix: str, after: str, marker: str) -> HttpRequest:
        params = {"restype": "container", "comp": "list", "prefix": key_prefix, "include": "metadata"}
        if marker:
            params["marker"] = marker
        return HttpRequest("GET", params=params)

    def page_answer(self, response: HttpResponse) -> tuple[Sequence[StoredObject], str]:
        try:
            page = ElementTree.fromstring(response.body.decode("utf-8-sig"))
            listed = [_listed(blob) for blob in page.iter("Blob") if not _is_folder(blob)]
        except (ElementTree.ParseError, ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{self.uri} returned an unreadable answer: {error}") from error
        return listed, page.findtext("NextMarker") or ""

    def put_request(self, key: str, data: bytes, of: bytes, *, exclusive: bool) -> HttpRequest:
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "Content-MD5": _md5(of),
            "Content-Type": media_type(key),
            **self._scope,
            **_exclusively(exclusive),
        }
        return HttpRequest("PUT", key, headers=headers, body=data)

    def part_request(self, key: str, upload: str, index: int, data: bytes) -> HttpRequest:
        params = {"comp": "block", "blockid": _block_id(upload, index)}
        return HttpRequest("PUT", key, params, {"Content-MD5": _md5(data), **self._scope, **_BYTES}, data)

    def complete_request(self, key: str, upload: str, parts: int, *, exclusive: bool) -> HttpRequest:
        blocks = "".join(f"<Latest>{_block_id(upload, index)}</Latest>" for index in range(parts))
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        headers = {"Content-Type": "application/xml", **self._scope, **_exclusively(exclusive)}
        return HttpRequest("PUT", key, {"comp": "blocklist"}, headers, body)

    @property
    def key(self) -> str | None:
        return self.requests.options.encryption_scope

    def key_in(self, response: HttpResponse) -> str | None:
        return response.headers.get(_SCOPE)

    @property
    def _scope(self) -> dict[str, str]:
        return {} if self.key is None else {_SCOPE: self.key}


def _only_if(version: str) -> dict[str, str]:
    return {"If-Match": version} if version else {}


def _exclusively(exclusive: bool) -> dict[str, str]:
    return {"If-None-Match": "*"} if exclusive else {}


def _md5(data: bytes) -> str:
    """The checksum by which the service refuses bytes damaged in transit; it does not support CRC-32."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _block_id(upload: str, index: int) -> str:
    """The ids of a blob's blocks have the same length, and differ between two uploads to one name."""
    return base64.b64encode(f"{upload.rpartition('/')[2]:>32.32}{index:06d}".encode()).decode()


def _stored(key: str, size: str, modified: str, etag: str) -> StoredObject:
    return StoredObject(
        key, int(size), int(parsedate_to_datetime(modified).timestamp() * 1000), f'"{etag.strip(chr(34))}"'
    )


def _listed(blob: ElementTree.Element) -> StoredObject:
    parts: Mapping[str, str] = {each.tag: each.text or "" for each in blob.iter()}
    name = blob.find("Name")
    key = parts["Name"] if name is None or name.get("Encoded") != "true" else unquote(parts["Name"])
    return _stored(key, parts["Content-Length"], parts["Last-Modified"], parts["Etag"])


def _is_folder(blob: ElementTree.Element) -> bool:
    """With a hierarchical namespace, folders are listed among the files."""
    return (
        blob.findtext("Metadata/hdi_isfolder") == "true" or blob.findtext("Properties/ResourceType") == "directory"
    )

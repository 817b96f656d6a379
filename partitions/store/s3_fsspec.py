"""Requests to S3 by s3fs (``driver = "fsspec"``): one call of s3fs is one request.

s3fs' ``pipe_file(mode="create")`` repeats a request whose answer was lost, and then reports its own object as
another writer's. So requests go through its ``_call_s3``, with its retries and those of botocore and aiohttp
switched off. s3fs translates botocore's errors into ``OSError``, which hides the status; this module raises the
original error instead.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError, ReadTimeoutError
from s3fs import S3FileSystem

from stratalog.partitions.store.object_http import SLOWEST_BYTES_PER_S, send_once
from stratalog.partitions.store.object_loop import loop, of_this_process, wait_for
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.s3_connection import S3Connection, client_settings, time_of
from stratalog.partitions.store.s3_session import shown_to_s3

OPENED_WITHIN_S = 60.0
"""The deadline for creating a client, which reads files."""


class S3fsConnection(S3Connection):
    """``S3Connection``, on this process' file system of s3fs."""

    def client(self) -> S3fsClient:
        return of_this_process(("s3fs", self.options), lambda: S3fsClient(self.options), self.credentials_number())


class _SendOnce(AIOHTTPSession):  # type: ignore[misc]
    """Repeats no request after a closed connection."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        send_once(session)
        return session


class S3fsClient:
    """The methods of a botocore client that ``S3Store`` calls, each with a deadline."""

    def __init__(self, options: StoreOptions) -> None:
        """Raises: NoCredentialsFoundError."""
        self._options = options
        shown = {} if options.credentials is None else shown_to_s3(options)
        self._fs = S3FileSystem(
            key=shown.get("access_key"),
            secret=shown.get("secret_key"),
            token=shown.get("token"),
            endpoint_url=options.endpoint_url,
            client_kwargs={"region_name": options.region},
            config_kwargs={**client_settings(options), "http_session_cls": _SendOnce},
            loop=loop(),
            skip_instance_cache=True,
            use_listings_cache=False,
            **({} if options.profile is None else {"profile": options.profile}),
        )
        self._fs.retries = 1
        wait_for(self._open(), OPENED_WITHIN_S)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._call, method)

    def _call(self, method: str, **parameters: Any) -> Any:
        moved = len(parameters.get("Body", b"")) + _range_bytes(parameters.get("Range", ""))
        deadline_s = self._options.timeout_s + moved / SLOWEST_BYTES_PER_S
        try:
            return wait_for(self._answer(method, parameters), deadline_s)
        except TimeoutError:
            raise ReadTimeoutError(endpoint_url=self._options.endpoint_url) from None
        except EndpointConnectionError as error:
            # aiobotocore raises this error also for a connection that broke after the request was sent.
            if isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError):
                raise
            raise HTTPClientError(error="the connection broke") from None
        except aiohttp.ClientError as error:
            raise HTTPClientError(error=type(error).__name__) from None
        except OSError as error:
            if isinstance(error.__cause__, ClientError):
                raise error.__cause__ from None
            raise HTTPClientError(error=type(error).__name__) from None

    async def _open(self) -> None:
        client = await self._fs.set_session()
        client.meta.events.register("after-call.s3", self._answered)

    async def _answer(self, method: str, parameters: dict[str, Any]) -> Any:
        answer = await self._fs._call_s3(method, **parameters)
        if method == "get_object":
            async with answer["Body"] as body:
                answer["Body"] = io.BytesIO(await body.read())
        return answer

    def _answered(self, http_response: Any, **_: Any) -> None:
        time_of(self._options).answered(http_response.headers)


def _range_bytes(header: str) -> int:
    """The length of the range in an HTTP header, if it has both ends."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1 if first and last else 0

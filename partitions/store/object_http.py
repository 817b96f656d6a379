"""The objects of one bucket, by HTTP requests through a file system of fsspec.

The file system (adlfs, gcsfs) does the hard parts: credentials and their renewal, addresses, encryption, a pool of
connections. But its own calls retry and hide the server's answer, so that a lost answer looks like *name taken*.
So ``HttpSession.send`` sends each request exactly once, and ``Requests`` retries.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import aiohttp

from stratalog.partitions.store.encryption import check_key
from stratalog.partitions.store.object import Upload, is_missing
from stratalog.partitions.store.object_loop import wait_for
from stratalog.partitions.store.protocol import StoredObject
from stratalog.partitions.store.requests import FailedAttempt, Refusal, Requests, harmless, is_full, undeleted
from stratalog.partitions.store.rules import Tally
from stratalog.partitions.store.storage_time import StorageTime

SLOWEST_BYTES_PER_S = 1_000_000
"""The speed at which a request's deadline grows with its bytes, in addition to ``timeout_s``."""
DELETES_AT_ONCE = 32
PIECE_BYTES = 256 * 1024
_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientProxyConnectionError)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request about an object, or about the bucket (an empty ``key``)."""

    method: str
    key: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    expected_bytes: int = 0
    """The expected size of a large answer."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An answer with any status."""

    status: int
    headers: Mapping[str, str]
    """The headers; the mapping ignores case."""
    body: bytes
    code: str
    """The server's error code; the status as text if there is none."""


class _Pieces:
    """Bytes for the event loop, piece by piece; each iteration starts at the beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), PIECE_BYTES):
            yield bytes(self._data[start : start + PIECE_BYTES])


def body_of(request: HttpRequest) -> bytes | _Pieces | None:
    """The body for the client; the headers must include ``Content-Length``."""
    if len(request.body) <= PIECE_BYTES:
        return request.body or None
    return _Pieces(request.body)


def send_once(session: aiohttp.ClientSession) -> None:
    """Keep aiohttp from repeating a ``PUT`` after its connection was closed: the first request may have taken
    effect, and the second request would find the name taken.
    """
    session._retry_connection = False


class HttpSession(Protocol):
    """Sends requests through a file system of fsspec, on the loop of ``object_loop``."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send the request once."""
        ...


class AnsweredError(Exception):
    """An unsuccessful answer."""

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(f"{response.status} {response.code}")
        self.response = response


class HttpRequests(Requests, ABC):
    """Requests through a session of this process."""

    passing_codes: frozenset[str] = frozenset()
    """The statuses below 500 for which a retry may succeed."""

    @cached_property
    def time(self) -> StorageTime:
        """The server's time."""
        return StorageTime()

    def send(self, session: HttpSession, request: HttpRequest) -> HttpResponse:
        """Send a request once, within its deadline. Raises: AnsweredError; errors known to ``failure_of``."""
        moved = len(request.body) + request.expected_bytes
        response = wait_for(session.send(request), self.options.timeout_s + moved / SLOWEST_BYTES_PER_S)
        self.time.answered(response.headers)
        if response.status >= 300:
            raise AnsweredError(response)
        return response

    def failure_of(self, error: Exception) -> FailedAttempt | None:
        if isinstance(error, AnsweredError):
            status, code = error.response.status, error.response.code
            passing = status >= 500 or status in (408, 429) or code in self.passing_codes
            passing = passing and not is_full(status, code)
            return FailedAttempt(str(error), status, code, passing)
        if isinstance(error, _NEVER_SENT):
            return FailedAttempt(f"{type(error).__name__}: {_host(error)}", sent=False)
        if isinstance(error, TimeoutError | asyncio.TimeoutError):
            return FailedAttempt(f"no answer within {self.options.timeout_s:g} s", timed_out=True)
        if isinstance(error, aiohttp.ClientError | ConnectionError):
            return FailedAttempt(type(error).__name__)  # the error's text may contain an address with a signature
        return None


def _host(error: Exception) -> str:
    host, port = getattr(error, "host", ""), getattr(error, "port", "")
    return f"cannot connect to {host}:{port}" if host else "cannot connect"


class HttpObjects(ABC):
    """``Objects`` by HTTP requests; subclasses build the requests and interpret the answers."""

    suffix_ranges = True
    """Whether a range may be counted from the end."""

    def __init__(self, requests: HttpRequests, uri: str, tally: Tally) -> None:
        """``uri`` is the address of the bucket, for messages."""
        self.requests = requests
        self.uri = uri
        self._tally = tally

    # ------------------------------------------------------------------ methods of subclasses

    @abstractmethod
    def get_request(self, key: str, headers: dict[str, str], version: str, size_bytes: int) -> HttpRequest:
        """The request for the bytes of an object, of that version unless empty; ``headers`` give the range."""

    @abstractmethod
    def head_request(self, key: str, version: str) -> HttpRequest:
        """The request for the status of an object."""

    @abstractmethod
    def head_answer(self, key: str, response: HttpResponse) -> StoredObject: ...

    @abstractmethod
    def page_request(self, key_prefix: str, after: str, marker: str) -> HttpRequest:
        """The request for a page of a listing; ``marker`` is the marker of the previous page."""

    @abstractmethod
    def page_answer(self, response: HttpResponse) -> tuple[Sequence[StoredObject], str]:
        """The objects, and a marker unless this is the last page. The objects may begin before ``after``."""

    @abstractmethod
    def put_request(self, key: str, data: bytes, of: bytes, *, exclusive: bool) -> HttpRequest:
        """The request to create an object exclusively, or to replace an object, with the checksum of the bytes
        ``of``.
        """

    @abstractmethod
    def part_request(self, key: str, upload: str, index: int, data: bytes) -> HttpRequest:
        """The request to upload a part; ``upload``, a key in the staging folder, identifies the object."""

    def gather(self, key: str, upload: str, parts: int) -> None:  # noqa: B027 - most need none
        """Called before an object of that many parts is completed."""

    @abstractmethod
    def complete_request(self, key: str, upload: str, parts: int, *, exclusive: bool) -> HttpRequest:
        """The request to name the object of these parts, in the order of their indices."""

    def drop(self, upload: str, parts: int) -> None:  # noqa: B027 - where the storage does by itself
        """Remove the objects of ``part_request`` and ``gather``."""

    @property
    @abstractmethod
    def key(self) -> str | None:
        """The encryption key of creating requests; None: the bucket's default."""

    @abstractmethod
    def key_in(self, response: HttpResponse) -> str | None:
        """The key with which the storage encrypted the new object, from its answer."""

    # ---------------------------------------------------------------------------------- Objects

    @property
    def time(self) -> StorageTime:
        return self.requests.time

    def check(self) -> None:
        self._ask(f"look for {self.uri}", self.page_request("", "", ""), lists=1)

    def get(self, key: str, start: int = 0, end: int | None = None, version: str = "") -> bytes:
        if start < 0 and not self.suffix_ranges:
            found = self.head(key, version)
            start, end, version = max(found.size_bytes + start, 0), found.size_bytes, found.version
            if start == end:
                return b""
        headers = {}
        if start < 0:
            headers["Range"] = f"bytes={start}"
        elif start > 0 or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        request = self.get_request(key, headers, version, -start if start < 0 else (end or start) - start)
        data = self._ask(f"read {self.uri}/{key}", request, reads=1).body
        self._tally.add(read_bytes=len(data))
        return data

    def head(self, key: str, version: str = "") -> StoredObject:
        response = self._ask(f"look for {self.uri}/{key}", self.head_request(key, version), reads=1)
        return self.head_answer(key, response)

    def list(
        self, key_prefix: str, most: int | None = None, after: str = ""
    ) -> tuple[int, Sequence[StoredObject]]:
        pages, marker = 0, ""
        listed: list[StoredObject] = []
        while True:
            request = self.page_request(key_prefix, after, marker)
            page, marker = self.page_answer(self._ask(f"list {self.uri}/{key_prefix}", request, lists=1))
            pages += 1
            listed += (each for each in page if each.name > after)
            if not marker or (most is not None and len(listed) > most):
                return pages, listed

    def delete(self, keys: Sequence[str]) -> None:
        """One request per key, many in parallel."""
        refused: list[tuple[str, Refusal]] = []
        for start in range(0, len(keys), DELETES_AT_ONCE):
            refused += self._delete_batch(keys[start : start + DELETES_AT_ONCE])
            if len(refused) >= start + DELETES_AT_ONCE:  # not one key so far: the reason is not in the keys
                break
        if refused:
            raise undeleted(refused, self.uri) from refused[0][1]

    def uploads(self, key_prefix: str) -> Iterator[Upload]:
        """Empty: parts are objects in the staging folder, or the storage drops them by itself."""
        return iter(())

    def abort(self, upload: Upload) -> None:  # noqa: B027 - no listing shows one
        """Does nothing: there are no listed uploads."""

    # ---------------------------------------------------------------------------------- requests

    def put(self, key: str, what: str, request: HttpRequest) -> None:
        """A request that creates something, and may be repeated.

        Raises: StorageError.
        """
        harmless(self.requests, f"{self.uri}/{key}", what, self.attempt(request, creates=1))

    def count_written(self, size_bytes: int) -> None:
        """The number of bytes that the storage has accepted."""
        self._tally.add(written_bytes=size_bytes)

    def attempt(self, request: HttpRequest, **counts: int) -> Any:
        """The request as an attempt for ``Requests``; each attempt is counted."""

        def attempt(session: HttpSession) -> HttpResponse:
            self._tally.add(**counts)
            response = self.requests.send(session, request)
            if "creates" in counts and self.key is not None:
                check_key(self.key, self.key_in(response), f"{self.uri}/{request.key}")
            return response

        return attempt

    def _ask(self, what: str, request: HttpRequest, **counts: int) -> HttpResponse:
        response: HttpResponse = self.requests.repeatable(what, self.attempt(request, **counts))
        return response

    def _delete_batch(self, keys: Sequence[str]) -> Sequence[tuple[str, Refusal]]:
        """Failed deletes are repeated one by one, with the retries of ``Requests``. Returns the keys that the
        storage refuses to delete. Raises: StorageError without an answer.
        """
        requests = [HttpRequest("DELETE", key) for key in keys]

        async def all_at_once(session: HttpSession) -> list[HttpResponse | BaseException]:
            return await asyncio.gather(*map(session.send, requests), return_exceptions=True)

        def attempt(session: HttpSession) -> Sequence[HttpResponse | BaseException]:
            self._tally.add(deletes=len(keys))
            try:
                return wait_for(all_at_once(session), self.requests.options.timeout_s)
            except TimeoutError as late:
                return [late] * len(keys)

        answers = self.requests.repeatable(f"delete {keys[0]} and {len(keys) - 1} more of {self.uri}", attempt)
        refused: list[tuple[str, Refusal]] = []
        for key, request, answer in zip(keys, requests, answers, strict=True):
            if isinstance(answer, HttpResponse) and (answer.status < 300 or answer.status == 404):
                continue
            try:
                self._ask(f"delete {self.uri}/{key}", request, deletes=1)
            except Refusal as refusal:
                if not is_missing(refusal.answer):
                    refused.append((key, refusal))
        return refused

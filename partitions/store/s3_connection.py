"""Requests to an S3 endpoint: one client per process, bounded retries, failures named by what is known.

Every attempt has a deadline and is counted, so a job can report what it cost. The credentials come from
the environment, the profile or the instance; they live inside botocore's client and nowhere here.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import botocore.config
import botocore.session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from stratalog.partitions.backoff import Backoff
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    OutcomeUnknownError,
    Right,
    StorageAuthenticationError,
    StorageAuthorizationError,
    StorageError,
    StoreTimeoutError,
)
from stratalog.partitions.store.protocol import StoreOptions

POOL_CONNECTIONS = 64
CONNECT_TIMEOUT_S = 10.0
BACKOFF = Backoff(first_s=0.1, longest_s=10.0, least=0.5)

_NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)
_NO_GOOD_ANSWER = (HTTPClientError, SSLError, ResponseStreamingError, IncompleteReadError, ResponseParserError)
PASSING_CODES = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
    }
)

_NO_CREDENTIALS = (
    *(NoCredentialsError, PartialCredentialsError, CredentialRetrievalError),
    *(NoAuthTokenError, TokenRetrievalError, ProfileNotFound),
)
_UNKNOWN_CALLER = frozenset(
    {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "AuthFailure", "NotSignedUp"),
        *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "InvalidSecurity"),
    }
)
NOT_ALLOWED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden"})

_ACTIONS: Mapping[Right, str] = {
    "list": "s3:ListBucket",
    "read": "s3:GetObject",
    "create": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
"""The right that an action needs, as policies name it."""

_SHOW_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) where this runs, executors included, "
    "or name a profile in [s3] of the cluster file"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a request that it did not carry out."""

    status: int
    code: str
    ambiguous: bool
    """Whether an earlier attempt of the same request went without an answer: it may have taken effect."""


class S3Refusal(Exception):  # noqa: N818 - an answer, not a failure: the store knows what each one means
    """A final answer other than success; ``answer`` has it."""

    def __init__(self, answer: Answer) -> None:
        named = answer.code not in ("", str(answer.status))  # an answer without a body names no code
        super().__init__(f"{answer.status} {answer.code}" if named else f"{answer.status}")
        self.answer = answer

    def as_error(self, what: str, right: Right, path: str) -> StorageError:
        """The error of the action ``what``, of its own kind where the caller is refused: that lacks ``right`` on
        ``path``."""
        status, code = self.answer.status, self.answer.code
        if status == 401 or code in _UNKNOWN_CALLER:
            return StorageAuthenticationError(
                f"{what}: {self}: the server does not accept the credentials: {_SHOW_CREDENTIALS}"
            )
        if code in NOT_ALLOWED or code == "403":
            unless = "" if code != "403" else ", or they are wrong; it does not say which"
            hidden = "; or nothing is there, which only those who may list are told" if right == "read" else ""
            return StorageAuthorizationError(
                f"{what}: {self}: the credentials do not allow it{unless}{hidden}: let their owner {right} there "
                f"({_ACTIONS[right]}), or use others",
                right,
                path,
            )
        return StorageError(f"{what}: {self}")


class EndpointUnreachableError(StorageError):
    """No connection to the endpoint could be made: the request was never sent."""


class S3Connection:
    """Requests to one endpoint under one set of options."""

    def __init__(self, options: StoreOptions, clock: Clock, rng: random.Random) -> None:
        self.options = options
        self._clock = clock
        self._rng = rng

    def repeatable(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Carry out a request that may be repeated without harm; ``attempt`` takes the client, and reads
        the body of the answer too.

        Raises: Refused, StoreTimeoutError, StorageError.
        """
        return self._repeat(what, attempt, once=False)

    def exclusive(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Carry out a request that takes effect once. A request without an answer is tried again, so a refusal may
        be the echo of this call's own success (``Answer.ambiguous``).

        Raises: Refused, StorageError when nothing has changed for certain, OutcomeUnknownError.
        """
        return self._repeat(what, attempt, once=True)

    def back_off(self, tries: int = 1) -> None:
        """Wait before the next try: longer each time, and never in step with others."""
        self._clock.sleep(BACKOFF.pause_s(tries, self._rng.random()))

    def _repeat(self, what: str, attempt: Callable[[Any], T], once: bool) -> T:
        # Botocore's errors are not chained: in their attributes they hold requests, with session tokens.
        ambiguous = False
        for tries in range(self.options.retries + 1):
            if tries:
                self.back_off(tries)
            try:
                return attempt(client_of(self.options))
            except ClientError as error:
                status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
                code = error.response.get("Error", {}).get("Code", "")
                if status < 500 and status != 429 and code not in PASSING_CODES:
                    raise S3Refusal(Answer(status, code, ambiguous)) from None
                failure: Exception = error
                ambiguous = ambiguous or status >= 500  # it may come from half way
            except (*_NEVER_SENT, *_NO_GOOD_ANSWER) as error:
                failure = error
                ambiguous = ambiguous or not isinstance(error, _NEVER_SENT)
            except BotoCoreError as error:
                if ambiguous and once:
                    raise OutcomeUnknownError(f"{what}: {error}; read before you retry") from None
                if isinstance(error, _NO_CREDENTIALS):
                    raise StorageAuthenticationError(f"{what}: {error}: {_SHOW_CREDENTIALS}") from None
                raise StorageError(f"{what}: {error}") from None
        attempts = f"{self.options.retries + 1} attempts"
        if once and ambiguous:
            raise OutcomeUnknownError(f"{what}: {attempts}, at last: {failure}; read before you retry") from None
        if isinstance(failure, ReadTimeoutError | ConnectTimeoutError) and not once:
            raise StoreTimeoutError(f"{what}: {attempts}, at last: {failure}") from None
        if isinstance(failure, _NEVER_SENT):
            raise EndpointUnreachableError(f"{what}: {attempts}, at last: {failure}") from None
        raise StorageError(f"{what}: {attempts}, at last: {failure}") from None


_clients_lock = threading.Lock()
_clients: dict[tuple[int, StoreOptions], Any] = {}


def client_of(options: StoreOptions) -> Any:
    """This process' client for these options, made at first use.

    A forked child makes its own: connections that are shared with the parent mix up their answers.
    """
    key = (os.getpid(), options)
    client = _clients.get(key)
    if client is None:
        with _clients_lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = _make_client(options)
    return client


def _make_client(options: StoreOptions) -> Any:
    session = botocore.session.Session(profile=options.profile)
    config = botocore.config.Config(
        connect_timeout=min(options.timeout_s, CONNECT_TIMEOUT_S),
        read_timeout=options.timeout_s,
        max_pool_connections=POOL_CONNECTIONS,
        # Retries are ours: only a caller that counts the attempts knows whether one of them went unanswered.
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Servers other than Amazon's do not all know trailing checksums; uploads say their CRC-32 in a header.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={
            "addressing_style": "auto" if options.endpoint_url is None else "path",
            # A second hash of every byte, which only an unencrypted connection needs: against forgery.
            "payload_signing_enabled": (options.endpoint_url or "").startswith("http://"),
        },
    )
    return session.create_client(
        "s3", region_name=options.region, endpoint_url=options.endpoint_url, config=config
    )


def _forget_clients() -> None:
    """In a forked child: the parent's lock may have been held, its connections are not ours."""
    global _clients_lock
    _clients_lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_clients)

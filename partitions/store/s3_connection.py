"""Requests to an S3 endpoint: one client per process, bounded retries, failures classified by their known effect.

The options are resolved, so botocore looks up no endpoint.

Every attempt has a deadline and is counted for the job's report. The credentials come from a provider, the
environment, the profile or the instance; only botocore's client holds them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import botocore.config
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

from stratalog.partitions.errors import Right
from stratalog.partitions.store.encryption import check_key
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.store.requests import CONNECT_TIMEOUT_S, FailedAttempt, Requests, Wording, is_full
from stratalog.partitions.store.s3_session import s3_session
from stratalog.partitions.store.storage_time import StorageTime

POOL_CONNECTIONS = 64

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
"""The required permission by action, with its name in policies."""

_SHOW_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN) where this runs, executors included, "
    "or name a profile in [s3] of the cluster file"
)


class S3Connection(Requests):
    """Requests to one endpoint under one set of options, on this process' botocore client."""

    wording = Wording(_UNKNOWN_CALLER, NOT_ALLOWED, _ACTIONS, _SHOW_CREDENTIALS)

    _holds_key = False
    """Whether the server has confirmed that it encrypts with the key."""

    def client(self) -> Any:
        return client_of(self.options)

    @property
    def time(self) -> StorageTime:
        """The endpoint's time."""
        return time_of(self.options)

    @property
    def encryption(self) -> Mapping[str, str]:
        """The parameters of requests that create an object."""
        key = self.options.kms_key_id
        return {} if key is None else {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}

    def check_key(
        self, answer: Mapping[str, Any], uri: str, look: Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        """Check the key in the answer to a request with ``encryption``. Some servers omit the key. For these
        servers, ``look`` requests the status of the new object, once.

        Raises: UnsupportedStoreError.
        """
        if self.options.kms_key_id is None:
            return
        key_id = _key_in(answer)
        if key_id is None:
            if look is None or self._holds_key:
                return
            key_id = _key_in(look())
        check_key(self.options.kms_key_id, key_id, uri)
        self._holds_key = True

    def failure_of(self, error: Exception) -> FailedAttempt | None:
        if isinstance(error, ClientError):
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = error.response.get("Error", {}).get("Code", "")
            passing = status >= 500 or status == 429 or code in PASSING_CODES
            passing = passing and not is_full(status, code)
            return FailedAttempt(str(error), status, code, passing)
        if not isinstance(error, BotoCoreError | ResponseParserError):
            return None
        return FailedAttempt(
            str(error),
            passing=isinstance(error, (*_NEVER_SENT, *_NO_GOOD_ANSWER)),
            sent=not isinstance(error, _NEVER_SENT),
            timed_out=isinstance(error, ReadTimeoutError | ConnectTimeoutError),
            no_credentials=isinstance(error, _NO_CREDENTIALS),
        )


def _key_in(answer: Mapping[str, Any]) -> str | None:
    """The SSE-KMS key in an answer, or the name of another kind of encryption."""
    return answer.get("SSEKMSKeyId") or answer.get("ServerSideEncryption")


_clients_lock = threading.Lock()
_clients: dict[tuple[int, StoreOptions], Any] = {}
_times: dict[StoreOptions, StorageTime] = {}


def client_of(options: StoreOptions) -> Any:
    """This process' client for these options, created on first use. A forked child creates its own, because
    answers on connections shared with the parent would be mixed up.
    """
    key = (os.getpid(), options)
    client = _clients.get(key)
    if client is None:
        with _clients_lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = _make_client(options)
    return client


def client_settings(options: StoreOptions) -> dict[str, Any]:
    """The settings of a botocore client, also for s3fs."""
    return {
        "connect_timeout": min(options.timeout_s, CONNECT_TIMEOUT_S),
        "read_timeout": options.timeout_s,
        "max_pool_connections": POOL_CONNECTIONS,
        # This package retries: only code that counts the attempts can tell whether one of them got no answer.
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        # Some servers do not support trailing checksums; uploads send their CRC-32 in a header.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "ignore_configured_endpoint_urls": True,
        "s3": {
            "addressing_style": "auto" if options.endpoint_url is None else "path",
            # A second hash of every byte would protect only unencrypted connections against forgery.
            "payload_signing_enabled": (options.endpoint_url or "").startswith("http://"),
        },
    }


def time_of(options: StoreOptions) -> StorageTime:
    """This process' estimate of the endpoint's time."""
    return _times.setdefault(options, StorageTime())


def _make_client(options: StoreOptions) -> Any:
    config = botocore.config.Config(**client_settings(options))
    client = s3_session(options).create_client(
        "s3", region_name=options.region, endpoint_url=options.endpoint_url, config=config
    )
    time = time_of(options)

    def answered(http_response: Any, **_: Any) -> None:
        time.answered(http_response.headers)

    client.meta.events.register("after-call.s3", answered)
    return client


def _forget_clients() -> None:
    """Run in a forked child: another thread of the parent may have held the lock, and the parent's connections
    must not be used.
    """
    global _clients_lock
    _clients_lock = threading.Lock()
    _clients.clear()
    _times.clear()


os.register_at_fork(after_in_child=_forget_clients)

"""Credentials from a provider: the caller's function, which every process that needs credentials calls.

    def provider(root):                       # the address of a root: s3://bucket/prefix
        return {"access_key": ..., "secret_key": ..., "token": ..., "expiration": ...}

Executors get the function's name or the function itself, never the credentials. A process renews credentials
before they expire, and once more if the storage refuses them. Credentials are in no plan, log, setting or message:
a message about a provider's result or exception has only its type.

    s3://              access_key and secret_key, optionally token
    az://, abfss://    account_key, sas_token, or token (of an identity)
    gs://              service_account (a mapping, or its JSON), or token (not for the remote tier)
``expiration`` is a time with its zone, or its ISO 8601 text; omit it if the credentials do not expire.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stratalog.partitions.clock import Clock, SystemClock
from stratalog.partitions.errors import InvalidCallError

Provider = Callable[[str], Mapping[str, Any]]

RENEWED_BEFORE_MS = 5 * 60 * 1000
"""Credentials are renewed this long before they expire, but not before half of their remaining lifetime has
passed.
"""

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_ONE_OF = {
    "s3": (("access_key", "secret_key"),),
    "az": (("account_key",), ("sas_token",), ("token",)),
    "abfss": (("account_key",), ("sas_token",), ("token",)),
    "gs": (("service_account",), ("token",)),
}
"""The required values by scheme: all names of one of the tuples."""


class NoCredentialsFoundError(Exception):
    """No usable credentials exist. The message contains no secret."""


def is_function_name(text: str) -> bool:
    """Whether a text has the form ``package.module:function``."""
    return _NAME.fullmatch(text) is not None


def function_named(name: str) -> Callable[..., Any]:
    """Import the function ``package.module:function``. Raises: the exceptions of the import."""
    module, _, function = name.partition(":")
    named = importlib.import_module(module)  # noqa: TID251 - the name comes from the caller, never from storage
    found: Callable[..., Any] = getattr(named, function)
    return found


@dataclass(frozen=True, slots=True)
class NamedProvider:
    """A function that each process imports: ``package.module:function``."""

    name: str

    def __post_init__(self) -> None:
        if not is_function_name(self.name):  # the text may be a secret in the wrong place
            raise InvalidCallError(
                "credentials must be the name of a function, package.module:function, not the credentials "
                "themselves"
            )

    def ask(self, root: str) -> Mapping[str, Any]:
        """Raises: the exceptions of the function or its import."""
        found: Mapping[str, Any] = function_named(self.name)(root)
        return found


@dataclass(frozen=True, slots=True)
class GivenProvider:
    """A function that the caller passed. The function is pickled like Spark's functions."""

    id: str
    """The identity of the function. Copies of the function on an executor have the same identity."""
    function: Provider = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    def ask(self, root: str) -> Mapping[str, Any]:
        """Raises: the exceptions of the function."""
        return self.function(root)


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """The provider of a root's credentials."""

    provider: NamedProvider | GivenProvider
    root: str = ""
    """The address of the root, which is the provider's argument."""

    def __str__(self) -> str:
        return f"the credential provider {self.provider.name}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The answer of a provider."""

    values: Mapping[str, Any] = field(repr=False)
    number: int
    """The number of this answer; it grows with each answer of the same provider."""
    renew_ms: int | None
    """The time of the next renewal; None: never."""
    expires_ms: int | None


class Renewing:
    """The credentials of this process for one root."""

    def __init__(self, source: CredentialSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._present: Credentials | None = None

    def current(self) -> Credentials:
        """Credentials that have not expired; renews them if they are due.

        Raises: NoCredentialsFoundError.
        """
        present, now_ms = self._present, self._clock.now_ms()
        if present is not None and (present.renew_ms is None or now_ms < present.renew_ms):
            return present
        with self._lock:
            if self._present is not present and self._present is not None:
                return self._present  # another thread has renewed the credentials meanwhile
            try:
                self._present = self._asked(now_ms, present)
            except NoCredentialsFoundError:
                if present is None or present.expires_ms is None or now_ms >= present.expires_ms:
                    raise
                return present  # the credentials are still valid; try again at the next call
            return self._present

    def renewed_since(self, number: int) -> bool:
        """Called after the storage has refused the credentials with that number. Returns whether there are new
        credentials.

        Raises: NoCredentialsFoundError.
        """
        with self._lock:
            present = self._present
            if present is not None and present.number == number:
                self._present = self._asked(self._clock.now_ms(), present)
                return self._present.values != present.values
            return present is not None

    def _asked(self, now_ms: int, before: Credentials | None) -> Credentials:
        try:
            values = dict(self._source.provider.ask(self._source.root))
            expiration = values.pop("expiration", None)
            expires_ms = None if expiration is None else _milliseconds(expiration)
        except Exception as error:  # the error's text may contain a secret
            raise NoCredentialsFoundError(f"{self._source} failed ({type(error).__name__})") from None
        scheme = self._source.root.partition("://")[0]
        choices = _ONE_OF.get(scheme, ())
        if not any(all(values.get(name) for name in choice) for choice in choices):
            wanted = ", or ".join(" and ".join(choice) for choice in choices)
            raise NoCredentialsFoundError(f"{self._source} gave no {wanted}, which {scheme}:// needs")
        if expires_ms is not None and expires_ms <= now_ms:
            ago_s = (now_ms - expires_ms) // 1000
            raise NoCredentialsFoundError(f"{self._source} gave credentials that expired {ago_s} s ago")
        renew_ms = None if expires_ms is None else expires_ms - min(RENEWED_BEFORE_MS, (expires_ms - now_ms) // 2)
        return Credentials(values, 1 if before is None else before.number + 1, renew_ms, expires_ms)


def _milliseconds(expiration: datetime | str) -> int:
    found = datetime.fromisoformat(expiration) if isinstance(expiration, str) else expiration
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return int(found.timestamp() * 1000)


_CLOCK: Clock = SystemClock()
_lock = threading.Lock()
_renewing: dict[CredentialSource, Renewing] = {}


def renewing(source: CredentialSource) -> Renewing:
    """The credentials of a source in this process."""
    found = _renewing.get(source)
    if found is None:
        with _lock:
            found = _renewing.setdefault(source, Renewing(source, _CLOCK))
    return found


def _forget() -> None:
    """Run in a forked child, because another thread of the parent may have held a lock."""
    global _lock
    _lock = threading.Lock()
    _renewing.clear()


os.register_at_fork(after_in_child=_forget)

"""Requests to object storage: bounded retries, failures classified by their known effect, exclusive creates.

Each kind of storage classifies its client's errors (``Requests.failure_of``); this module decides what follows.
Every attempt has a deadline, and the caller counts the attempts.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

from stratalog.partitions.backoff import Backoff
from stratalog.partitions.clock import Clock
from stratalog.partitions.errors import (
    OutcomeUnknownError,
    RetriableError,
    Right,
    StorageAuthenticationError,
    StorageAuthorizationError,
    StorageError,
    StoreTimeoutError,
)
from stratalog.partitions.store.credentials import NoCredentialsFoundError, renewing
from stratalog.partitions.store.protocol import StoreOptions
from stratalog.partitions.unwritable import UnwritableStorageError

CONNECT_TIMEOUT_S = 10.0
BACKOFF = Backoff(first_s=0.1, longest_s=10.0, least=0.5)
CONFLICT_ATTEMPTS = 5
MOST_NAMED = 20
"""The maximum number of keys that a message names."""
FULL_STATUS = 507
FULL_CODES = frozenset({"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded"})
"""Codes of MinIO and Ceph for full storage or an exhausted quota."""
FULL = "the storage is full, or its quota is used up. Free or add space there, or raise the quota"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a request that it refused."""

    status: int
    code: str
    ambiguous: bool
    """Whether an earlier attempt of the same request got no answer, so that it may have taken effect."""

    @property
    def full(self) -> bool:
        """Whether the storage is full."""
        return is_full(self.status, self.code)


def is_full(status: int, code: str) -> bool:
    """Whether an answer means that the storage is full or a quota is used up. A retry does not help."""
    return status == FULL_STATUS or code in FULL_CODES


@dataclass(frozen=True, slots=True)
class Wording:
    """The codes with which one kind of storage refuses a caller, and the remedies."""

    unknown_caller: frozenset[str]
    """Codes for callers that the storage does not recognize."""
    not_allowed: frozenset[str]
    """Codes for known callers that lack a permission."""
    actions: Mapping[Right, str]
    """The required permission by action, with its name in policies."""
    credentials: str
    """A text that says where to put credentials."""


class Refusal(Exception):  # noqa: N818 - an answer, not a failure: the store interprets it
    """A final unsuccessful answer, in ``answer``."""

    def __init__(self, answer: Answer, wording: Wording) -> None:
        named = answer.code not in ("", str(answer.status))  # an answer without a body has no code
        super().__init__(f"{answer.status} {answer.code}" if named else f"{answer.status}")
        self.answer = answer
        self._wording = wording

    def as_error(self, what: str, right: Right, path: str) -> StorageError:
        """The answer as the error of an action that ``what`` describes. If the server refuses the caller, the
        error is one of authentication or authorization: the caller lacks the permission ``right`` on ``path``.
        """
        status, code, wording = self.answer.status, self.answer.code, self._wording
        if self.answer.full and right == "create":
            return UnwritableStorageError(f"{what}: {self}: {FULL}", path, full=True)
        if status == 401 or code in wording.unknown_caller:
            return StorageAuthenticationError(
                f"{what}: {self}: the server does not accept the credentials: {wording.credentials}"
            )
        if code in wording.not_allowed or code == "403":
            unless = "" if code != "403" else ", or they are wrong; the server does not say which"
            hidden = (
                "; or the object does not exist: the server reveals this only to callers with the right to list"
                if right == "read"
                else ""
            )
            return StorageAuthorizationError(
                f"{what}: {self}: the credentials do not allow it{unless}{hidden}: give their owner the right to "
                f"{right} there ({wording.actions[right]}), or use different credentials",
                right,
                path,
            )
        return StorageError(f"{what}: {self}")


class EndpointUnreachableError(StorageError):
    """No connection to the endpoint was possible, so the request was not sent."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The classification of a client's error."""

    message: str
    """The message, without secrets."""
    status: int = 0
    """The status of the answer; 0 without an answer or status."""
    code: str | None = None
    """The code of the answer; None without an answer."""
    passing: bool = True
    """Whether a retry may succeed."""
    sent: bool = True
    """False: the request was not sent."""
    timed_out: bool = False
    no_credentials: bool = False


class Requests(ABC):
    """Requests to one endpoint under one set of options."""

    wording: Wording

    def __init__(self, options: StoreOptions, clock: Clock, rng: random.Random) -> None:
        self.options = options
        self._clock = clock
        self._rng = rng
        if options.credentials is not None:
            self.wording = replace(
                self.wording, credentials=f"{options.credentials} must return other credentials"
            )

    @abstractmethod
    def client(self) -> Any:
        """The client for attempts: the client of this process, also after a fork."""

    @abstractmethod
    def failure_of(self, error: Exception) -> FailedAttempt | None:
        """The classification of an error; None if the client did not raise it."""

    def repeatable(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Run a request that may be repeated without harm; ``attempt`` takes the client, and also reads the body
        of the answer.

        Raises: Refusal, StoreTimeoutError, StorageError.
        """
        return self._repeat(what, attempt, once=False)

    def exclusive(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Run a request that can succeed only once, such as an exclusive create. A request without an answer is
        retried, so a refusal may be due to this call's own success (``Answer.ambiguous``). Raises: Refusal;
        StorageError if certainly nothing has changed; OutcomeUnknownError.
        """
        return self._repeat(what, attempt, once=True)

    def back_off(self, tries: int = 1) -> None:
        """Wait before the next attempt: longer each time, with jitter."""
        self._clock.sleep(BACKOFF.pause_s(tries, self._rng.random()))

    def credentials_number(self) -> int:
        """The number of the provider's credentials that an attempt uses; 0 without a provider.

        Raises: NoCredentialsFoundError.
        """
        source = self.options.credentials
        return 0 if source is None else renewing(source).current().number

    def _others_than(self, shown: int, failure: FailedAttempt) -> bool:
        """Whether the provider has credentials other than those that the storage has just refused."""
        source = self.options.credentials
        refused = failure.status == 401 or failure.code in self.wording.unknown_caller or failure.code == "403"
        try:
            return source is not None and refused and renewing(source).renewed_since(shown)
        except NoCredentialsFoundError:
            return False

    def _repeat(self, what: str, attempt: Callable[[Any], T], once: bool) -> T:
        # The clients' errors are not chained, because their attributes contain requests with session tokens.
        ambiguous = False
        failure = FailedAttempt("")
        renewed = False
        tries = 0
        while tries <= self.options.retries:
            if tries:
                self.back_off(tries)
            shown = 0
            try:
                shown = self.credentials_number()
                return attempt(self.client())
            except NoCredentialsFoundError as error:
                failure = FailedAttempt(str(error), passing=False, no_credentials=True)
            except Exception as error:
                known = self.failure_of(error)
                if known is None:
                    raise
                failure = known
            tries += 1
            if failure.code is not None:
                if not failure.passing:
                    if not renewed and self._others_than(shown, failure):
                        renewed, tries = True, tries - 1
                        continue
                    raise Refusal(Answer(failure.status, failure.code, ambiguous), self.wording) from None
                ambiguous = ambiguous or failure.status >= 500  # a server in between may have sent the request
            elif failure.passing:
                ambiguous = ambiguous or failure.sent
            else:
                if ambiguous and once:
                    raise OutcomeUnknownError(f"{what}: {failure.message}; read before you retry") from None
                if failure.no_credentials:
                    remedy = "" if self.options.credentials is not None else f": {self.wording.credentials}"
                    raise StorageAuthenticationError(f"{what}: {failure.message}{remedy}") from None
                raise StorageError(f"{what}: {failure.message}") from None
        attempts = f"{self.options.retries + 1} attempts"
        if once and ambiguous:
            raise OutcomeUnknownError(
                f"{what}: {attempts}, the last error: {failure.message}; read before you retry"
            )
        if failure.timed_out and not once:
            raise StoreTimeoutError(f"{what}: {attempts}, the last error: {failure.message}")
        if not failure.sent:
            raise EndpointUnreachableError(f"{what}: {attempts}, the last error: {failure.message}")
        raise StorageError(f"{what}: {attempts}, the last error: {failure.message}")


def name_exclusively(
    requests: Requests, uri: str, attempt: Callable[[Any], Any], look: Callable[[], object]
) -> bool:
    """Run the request that gives an object its name. True: this call created it. False: the name is taken,
    possibly by an attempt of this call whose answer was lost; the caller checks that. ``look`` requests the object
    of that name, and raises ``Refusal`` with 404 if there is none.

    Raises: StorageError, OutcomeUnknownError.
    """
    ambiguous, conflicts = False, 0
    while True:
        try:
            requests.exclusive(f"create {uri}", attempt)
        except Refusal as refused:
            answer = refused.answer
            ambiguous = ambiguous or answer.ambiguous  # the unanswered attempt may be older than a conflict
            conflicts += answer.status == 409  # another writer is creating it right now, or that attempt is
            if answer.status == 412:
                return False
            if answer.status == 409 or ambiguous or answer.status >= 500:
                if _is_there(uri, look):
                    return False
                if answer.status == 409 and conflicts < CONFLICT_ATTEMPTS:
                    requests.back_off()
                    continue
                # A code of full storage shows that the storage itself has answered.
                if ambiguous or (answer.status >= 500 and answer.code not in FULL_CODES):
                    raise OutcomeUnknownError(f"create {uri}: {refused}; read before you retry") from refused
            if answer.status == 409:
                raise StorageError(
                    f"cannot create {uri}: {conflicts} conflicts in a row ({refused}), but no writer created it"
                ) from refused
            raise refused.as_error(f"cannot create {uri}", "create", uri) from refused
        except StorageError as failure:
            if ambiguous:
                raise OutcomeUnknownError(f"{failure}; read before you retry") from failure
            raise
        else:
            return True


def _is_there(uri: str, look: Callable[[], object]) -> bool:
    try:
        look()
    except Refusal as refused:
        if refused.answer.status == 404:
            return False
        raise OutcomeUnknownError(f"cannot look for {uri}: {refused}") from refused
    except RetriableError as error:
        raise OutcomeUnknownError(f"create {uri}: {error}") from error
    return True


def harmless(requests: Requests, place: str, action: str, attempt: Callable[[Any], T]) -> T:
    """Run a request that may be repeated and cannot conflict with others. Every refusal, or a missing answer, is a
    StorageError.
    """
    what = f"{action} {place}"
    try:
        return requests.repeatable(what, attempt)
    except Refusal as refused:
        raise refused.as_error(f"cannot {what}", "create", place) from refused
    except StoreTimeoutError as failure:
        raise StorageError(f"cannot {what}: {failure}") from failure


def names_of(names: Iterable[str], count: int) -> str:
    """The first of ``count`` names, for a message."""
    shown = ", ".join(islice(names, MOST_NAMED))
    return f"{shown} and {count - MOST_NAMED:,} more" if count > MOST_NAMED else shown


def undeleted(refused: Sequence[tuple[str, Refusal]], uri: str) -> StorageError:
    """The error of a bulk delete of which these keys were refused; one of authorization if any refusal is."""

    def is_denied(refusal: Refusal) -> bool:
        return isinstance(refusal.as_error("", "delete", ""), StorageAuthorizationError)

    key, refusal = next((each for each in refused if is_denied(each[1])), refused[0])
    named = names_of((f"{key} ({why})" for key, why in refused), len(refused))
    return refusal.as_error(f"cannot delete {named} of {uri}", "delete", f"{uri}/{key}")

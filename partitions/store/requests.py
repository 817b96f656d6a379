"""Requests to object storage: bounded retries, failures named by what is known, a name that is created once.

Each kind of storage says what its client's errors mean (``Requests.failure_of``); what follows from it stands here
once. Every attempt has a deadline and is counted by those who make it.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
FULL_STATUS = 507
FULL_CODES = frozenset({"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded"})
"""Answers of storage that has no room, or whose quota is used up: of MinIO and Ceph."""
FULL = "the storage is full, or its quota is used up. Free or add space there, or raise the quota"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    """The server's answer to a request that it did not carry out."""

    status: int
    code: str
    ambiguous: bool
    """Whether an earlier attempt of the same request went without an answer: it may have taken effect."""

    @property
    def full(self) -> bool:
        """Whether the storage has no room."""
        return is_full(self.status, self.code)


def is_full(status: int, code: str) -> bool:
    """Whether an answer says that the storage has no room, or that a quota is used up. No other attempt helps."""
    return status == FULL_STATUS or code in FULL_CODES


@dataclass(frozen=True, slots=True)
class Wording:
    """How one kind of storage says that a caller is refused, and what to do about it."""

    unknown_caller: frozenset[str]
    """Codes of answers to callers that the storage does not know."""
    not_allowed: frozenset[str]
    """Codes of answers to those that it knows, and who lack a right."""
    actions: Mapping[Right, str]
    """The right that an action needs, as policies name it."""
    credentials: str
    """Where credentials are to be put."""


class Refusal(Exception):  # noqa: N818 - an answer, not a failure: the store knows what each one means
    """A final answer other than success; ``answer`` has it."""

    def __init__(self, answer: Answer, wording: Wording) -> None:
        named = answer.code not in ("", str(answer.status))  # an answer without a body names no code
        super().__init__(f"{answer.status} {answer.code}" if named else f"{answer.status}")
        self.answer = answer
        self._wording = wording

    def as_error(self, what: str, right: Right, path: str) -> StorageError:
        """The error of the action ``what``, of its own kind where the caller is refused: that lacks ``right`` on
        ``path``."""
        status, code, wording = self.answer.status, self.answer.code, self._wording
        if self.answer.full and right == "create":
            return UnwritableStorageError(f"{what}: {self}: {FULL}", path, full=True)
        if status == 401 or code in wording.unknown_caller:
            return StorageAuthenticationError(
                f"{what}: {self}: the server does not accept the credentials: {wording.credentials}"
            )
        if code in wording.not_allowed or code == "403":
            unless = "" if code != "403" else ", or they are wrong; it does not say which"
            hidden = "; or nothing is there, which only those who may list are told" if right == "read" else ""
            return StorageAuthorizationError(
                f"{what}: {self}: the credentials do not allow it{unless}{hidden}: let their owner {right} there "
                f"({wording.actions[right]}), or use others",
                right,
                path,
            )
        return StorageError(f"{what}: {self}")


class EndpointUnreachableError(StorageError):
    """No connection to the endpoint could be made: the request was never sent."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """The meaning of a client's error for the attempt that it ended."""

    said: str
    """For messages: nothing secret in it."""
    status: int = 0
    """Of the answer; 0 without an answer, or without a status in it."""
    code: str | None = None
    """Of the answer; None: there was no answer."""
    passing: bool = True
    """Whether another attempt may go better."""
    sent: bool = True
    """False: the request never left."""
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
            self.wording = replace(self.wording, credentials=f"{options.credentials} has to give others")

    @abstractmethod
    def client(self) -> Any:
        """The client that attempts are made with: this process' own, also after a fork."""

    @abstractmethod
    def failure_of(self, error: Exception) -> FailedAttempt | None:
        """The meaning of an error; None where the client did not raise it."""

    def repeatable(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Carry out a request that may be repeated without harm; ``attempt`` takes the client, and reads
        the body of the answer too.

        Raises: Refusal, StoreTimeoutError, StorageError.
        """
        return self._repeat(what, attempt, once=False)

    def exclusive(self, what: str, attempt: Callable[[Any], T]) -> T:
        """Carry out a request that takes effect once. A request without an answer is tried again, so a refusal may
        be the echo of this call's own success (``Answer.ambiguous``).

        Raises: Refusal, StorageError when nothing has changed for certain, OutcomeUnknownError.
        """
        return self._repeat(what, attempt, once=True)

    def back_off(self, tries: int = 1) -> None:
        """Wait before the next try: longer each time, and never in step with others."""
        self._clock.sleep(BACKOFF.pause_s(tries, self._rng.random()))

    def credentials_number(self) -> int:
        """The number of the provider's credentials that an attempt shows; 0 where there is no provider.

        Raises: NoCredentialsFoundError.
        """
        source = self.options.credentials
        return 0 if source is None else renewing(source).current().number

    def _others_than(self, shown: int, failure: FailedAttempt) -> bool:
        """Whether the provider has other credentials than those that the storage did not accept just now."""
        source = self.options.credentials
        refused = failure.status == 401 or failure.code in self.wording.unknown_caller or failure.code == "403"
        try:
            return source is not None and refused and renewing(source).renewed_since(shown)
        except NoCredentialsFoundError:
            return False

    def _repeat(self, what: str, attempt: Callable[[Any], T], once: bool) -> T:
        # The clients' errors are not chained: in their attributes they hold requests, with session tokens.
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
                told = self.failure_of(error)
                if told is None:
                    raise
                failure = told
            tries += 1
            if failure.code is not None:
                if not failure.passing:
                    if not renewed and self._others_than(shown, failure):
                        renewed, tries = True, tries - 1
                        continue
                    raise Refusal(Answer(failure.status, failure.code, ambiguous), self.wording) from None
                ambiguous = ambiguous or failure.status >= 500  # it may come from half way
            elif failure.passing:
                ambiguous = ambiguous or failure.sent
            else:
                if ambiguous and once:
                    raise OutcomeUnknownError(f"{what}: {failure.said}; read before you retry") from None
                if failure.no_credentials:
                    remedy = "" if self.options.credentials is not None else f": {self.wording.credentials}"
                    raise StorageAuthenticationError(f"{what}: {failure.said}{remedy}") from None
                raise StorageError(f"{what}: {failure.said}") from None
        attempts = f"{self.options.retries + 1} attempts"
        if once and ambiguous:
            raise OutcomeUnknownError(f"{what}: {attempts}, at last: {failure.said}; read before you retry")
        if failure.timed_out and not once:
            raise StoreTimeoutError(f"{what}: {attempts}, at last: {failure.said}")
        if not failure.sent:
            raise EndpointUnreachableError(f"{what}: {attempts}, at last: {failure.said}")
        raise StorageError(f"{what}: {attempts}, at last: {failure.said}")


def name_exclusively(
    requests: Requests, uri: str, attempt: Callable[[Any], Any], look: Callable[[], object]
) -> bool:
    """Carry out the request that gives an object its name. True: this call created it. False: the name
    is taken, which includes the echo of an attempt of our own whose answer was lost: the caller looks.
    ``look`` asks for the object of that name, and raises ``Refusal`` with 404 where nothing has it.

    Raises: StorageError, OutcomeUnknownError.
    """
    for _ in range(CONFLICT_ATTEMPTS):
        try:
            requests.exclusive(f"create {uri}", attempt)
        except Refusal as refused:
            answer = refused.answer
            if answer.status == 412:
                return False
            if answer.status == 409:  # somebody is creating it right now
                if _is_there(uri, look):
                    return False
                requests.back_off()
                continue
            if answer.ambiguous or answer.status >= 500:
                if _is_there(uri, look):
                    return False
                if answer.ambiguous or answer.code not in FULL_CODES:  # else the storage itself has answered
                    raise OutcomeUnknownError(f"create {uri}: {refused}; read before you retry") from refused
            raise refused.as_error(f"cannot create {uri}", "create", uri) from refused
        else:
            return True
    raise StorageError(f"cannot create {uri}: {CONFLICT_ATTEMPTS} conflicts in a row, and nobody made it")


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
    """A request that may be sent again, and that nobody else's can conflict with: every refusal, and no answer, is
    a StorageError."""
    what = f"{action} {place}"
    try:
        return requests.repeatable(what, attempt)
    except Refusal as refused:
        raise refused.as_error(f"cannot {what}", "create", place) from refused
    except StoreTimeoutError as failure:
        raise StorageError(f"cannot {what}: {failure}") from failure

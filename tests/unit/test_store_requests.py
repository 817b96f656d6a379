"""The outcome of an exclusive create, after any sequence of answers (``partitions.store.requests``)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import OutcomeUnknownError, StorageError
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.requests import Answer, FailedAttempt, Refusal, Requests, Wording, name_exclusively

LOST = FailedAttempt("no answer")
NOT_SENT = FailedAttempt("cannot connect", sent=False)
CONFLICT = FailedAttempt("409", 409, "409", passing=False)
FORBIDDEN = FailedAttempt("403", 403, "403", passing=False)
RETRIES = 2


class _FailedError(Exception):
    def __init__(self, failure: FailedAttempt) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _Scripted(Requests):
    wording = Wording(frozenset(), frozenset(), {"create": "create", "read": "read"}, "set credentials")

    def client(self) -> None:
        return None

    def failure_of(self, error: Exception) -> FailedAttempt | None:
        return error.failure if isinstance(error, _FailedError) else None


def _missing() -> None:
    raise Refusal(Answer(404, "404", ambiguous=False), _Scripted.wording)


def _failing(failures: Sequence[FailedAttempt]) -> Callable[[Any], None]:
    """Fails in this way, and with the last failure from then on."""
    rest = list(failures)

    def attempt(_: object) -> None:
        raise _FailedError(rest.pop(0) if len(rest) > 1 else rest[0])

    return attempt


def _name(*failures: FailedAttempt) -> bool:
    requests = _Scripted(StoreOptions(retries=RETRIES), ManualClock(), random.Random(0))
    return name_exclusively(requests, "s3://bucket/name", _failing(failures), _missing)


@pytest.mark.parametrize("later", [(NOT_SENT,), (FORBIDDEN,), (CONFLICT,)], ids=lambda one: one[0].message)
def test_a_lost_answer_before_a_conflict_is_not_forgotten(later: Sequence[FailedAttempt]) -> None:
    """The unanswered attempt may be the one that conflicts, and may take effect later."""
    with pytest.raises(OutcomeUnknownError):
        _name(LOST, CONFLICT, *later)


@pytest.mark.parametrize("later", [(NOT_SENT,), (FORBIDDEN,), (CONFLICT,)], ids=lambda one: one[0].message)
def test_after_conflicts_alone_nothing_was_created(later: Sequence[FailedAttempt]) -> None:
    with pytest.raises(StorageError):
        _name(CONFLICT, *later)

"""The outcome of an exclusive create, after any sequence of answers (``partitions.store.requests``), and of an
upload in parts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError, OutcomeUnknownError, StorageError
from stratalog.partitions.store import StoreOptions
from stratalog.partitions.store.requests import Answer, FailedAttempt, Refusal, Requests, Wording, name_exclusively
from stratalog.partitions.store.upload_writer import UploadWriter

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


class _Parts:
    """An upload that refuses its second part."""

    size_bytes = 0

    def __init__(self) -> None:
        self.parts: set[int] = set()
        self.committed = self.aborted = False

    def put_part(self, index: int, data: bytes, crc32: int) -> None:
        if index == 1:
            raise StorageError("refused")
        self.parts.add(index)

    def commit(self) -> bool:
        self.committed = True
        return True

    def replace(self) -> None:
        self.committed = True

    def abort(self) -> None:
        self.aborted = True


def test_an_upload_without_one_of_its_parts_gets_no_name() -> None:
    """The writer of the bytes has seen the error, but a later write or commit succeeds in a careless caller."""
    upload = _Parts()
    staged = UploadWriter("s3://bucket/name", 4, lambda data: upload, lambda: upload)
    with pytest.raises(StorageError, match="refused"):
        staged.file.write(6 * b"data")
    with pytest.raises(InvalidCallError):
        staged.commit()
    assert (upload.committed, upload.aborted) == (False, True)

"""Credentials of a provider: requested, renewed in time, never shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from stratalog.partitions.clock import ManualClock
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.store.credentials import (
    CredentialSource,
    GivenProvider,
    NamedProvider,
    NoCredentialsFoundError,
    Renewing,
    renewing,
)

NOW_MS = 1_700_000_000_000
SECRET = "hunter2"


def keys(number: int, **more: Any) -> dict[str, Any]:
    return {"access_key": f"key-{number}", "secret_key": SECRET, **more}


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class Asked:
    """A provider that records its calls; ``answer`` makes the n-th answer."""

    def __init__(self, clock: ManualClock, answer: Callable[[int], Mapping[str, Any]]) -> None:
        self.clock, self.answer = clock, answer
        self.times: list[int] = []

    def __call__(self, root: str) -> Mapping[str, Any]:
        assert root == "s3://bucket/prefix"
        self.times.append(self.clock.now_ms() - NOW_MS)
        return self.answer(len(self.times))


def of(
    provider: Callable[[str], Mapping[str, Any]], clock: ManualClock, root: str = "s3://bucket/prefix"
) -> Renewing:
    return Renewing(CredentialSource(GivenProvider("an-id", provider), root), clock)


def named(root: str) -> Mapping[str, Any]:
    """A provider that an executor imports."""
    return keys(7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.mark.parametrize(("life_ms", "renewed_at"), [(3_600_000, 3_300_000), (60_000, 30_000)])
def test_they_are_renewed_before_they_expire(clock: ManualClock, life_ms: int, renewed_at: int) -> None:
    asked = Asked(clock, lambda n: keys(n, expiration=at(clock.now_ms() + life_ms)))
    credentials = of(asked, clock)
    for _ in range(300):
        assert (credentials.current().expires_ms or 0) > clock.now_ms()
        clock.sleep(life_ms / 300_000)
    assert asked.times == [0, renewed_at]


def test_those_without_an_end_are_asked_for_once(clock: ManualClock) -> None:
    asked = Asked(clock, keys)
    credentials = of(asked, clock)
    for _ in range(3):
        assert credentials.current().values["access_key"] == "key-1"
        clock.sleep(1_000_000)
    assert asked.times == [0]


def test_those_that_storage_refused_are_asked_for_again_once(clock: ManualClock) -> None:
    credentials = of(Asked(clock, keys), clock)
    first = credentials.current().number
    assert credentials.renewed_since(first)
    # Another thread whose credentials were refused, too, gets the renewed ones.
    assert credentials.renewed_since(first)
    assert credentials.current().values["access_key"] == "key-2"
    same = of(lambda _: keys(1), clock)
    assert not same.renewed_since(same.current().number)


def test_a_failing_provider_is_tolerated_while_there_are_good_credentials(clock: ManualClock) -> None:
    def answer(count: int) -> Mapping[str, Any]:
        if count > 1:
            raise ConnectionError(SECRET)
        return keys(count, expiration=at(NOW_MS + 60_000).isoformat())

    credentials = of(Asked(clock, answer), clock)
    assert credentials.current() == credentials.current()
    clock.sleep(40)
    assert credentials.current().number == 1
    clock.sleep(20)
    with pytest.raises(NoCredentialsFoundError, match=r"provider Asked failed \(ConnectionError\)") as caught:
        credentials.current()
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("root", "answer", "message"),
    [
        ("s3://b", {"access_key": SECRET}, "gave no access_key and secret_key, which s3:// needs"),
        ("az://c", {"access_key": SECRET}, "gave no account_key, or sas_token, or token, which az:// needs"),
        ("gs://b", {"token": ""}, "gave no service_account, or token"),
        ("s3://b", keys(1, expiration=at(NOW_MS - 5_000)), "gave credentials that expired 5 s ago"),
        ("s3://b", keys(1, expiration="2030-01-01T00:00:00"), r"failed \(ValueError\)"),
        ("s3://b", keys(1, expiration=SECRET), r"failed \(ValueError\)"),
        ("s3://b", SECRET, r"failed \(ValueError\)"),
        ("s3://b", None, r"failed \(TypeError\)"),
    ],
)
def test_bad_credentials_of_a_provider_are_refused_and_not_shown(
    clock: ManualClock, root: str, answer: Any, message: str
) -> None:
    with pytest.raises(NoCredentialsFoundError, match=message) as caught:
        of(lambda _: answer, clock, root).current()
    assert SECRET not in str(caught.value)


def test_a_name_travels_and_is_imported_where_it_arrives() -> None:
    source = CredentialSource(NamedProvider(f"{__name__}:named"), "s3://bucket")
    sent = pickle.dumps(source)
    assert SECRET.encode() not in sent
    arrived = pickle.loads(sent)
    assert renewing(arrived).current().values["access_key"] == "key-7"
    assert renewing(arrived) is renewing(source)
    assert SECRET not in repr(renewing(source).current())


@pytest.mark.parametrize("text", ["", "hunter2", "a:b:c", "a.b", "a-b:c", "hunter2/+=:x", "os:a.b"])
def test_text_that_names_no_function_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidCallError, match="credentials must be the name of a function") as caught:
        NamedProvider(text)
    assert not text or text not in str(caught.value)


def test_a_missing_function_is_reported_without_its_error_text(clock: ManualClock) -> None:
    for name in ("no.such.module:f", f"{__name__}:no_such"):
        with pytest.raises(NoCredentialsFoundError, match=rf"provider {name} failed \("):
            Renewing(CredentialSource(NamedProvider(name), "s3://b"), clock).current()

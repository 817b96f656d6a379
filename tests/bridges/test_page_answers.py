"""Access to the served page, its answers, and its figures over time; without a cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import pytest

from stratalog.bridges.page.served.access import Access, check_token
from stratalog.bridges.page.served.answers import Answers, PageAnswer, PageRequest, Shown
from stratalog.bridges.page.served.lookups import BusyError, Lookups
from stratalog.bridges.page.served.samples import MOST_SERIES, MOST_STEPS, Figure, Samples
from stratalog.bridges.page.served.server import PageOptions
from stratalog.jobs.http_server import host_and_port, is_loopback
from stratalog.partitions.errors import InvalidCallError, StoreTimeoutError

TOKEN = "0123456789abcdef-token"
EVIL = "</script><script>alert(1)</script>\x1b[31m\u202e"
HERE = {"host": "127.0.0.1:8080"}


class NoLookups(Lookups):
    """Answers with the request, and fails on demand."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def records(self, given: Mapping[str, str]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {"asked": dict(given)}

    table = records


def answers(token: str | None = None, *, loopback: bool = True, error: Exception | None = None) -> Answers:
    access = Access(8080, loopback, token, secure=False, session="s" * 43)
    return Answers(access, lambda: Shown.of("a-1", '{"cluster": "c"}', "<html>"), NoLookups(error))


def code_of(answer: PageAnswer) -> str:
    text: str = json.loads(answer.body)["error"]["code"]
    return text


# ------------------------------------------------------------------------------------------------ who may ask


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_and_head_are_answered(method: str) -> None:
    answer = answers().answer(PageRequest("/", method=method, headers=HERE))
    assert (answer.status, answer.headers["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:8080", True),
        ("LocalHost:8080", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example:8080", False),
        ("localhost:8081", False),
        ("localhost:8080,evil.example", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("path", ["/", "/content", "/records", "/session", "/nothing"])
def test_on_loopback_the_host_has_a_name_of_loopback(path: str, host: str, allowed: bool) -> None:
    answer = answers().answer(PageRequest(path, headers={"host": host} if host else {}))
    assert (answer.status is not HTTPStatus.MISDIRECTED_REQUEST) == allowed
    assert answers(TOKEN, loopback=False).answer(PageRequest(path, headers={"host": host})).status != 421


@pytest.mark.parametrize("path", ["/content", "/records", "/table", "/session"])
def test_another_site_may_not_ask(path: str) -> None:
    for site, allowed in (("cross-site", False), ("same-site", False), ("same-origin", True), ("none", True)):
        answer = answers().answer(PageRequest(path, headers={**HERE, "sec-fetch-site": site}))
        assert (answer.status is not HTTPStatus.FORBIDDEN) == allowed


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),
        ({"authorization": f"Bearer {TOKEN}"}, True),
        ({"authorization": f"bearer {TOKEN}"}, True),
        ({"authorization": f"Basic {TOKEN}"}, False),
        ({"authorization": f"Bearer {TOKEN}x"}, False),
        ({"authorization": "Bearer "}, False),
        ({"authorization": "Bearer \udcff"}, False),
        ({"cookie": f"stratalog_page_8080={'s' * 43}"}, True),
        ({"cookie": f"other=1; stratalog_page_8080={'s' * 43}"}, True),
        ({"cookie": f"stratalog_page_8080={TOKEN}"}, False),
        ({"cookie": "stratalog_page_8080="}, False),
        ({"cookie": "=;;"}, False),
    ],
)
def test_a_token_opens_the_page_as_header_or_by_its_session(headers: dict[str, str], allowed: bool) -> None:
    served = answers(TOKEN, loopback=False)
    for path in ("/", "/content", "/records?", "/table"):
        answer = served.answer(PageRequest(path.rstrip("?"), headers=headers))
        assert (answer.status is not HTTPStatus.UNAUTHORIZED) == allowed, path
        assert TOKEN.encode() not in answer.body
        assert b"<html>" in answer.body or path != "/" or not allowed


def test_a_token_becomes_a_cookie_that_is_not_the_token() -> None:
    served = answers(TOKEN, loopback=False)
    asked = PageRequest("/session", headers={"authorization": f"Bearer {TOKEN}"})
    cookie = served.answer(asked).headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert Access(1, loopback=False, token=TOKEN, secure=True).cookie.endswith("; Secure")
    assert code_of(served.answer(PageRequest("/session"))) == "UNAUTHORIZED"
    assert TOKEN not in repr(Access(1, loopback=False, token=TOKEN, secure=True))
    sessions = {Access(1, loopback=False, token=TOKEN, secure=True).session for _ in range(3)}
    assert len(sessions) == 3
    assert all(len(one) >= 43 for one in sessions)


def test_the_token_in_an_address_opens_nothing() -> None:
    served = answers(TOKEN, loopback=False)
    for query in (f"token={TOKEN}", f"access_token={TOKEN}"):
        assert served.answer(PageRequest("/", query)).status == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("token", ["short", "a" * 15, "a" * 16 + " b", "ä" * 20, "a" * 20 + "\n"])
def test_a_token_that_is_too_easy_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        check_token(token)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"listen": "0.0.0.0:8080"}, "other machines reach this address"),
        ({"listen": "[::]:8080"}, "other machines"),
        ({"listen": "192.0.2.1:8080"}, "other machines"),
        ({"listen": "log.example.org:8080"}, "other machines"),
        ({"listen": "0.0.0.0:8080", "tls_cert": "cert.pem"}, "other machines"),
        ({"listen": "8080x"}, "not an address"),
        ({"listen": "127.0.0.1:65536"}, "not an address"),
        ({"tls_key": "key.pem"}, "needs a certificate"),
        ({"tls_client_ca": "ca.pem"}, "needs a certificate"),
        ({"token": "short"}, "at least 16"),
        ({"every_s": 0}, "above 0"),
    ],
)
def test_options_that_would_show_records_to_anyone_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCallError, match=message):
        PageOptions(**given)


def test_another_address_of_loopback_is_one_of_its_names() -> None:
    access = Access(80, loopback=True, token=None, secure=False, host="127.0.0.2")
    assert access.calls_us({"host": "127.0.0.2:80"})
    assert not access.calls_us({"host": "127.0.0.3:80"})


def test_a_token_or_certificates_of_readers_allow_any_address() -> None:
    PageOptions(listen="0.0.0.0:8080", token=TOKEN)
    PageOptions(listen="0.0.0.0:8080", tls_cert="cert.pem", tls_client_ca="ca.pem")
    for host in ("127.0.0.1", "127.9.9.9", "localhost", "::1"):
        assert is_loopback(host)
    assert TOKEN not in repr(PageOptions(token=TOKEN))
    assert host_and_port("8080") == ("127.0.0.1", 8080)
    assert host_and_port("[::1]:80") == ("::1", 80)


# ------------------------------------------------------------------------------------------------ answers


def headers_of(served: Answers, path: str = "/", **headers: str) -> tuple[str, dict[str, str], bytes]:
    sent: list[Any] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_HOST": "localhost:8080", **headers}
    body = b"".join(served(environ, lambda status, found: sent.append((status, dict(found)))))  # type: ignore[arg-type, return-value, func-returns-value]
    return sent[0][0], sent[0][1], body


@pytest.mark.parametrize("path", ["/", "/content", "/records", "/session", "/nothing"])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_each_answer_forbids_all_that_it_does_not_need(path: str, token: str | None) -> None:
    _, headers, _ = headers_of(answers(token), path)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_content_is_sent_once_per_read_and_compressed_for_clients_that_accept_it() -> None:
    status, headers, body = headers_of(answers(), "/content")
    assert (status, json.loads(body)) == ("200 OK", {"cluster": "c"})
    assert headers_of(answers(), "/content", HTTP_IF_NONE_MATCH=headers["ETag"])[::2] == ("304 Not Modified", b"")
    _, zipped, body = headers_of(answers(), "/content", HTTP_ACCEPT_ENCODING="gzip, br")
    assert zipped["Content-Encoding"] == "gzip"
    assert (int(zipped["Content-Length"]), body[:2]) == (len(body), b"\x1f\x8b")
    status, headers, body = headers_of(answers(), "/content", REQUEST_METHOD="HEAD")
    assert (status, body) == ("200 OK", b"")


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("topic=a%26b", 200, None),
        ("topic=a&topic=b", 400, "INVALID_REQUEST"),
        ("topic", 400, "INVALID_REQUEST"),
        ("x=" + "a" * 5000, 400, "INVALID_REQUEST"),
        ("&".join(f"a{n}=1" for n in range(20)), 400, "INVALID_REQUEST"),
    ],
)
def test_an_address_that_is_no_question_is_refused(query: str, status: int, code: str | None) -> None:
    answer = answers().answer(PageRequest("/records", query, headers=HERE))
    assert answer.status == status
    assert code is None or code_of(answer) == InvalidCallError.code


def test_stratalog_errors_of_a_look_are_answers_and_bugs_are_logged_but_not_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for error, status in ((BusyError("b"), 503), (StoreTimeoutError("s"), 502), (InvalidCallError("i"), 400)):
        assert answers(error=error).answer(PageRequest("/records", headers=HERE)).status == status
    with caplog.at_level(logging.ERROR, "stratalog.page"):
        status_line, _, body = headers_of(answers(error=ValueError("secret place")), "/records")
    assert status_line.startswith("500")
    assert b"secret place" not in body
    assert "secret place" in caplog.text


# ------------------------------------------------------------------------------------------------ samples


def test_samples_take_a_bounded_memory_and_reach_back_to_the_first() -> None:
    samples = Samples()
    for turn in range(3000):
        samples.add(1_000_000 + turn * 30_000, [Figure(("", "Lag"), turn)])
    found = samples.shown()
    assert found is not None
    [series] = found["scopes"][""]
    assert found["from_ms"] == 1_000_000
    assert len(series["values"]) <= MOST_STEPS
    assert found["from_ms"] + found["step_ms"] * len(series["values"]) > 1_000_000 + 2999 * 30_000
    known = [one for one in series["values"] if one is not None]
    assert known == sorted(known)
    assert known[-1] == 2999


def test_series_are_bounded_and_those_left_out_are_counted() -> None:
    samples = Samples()
    samples.add(0, [Figure((f"topic {n}", "Lag"), n) for n in range(MOST_SERIES + 7)])
    found = samples.shown()
    assert found is not None
    assert (len(found["scopes"]), found["left_out"]) == (MOST_SERIES, 7)


def test_a_figure_that_was_unknown_is_a_gap_and_a_clock_that_was_set_back_loses_nothing() -> None:
    samples = Samples()
    for at_ms, figures in (
        (0, [Figure(("", "Lag"), 1)]),
        (10_000, []),
        (20_000, [Figure(("", "Lag"), 3), Figure(("g", "Lag"), 5)]),
        (-50_000, [Figure(("", "Lag"), 4)]),
    ):
        samples.add(at_ms, figures)
    found = samples.shown()
    assert found is not None
    assert found["scopes"][""][0]["values"] == [1, None, 4]
    assert found["scopes"]["g"][0]["values"] == [None, None, 5]

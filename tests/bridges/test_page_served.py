"""The served page: who may ask, what is answered, what a look at records shows, and that maintain outlives it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster, Report
from stratalog.bridges.page.served import lookups
from stratalog.bridges.page.served.access import Access, check_token
from stratalog.bridges.page.served.answers import Answers, PageAnswer, PageRequest, Shown
from stratalog.bridges.page.served.lookups import BusyError, Lookups
from stratalog.bridges.page.served.samples import MOST_SERIES, MOST_STEPS, Figure, Samples
from stratalog.bridges.page.served.server import PageOptions, PageServer
from stratalog.bridges.state import StatePages
from stratalog.jobs import http_server, maintain
from stratalog.jobs.http_server import HttpServer, host_and_port, is_loopback
from stratalog.jobs.main import main
from stratalog.partitions.errors import InvalidCallError, StoreTimeoutError, StratalogError
from tests.bridges.test_serve import certificate
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster

TOKEN = "0123456789abcdef-token"
EVIL = "</script><script>alert(1)</script>\x1b[31m\u202e"
HERE = {"host": "127.0.0.1:8080"}


class NoLookups(Lookups):
    """Answers what it was asked, and fails when it is told to."""

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
    ("given", "said"),
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
def test_options_that_would_show_records_to_anyone_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCallError, match=said):
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


def test_content_is_sent_once_for_each_look_and_zipped_for_who_takes_it() -> None:
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


def test_errors_of_a_look_are_answers_and_those_of_ours_are_not_shown(caplog: pytest.LogCaptureFixture) -> None:
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


# ------------------------------------------------------------------------------------------------ looks


@pytest.fixture
def live(tmp_path: Path) -> LiveCluster:
    made = LiveCluster(tmp_path, on_disk=True)
    made.cluster.topics.alter_configs(
        None, {"offsets.topic.num.partitions": "1", "health.log.dir.max.used.ratio": "1"}
    )
    made.tiered()
    made.fill("abc")
    made.cluster.tier().raise_for_failures()
    return made


def lookups_of(cluster: Cluster, timeout_s: float = lookups.TIMEOUT_S) -> Lookups:
    ports = ports_of(cluster)
    return Lookups(ports.metadata, ports.storage, ports.clock, ports.memory, timeout_s)


def test_records_are_typed_escaped_and_twenty_at_most(live: LiveCluster) -> None:
    live.cluster.topics.create("typed", partitions=1, replication_factor=3, value="name STRING, n INT")
    rows = [{"name": EVIL if n == 0 else f"r{n}", "n": n} for n in range(50)]
    live.cluster.produce("typed", rows).raise_for_failures()
    look = lookups_of(live.cluster)
    found = look.records({"topic": "typed", "partition": "0", "offset": "0"})
    assert (len(found["records"]), found["next"], found["high_watermark"]) == (lookups.RECORDS, 20, 50)
    assert (found["key_type"], found["value_type"]) == ("BINARY", "name STRING, n INT")
    text = found["records"][0]["value"]["text"]
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert json.loads(found["records"][1]["value"]["text"]) == {"name": "r1", "n": 1}
    last = look.records({"topic": "typed", "partition": "0"})
    assert [one["offset"] for one in last["records"]] == list(range(30, 50))
    assert look.records({"topic": "typed", "partition": "0", "offset": "50"})["records"] == []


def test_records_are_found_by_time_in_both_tiers_and_cut_where_they_are_long(live: LiveCluster) -> None:
    live.append(["x" * 100_000], at_ms=5_000)
    look = lookups_of(live.cluster)
    found = look.records({"topic": "t", "partition": "0", "time": "1970-01-01T00:00:00"})
    assert found["records"][0]["offset"] == 0
    later = look.records({"topic": "t", "partition": "0", "time": "1970-01-01T00:00:04"})
    [one] = later["records"]
    assert (len(one["value"]["text"]), one["value"]["cut"]) == (lookups.MOST_CHARACTERS, 96_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name a topic"),
        ({"topic": "t"}, "give a number"),
        ({"topic": "t", "partition": "-1"}, "give a number"),
        ({"topic": "t", "partition": "9"}, "has no partition 9"),
        ({"topic": "t", "partition": "0", "offset": "x"}, "give a number"),
        ({"topic": "t", "partition": "0", "offset": "9" * 30}, "give a number"),
        ({"topic": "t", "partition": "0", "offset": "99"}, "99 is not in"),
        ({"topic": "t", "partition": "0", "offset": "1", "time": "2020-01-01"}, "do not go together"),
        ({"topic": "t", "partition": "0", "time": "soon"}, "soon"),
        ({"topic": "no", "partition": "0"}, "no"),
        ({"topic": "../t", "partition": "0"}, "t"),
        ({"topic": "t", "partition": "0", "max_bytes": "1"}, "unknown parameter"),
    ],
)
def test_a_look_that_cannot_be_is_refused(live: LiveCluster, given: dict[str, str], said: str) -> None:
    with pytest.raises(StratalogError, match=said):
        lookups_of(live.cluster).records(given)


def test_looks_at_once_are_bounded_and_one_that_hangs_ends(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(lookups, "fetch", lambda *_, **__: go.wait(20))
    look = lookups_of(live.cluster, timeout_s=-0.9)
    asked = {"topic": "t", "partition": "0", "offset": "0"}
    for _ in range(lookups.MOST_AT_ONCE):
        with pytest.raises(StoreTimeoutError, match="try again"):
            look.records(asked)
    with pytest.raises(BusyError, match="looks are running"):
        look.records(asked)
    go.set()


def test_versions_of_a_remote_table_are_the_last_ones_first(live: LiveCluster) -> None:
    look = lookups_of(live.cluster)
    found = look.table({"topic": "t"})["versions"]
    numbers = [one["version"] for one in found]
    assert numbers == sorted(numbers, reverse=True)
    assert sum(one["added"] for one in found) == 3
    live.topic("plain")
    with pytest.raises(InvalidCallError, match="no remote table"):
        look.table({"topic": "plain"})


# ------------------------------------------------------------------------------------------------ the running page


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    asked = urllib.request.Request(
        url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def content_at(page: PageServer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"{page.url}content")[1])
    return found


@pytest.mark.slow
def test_it_serves_the_cluster_and_writes_nothing(live: LiveCluster) -> None:
    live.cluster.groups.commit("g", {("t", 0): 1}).raise_for_failures()
    live.cluster.topics.alter_configs("t", {"segment.bytes": "2"})
    before = sorted((str(one), one.stat().st_mtime_ns) for one in live.folder.rglob("*"))
    with live.cluster.serve_page("127.0.0.1:0", every_s=None) as page:
        status, html = get(page.url)
        assert (status, b"connect-src 'self'" in html) == (200, True)
        found = content_at(page)
        assert get(f"{page.url}records?topic=t&partition=0&offset=0")[0] == 200
        assert get(f"{page.url}table?topic=t")[0] == 200
        assert get(page.url, "POST")[0] == 405
        assert get(page.url, Host="evil.example")[0] == 421
    assert sorted((str(one), one.stat().st_mtime_ns) for one in live.folder.rglob("*")) == before
    [group] = found["groups"]
    assert (group["group"], group["lag"], [row[:4] for row in group["commits"]]) == ("g", 2, [[0, 1, 3, 2]])
    topic = next(one for one in found["topics"] if one["name"] == "t")
    assert (topic["configs"]["segment.bytes"], found["configs"]["segment.bytes"][1]) == ("2", "default")
    assert found["live"]["samples"]["scopes"]["group g"][0]["values"] == [2]
    assert not page.is_running


@pytest.mark.slow
def test_a_look_that_fails_is_said_beside_what_was_known(live: LiveCluster) -> None:
    with live.cluster.serve_page("127.0.0.1:0", every_s=None) as page:
        assert page.look().ok
        with live.unreachable(1), pytest.raises(StratalogError):
            live.driver().health()
        page._failed(StoreTimeoutError("broker 1 is away\x1b[31m"))
        found = content_at(page)
        assert found["live"]["error"]["what"] == "REQUEST_TIMED_OUT: broker 1 is away\\x1b[31m"
        assert [one["name"] for one in found["topics"]][-1] == "t"
        page.look()
        assert content_at(page)["live"]["error"] is None


@pytest.mark.slow
def test_an_address_that_is_taken_is_refused_by_name(live: LiveCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidCallError, match=f"127.0.0.1:{port}: cannot listen there"):
            live.cluster.serve_page(f"127.0.0.1:{port}")


@pytest.mark.slow
def test_tls_serves_only_readers_with_a_certificate(live: LiveCluster, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    options = {"tls_cert": cert, "tls_key": key, "tls_client_ca": cert}
    with live.cluster.serve_page("127.0.0.1:0", every_s=None, **options) as page:
        reader = ssl.create_default_context(cafile=cert)
        with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|EOF"):
            urllib.request.urlopen(f"{page.url}content", timeout=20, context=reader).read()
        reader.load_cert_chain(cert, key)
        with urllib.request.urlopen(f"{page.url}content", timeout=20, context=reader) as answer:
            assert answer.status == 200
    with pytest.raises(InvalidCallError, match="not a certificate"):
        live.cluster.serve_page("127.0.0.1:0", tls_cert=__file__)


def test_connections_are_bounded_and_a_silent_one_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.5)

    def app(_: Any, start: Callable[..., Any]) -> list[bytes]:
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    server = HttpServer(app, "127.0.0.1", 0)
    try:
        with ExitStack() as silent:
            for _ in range(http_server.MOST_CONNECTIONS):
                silent.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with socket.create_connection(("127.0.0.1", server.port), timeout=5) as one_more:
                assert one_more.recv(1) == b"", "it is closed, and waits for nobody"
            threading.Event().wait(1)
            assert get(f"http://127.0.0.1:{server.port}/") == (200, b"ok")
    finally:
        server.close()


# ------------------------------------------------------------------------------------------------ maintain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--page", "8080"], "--page needs --every"),
        (["--every", "30s", "--page-token-file", "f"], "--page-token-file needs --page"),
        (["--every", "30s", "--page", "0.0.0.0:0"], "other machines reach this address"),
        (["--every", "30s", "--page", "0.0.0.0:0", "--page-tls-cert", "c.pem"], "other machines"),
        (["--every", "30s", "--page", "0.0.0.0:0", "--page-token-file", "missing"], "cannot be read"),
        (["--every", "30s", "--page", "nowhere"], "not an address"),
    ],
)
@pytest.mark.slow
def test_maintain_refuses_what_would_show_records_to_anyone(
    live: LiveCluster, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    assert main(["maintain", *given, "--cluster", str(live.file)]) == 2
    assert said in capsys.readouterr().err


@contextmanager
def maintained(live: LiveCluster, *given: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the page of a running ``maintain``, and its process."""
    command = [sys.executable, "-m", "stratalog.jobs.maintain", "--every", "300ms", *given]
    with subprocess.Popen(
        [*command, "--cluster", str(live.file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stderr is not None
        try:
            yield re.sub(r"^page: (\S+)\n", r"\1", process.stderr.readline()), process
        finally:
            process.kill()


@pytest.mark.long("a process of maintain that starts, and runs some rounds")
@pytest.mark.slow
def test_maintain_serves_the_page_and_tells_no_token(live: LiveCluster) -> None:
    file = live.folder / "token"
    file.write_text(f"{TOKEN}\n")
    with maintained(live, "--page", "0", "--page-token-file", str(file)) as (url, process):
        assert get(url)[0] == 401
        header = f"Bearer {TOKEN}"
        status, body = get(f"{url}content", Authorization=header)
        first = json.loads(body)["live"]["tag"]
        assert (status, json.loads(body)["cluster"]) == (200, "c")
        assert TOKEN.encode() not in body
        again = partial(get, f"{url}content", Authorization=header)
        until(lambda: json.loads(again()[1])["live"]["tag"] != first)
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert TOKEN not in out + err


class Failing:
    """A page whose looks fail, and whose server has ended."""

    url, is_running = "http://127.0.0.1:8080/", False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def look(self) -> None:
        raise self.error

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("error", [StoreTimeoutError("broker 1"), ValueError("a bug"), OSError("no thread")])
def test_a_page_that_fails_is_said_and_ends_no_maintain(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    rounds: list[Report] = []
    monkeypatch.setattr(StatePages, "serve_page", lambda *_, **__: Failing(error))

    def some(operation: str, once: Callable[[], Report], show: Callable[[Report], None], _: object) -> Report:
        for _ in range(2):
            rounds.append(once())
            show(rounds[-1])
        return Report(operation, ())

    monkeypatch.setattr(maintain, "repeat", some)
    assert main(["maintain", "--every", "1s", "--page", "0", "--cluster", str(live.file)]) == 0
    shown = capsys.readouterr()
    assert len(rounds) == 2
    assert shown.out.count("maintain: done") >= 2
    assert shown.err.count("could not") == 2
    assert shown.err.count("is no longer served") == 2


def until(holds: Callable[[], bool]) -> None:
    for _ in range(200):
        if holds():
            return
        threading.Event().wait(0.1)
    raise AssertionError("it did not come about")

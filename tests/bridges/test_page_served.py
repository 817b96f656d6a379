"""The served page: access, answers, reads of records, and that maintain outlives the page."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stratalog import Cluster, Report
from stratalog.bridges.page.served import lookups
from stratalog.bridges.page.served.lookups import BusyError, Lookups
from stratalog.bridges.page.served.server import PageServer
from stratalog.bridges.state import StatePages
from stratalog.jobs import http_server, maintain
from stratalog.jobs.http_server import HttpServer
from stratalog.jobs.main import main
from stratalog.partitions.errors import InvalidCallError, StoreTimeoutError, StratalogError
from tests.bridges.test_page_answers import EVIL, TOKEN
from tests.bridges.test_serve import certificate
from tests.ports import ports_of
from tests.unit.cluster_harness import LiveCluster

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
    ("given", "message"),
    [
        ({}, "name a topic"),
        ({"topic": "t"}, "give a number"),
        ({"topic": "t", "partition": "-1"}, "give a number"),
        ({"topic": "t", "partition": "9"}, "has no partition 9"),
        ({"topic": "t", "partition": "0", "offset": "x"}, "give a number"),
        ({"topic": "t", "partition": "0", "offset": "9" * 30}, "give a number"),
        ({"topic": "t", "partition": "0", "offset": "99"}, "99 is not in"),
        ({"topic": "t", "partition": "0", "offset": "1", "time": "2020-01-01"}, "cannot be used together"),
        ({"topic": "t", "partition": "0", "time": "soon"}, "soon"),
        ({"topic": "no", "partition": "0"}, "no"),
        ({"topic": "../t", "partition": "0"}, "t"),
        ({"topic": "t", "partition": "0", "max_bytes": "1"}, "unknown parameter"),
    ],
)
def test_a_look_that_cannot_be_is_refused(live: LiveCluster, given: dict[str, str], message: str) -> None:
    with pytest.raises(StratalogError, match=message):
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
    with pytest.raises(BusyError, match="lookups are running"):
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
def test_a_failed_look_is_shown_next_to_the_known_state(live: LiveCluster) -> None:
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
    with pytest.raises(InvalidCallError, match="cannot listen there"):
        live.cluster.serve_page(f"{'a' * 64}.example:0", token="x" * 16)


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


@pytest.mark.parametrize(("host", "why"), [("\u00fc" * 70, "encoding of hostname"), ("a\0b", "null character")])
def test_a_name_that_no_host_can_have_is_an_oserror_with_a_text(host: str, why: str) -> None:
    with pytest.raises(OSError, match=why) as refused:
        HttpServer(lambda *_: [], host, 0)
    assert refused.value.strerror


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
    ("given", "message"),
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
    live: LiveCluster, capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert main(["maintain", *given, "--cluster", str(live.file)]) == 2
    assert message in capsys.readouterr().err


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
    """A page whose lookups fail, and whose server has ended."""

    url, is_running = "http://127.0.0.1:8080/", False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def look(self) -> None:
        raise self.error

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("error", [StoreTimeoutError("broker 1"), ValueError("a bug"), OSError("no thread")])
def test_a_failing_page_is_reported_and_ends_no_maintain(
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

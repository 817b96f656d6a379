"""A real server on 127.0.0.1 that follows a script, for tests of refusals, stalls and lost answers."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.s3_server import HOST


class ScriptedServer:
    """Answers requests by a script, one function per request; the last one answers all later ones."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.script: list[Callable[[Handler], None]] = [obey]
        self.released = threading.Event()
        self.url = ""

    def begin_anew(self) -> None:
        """Reset the server; stalled requests are released."""
        self.released.set()
        self.objects, self.requests, self.script, self.released = {}, [], [obey], threading.Event()

    def next_answer(self) -> Callable[[Handler], None]:
        """The answer to the next request."""
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class Handler(BaseHTTPRequestHandler):
    """One request to the scripted server."""

    protocol_version = "HTTP/1.1"
    scripted: ScriptedServer
    more: Mapping[str, str] = {}
    """Additional headers of the answer."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True  # the client timed out, which some tests intend

    def answer_any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.scripted.requests.append(f"{self.command} {self.path}")
        self.scripted.next_answer()(self)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer_any  # noqa: N815 - the names that http.server calls

    def answer(self, status: int, code: str = "", body: bytes = b"", etag: str = "") -> None:
        if code and self.command != "HEAD":
            body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if etag:
            self.send_header("ETag", f'"{etag}"')
        for name, text in self.more.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


def obey(request: Handler) -> None:
    """Answer like an S3 server."""
    objects = request.scripted.objects
    if request.command == "PUT":
        if request.path in objects:
            request.answer(412, "PreconditionFailed")
        else:
            objects[request.path] = request.body
            request.answer(200, etag=hashlib.md5(request.body).hexdigest())
    elif request.path in objects:
        request.answer(200, body=objects[request.path])
    else:
        request.answer(404, "NoSuchKey")


def busy(request: Handler) -> None:
    request.answer(503, "SlowDown")


def forbidden(request: Handler) -> None:
    request.answer(403, "AccessDenied")


def conflict(request: Handler) -> None:
    request.answer(409, "ConditionalRequestConflict")


def stall(request: Handler) -> None:
    """Never answer."""
    request.scripted.released.wait(30)
    request.close_connection = True


def obey_and_lose_the_answer(request: Handler) -> None:
    """Carry the request out, and hang up instead of answering."""
    request.scripted.objects[request.path] = request.body
    request.close_connection = True


def obey_and_break(request: Handler) -> None:
    """Carry the request out, and break the connection like a crashing machine."""
    request.scripted.objects[request.path] = request.body
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()
    request.close_connection = True


def garble(request: Handler) -> None:
    """Fail with a foreign error text, like a proxy."""
    request.answer(502, body=b"<html>Bad gateway")


def half_a_body(request: Handler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"half")
    request.close_connection = True


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    handler = type("BoundHandler", (Handler,), {"scripted": scripted})
    with ThreadingHTTPServer((HOST, 0), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        scripted.url = f"http://{HOST}:{http.server_port}"
        try:
            yield scripted
        finally:
            scripted.released.set()
            http.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def serving() -> Iterator[ScriptedServer]:
    """There is one server for all tests, because the client of an address takes a long time to make, and is
    cached.
    """
    with scripted_server() as scripted:
        yield scripted


@pytest.fixture
def server(serving: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "scripted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "scripted-secret")
    serving.begin_anew()
    return serving

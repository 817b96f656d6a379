"""A proxy on 127.0.0.1 in front of a real S3 server, which spoils requests as a test requires.

The method and the key of a request, and the number of earlier identical requests, decide how it is spoiled, never
the order of threads. So a seed gives the same faults in every run. Signatures stay valid, because the proxy
forwards the ``Host`` that the client has signed.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HOST = "127.0.0.1"
_OF_THE_HOP = {"connection", "content-length", "keep-alive", "transfer-encoding"}
_LONGEST_S = 60.0

Spoil = Callable[["Passing"], None]
"""The treatment of one request."""
Plan = Callable[[str, str, int], Spoil | None]
"""The treatment by method, address (path and query) and the number of earlier identical requests, from 0 on; None
lets it pass."""


class Passing(BaseHTTPRequestHandler):
    """One request in flight."""

    protocol_version = "HTTP/1.1"
    proxy: S3Proxy

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True  # the client or the proxy has given up

    def pass_any(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        spoil = self.proxy.noted(self.command, self.path)
        (spoil or passed)(self)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = pass_any  # noqa: N815 - the names that http.server calls

    def ask(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server's answer: status, headers, body."""
        server = urlsplit(self.proxy.server_url)
        assert server.hostname is not None
        connection = http.client.HTTPConnection(server.hostname, server.port, timeout=_LONGEST_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    connection.putheader(name, value)
            connection.endheaders(self.body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: int | None = None) -> None:
        """Send this answer, with that length as its declared length."""
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _OF_THE_HOP or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def hang_up(self) -> None:
        """Close the connection like a crashed machine."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        """Silence."""


def passed(request: Passing) -> None:
    """Forward the request. If the server is away, so is the proxy."""
    try:
        answer = request.ask()
    except OSError:
        request.hang_up()
    else:
        request.answer(*answer)


def refused(status: int, code: str) -> Spoil:
    """Answer with an error of the server, which does nothing."""

    def spoil(request: Passing) -> None:
        body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        request.answer(status, [("Content-Type", "application/xml")], body)

    return spoil


busy = refused(503, "SlowDown")
full = refused(403, "QuotaExceeded")


def reset(request: Passing) -> None:
    """Close the connection before the server gets the request."""
    request.hang_up()


def answer_lost(request: Passing) -> None:
    """Let the server carry out the request, and send no answer."""
    request.ask()
    request.hang_up()


def answer_torn(request: Passing) -> None:
    """Cut the body of the answer in the middle."""
    status, headers, body = request.ask()
    request.answer(status, headers, body[: len(body) // 2], len(body))
    request.hang_up()


def never(request: Passing) -> None:
    """Send no answer before the proxy ends."""
    request.proxy.ended.wait(_LONGEST_S)
    request.close_connection = True


class S3Proxy:
    """The state of a proxy, and its log of requests."""

    def __init__(self, server_url: str) -> None:
        self.server_url = server_url
        self.url = ""
        self.plan: Plan = lambda method, address, before: None
        self.seen: list[tuple[str, str]] = []
        """Method and address of every request, in order of arrival."""
        self.ended = threading.Event()
        self._before: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def noted(self, method: str, address: str) -> Spoil | None:
        """Record a request and return its treatment."""
        with self._lock:
            before = self._before[method, address]
            self._before[method, address] += 1
            self.seen.append((method, address))
        return self.plan(method, address, before)

    def came(self, method: str, address: str) -> list[str]:
        """Addresses of the requests of that method that match the pattern, in order of arrival."""
        return [of for by, of in self.seen if by == method and self.fits(address, of)]

    @staticmethod
    def fits(address: str, of_address: str) -> bool:
        """Whether a part of an address matches the pattern."""
        return re.search(address, of_address) is not None

    def spoil(self, spoil: Spoil, method: str, address: str, times: int | None = None) -> None:
        """Spoil every such request from now on (``address`` is a pattern), or only the first ``times``."""
        left = threading.Semaphore(times) if times is not None else None

        def plan(of_method: str, of_address: str, _: int) -> Spoil | None:
            if not re.fullmatch(method, of_method) or not self.fits(address, of_address):
                return None
            return spoil if left is None or left.acquire(blocking=False) else None

        self.plan = plan

    def spoil_some(self, seed: int, spoils: list[Spoil], rate: float) -> None:
        """Spoil this fraction of the requests from now on, each at most once in a row."""

        def plan(method: str, address: str, before: int) -> Spoil | None:
            rng = random.Random(f"{seed} {method} {address} {before}")
            return rng.choice(spoils) if before % 2 == 0 and rng.random() < rate else None

        self.plan = plan

    def repair(self) -> None:
        """Let all requests pass again."""
        self.plan = lambda method, address, before: None


@contextmanager
def running_proxy(server_url: str) -> Iterator[S3Proxy]:
    """A proxy in front of that server."""
    proxy = S3Proxy(server_url)
    handler = type("PassingHere", (Passing,), {"proxy": proxy})
    with ThreadingHTTPServer((HOST, 0), handler) as server:
        server.daemon_threads = True
        proxy.url = f"http://{HOST}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.ended.set()
            server.shutdown()
            thread.join()

"""A gate before fake-gcs-server, which looks at no condition of *compose*: here ``ifGenerationMatch=0`` counts.

All other requests go through as they are. Those that make objects pass one by one, so that nobody comes between
the look at a name and its creation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_TAKEN = b'{"error": {"code": 412, "errors": [{"reason": "conditionNotMet"}]}}'
_OF_ONE_CONNECTION = {"connection", "transfer-encoding", "keep-alive"}


class _Gate(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind: tuple[str, int]
    making: threading.Lock

    def setup(self) -> None:
        super().setup()
        self._server = HTTPConnection(*self.behind, timeout=60)

    def finish(self) -> None:
        self._server.close()
        super().finish()

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.command != "POST":
            return self._answer(*self._forwarded(self.command, self.path, body))
        address = urlsplit(self.path)
        exclusive = parse_qs(address.query).get("ifGenerationMatch") == ["0"]
        with self.making:
            if address.path.endswith("/compose") and exclusive:
                found, _ = self._forwarded("GET", address.path.removesuffix("/compose"), b"")
                if found.status != 404:
                    return self._answer(found, _TAKEN, 412)
            answer, said = self._forwarded(self.command, self.path, body)
        return self._answer(answer, said)

    do_GET = do_POST = do_PUT = do_DELETE = pass_on  # noqa: N815 - the names that http.server calls

    def _forwarded(self, method: str, path: str, body: bytes) -> tuple[HTTPResponse, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        headers["Content-Length"] = str(len(body))
        self._server.request(method, path, body, headers)
        answer = self._server.getresponse()
        return answer, answer.read()

    def _answer(self, answer: HTTPResponse, body: bytes, status: int | None = None) -> None:
        self.send_response(status or answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {*_OF_ONE_CONNECTION, "content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def gate(host: str, port: int, port_behind: int) -> Iterator[None]:
    """What is asked of ``port`` goes to ``port_behind``."""
    handler = type("_GateOf", (_Gate,), {"behind": (host, port_behind), "making": threading.Lock()})
    server = _Server((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

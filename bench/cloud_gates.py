"""Proxies in front of the emulators of cloud storage, for requests that the emulators do not implement.

    Azurite           its listing ignores ``startFrom``, with which delta-rs asks for newer versions
    fake-gcs-server   *compose* ignores ``ifGenerationMatch``; its XML interface, which delta-rs uses, does not
                      accept objects, and its listing ignores ``start-after``

All other requests are forwarded unchanged. Requests that create objects in Google's emulator are forwarded one by
one, so that no other request comes between the check of a name and its creation.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from stratalog.partitions.bounded import parse_json

_BLOB = re.compile(rb"<Blob><Name>(.*?)</Name>.*?</Blob>", re.DOTALL)
_CONTENTS = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_TAKEN = b'{"error": {"code": 412, "errors": [{"reason": "conditionNotMet"}]}}'
_OF_ONE_CONNECTION = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class Gate(BaseHTTPRequestHandler):
    """A client's connection to the server behind the proxy."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    behind: tuple[str, int]
    making: threading.Lock

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def pass_on(self) -> None:
        self.answer(*self.forwarded(self.command, self.path, self.body()))

    def any_method(self) -> None:
        self.pass_on()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = any_method  # noqa: N815 - the names that http.server calls

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def forwarded(self, method: str, path: str, body: bytes) -> tuple[HTTPResponse, bytes]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        if "Content-Length" in self.headers or body:
            headers["Content-Length"] = str(len(body))
        # a new connection each time: the server may close a kept one at any time
        with closing(HTTPConnection(*self.behind, timeout=60)) as server:
            server.request(method, path, body or None, headers)
            answer = server.getresponse()
            return answer, answer.read()

    def answer(
        self, answer: HTTPResponse, body: bytes, status: int | None = None, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response_only(status or answer.status)
        for name, value in (*answer.getheaders(), *(more or {}).items()):
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class AzureGate(Gate):
    """The proxy in front of Azurite."""

    def pass_on(self) -> None:
        answer, body = self.forwarded(self.command, self.path, self.body())
        start = parse_qs(urlsplit(self.path).query).get("startFrom")
        if start and answer.status == 200:
            body = _BLOB.sub(lambda blob: blob[0] if unescape(blob[1].decode()) >= start[0] else b"", body)
        self.answer(answer, body)


class GcsGate(Gate):
    """The proxy in front of fake-gcs-server."""

    def pass_on(self) -> None:
        body = self.body()
        if self.command == "PUT":
            return self._put_as_xml(body)
        address = urlsplit(self.path)
        if self.command != "POST":
            answer, body = self.forwarded(self.command, self.path, body)
            if (after := parse_qs(address.query).get("start-after")) and answer.status == 200:
                body = _CONTENTS.sub(lambda each: each[0] if unescape(each[1].decode()) > after[0] else b"", body)
            return self.answer(answer, body)
        exclusive = parse_qs(address.query).get("ifGenerationMatch") == ["0"]
        with self.making:
            if address.path.endswith("/compose") and exclusive:
                found, _ = self.forwarded("GET", address.path.removesuffix("/compose"), b"")
                if found.status != 404:
                    return self.answer(found, _TAKEN, 412)
            answer, body = self.forwarded(self.command, self.path, body)
        return self.answer(answer, body)

    def _put_as_xml(self, body: bytes) -> None:
        bucket, _, key = urlsplit(self.path).path.lstrip("/").partition("/")
        query = {"uploadType": "media", "name": unquote(key)}
        if (match := self.headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = match
        with self.making:
            answer, body = self.forwarded("POST", f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}", body)
        made = parse_json(body) if answer.status < 300 else {}
        more = {"ETag": f'"{made["etag"]}"', "x-goog-generation": made["generation"]} if made else {}
        self.answer(answer, body, more=more)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def gate(kind: type[Gate], host: str, port: int, port_behind: int) -> Iterator[None]:
    """Forward requests from ``port`` to ``port_behind``."""
    handler = type("_Opened", (kind,), {"behind": (host, port_behind), "making": threading.Lock()})
    server = _Server((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

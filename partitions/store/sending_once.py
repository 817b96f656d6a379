"""How often a client sends one creation whose answer is lost: a server here counts, and never answers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HOST = "127.0.0.1"


class SilentServer(BaseHTTPRequestHandler):
    """Nothing is there; and a request that would change something gets no answer."""

    protocol_version = "HTTP/1.1"
    came: Counter[str]

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.came[f"{self.command} {self.path.partition('?')[0]}"] += 1
        self.close_connection = True

    do_POST = do_PUT  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Silence."""


@contextmanager
def silent_server() -> Iterator[tuple[str, Callable[[], int]]]:
    """Its address, and how often the request came that came most often."""
    came: Counter[str] = Counter()
    handler = type("SilentHere", (SilentServer,), {"came": came})
    with ThreadingHTTPServer((_HOST, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://{_HOST}:{server.server_address[1]}", lambda: max(came.values(), default=0)
        finally:
            server.shutdown()
            thread.join()

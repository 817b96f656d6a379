"""A vault on this machine that gives credentials to every caller, and records the callers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.s3_server import ACCESS_KEY, HOST, SECRET_KEY
from tests.spark.nothing_shared import WORKER

PROVIDER = '''
import json
import os
import urllib.request


def keys(root):
    """Says which process this is, and gets credentials."""
    asking = {{"root": root, "pid": os.getpid(), "parent": os.getppid(), "worker": os.environ.get({worker!r})}}
    asking["has"] = sorted(name for name in os.environ if name.startswith("AWS_") and "KEY" in name)
    with open("/proc/self/cmdline", "rb") as command:
        asking["command"] = command.read().decode().replace("\\0", " ")
    request = urllib.request.Request({url!r}, json.dumps(asking).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)
'''


class Vault:
    """The vault as the test uses it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[dict[str, Any]] = []

    def write_provider(self, folder: Path) -> Path:
        """A module ``vault_provider`` with the provider ``keys``."""
        module = folder / "vault_provider.py"
        module.write_text(PROVIDER.format(worker=WORKER, url=self.url))
        return module


@contextmanager
def vault() -> Iterator[Vault]:
    """A running vault."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asking = self.rfile.read(int(self.headers["Content-Length"]))
            running.asked.append(json.loads(asking))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer((HOST, 0), Answer) as server:
        running = Vault(f"http://{HOST}:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()

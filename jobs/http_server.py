"""A small HTTP server in threads of this process: for the pages and metrics that ``maintain`` serves while it
runs.

It serves a WSGI application. Each connection has one request and one thread. Beyond ``MOST_CONNECTIONS``,
connections are closed without an answer. A client that neither sends nor receives for ``PATIENCE_S`` is cut off.
Requests are not logged: their headers and addresses may hold secrets.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.secret_files import read_secret, unreadable

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    WSGI = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]

MOST_CONNECTIONS = 64
PATIENCE_S = 15.0

_log = logging.getLogger("stratalog.http")


def host_and_port(text: str) -> tuple[str, int]:
    """Parse ``host:port``, ``[::1]:port``, or a port alone, which means 127.0.0.1. Raises: InvalidCallError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) >= 1 << 16:
        raise InvalidCallError(f"{text!r} is not an address: write it as host:port, such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than ``localhost`` may be the name of any
    machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def tls_context(cert: str, key: str | None, client_ca: str | None) -> ssl.SSLContext:
    """Return the TLS context of a server, from PEM files: the certificate, the key (None: in the same file), and
    the CA that must have signed clients' certificates (None: clients need no certificate).

    Raises: InvalidCallError for missing or invalid files.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; a path with a NUL is a ValueError
        given = {"the certificate": cert, "the key of the certificate": key, "the CA of clients": client_ca}
        files = {what: path for what, path in given.items() if path}
        for what, path in files.items():
            if not os.path.exists(path):
                raise InvalidCallError(unreadable(what, path, "there is no such file")) from error
        named = ", ".join(files.values())
        raise InvalidCallError(f"{named} are not a certificate and its key in PEM: {error}") from error
    return context


def _no_password() -> str:
    """Refuse an encrypted key, because OpenSSL would ask for its password on the terminal."""
    return ""


def read_token(path: str) -> str:
    """Return the token in a file, without white space around it. Raises: InvalidCallError."""
    ascii_text = partial(Path.read_text, encoding="ascii")
    return read_secret("the token file", path, ascii_text, InvalidCallError, not_text="it is not ASCII").strip()


class HttpServer:
    """A running server. Its threads end with the process."""

    def __init__(self, app: WSGI, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen at ``host:port``; port 0 picks a free one. Raises: OSError."""
        try:
            self._server = _Server(host, port, tls)
        except (TypeError, ValueError) as error:  # no host can have that name
            raise OSError(errno.EINVAL, str(error)) from error
        self._server.set_app(app)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the server still accepts connections."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop listening. Responses that have begun are sent."""
        if self.is_running:
            self._server.shutdown()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S
    server_version, sys_version = "stratalog", ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing, because requests may hold secrets."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # the method of HTTPServer would look up a name
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake here, in the connection's thread, so that a client that never begins the handshake
        does not delay other clients.
        """
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(PATIENCE_S)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)
            with suppress(OSError):
                secured.unwrap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection ended early", exc_info=True)

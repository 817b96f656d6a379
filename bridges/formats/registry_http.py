"""One request to a schema registry, which is untrusted: bounded in time and bytes.

A redirect is followed only to the same scheme, or from ``http`` to ``https``, and without credentials. ``urllib``
limits only each read of a socket, and a registry could send one byte at a time forever. So the connection is
closed when the time limit of the request has passed.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib import request
from urllib.error import HTTPError

from stratalog.partitions.printable import printable

_REASON = 100
"""The number of characters of a registry's reason that an error repeats."""


class RefusedError(Exception):
    """The registry answered with an error."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {printable(reason)[:_REASON]}")
        self.status = status


def get(url: str, user: str | None, ca: str | None, timeout_s: float, most_bytes: int) -> bytes:
    """Return the first ``most_bytes`` bytes of the answer of ``url``. ``user``: *name:password*; ``ca``: a file of
    certificates.

    Raises: RefusedError, OSError, ValueError.
    """
    asked = request.Request(url, headers={"Accept": "application/json"})
    if user is not None:
        # urllib drops this header on a redirect, because the redirect may lead to another server.
        basic = base64.b64encode(user.encode()).decode()
        asked.add_unredirected_header("Authorization", f"Basic {basic}")
    with _deadline(timeout_s) as sockets:
        opener = request.OpenerDirector()
        for handler in (
            request.ProxyHandler(),
            _Plain(sockets),
            _Secure(sockets, ssl.create_default_context(cafile=ca)),
            request.HTTPDefaultErrorHandler(),
            request.HTTPErrorProcessor(),
            _Redirects(),
        ):
            opener.add_handler(handler)
        try:
            answer = opener.open(asked, timeout=timeout_s)
            if answer is None:  # an unknown scheme
                raise RefusedError(0, "it redirects to another server")
            with answer:
                return bytes(answer.read(most_bytes))
        except HTTPError as error:
            with error:
                raise RefusedError(error.code, str(error.reason)) from None
        except http.client.HTTPException as error:
            raise ValueError(f"it does not answer in HTTP ({type(error).__name__})") from error


class _Redirects(request.HTTPRedirectHandler):
    max_redirections = 3

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith(("https://", f"{req.type}://")):
            raise RefusedError(code, "it redirects to another scheme")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Sockets:
    """The sockets of one request. When the time limit has passed, the sockets are closed, and no new ones are
    opened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._over = False

    def add(self, one: socket.socket) -> None:
        with self._lock:
            if self._over:
                raise TimeoutError("the request timed out")
            self._open.append(one.dup())  # TLS replaces the socket

    def end(self) -> None:
        with self._lock:
            self._over = True
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            self._over = True
            for one in self._open:
                one.close()
            self._open.clear()


@contextmanager
def _deadline(timeout_s: float) -> Iterator[_Sockets]:
    sockets = _Sockets()
    timer = threading.Timer(timeout_s, sockets.end)
    timer.daemon = True
    timer.start()
    try:
        yield sockets
    finally:
        timer.cancel()
        sockets.close()


class _Plain(request.HTTPHandler):
    def __init__(self, sockets: _Sockets) -> None:
        super().__init__()
        self._sockets = sockets

    def http_open(self, req: Any) -> Any:
        return self.do_open(partial(_noted, http.client.HTTPConnection, self._sockets), req)


class _Secure(request.HTTPSHandler):
    def __init__(self, sockets: _Sockets, context: ssl.SSLContext) -> None:
        super().__init__()
        self._sockets, self._with = sockets, context

    def https_open(self, req: Any) -> Any:
        connection = partial(http.client.HTTPSConnection, context=self._with)
        return self.do_open(partial(_noted, connection, self._sockets), req)


def _noted(make: Any, sockets: _Sockets, host: str, **options: Any) -> http.client.HTTPConnection:
    """A connection that registers its socket immediately, because ``urllib`` drops it after the headers."""
    connection: http.client.HTTPConnection = make(host, **options)
    create = connection._create_connection  # type: ignore[attr-defined]

    def noted(*args: Any, **kwargs: Any) -> socket.socket:
        made: socket.socket = create(*args, **kwargs)
        try:
            sockets.add(made)
        except TimeoutError:
            made.close()
            raise
        return made

    connection._create_connection = noted  # type: ignore[attr-defined]
    return connection

"""The answer to each address of the page. Only GET and HEAD are answered; no request changes anything.

/             the page; without the right to see it, a page that asks for the token
/session      with the token in its header: a cookie
/content      the content of the page as JSON, or 304 if the reader has it /records some records: topic, partition,
              and offset or time
/table        the versions of a topic's remote table: topic
"""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from stratalog.bridges.page.document import login_document, policy_of_login, policy_of_page
from stratalog.bridges.page.served.access import Access
from stratalog.bridges.page.served.lookups import BusyError, Lookups
from stratalog.partitions.errors import InvalidCallError, StratalogError
from stratalog.partitions.printable import printable

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

MOST_QUERY = 4096
_HTML, _JSON = "text/html; charset=utf-8", "application/json"
_ALWAYS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NO_CONTENT = "default-src 'none'; frame-ancestors 'none'"

_log = logging.getLogger("stratalog.page")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request; the names of ``headers`` are in lowercase."""

    path: str = "/"
    query: str = ""
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """One answer. ``zipped`` is the body compressed with gzip, for readers that accept it."""

    status: HTTPStatus
    body: bytes = b""
    kind: str = _JSON
    policy: str = _NO_CONTENT
    headers: Mapping[str, str] = field(default_factory=dict)
    zipped: bytes | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """The page after one read of the cluster, ready to send."""

    tag: str
    content: bytes
    html: bytes
    content_zipped: bytes
    html_zipped: bytes

    @classmethod
    def of(cls, tag: str, content: str, html: str) -> Shown:
        """``tag`` identifies this read of the cluster."""
        texts = content.encode(), html.encode()
        return cls(f'"{tag}"', *texts, *(gzip.compress(text, 4, mtime=0) for text in texts))


class Answers:
    """The answers of one page, as a WSGI application."""

    def __init__(self, access: Access, shown: Callable[[], Shown], lookups: Lookups) -> None:
        self._access, self._shown, self._lookups = access, shown, lookups

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI interface."""
        headers = {
            name[5:].replace("_", "-").lower(): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        request = PageRequest(
            environ.get("PATH_INFO", "/"), environ.get("QUERY_STRING", ""), environ["REQUEST_METHOD"], headers
        )
        try:
            answer = self.answer(request)
        except Exception:  # a bug in stratalog ends this response, and nothing else
            _log.exception("%s could not be answered", printable(request.path))
            answer = _error(
                HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL", "see the log of the process for the reason"
            )
        body, more = answer.body, dict(answer.headers)
        if answer.zipped is not None:
            more["Vary"] = "Accept-Encoding"
            if "gzip" in headers.get("accept-encoding", ""):
                body, more["Content-Encoding"] = answer.zipped, "gzip"
        sent = {
            **_ALWAYS,
            "Content-Security-Policy": answer.policy,
            "Content-Type": answer.kind,
            "Content-Length": str(len(body)),
            **more,
        }
        start_response(f"{answer.status.value} {answer.status.phrase}", list(sent.items()))
        return [b"" if request.method == "HEAD" else body]

    def answer(self, request: PageRequest) -> PageAnswer:
        """The answer to a request; errors that readers can cause are also answers."""
        access, headers = self._access, request.headers
        if request.method not in ("GET", "HEAD"):
            refused = _error(HTTPStatus.METHOD_NOT_ALLOWED, "READ_ONLY", "the page answers only GET and HEAD")
            return PageAnswer(refused.status, refused.body, headers={"Allow": "GET, HEAD"})
        if not access.calls_us(headers):
            return _error(
                HTTPStatus.MISDIRECTED_REQUEST,
                "UNKNOWN_HOST",
                f"the page is served only as localhost:{access.port} and 127.0.0.1:{access.port}: use one of "
                "these names",
            )
        if request.path == "/":
            return self._page(headers)
        if access.is_foreign(headers):
            return _error(HTTPStatus.FORBIDDEN, "FOREIGN_SITE", "requests from other sites are refused")
        if request.path == "/session":
            if not access.shows_token(headers):
                return _error(HTTPStatus.UNAUTHORIZED, "UNAUTHORIZED", "the token is wrong")
            return PageAnswer(HTTPStatus.NO_CONTENT, headers={"Set-Cookie": access.cookie})
        if request.path not in ("/content", "/records", "/table"):
            return _error(HTTPStatus.NOT_FOUND, "NOT_FOUND", "this address does not exist")
        if not access.allows(headers):
            return _error(HTTPStatus.UNAUTHORIZED, "UNAUTHORIZED", "the page needs its token: reload it")
        return self._content(headers) if request.path == "/content" else self._looked_up(request)

    def _page(self, headers: Mapping[str, str]) -> PageAnswer:
        if not self._access.allows(headers):
            return PageAnswer(HTTPStatus.UNAUTHORIZED, login_document().encode(), _HTML, policy_of_login())
        shown = self._shown()
        return PageAnswer(HTTPStatus.OK, shown.html, _HTML, policy_of_page(live=True), zipped=shown.html_zipped)

    def _content(self, headers: Mapping[str, str]) -> PageAnswer:
        shown = self._shown()
        tagged = {"ETag": shown.tag}
        if headers.get("if-none-match") == shown.tag:
            return PageAnswer(HTTPStatus.NOT_MODIFIED, headers=tagged)
        return PageAnswer(HTTPStatus.OK, shown.content, headers=tagged, zipped=shown.content_zipped)

    def _looked_up(self, request: PageRequest) -> PageAnswer:
        try:
            given = _parameters(request.query)
            look = self._lookups.records if request.path == "/records" else self._lookups.table
            return _json(HTTPStatus.OK, look(given))
        except BusyError as error:
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, "BUSY", str(error))
        except InvalidCallError as error:
            return _error(HTTPStatus.BAD_REQUEST, error.code, str(error))
        except StratalogError as error:
            return _error(HTTPStatus.BAD_GATEWAY, error.code, str(error))


def _parameters(query: str) -> dict[str, str]:
    """The parameters of a query. Raises: InvalidCallError for a query that is too long, or names a parameter
    twice.
    """
    if len(query) > MOST_QUERY:
        raise InvalidCallError(f"the address has more than {MOST_QUERY} characters")
    try:
        found = parse_qs(query, strict_parsing=True, max_num_fields=8) if query else {}
    except ValueError as error:
        raise InvalidCallError("the address is not a list of name=value") from error
    twice = [name for name, values in found.items() if len(values) > 1]
    if twice:
        raise InvalidCallError(f"{twice[0]!r} is given twice")
    return {name: value for name, (value,) in found.items()}


def _json(status: HTTPStatus, value: Any) -> PageAnswer:
    return PageAnswer(status, json.dumps(value, allow_nan=False).encode())


def _error(status: HTTPStatus, code: str, message: str) -> PageAnswer:
    return _json(status, {"error": {"code": code, "message": message}})

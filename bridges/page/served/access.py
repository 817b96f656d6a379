"""Decides whether a request may see the page. Pure.

On loopback, only this machine can reach the page. But a foreign site could make a browser on this machine send
requests to it (DNS rebinding), so the request must name the host by a loopback name. On any other address, either
TLS has already checked the client's certificate, or a token is required: in each request as the header
``Authorization: Bearer TOKEN``, or once, for a cookie with a secret of this process. The token is never part of an
address or of the cookie.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from stratalog.partitions.errors import InvalidCallError

COOKIE = "stratalog_page"
LEAST_CHARACTERS = 16
_FROM_HERE = ("same-origin", "none")
_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server. ``repr`` has no secret."""

    port: int
    loopback: bool
    token: str | None = field(repr=False)
    secure: bool
    """Whether the page is served by TLS."""
    host: str = "127.0.0.1"
    """The address at which the server listens."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def calls_us(self, headers: Mapping[str, str]) -> bool:
        """Whether a request names this host by one of its own names. On an address other than loopback, any name
        is accepted.
        """
        host = headers.get("host", "").lower()
        names = (*_NAMES, self.host)
        return not self.loopback or host in {*names, *(f"{name}:{self.port}" for name in names)}

    def is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Whether a page of another site has made the browser send this request."""
        return headers.get("sec-fetch-site", "none") not in _FROM_HERE

    def shows_token(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has the token in its header."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return self.token is not None and scheme.lower() == "bearer" and _same(given.strip(), self.token)

    def allows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request may see the cluster."""
        if self.token is None or self.shows_token(headers):
            return True
        # Do not use SimpleCookie, which drops all cookies if a cookie of another application is malformed.
        pairs = (cookie.strip().partition("=") for cookie in headers.get("cookie", "").split(";"))
        return any(name == self._cookie_name and _same(value, self.session) for name, _, value in pairs)

    @property
    def _cookie_name(self) -> str:
        """The cookie's name includes the port, because a browser sends the cookies of a host to all of its
        ports.
        """
        return f"{COOKIE}_{self.port}"

    @property
    def cookie(self) -> str:
        """The header that begins a browser's session; it lasts until the browser or this process ends."""
        secure = "; Secure" if self.secure else ""
        return f"{self._cookie_name}={self.session}; HttpOnly; SameSite=Strict; Path=/{secure}"


def check_token(token: str | None) -> None:
    """Check a token. Raises: InvalidCallError, which does not show the token, if it is too short, or cannot be in
    a header.
    """
    if token is None:
        return
    if len(token) < LEAST_CHARACTERS or not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidCallError(
            f"the token of the page needs at least {LEAST_CHARACTERS} printable ASCII characters without a space; "
            "openssl rand -hex 32 makes one"
        )


def _same(one: str, other: str) -> bool:
    """Compares in constant time, which does not reveal how much is equal."""
    return hmac.compare_digest(one.encode("utf-8", "surrogateescape"), other.encode())

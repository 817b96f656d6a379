"""The page as text: the content in its template, with style and script, in one file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from stratalog.partitions.printable import printable

SCRIPTS = ("elements.js", "view.js", "tables.js", "sections.js", "live.js", "report.js")
"""The parts of the page's script, in order."""


def document(content: dict[str, Any], text: str, *, live: bool = False) -> str:
    """The page of that content. ``text`` is for browsers that run no script. A ``live`` page may send requests to
    its server.

    The policy of the page names style and script by their digests: no other script or style runs, and nothing is
    loaded, sent or framed. The content is data: characters that could end its element are escaped as JSON escapes
    them.
    """
    return Template(_part("report.html")).substitute(
        policy=_policy("report.css", *SCRIPTS, live=live),
        title=html.escape(f"{content['cluster']} - stratalog"),
        style=_part("report.css"),
        script=_joined(*SCRIPTS),
        text=html.escape("\n".join(printable(line) for line in text.splitlines())),
        content=_embedded(content),
    )


def login_document() -> str:
    """The page that asks for the token. It says nothing about the cluster."""
    return Template(_part("login.html")).substitute(
        policy=_policy("login.css", "login.js", live=True), style=_part("login.css"), script=_part("login.js")
    )


def policy_of_page(*, live: bool) -> str:
    """The policy of the page as a header, which also forbids frames."""
    return f"{_policy('report.css', *SCRIPTS, live=live)}; frame-ancestors 'none'"


def policy_of_login() -> str:
    """The policy of ``login_document`` as a header."""
    return f"{_policy('login.css', 'login.js', live=True)}; frame-ancestors 'none'"


@cache
def _policy(style: str, *scripts: str, live: bool) -> str:
    asks = " connect-src 'self';" if live else ""
    style_digest, script_digest = _digest(_part(style)), _digest(_joined(*scripts))
    return (
        f"default-src 'none'; style-src '{style_digest}'; script-src '{script_digest}';{asks} "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _joined(*names: str) -> str:
    return "\n".join(map(_part, names))


def _embedded(content: dict[str, Any]) -> str:
    """JSON without HTML: ASCII without ``<``, ``>`` and ``&``."""
    found = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return found.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")

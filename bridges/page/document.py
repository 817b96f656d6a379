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


def document(content: dict[str, Any], text: str) -> str:
    """The page for that content. ``text`` is for browsers without scripts. The page's policy names its style and
    script by digests, so no other script runs, and nothing is loaded, sent or framed. The content is data:
    characters that could end its element are escaped as in JSON.
    """
    style, script = _part("report.css"), _part("report.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_part("report.html")).substitute(
        policy=policy,
        title=html.escape(f"{content['cluster']} - stratalog"),
        style=style,
        script=script,
        text=html.escape("\n".join(printable(line) for line in text.splitlines())),
        content=_embedded(content),
    )


def _embedded(content: dict[str, Any]) -> str:
    """JSON without HTML: ASCII without ``<``, ``>`` and ``&``."""
    found = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return found.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")

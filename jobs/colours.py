"""Colours of a report on a terminal: problems that need an operator are red, and problems that may need an
operator are yellow.
"""

from __future__ import annotations

import os
import re
from typing import TextIO

_RED, _YELLOW, _BOLD, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
_WORDS = {
    "ERROR": _RED,
    "failed": _RED,
    "unavailable": _RED,
    "under-min-isr": _RED,
    "unreachable": _RED,
    "replica unreachable": _RED,
    "leader, unreachable": _RED,
    "WARNING": _YELLOW,
    "under-replicated": _YELLOW,
    "out of sync": _YELLOW,
    "fenced": _YELLOW,
    "fenced by hand": _YELLOW,
    "not registered": _YELLOW,
}
_CELL = re.compile(rf"(?<![^ ])({'|'.join(map(re.escape, sorted(_WORDS, key=len, reverse=True)))})(?=  |$)")
"""Matches a word that is a cell of a table, or that ends a line."""


def in_colour(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that supports colours, and NO_COLOR is not set (https://no-color.org)."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    return stream.isatty()


def coloured(report: str) -> str:
    """Return the text of a report with colours; the characters of the text stay the same."""
    first, *others = report.splitlines()
    operation, colon, rest = first.partition(":")
    rest = re.sub(r"^ (\d+ (?:FAILED|errors?))", rf" {_RED}\1{_PLAIN}", rest)
    return "\n".join([f"{_BOLD}{operation}{_PLAIN}{colon}{rest}", *map(_line, others)])


def _line(text: str) -> str:
    if text.startswith("FAILED "):
        return f"{_RED}{text}{_PLAIN}"
    if text.startswith("note: "):
        return f"{_YELLOW}{text}{_PLAIN}"
    return _CELL.sub(lambda found: f"{_WORDS[found[1]]}{found[1]}{_PLAIN}", text)

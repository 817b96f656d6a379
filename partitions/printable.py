"""Makes foreign text safe to show: escapes characters that control a terminal or forge a log line."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """The first line of a library's error message; its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def printable(text: str) -> str:
    """The text with each unprintable character (control characters, line ends, direction changes, unpaired
    surrogates, unusual spaces) escaped as in Python: ``\\x1b``, ``\\n``, ``\\u202e``. Printable text is
    unchanged, so the function is idempotent.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)

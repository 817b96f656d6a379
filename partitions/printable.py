"""Text of others on its way to people: what would steer a terminal, or forge a line of a log, is escaped."""

from __future__ import annotations


def first_line(error: Exception) -> str:
    """The first line of what a library says; its kind where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def printable(text: str) -> str:
    """The text with each character that is not printable (control characters, ends of lines, those that turn the
    direction of writing, halves of surrogate pairs, spaces other than the common one) as Python would write it:
    ``\\x1b``, ``\\n``, ``\\u202e``. Printable text comes back as it is: to do it twice does no harm.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)

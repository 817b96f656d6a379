"""Names and texts in SQL: this module alone puts them into a statement."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name as SQL has it, whatever it is made of."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as SQL has it. It ends where it should, whether or not the session takes backslashes for escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

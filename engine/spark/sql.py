"""Quotes names and texts for SQL; no other module builds statements from them."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name of any characters, quoted for SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text, quoted for SQL. The literal is correct whether or not the session treats backslashes as escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""Names and texts in SQL: what is not a tree of Spark's is put into a statement here, and nowhere else."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name as SQL has it, whatever it is made of."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as SQL has it. It ends where it should, whether or not the session takes backslashes for escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

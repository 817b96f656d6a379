"""Tables and marked lines as HTML, for notebooks. Every text is escaped.

Text has the color of the notebook's theme, light or dark; a mark has its own background. The HTML has no scripts
or classes, so it looks the same everywhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from stratalog.partitions.printable import printable

MOST_ROWS = 30
LONGEST_CELL = 200
_WIDE_CELL = 40
_MARKS = {
    "bad": ("#b71c1c", "#fff"),
    "warn": ("#ffca28", "#000"),
    "good": ("#1b5e20", "#fff"),
    "": ("#546e7a", "#fff"),
}
"""The background and text color of each kind of mark."""


def escaped(text: str) -> str:
    """The printable text, escaped for HTML."""
    return html.escape(printable(text))


def mark(kind: str, text: str) -> str:
    """A word with its own background. ``kind``: ``bad``, ``warn``, ``good``, or empty."""
    ground, colour = _MARKS[kind]
    style = f"background:{ground};color:{colour};padding:0 .4em;border-radius:3px"
    return f'<b style="{style}">{escaped(text)}</b>'


def marked_line(kind: str, word: str, text: str) -> str:
    """A paragraph that begins with a mark."""
    return f'<p style="margin:.2em 0;max-width:100ch">{mark(kind, word)} {escaped(text)}</p>'


def head_line(text: str, kind: str = "", word: str = "") -> str:
    """The line above a table. It begins with a mark if ``word`` is given."""
    return marked_line(kind, word, text) if word else f'<p style="margin:.2em 0">{escaped(text)}</p>'


def code_line(command: str) -> str:
    """A command to copy."""
    return f'<p style="margin:.2em 0 .6em 2em"><code>{escaped(command)}</code></p>'


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Iterable[str] = (),
    total: int | None = None,
) -> str:
    """A table of texts. The columns in ``numbers`` are right-aligned. Rows after the first ``MOST_ROWS`` are
    replaced by their number. If ``rows`` has only the first rows of a table, ``total`` is the number of all rows.
    """
    if not rows:
        return ""
    right = set(numbers)
    styles = []
    for number, name in enumerate(columns):
        wide = ";min-width:20em" if any(len(row[number]) > _WIDE_CELL for row in rows[:MOST_ROWS]) else ""
        styles.append(f' style="text-align:{"right" if name in right else "left"}{wide}"')

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = zip(styles, texts, strict=True)
        return "<tr>" + "".join(f"<{tag}{style}>{escaped(short(text))}</{tag}>" for style, text in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows[:MOST_ROWS])
    left = (len(rows) if total is None else total) - min(len(rows), MOST_ROWS)
    more = head_line(f"... and {left:,} more") if left > 0 else ""
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>{more}"


def short(text: str) -> str:
    """The text, shortened to the width of a cell."""
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."

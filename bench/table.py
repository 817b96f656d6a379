"""The lines of a benchmark, each with its limit, and the table of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Protocol

from bench.options import size_text


class Row(Protocol):
    """A line of a table."""

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of the line's table."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as texts, one for each of the headings."""

    @property
    def note(self) -> str:
        """A note that a reader needs to judge the line; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a ratio, from below or above."""

    value: float
    at_most: bool = False

    def holds(self, ratio: float) -> bool:
        """Whether the ratio, as it is shown, is within the limit."""
        shown = float(ratio_text(float(ratio)))
        return shown <= self.value if self.at_most else shown >= self.value

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Cells:
    """A line that compares nothing; its texts are ready."""

    headings: tuple[str, ...]
    cells: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison. A line without a limit is only reported."""

    headings: ClassVar[tuple[str, ...]] = ("what", "ours", "peer", "ratio", "target", "")

    what: str
    ours: str
    peer: str
    ratio: float | None = None
    limit: Limit | None = None
    note: str = ""
    """A note that a reader needs to judge the line."""

    @property
    def verdict(self) -> str:
        """``ok``, or the side of the limit on which the ratio is: ``above`` or ``below``."""
        if self.limit is None or self.ratio is None:
            return ""
        if self.limit.holds(self.ratio):
            return "ok"
        return "above" if self.limit.at_most else "below"

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as texts, one for each of ``headings``."""
        ratio = "" if self.ratio is None else ratio_text(self.ratio)
        return self.what, self.ours, self.peer, ratio, "" if self.limit is None else str(self.limit), self.verdict


def speed_line(
    what: str, size_bytes: int, ours_s: float, peer_s: float, at_least: float | None = None, note: str = ""
) -> Line:
    """Our speed as a fraction of the peer's speed over the same bytes; for several turns (``measuring.Spread``),
    the median.
    """

    def rate_text(seconds: float) -> str:
        return f"{seconds:.2f} s, {size_bytes / float(seconds) / 1e6:.0f} MB/s"

    what = f"{what}, {size_text(size_bytes)}"
    limit = None if at_least is None else Limit(at_least)
    return Line(what, rate_text(ours_s), rate_text(peer_s), peer_s / ours_s, limit, note)


def seconds_line(what: str, ours_s: float, peer_s: float, limit: Limit | None = None, note: str = "") -> Line:
    """The seconds of both, and the factor by which the peer is slower."""
    return Line(what, f"{ours_s:.2f} s", f"{peer_s:.2f} s", peer_s / ours_s, limit, note)


def ratio_text(ratio: float) -> str:
    """The ratio with two digits after the decimal point, or one digit if it is above ten. For several turns, the
    range follows.
    """
    return f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def render(lines: Sequence[Row]) -> str:
    """Render the lines as aligned Markdown tables, with notes below. Adjacent lines with the same headings are one
    table."""
    return "\n\n".join(_table(headings, [*rows]) for headings, rows in groupby(lines, lambda line: line.headings))


def _table(headings: tuple[str, ...], lines: Sequence[Row]) -> str:
    notes = list(dict.fromkeys(line.note for line in lines if line.note))
    rows: list[tuple[str, ...]] = [headings]
    for line in lines:
        mark = f" [{notes.index(line.note) + 1}]" if line.note else ""
        what, *others = line.cells
        rows.append((what + mark, *others))
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    ruler = tuple("-" * width for width in widths)
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (rows[0], ruler, *rows[1:])
    ]
    return "\n".join([*texts, *(f"\n[{number}] {note}" for number, note in enumerate(notes, start=1))])

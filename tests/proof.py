"""The table of ``docs/proof.md``: the last run of each step of ``make nightly``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "proof.md"
_BEGIN, _END = "<!-- nightly -->\n", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a step: its counts, its minutes, the commit, the day."""

    step: str
    proves: str
    result: str
    minutes: float
    commit: str
    day: str

    def line(self) -> str:
        """The row in Markdown."""
        return "| " + " | ".join(str(value).replace("|", "/") for value in astuple(self)) + " |"


@dataclass(frozen=True, slots=True)
class Proof:
    """The rows of the page, in the order of the steps."""

    rows: tuple[Row, ...]

    @classmethod
    def read(cls) -> Proof:
        """The current rows of the page."""
        table = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[2].partition(_END)[0]
        cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]
        rows = []
        for step, proves, result, minutes, commit, day in cells:
            rows.append(Row(step, proves, result, float(minutes), commit, day))
        return cls(tuple(rows))

    def with_row(self, row: Row, order: Sequence[str]) -> Proof:
        """The rows with a new one for its step; rows of removed steps are dropped."""
        rows = {each.step: each for each in (*self.rows, row)}
        return replace(self, rows=tuple(rows[step] for step in order if step in rows))

    def table(self) -> str:
        """The rows in Markdown."""
        names = [each.name for each in fields(Row)]
        lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names), *(row.line() for row in self.rows)]
        return "\n".join(lines)

    def write(self) -> None:
        """Replace the page's table."""
        text = PAGE.read_text(encoding="utf-8")
        before, _, rest = text.partition(_BEGIN)
        after = rest.partition(_END)[2]
        PAGE.write_text(f"{before}{_BEGIN}{self.table()}\n{_END}{after}", encoding="utf-8")

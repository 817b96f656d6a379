"""The report of an operation: rows, failures, cost. People get a table, machines one JSON object.

Names in a report may come from other people, so text for people escapes unprintable characters; JSON has them
unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from stratalog.engine.driver.estimate import Estimate
from stratalog.engine.driver.folding import DIFFERS, folded, zeros
from stratalog.partitions.errors import EnvironmentUnusableError, StratalogError
from stratalog.partitions.html_table import head_line, html_table, marked_line
from stratalog.partitions.identity import TopicIdPartition
from stratalog.partitions.printable import printable
from stratalog.partitions.store import StoreCounts

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_MOST_LINES = 200
_LEAST_WIDTH = 8
"""The minimum width, in characters, to which a text column is cut."""
_MOST_NAMED = 3
"""The number of failures that an error message names."""
_NOTHING: Mapping[str, Value] = {}

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed item of an operation; the other items continued. ``message`` does not repeat the item, although the
    error itself names its subject."""

    item: str
    code: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _without_subject(printable(self.item), self.message))

    def __str__(self) -> str:
        return f"{self.item}: {self.code}: {self.message}"

    @classmethod
    def of(cls, item: object, error: StratalogError) -> Failure:
        """The failure of ``item`` with a StratalogError."""
        return cls(str(item), error.code, str(error))


def _without_subject(item: str, message: str) -> str:
    """The message without leading words that repeat the item, or its beginning."""
    subject, colon, rest = message.partition(": ")
    if colon and f"{item} ".startswith(f"{subject} "):
        return rest
    for named in (item, f"topic {item!r}"):
        if message.startswith((f"{named}: ", f"{named} ")):
            return message[len(named) :].removeprefix(":").lstrip()
    return message


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one operation on many items. A report is true if all items succeeded. A notebook shows a
    report as a table.
    """

    operation: str
    rows: Sequence[Mapping[str, Value]]
    failures: Sequence[Failure] = ()
    totals: Mapping[str, Value] = field(default_factory=dict)
    dry_run: bool = False
    seconds: float = 0.0
    counts: StoreCounts = field(default_factory=StoreCounts)
    notes: Sequence[str] = ()
    """Events that are not failures, such as a fenced broker, or a member that left an ISR."""
    settled: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions with the time (ms since the epoch) before which the operation has nothing to do unless their
    files, metadata or configs change. Not shown.
    """
    parts: Sequence[Report] = ()
    """The reports of the operation's parts, if this report has few details of them. Not shown."""
    estimate: Estimate | None = None
    """In a dry run: the requests and bytes that a run would send to object stores; None if the run would use no
    object store, or if the amount is unknown.
    """
    remedy: str = "finished work is kept: fix the cause, and run the operation again"
    """The advice in the error about failures."""

    @property
    def ok(self) -> bool:
        """Whether every item succeeded."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.ok

    def raise_for_failures(self) -> Report:
        """Return this report if every item succeeded.

        Raises: OperationFailedError, whose message names the first failures and the remedy.
        """
        if self.failures:
            named = "; ".join(map(str, self.failures[:_MOST_NAMED]))
            left = len(self.failures) - _MOST_NAMED
            more = f" (and {left} more)" if left > 0 else ""
            raise OperationFailedError(f"{self.operation}: {named}{more}; {self.remedy}", self)
        return self

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order of appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table with the columns ``columns``; a value that a row lacks is null. A column with
        values of several types is a string column.
        """
        import pyarrow as pa

        def column(values: list[Value]) -> pa.Array:
            try:
                return pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                return pa.array([None if value is None else str(value) for value in values], pa.string())

        return pa.table({name: column([row.get(name) for row in self.rows]) for name in self.columns})

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame. A column of integers keeps its type if values are missing.

        Raises: EnvironmentUnusableError without pandas.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(f"to_pandas needs {error.name}: pip install pandas") from error
        import pyarrow as pa

        return self.to_arrow().to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)

    def to_json(self, about: Mapping[str, Value] = _NOTHING) -> str:
        """The report as one JSON object on one line; ``about`` describes its origin."""
        return json.dumps(
            {
                **about,
                "operation": self.operation,
                "ok": self.ok,
                "dry_run": self.dry_run,
                "seconds": round(self.seconds, 3),
                "totals": _plain(self.totals),
                "storage": self._storage(),
                "estimate": None if self.estimate is None else self.estimate.columns(),
                "rows": [_plain(row) for row in self.rows],
                "notes": list(self.notes),
                "failures": [{"item": f.item, "code": f.code, "message": f.message} for f in self.failures],
            },
            allow_nan=False,
        )

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """The report for people. A table is cut to ``width`` terminal columns; None: not cut."""
        columns, rows, zero = self._folded()
        table = text_table(columns, rows[:_MOST_LINES])
        if width is not None and any(len(line) > width for line in table):
            table = text_table(columns, rows[:_MOST_LINES], width)
        lines = [self.headline, *table]
        if len(rows) > _MOST_LINES:
            lines.append(f"... and {len(rows) - _MOST_LINES} more rows (the JSON has all rows)")
        lines += [printable(zero)] if zero else []
        lines += [] if self.estimate is None else [f"estimate: {self.estimate}"]
        lines += [printable(f"note: {note}") for note in self.notes]
        lines += [printable(f"FAILED {f}") for f in self.failures]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        columns, rows, zero = self._folded()
        kind = "bad" if self.failures else "warn" if self.dry_run else "good"
        return "".join(
            [
                head_line(self._figures(), kind, f"{self.operation}: {self._state()}"),
                *(marked_line("bad", "FAILED", str(f)) for f in self.failures),
                *(marked_line("warn", "note", note) for note in self.notes),
                html_table(
                    columns,
                    [[show(row.get(name)) for name in columns] for row in rows],
                    numbers=[name for name in columns if _is_number(name, self.rows)],
                ),
                head_line(zero) if zero else "",
                "" if self.estimate is None else head_line(f"estimate: {self.estimate}"),
            ]
        )

    def _folded(self) -> tuple[list[str], Sequence[Mapping[str, Value]], str]:
        """The columns and rows for people, and a line about omitted columns (empty if no columns are omitted)."""
        rows = folded(self.rows)
        left_out = zeros(self.columns, rows)
        in_all_rows = ", ".join(f"{name} {show(rows[0].get(name)) or '-'}" for name in left_out)
        columns = [name for name in self.columns if name not in left_out]
        return columns, rows, f"in all rows: {in_all_rows}" if in_all_rows else ""

    @property
    def headline(self) -> str:
        """The outcome, the totals and the cost in one line; printable."""
        return f"{self.operation}: {self._state()}, {self._figures()}"

    def _state(self) -> str:
        return "plan only" if self.dry_run else ("done" if self.ok else f"{len(self.failures)} FAILED")

    def _figures(self) -> str:
        totals = "".join(f"{printable(name)} {show(value)}, " for name, value in self.totals.items())
        return f"{totals}{self.counts.requests} storage requests, {self.seconds:.1f} s"

    def _storage(self) -> dict[str, int]:
        names = ("creates", "reads", "lists", "deletes", "copies", "requests", "read_bytes", "written_bytes")
        return {name: getattr(self.counts, name) for name in names}


class OperationFailedError(StratalogError, code="OPERATION_FAILED"):
    """An operation failed for some or all items; ``report`` has the outcome of each."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[OperationFailedError], tuple[str, Report]]:
        return type(self), (str(self), self.report)


def json_float(value: float) -> float | str:
    """A float for JSON: NaN and infinities as the texts of Spark's ``to_json``."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(row: Mapping[str, Value]) -> dict[str, Value]:
    return {name: json_float(value) if isinstance(value, float) else value for name, value in row.items()}


def utc_text(time_ms: int) -> str:
    """A time as ISO text, UTC, clamped to the years of the calendar."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()
    except OverflowError:
        return (datetime.min if time_ms < 0 else datetime.max).replace(tzinfo=UTC).isoformat()


def show(value: Value) -> str:
    """A value for people, printable."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return printable(value)


def text_table(columns: Sequence[str], rows: Iterable[Mapping[str, Value]], width: int | None = None) -> list[str]:
    """The lines of a table: numbers right-aligned, the rest left-aligned. If a line exceeds ``width``, text is cut
    and ends in ``...``; if that is not enough, the last columns are omitted, and a last line says so. Numbers are
    never cut.
    """
    listed = list(rows)
    if not listed:
        return []
    cells = [[show(row.get(name)) for name in columns] for row in listed]
    names = [printable(name) for name in columns]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    right = [_is_number(name, listed) for name in columns]
    cut = ""
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widths = _within(widths, right, width)
        left_out = ", ".join(names[len(widths) :])
        cut = f"(cut to {width} columns{f', without {left_out}' if left_out else ''}; a pipe or --json has all)"

    def line(texts: Sequence[str]) -> str:
        fitted = (_cut(text, w) for text, w in zip(texts, widths, strict=False))
        padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(fitted, widths, right, strict=False))
        return "  ".join(padded).rstrip()

    lines = [line(names), line(["-" * w for w in widths]), *(line(texts) for texts in cells)]
    return [*lines, cut] if cut else lines


def _within(widths: Sequence[int], right: Sequence[bool], most: int) -> list[int]:
    """The widths of the columns that fit in a line of ``most`` characters; at least one column."""
    for count in range(len(widths), 0, -1):
        room = most - 2 * (count - 1)
        fixed = sum(w for w, number in zip(widths[:count], right, strict=False) if number)
        texts = [w for w, number in zip(widths[:count], right, strict=False) if not number]
        for longest in range(max(texts, default=0), _LEAST_WIDTH - 1, -1):
            if fixed + sum(min(w, longest) for w in texts) <= room:
                return [w if number else min(w, longest) for w, number in zip(widths[:count], right, strict=False)]
        if not texts and fixed <= room:
            return list(widths[:count])
    return [widths[0] if right[0] else min(widths[0], max(most, _LEAST_WIDTH))]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _is_number(column: str, rows: Iterable[Mapping[str, Value]]) -> bool:
    return all(isinstance(row.get(column), int | float | None) or row.get(column) == DIFFERS for row in rows)

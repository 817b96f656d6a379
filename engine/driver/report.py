"""The report of an operation: rows, failures, cost. A table for people, one JSON object for machines.

Names in it are other people's: people get them printable, a line a thing; machines get them as they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

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
_MOST_NAMED = 3
"""Failures that the message of an error names."""
_NOTHING: Mapping[str, Value] = {}

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Failure:
    """One item of an operation that failed; the others went on. Errors name their subject, since they are raised
    alone, too; here it is the item, and ``message`` does not say it again.
    """

    item: str
    code: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", _without_subject(printable(self.item), self.message))

    def __str__(self) -> str:
        return f"{self.item}: {self.code}: {self.message}"

    @classmethod
    def of(cls, item: object, error: StratalogError) -> Failure:
        """The failure of ``item`` with one of our errors."""
        return cls(str(item), error.code, str(error))


def _without_subject(item: str, message: str) -> str:
    """The message without its first words where these are the item, or what the item begins with."""
    subject, colon, rest = message.partition(": ")
    if colon and f"{item} ".startswith(f"{subject} "):
        return rest
    for named in (item, f"topic {item!r}"):
        if message.startswith((f"{named}: ", f"{named} ")):
            return message[len(named) :].removeprefix(":").lstrip()
    return message


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one operation on many items, true where all of them were done. In a notebook it shows itself
    as a table.
    """

    operation: str
    rows: Sequence[Mapping[str, Value]]
    failures: Sequence[Failure] = ()
    totals: Mapping[str, Value] = field(default_factory=dict)
    dry_run: bool = False
    seconds: float = 0.0
    counts: StoreCounts = field(default_factory=StoreCounts)
    notes: Sequence[str] = ()
    """Events that are no failures: a broker was fenced, a member left an ISR."""
    settled: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """Partitions for which the operation would do nothing before this time (ms since the epoch), as long as their
    files, their metadata and their configs stay as it found and left them. Not shown."""
    parts: Sequence[Report] = ()
    """The reports of the operations that this one was made of, where it tells little of them. Not shown."""
    remedy: str = "finished work stays done: fix the cause, and run it again"
    """The advice in the error, when it has failures."""

    @property
    def ok(self) -> bool:
        """Whether every item was done."""
        return not self.failures

    def __bool__(self) -> bool:
        return self.ok

    def raise_for_failures(self) -> Report:
        """This report if all is done.

        Raises: OperationFailedError, whose message names the first failures and what to do.
        """
        if self.failures:
            named = "; ".join(map(str, self.failures[:_MOST_NAMED]))
            left = len(self.failures) - _MOST_NAMED
            more = f" (and {left} more)" if left > 0 else ""
            raise OperationFailedError(f"{self.operation}: {named}{more}; {self.remedy}", self)
        return self

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order in which rows bring them."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_arrow(self) -> pa.Table:
        """The rows as a table: a column for each of ``columns``, null where a row lacks it. A column of values of
        several types is text.
        """
        import pyarrow as pa

        def column(values: list[Value]) -> pa.Array:
            try:
                return pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                return pa.array([None if value is None else str(value) for value in values], pa.string())

        return pa.table({name: column([row.get(name) for row in self.rows]) for name in self.columns})

    def to_pandas(self) -> pd.DataFrame:
        """``to_arrow`` as a frame of pandas; whole numbers stay whole where some are missing.

        Raises: EnvironmentUnusableError without pandas.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise EnvironmentUnusableError(f"to_pandas needs {error.name}: pip install pandas") from error
        import pyarrow as pa

        return self.to_arrow().to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)

    def to_json(self, about: Mapping[str, Value] = _NOTHING) -> str:
        """One object on one line; ``about`` says where it comes from."""
        return json.dumps(
            {
                **about,
                "operation": self.operation,
                "ok": self.ok,
                "dry_run": self.dry_run,
                "seconds": round(self.seconds, 3),
                "totals": _plain(self.totals),
                "storage": self._storage(),
                "rows": [_plain(row) for row in self.rows],
                "notes": list(self.notes),
                "failures": [{"item": f.item, "code": f.code, "message": f.message} for f in self.failures],
            },
            allow_nan=False,
        )

    def __str__(self) -> str:
        columns, rows, zero = self._folded()
        lines = [self.headline, *text_table(columns, rows[:_MOST_LINES])]
        if len(rows) > _MOST_LINES:
            lines.append(f"... and {len(rows) - _MOST_LINES} more rows (all of them are in the JSON)")
        lines += [printable(zero)] if zero else []
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
            ]
        )

    def _folded(self) -> tuple[list[str], Sequence[Mapping[str, Value]], str]:
        """The columns and rows for people, and a line on columns that are left out; empty where none is."""
        rows = folded(self.rows)
        left_out = zeros(self.columns, rows)
        said = ", ".join(f"{name} {show(rows[0].get(name)) or '-'}" for name in left_out)
        columns = [name for name in self.columns if name not in left_out]
        return columns, rows, f"in all rows: {said}" if said else ""

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


class OperationFailedError(StratalogError):
    """Part of an operation failed, or all of it; ``report`` has the outcome of each part."""

    code = "OPERATION_FAILED"

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[type[OperationFailedError], tuple[str, Report]]:
        return type(self), (str(self), self.report)


def json_float(value: float) -> float | str:
    """A float as JSON has it: those that are no numbers there as the texts that Spark's ``to_json`` writes."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _plain(row: Mapping[str, Value]) -> dict[str, Value]:
    return {name: json_float(value) if isinstance(value, float) else value for name, value in row.items()}


def utc_text(time_ms: int) -> str:
    """A time as ISO text, UTC; one before the first or after the last year of the calendar as the end of that."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)).isoformat()
    except OverflowError:
        return (datetime.min if time_ms < 0 else datetime.max).replace(tzinfo=UTC).isoformat()


def show(value: Value) -> str:
    """A value as people read it, printable."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return printable(value)


def text_table(columns: Sequence[str], rows: Iterable[Mapping[str, Value]]) -> list[str]:
    """Lines of a table: numbers to the right, the rest to the left."""
    listed = list(rows)
    if not listed:
        return []
    cells = [[show(row.get(name)) for name in columns] for row in listed]
    names = [printable(name) for name in columns]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    right = [_is_number(name, listed) for name in columns]

    def line(texts: Sequence[str]) -> str:
        padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return [line(names), line(["-" * width for width in widths]), *(line(texts) for texts in cells)]


def _is_number(column: str, rows: Iterable[Mapping[str, Value]]) -> bool:
    return all(isinstance(row.get(column), int | float | None) or row.get(column) == DIFFERS for row in rows)

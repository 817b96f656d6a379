"""Activity over time: amounts appended, copied, tiered and deleted, and backlogs, for the cluster and each topic;
also the last operations. Pure, from the rows of the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stratalog.engine.driver.report import Value
from stratalog.partitions.bounded import parse_json

Row = Mapping[str, Value]
"""A row of the history: ``time`` is ISO text, ``arguments``, ``totals`` and ``notes`` are JSON. A topic's totals
begin with its name and a slash."""

LEAST_STEPS, MOST_STEPS = 12, 60
MOST_RUNS = 1_000
"""The number of recent operations that the page lists."""
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_STEPS_MS = (
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY, 365 * _DAY),
)
APPENDED, WAITING, OVERDUE = "Appended records", "Not tiered", "Due and not tiered"
_FLOWS = {"copied_bytes": "Replicated bytes", "uploaded_bytes": "Tiered bytes", "deleted_bytes": "Deleted bytes"}
_TITLES = (APPENDED, *_FLOWS.values(), WAITING, OVERDUE)
_COSTS = ("requests", "read_bytes", "written_bytes")
_ALL = ""
"""The scope of the whole cluster; other scopes are topics."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """A time span in steps of equal length."""

    from_ms: int
    step_ms: int
    count: int

    @classmethod
    def over(cls, first_ms: int, last_ms: int) -> _Steps:
        """Return the shortest steps with a round length that do not exceed the maximum number of steps."""
        step = next((ms for ms in _STEPS_MS if (last_ms - first_ms) // ms + 2 <= MOST_STEPS), _STEPS_MS[-1])
        last = last_ms // step
        first = min(first_ms // step, last - LEAST_STEPS + 1)
        return cls(first * step, step, last - first + 1)


class _Drawn:
    """Series by scope and title: a flow is summed in each step, and a level has the last value of the step."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self._values: dict[str, dict[str, list[int | None]]] = {}
        self._levels: dict[str, dict[str, int]] = {}

    def take(self, at_ms: int, totals: Mapping[str, int]) -> None:
        """Add the totals of one operation; call in order of time."""
        at = (at_ms - self._steps.from_ms) // self._steps.step_ms
        touched = set()
        for name, value in totals.items():
            scope, _, figure = name.rpartition("/")
            if figure in _FLOWS:
                self._add(scope, _FLOWS[figure], at, value)
            elif scope:
                known = self._levels.setdefault(scope, {})
                if figure == "log_end" and figure in known:
                    for one in (_ALL, scope):
                        self._add(one, APPENDED, at, max(0, value - known[figure]))
                known[figure] = value
                touched.add(scope)
        for scope in touched:
            self._set_levels(scope, at, [self._levels[scope]])
        if touched:
            self._set_levels(_ALL, at, list(self._levels.values()))

    def _set_levels(self, scope: str, at: int, levels: Sequence[Mapping[str, int]]) -> None:
        tiered = [one for one in levels if "log_end" in one and "remote_end" in one]
        if tiered:
            self._set(scope, WAITING, at, sum(max(0, one["log_end"] - one["remote_end"]) for one in tiered))
        due = [one["backlog_bytes"] for one in levels if "backlog_bytes" in one]
        if due:
            self._set(scope, OVERDUE, at, sum(due))

    def _add(self, scope: str, title: str, at: int, value: int) -> None:
        values = self._of(scope, title, 0)
        values[at] = (values[at] or 0) + value

    def _set(self, scope: str, title: str, at: int, value: int) -> None:
        self._of(scope, title, None)[at] = value

    def _of(self, scope: str, title: str, empty: int | None) -> list[int | None]:
        return self._values.setdefault(scope, {}).setdefault(title, [empty] * self._steps.count)

    def scopes(self) -> dict[str, list[dict[str, Any]]]:
        """All scopes with values, the whole cluster first."""
        return {
            scope: [
                {
                    "title": title,
                    "unit": "records" if title in (APPENDED, WAITING) else "bytes",
                    "level": title in (WAITING, OVERDUE),
                    "values": self._values[scope][title],
                }
                for title in _TITLES
                if title in self._values[scope]
            ]
            for scope in sorted(self._values)
        }


def activity(history: Sequence[Row]) -> dict[str, Any] | None:
    """``from_ms``, ``step_ms``, and ``scopes``: the series of the cluster (an empty name) and of each topic, with
    a value for every step. An unknown level is None. Returns None if nothing is recorded.
    """
    dated = sorted(((_time_ms(row), _totals(row)) for row in history), key=lambda one: one[0])
    if not dated:
        return None
    steps = _Steps.over(dated[0][0], dated[-1][0])
    drawn = _Drawn(steps)
    for at_ms, totals in dated:
        drawn.take(at_ms, totals)
    return {"from_ms": steps.from_ms, "step_ms": steps.step_ms, "scopes": drawn.scopes()}


def runs(history: Sequence[Row]) -> list[dict[str, Any]]:
    """The last operations, the latest first."""
    latest = sorted(history, key=_time_ms, reverse=True)[:MOST_RUNS]
    return [
        {
            "time_ms": _time_ms(row),
            "operation": row["operation"],
            "outcome": row["outcome"] or row["phase"],
            "by": f"{row['user']}@{row['host']}",
            "run": row["run"] if row["job"] is None else f"{row['job']} {row['run']}",
            "duration_ms": row["duration"],
            "totals": ", ".join(
                f"{name} {value:,}"
                for name, value in _totals(row).items()
                if "/" not in name and name not in _COSTS
            ),
            "notes": "; ".join(_notes(row)),
        }
        for row in latest
    ]


def _time_ms(row: Row) -> int:
    return int(datetime.fromisoformat(str(row["time"])).timestamp() * 1000)


def _totals(row: Row) -> dict[str, int]:
    totals: dict[str, int] = parse_json(str(row["totals"]), dict[str, int])
    return totals


def _notes(row: Row) -> Iterator[str]:
    if row["arguments"] not in (None, "{}"):
        yield str(row["arguments"])
    yield from parse_json(str(row["notes"]), list[str])

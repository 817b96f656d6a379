"""Activity: what the operations of the past have moved, and what waited, as series over time; and the last of them.
Pure, of the rows of the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Event = Mapping[str, Any]
"""A row of the history: ``time``, ``operation``, ``phase``, ``outcome``, ``user``, ``host``, ``job``, ``run``,
``arguments``, ``totals``, ``notes`` and ``duration`` (ms) are read."""

MOST_STEPS = 60
MOST_RUNS = 1_000
"""Of the last operations so many are listed."""
_ROUND_MS = [
    *(minutes * 60_000 for minutes in (1, 5, 15, 30)),
    *(hours * 3_600_000 for hours in (1, 3, 6, 12)),
    *(days * 86_400_000 for days in (1, 2, 7, 30, 90, 365)),
]


@dataclass(frozen=True, slots=True)
class Series:
    """What is drawn: a total of an operation, added up in each step, or as it was last (``is_level``)."""

    title: str
    operation: str
    total: str
    unit: str
    is_level: bool = False


SERIES = (
    Series("Appended records", "append", "records", "records"),
    Series("Appended bytes", "append", "bytes", "bytes"),
    Series("Replicated bytes", "replicate", "copied_bytes", "bytes"),
    Series("Tiered bytes", "tier", "uploaded_bytes", "bytes"),
    Series("Waiting for the remote tier", "tier", "backlog_bytes", "bytes", is_level=True),
)


def activity(events: Sequence[Event]) -> dict[str, Any] | None:
    """The series, each with a value for every step: ``from_ms``, ``step_ms``, ``series``. A level that is not known
    in a step is None. None: nothing is recorded.
    """
    dated = sorted(((time_ms(event), event) for event in events), key=lambda one: one[0])
    if not dated:
        return None
    first, last = dated[0][0], dated[-1][0]
    step = next((ms for ms in _ROUND_MS if (last - first) // ms < MOST_STEPS), _ROUND_MS[-1])
    begin = first // step * step
    steps = (last - begin) // step + 1
    drawn = []
    for series in SERIES:
        values: list[float | None] = [None if series.is_level else 0] * steps
        known = False
        for at_ms, event in dated:
            value = _number((event.get("totals") or {}).get(series.total))
            if event.get("operation") != series.operation or value is None:
                continue
            known = True
            at = (at_ms - begin) // step
            values[at] = value if series.is_level else (values[at] or 0) + value
        if known:
            drawn.append({"title": series.title, "unit": series.unit, "level": series.is_level, "values": values})
    return {"from_ms": begin, "step_ms": step, "series": drawn}


def runs(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The last operations, the latest first."""
    latest = sorted(events, key=time_ms, reverse=True)[:MOST_RUNS]
    return [
        {
            "time_ms": time_ms(event),
            "operation": event.get("operation"),
            "phase": event.get("phase"),
            "outcome": event.get("outcome"),
            "by": "@".join(str(event[part]) for part in ("user", "host") if event.get(part)),
            "job": " ".join(str(event[part]) for part in ("job", "run") if event.get(part)),
            "duration_ms": event.get("duration"),
            "arguments": _said(event.get("arguments")),
            "totals": _said(event.get("totals")),
            "notes": _said(event.get("notes")),
        }
        for event in latest
    ]


def time_ms(event: Event) -> int:
    """When it was: of a ``datetime``, of its ISO text, or of ms since the epoch."""
    time = event["time"]
    if isinstance(time, str):
        time = datetime.fromisoformat(time)
    return int(time.timestamp() * 1000) if isinstance(time, datetime) else int(time)


def _number(value: Any) -> int | None:
    """A whole number, or the text of one; None for anything else."""
    try:
        return None if isinstance(value, bool | float) else int(value)
    except (TypeError, ValueError):
        return None


def _said(value: Any) -> str:
    """A mapping, a list or a text on one line."""
    if isinstance(value, Mapping):
        numbers = {name: _number(one) for name, one in value.items()}
        return ", ".join(f"{k} {v if numbers[k] is None else format(numbers[k], ',')}" for k, v in value.items())
    if isinstance(value, str) or value is None:
        return value or ""
    return "; ".join(map(str, value))

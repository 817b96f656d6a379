"""A readable trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tests.simulation.names import name_in_short
from tests.simulation.running import Line, Result


def text_of_trace(result: Result) -> Iterator[str]:
    """The trace line by line; the violation last."""
    yield f"seed {result.configuration.seed}: {result.configuration}"
    for (driver, operation), lines in groupby(result.lines, key=lambda line: (line[1], line[2])):
        if driver:
            yield f"-- {driver}: {operation}"
        for line in lines:
            yield _text_of_line(line)
    if result.violation is not None:
        yield f"VIOLATED {result.violation}"


def _text_of_line(line: Line) -> str:
    step, driver, _, what, place, name, outcome = line
    if not driver:
        return f"{step:6} ** {what}"
    where = f"b{place}" if place else ""
    return f"{step:6} {driver:6} {what:8} {where:4} {name_in_short(name)} -> {outcome}"

"""Folds equal rows of a report, for people; machines get every row.

the engine's own topics                        one row for all, if other topics also have rows
rows that differ only in their partition       one row, with the first and the last partition
columns of zeros in a wide table               a line below the table
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby

DIFFERS = "..."
"""Replaces values that differ within a folded row."""

NARROW = 8
"""The maximum number of columns of a table that is not wide."""
_SUBJECTS = ("topic", "partition", "broker")

Row = Mapping[str, str | int | float | bool | None]


def folded(rows: Sequence[Row]) -> Sequence[Row]:
    """The folded rows in their order; the engine's own topics come last."""
    from stratalog.engine.state.internal_topics import INTERNAL_TOPICS  # here: --help needs no Arrow

    own = [row for row in rows if row.get("topic") in INTERNAL_TOPICS]
    if not own or len(own) == len(rows):
        return _by_partition(rows)
    return [*_by_partition([row for row in rows if row.get("topic") not in INTERNAL_TOPICS]), _one(own)]


def _one(own: Sequence[Row]) -> Row:
    """One row for all the given rows: each column has the common value of these rows."""
    if len(own) == 1:
        return own[0]
    columns = dict.fromkeys(name for row in own for name in row)
    shared = {name: _shared([row.get(name) for row in own]) for name in columns}
    return {**shared, "topic": f"{len(own)} rows of internal topics"}


def _shared(values: Sequence[str | int | float | bool | None]) -> str | int | float | bool | None:
    return values[0] if all(value == values[0] for value in values) else DIFFERS


def _by_partition(rows: Sequence[Row]) -> Sequence[Row]:
    found: list[Row] = []
    for _, group in groupby(rows, _but_for_its_partition):
        alike = list(group)
        whole = [row["partition"] for row in alike if isinstance(row.get("partition"), int)]
        if len(alike) > 1 and len(whole) == len(alike) and whole[-1] == int(whole[0] or 0) + len(alike) - 1:
            found.append({**alike[0], "partition": f"{whole[0]}-{whole[-1]}"})
        else:
            found += alike
    return found


def _but_for_its_partition(row: Row) -> Hashable:
    return tuple((name, value) for name, value in row.items() if name != "partition")


def zeros(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The columns of a wide table in which every value is zero or false, or every value is unknown."""
    if len(columns) <= NARROW:
        return []
    values = {name: {row.get(name) for row in rows} for name in columns if name not in _SUBJECTS}
    return [name for name, found in values.items() if found <= {0} or found <= {None, ""}]

"""SQL conditions on the columns of records: the records that they select, and the row groups that may have such
records. Pure.

Each condition is true, false or unknown (null) for a record, and selects the records for which it is true. A
comparison with a null is unknown. NaN is not equal to any number, and is greater than all numbers. Spark SQL has
the same rules, so ``stratalog read --where`` shows the records that a condition selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow.parquet as pq

Path = tuple[str, ...]
"""A column, and the fields of structs that lead to a value in it."""


class Comparison(StrEnum):
    """A comparison of a column with given values."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    IN = "IN"
    NOT_IN = "NOT IN"
    LIKE = "LIKE"
    NOT_LIKE = "NOT LIKE"
    NULL = "IS NULL"
    NOT_NULL = "IS NOT NULL"

    @property
    def negated(self) -> Comparison:
        """The opposite comparison: true if this comparison is false, and unknown if this comparison is unknown."""
        return _NEGATED[self]


_PAIRS = (
    (Comparison.EQUAL, Comparison.NOT_EQUAL),
    (Comparison.LESS, Comparison.AT_LEAST),
    (Comparison.AT_MOST, Comparison.GREATER),
    (Comparison.IN, Comparison.NOT_IN),
    (Comparison.LIKE, Comparison.NOT_LIKE),
    (Comparison.NULL, Comparison.NOT_NULL),
)
_NEGATED = {one: two for pair in _PAIRS for one, two in (pair, pair[::-1])}

_ORDERED: Mapping[Comparison, Callable[[Any, Any], pa.Array]] = {
    Comparison.EQUAL: pc.equal,
    Comparison.NOT_EQUAL: pc.not_equal,
    Comparison.LESS: pc.less,
    Comparison.AT_MOST: pc.less_equal,
    Comparison.GREATER: pc.greater,
    Comparison.AT_LEAST: pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class ColumnTest:
    """A column compared with values of its type."""

    path: Path
    comparison: Comparison
    values: tuple[Any, ...] = ()
    """One value; several for IN; a pattern for LIKE; none for IS NULL."""


@dataclass(frozen=True, slots=True)
class All:
    """True if all parts are true."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """True if at least one part is true."""

    parts: tuple[Predicate, ...]


Predicate = ColumnTest | All | Some


def negated(predicate: Predicate) -> Predicate:
    """The condition that is true if ``predicate`` is false."""
    match predicate:
        case All(parts):
            return Some(tuple(map(negated, parts)))
        case Some(parts):
            return All(tuple(map(negated, parts)))
    return ColumnTest(predicate.path, predicate.comparison.negated, predicate.values)


def paths_of(predicate: Predicate) -> Iterator[Path]:
    """The columns that a condition reads, possibly with repetitions."""
    match predicate:
        case ColumnTest(path):
            yield path
        case All(parts) | Some(parts):
            for part in parts:
                yield from paths_of(part)


def selected(predicate: Predicate, records: pa.RecordBatch) -> pa.Array:
    """A boolean for each record: whether the condition is true; null if it is unknown."""
    match predicate:
        case All(parts):
            return reduce(pc.and_kleene, (selected(part, records) for part in parts))
        case Some(parts):
            return reduce(pc.or_kleene, (selected(part, records) for part in parts))
    column = records.column(predicate.path[0])
    for name in predicate.path[1:]:
        column = pc.struct_field(column, name)
    return _compared(column, predicate.comparison, predicate.values)


def _compared(column: pa.Array, comparison: Comparison, values: tuple[Any, ...]) -> pa.Array:
    match comparison:
        case Comparison.NULL:
            return pc.is_null(column)
        case Comparison.NOT_NULL:
            return pc.is_valid(column)
        case Comparison.LIKE:
            return pc.match_like(column, values[0])
        case Comparison.NOT_IN | Comparison.NOT_LIKE:
            return pc.invert(_compared(column, comparison.negated, values))
    if pa.types.is_floating(column.type):  # a FLOAT is compared as a DOUBLE, so 0.1 is not rounded to it
        column = column.cast(pa.float64())
    if comparison == Comparison.IN and pa.types.is_floating(column.type):  # a set distinguishes 0.0 from -0.0
        return reduce(pc.or_, (_compared(column, Comparison.EQUAL, (value,)) for value in values))
    if comparison == Comparison.IN:
        return pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=pa.array(values, column.type)), None)
    found = _ORDERED[comparison](column, pa.scalar(values[0], column.type))
    if comparison in (Comparison.GREATER, Comparison.AT_LEAST) and pa.types.is_floating(column.type):
        found = pc.or_(found, pc.is_nan(column))
    return found


def may_select(predicate: Predicate, group: pq.RowGroupMetaData) -> bool:
    """Whether a row group, by its statistics, may hold a record for which the condition is true."""
    columns = {group.column(number).path_in_schema: number for number in range(group.num_columns)}
    return _may(predicate, group, columns)


def _may(predicate: Predicate, group: pq.RowGroupMetaData, columns: Mapping[str, int]) -> bool:
    match predicate:
        case All(parts):
            return all(_may(part, group, columns) for part in parts)
        case Some(parts):
            return any(_may(part, group, columns) for part in parts)
    number = columns.get(".".join(predicate.path))
    statistics = None if number is None else group.column(number).statistics
    if statistics is None:
        return True
    nulls = statistics.null_count if statistics.has_null_count else None
    if predicate.comparison == Comparison.NULL:
        return nulls != 0
    if nulls == group.num_rows:
        return False
    if not statistics.has_min_max:
        return True
    try:
        return _meets(predicate, statistics.min, statistics.max)
    except (TypeError, ValueError, OverflowError):  # a file of a narrower type; a time outside Python's range
        return True


def _meets(predicate: ColumnTest, least: Any, most: Any) -> bool:
    """Whether a value in ``[least, most]``, both inclusive, may be selected. Statistics do not cover NaN."""
    above = isinstance(least, float)
    match predicate.comparison, predicate.values:
        case Comparison.EQUAL | Comparison.IN, values:
            return any(bool(least <= value <= most) for value in values)
        case Comparison.LESS, (value,):
            return bool(least < value)
        case Comparison.AT_MOST, (value,):
            return bool(least <= value)
        case Comparison.GREATER, (value,):
            return above or bool(most > value)
        case Comparison.AT_LEAST, (value,):
            return above or bool(most >= value)
        case Comparison.LIKE, (pattern,):
            prefix = pattern[: min((at for at in map(pattern.find, "%_") if at >= 0), default=len(pattern))]
            if isinstance(least, bytes):
                prefix = prefix.encode()
            return bool(most >= prefix and least[: len(prefix)] <= prefix)
    return True

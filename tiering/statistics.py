"""Derives Delta's per-file statistics from Parquet's. With them, a reader of the table skips files. Pure.

Delta protocol, "Per-file Statistics": numRecords, and per column minValues, maxValues, nullCount, nested like the
schema. Wrong bounds hide rows, while missing bounds only cost time, so uncertain bounds are left out:

- floating point columns, for which segments keep no statistics: Parquet's statistics omit NaN, but Spark orders it
  last;
- columns under lists and maps, binary columns, booleans: no reader skips by them;
- columns beyond ``INDEXED_COLUMNS``, to keep the log of a table small;
- a bound that Parquet lacks for one row group, or that JSON's forms cannot hold (years beyond 9999).

Bounds of strings are cut to a prefix, and bounds of timestamps are rounded to milliseconds. Minima are rounded
down, maxima up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import msgspec
import pyarrow as pa

from stratalog.partitions.segments.parquet_footer import ColumnChunk
from stratalog.partitions.segments.reader import Segment

INDEXED_COLUMNS = 32
STRING_PREFIX = 32

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GREATEST_CHARACTER = "\U0010ffff"
_ENCODER = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A Parquet column: its path in the schema, and its type if a reader may skip files by its bounds."""

    path: tuple[str, ...]
    type: pa.DataType | None


def statistics_json(segment: Segment) -> str:
    """The ``stats`` of the add action of a file with this footer.

    Raises: CorruptSegmentError for a footer that the segment writer never writes.
    """
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    groups = segment.row_groups
    leaves = [leaf for field in segment.schema for leaf in _leaves((field.name,), field.type)]
    for index, leaf in _indexed(leaves):
        columns = [group.chunks[index] for group in groups]
        if leaf.type is None or any(found.nulls is None for found in columns):
            continue
        _put(nulls, leaf.path, sum(found.nulls or 0 for found in columns))
        bounds = _bounds(columns, leaf.type)
        if bounds is not None:
            _put(lowest, leaf.path, bounds[0])
            _put(highest, leaf.path, bounds[1])
    stats = {
        "numRecords": segment.footer.records,
        "minValues": lowest,
        "maxValues": highest,
        "nullCount": nulls,
    }
    return _ENCODER.encode(stats).decode()


def listed_statistics(
    records: int | None,
    lowest: Mapping[str, Any] | None,
    highest: Mapping[str, Any] | None,
    nulls: Mapping[str, Any] | None,
) -> str:
    """The ``stats`` of an add action as delta-rs has read them: number of records, bounds and null counts."""
    found = {"minValues": lowest, "maxValues": highest, "nullCount": nulls}
    stats = {name: _listed(tree) for name, tree in found.items() if tree is not None}
    return _ENCODER.encode(stats if records is None else {"numRecords": records, **stats}).decode()


def _listed(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The known statistics in JSON's forms; bounds were cut and rounded when they were written."""
    known: dict[str, Any] = {}
    for name, value in tree.items():
        match value:
            case None:
                continue
            case Mapping():
                if inner := _listed(value):
                    known[name] = inner
            case datetime():
                known[name] = value.replace(tzinfo=None).isoformat(timespec="milliseconds") + (
                    "Z" if value.tzinfo else ""
                )
            case date():
                known[name] = value.isoformat()
            case _:
                known[name] = value
    return known


def _leaves(path: tuple[str, ...], data_type: pa.DataType) -> Iterator[_Leaf]:
    if pa.types.is_struct(data_type):
        for index in range(data_type.num_fields):
            child = data_type.field(index)
            yield from _leaves((*path, child.name), child.type)
    elif pa.types.is_list(data_type):
        yield from (_Leaf(path, None) for _ in _leaves(path, data_type.value_type))
    elif pa.types.is_map(data_type):
        yield from (_Leaf(path, None) for _ in _leaves(path, data_type.key_type))
        yield from (_Leaf(path, None) for _ in _leaves(path, data_type.item_type))
    else:
        yield _Leaf(path, data_type)


def _indexed(leaves: list[_Leaf]) -> Iterator[tuple[int, _Leaf]]:
    """The leaves whose statistics readers use. (For Delta, a list or map is one column.)"""
    columns: set[tuple[str, ...]] = set()
    for index, leaf in enumerate(leaves):
        columns.add(leaf.path)
        if len(columns) > INDEXED_COLUMNS:
            return
        yield index, leaf


def _put(tree: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    if value is None:
        return
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _bounds(columns: list[ColumnChunk], data_type: pa.DataType) -> tuple[object, object] | None:
    """Minimum and maximum of a column over all row groups, in JSON's forms. A bound is None if it is unknown; both
    are None if there are no values or no statistics.
    """
    form = _form_of(data_type)
    bounds = [found.bounds for found in columns if found.values > (found.nulls or 0)]
    known = [found for found in bounds if found is not None]
    if form is None or not known or len(known) < len(bounds):
        return None
    lows = [form.decode(least) for least, _ in known]
    highs = [form.decode(largest) for _, largest in known]
    return form.lower(min(lows)), form.upper(max(highs))


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a type in statistics: its order (of ``decode``'s values), and its bounds in JSON."""

    decode: Callable[[Any], Any]
    lower: Callable[[Any], object]
    upper: Callable[[Any], object]


def _same(value: Any) -> Any:
    return value


def _form_of(data_type: pa.DataType) -> _Form | None:
    if pa.types.is_integer(data_type):
        return _Form(_same, _same, _same)
    if pa.types.is_string(data_type):
        return _Form(_same, _string_below, _string_above)
    if pa.types.is_timestamp(data_type) and data_type.unit == "us":
        zone = "Z" if data_type.tz else ""
        return _Form(_same, lambda us: _instant(us // 1000, zone), lambda us: _instant(-(-us // 1000), zone))
    if pa.types.is_date(data_type):
        return _Form(_same, _day, _day)
    if pa.types.is_decimal128(data_type):
        scale = data_type.scale
        return _Form(_unscaled, lambda n: _decimal(n, scale), lambda n: _decimal(n, scale))
    return None


def _unscaled(raw: bytes | int) -> int:
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def _decimal(unscaled: int, scale: int) -> Decimal:
    with localcontext(prec=38):
        return Decimal(unscaled).scaleb(-scale)


def _instant(milliseconds: int, zone: str) -> str | None:
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone


def _day(days: int) -> str | None:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _string_below(raw: bytes) -> str | None:
    text = _text(raw)
    return None if text is None else text[:STRING_PREFIX]


def _string_above(raw: bytes) -> str | None:
    """A string that is not below any string with the prefix. (UTF-8 has the same order as code points.)"""
    text = _text(raw)
    if text is None or len(text) <= STRING_PREFIX:
        return text
    if text[STRING_PREFIX] == _GREATEST_CHARACTER:
        return None
    return text[:STRING_PREFIX] + _GREATEST_CHARACTER


def _text(raw: bytes | str) -> str | None:
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None

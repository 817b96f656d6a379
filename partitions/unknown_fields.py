"""Finds fields of records that their topic's type lacks, at every depth, and adds them to a type. Pure.

The walk follows types (``unknown_in_types``: Arrow's or Spark's) or Python values (``unknown_in_values``), along
with the declared type. A path has the names of fields, ``element`` for a list, ``key`` and ``value`` for a map:
``l.element.x``. Names that differ only in case are different names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import TIMESTAMP, type_to_json
from stratalog.partitions.spelling import did_you_mean

OnUnknownField = Literal["fail", "add", "drop"]
"""The policy for a field that the topic's type lacks: refuse the append, add the field to the type, or drop the
field and count it.
"""

_SHOWN = 10
"""The number of names to show in a message."""


def unknown_field_policy(text: str) -> OnUnknownField:
    """The policy of that name. Raises: InvalidCallError."""
    if text not in ("fail", "add", "drop"):
        raise InvalidCallError(f"on_unknown_field is {text!r}: use 'fail', 'add' or 'drop'")
    return text  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class UnknownField:
    """An unknown field, by its path."""

    column: str
    """The record column: ``key`` or ``value``; empty for a column that no record has."""
    steps: tuple[str, ...]
    """The path below the column."""
    path: str
    """The path as the producer names it."""
    known: tuple[str, ...]
    """The fields that the type has at that level."""
    kind: Any
    """The field's Arrow or Spark type; None if only nulls are known."""
    inside: bool = False
    """Whether the field is inside a list or map."""
    count: int | None = None
    """The number of values that have the field; None: all."""
    row: int | None = None
    """The first row that has the field."""

    @property
    def twin(self) -> str | None:
        """A known name that differs only in case."""
        return next((name for name in self.known if name.lower() == self.steps[-1].lower()), None)


@dataclass(frozen=True, slots=True)
class Parts:
    """The types inside a nested type."""

    is_struct: bool
    inner: Mapping[str, Any]


PartsOf = Callable[[Any], Parts | None]
"""Returns the parts of a type; None if it is not nested."""


def arrow_parts(kind: pa.DataType) -> Parts | None:
    """The parts of an Arrow type, in any layout."""
    if isinstance(kind, pa.BaseExtensionType):
        return arrow_parts(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return arrow_parts(kind.value_type)
    if pa.types.is_struct(kind):
        return Parts(True, {field.name: field.type for field in kind})
    if pa.types.is_map(kind):
        return Parts(False, {"key": kind.key_type, "value": kind.item_type})
    if is_list(kind):
        return Parts(False, {"element": kind.value_type})
    return None


def is_list(kind: pa.DataType) -> bool:
    """Whether the type is a list, in any layout."""
    is_a = pa.types
    tests = (is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list, is_a.is_list_view, is_a.is_large_list_view)
    return any(test(kind) for test in tests)


def unknown_in_types(
    given: Any,
    wanted: Any,
    column: str,
    parts: PartsOf,
    prefix: str,
    steps: tuple[str, ...] = (),
    inside: bool = False,
) -> Iterator[UnknownField]:
    """The fields that a type has but the declared type lacks. ``steps`` is the path to the type from the column;
    ``prefix`` is the producer's path with a trailing dot.
    """
    one, other = parts(given), parts(wanted)
    if one is None or other is None or one.is_struct != other.is_struct:
        return  # the types differ; the append reports that
    for name, kind in one.inner.items():
        at, path = (*steps, name), f"{prefix}{name}"
        if name in other.inner:
            inner = inside or not other.is_struct
            yield from unknown_in_types(kind, other.inner[name], column, parts, f"{path}.", at, inner)
        elif other.is_struct:
            yield UnknownField(column, at, path, tuple(other.inner), kind, inside)


def pruned_type(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The Arrow type without the fields that the declared type lacks. A cast to the result drops them."""
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        types = {field.name: field.type for field in wanted}
        return pa.struct([f.with_type(pruned_type(f.type, types[f.name])) for f in given if f.name in types])
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return pa.map_(
            pruned_type(given.key_type, wanted.key_type), pruned_type(given.item_type, wanted.item_type)
        )
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return pa.list_(given.value_field.with_type(pruned_type(given.value_type, wanted.value_type)))
    return given


# ---------------------------------------------------------------------------------- values of Python


def has_struct(kind: pa.DataType) -> bool:
    """Whether the type contains a struct."""
    found = arrow_parts(kind)
    return found is not None and (found.is_struct or any(has_struct(one) for one in found.inner.values()))


def unknown_in_values(
    values: Iterable[tuple[int, Any]], kind: pa.DataType, column: str, begin: tuple[str, ...], prefix: str
) -> list[UnknownField]:
    """The fields that values have but their type lacks; each value comes with its row number. ``begin`` is the
    path to the values from the column, ``prefix`` the start of the shown path.
    """
    found: dict[tuple[str, ...], _Seen] = {}
    _walk(list(values), kind, (), False, found)
    return [
        UnknownField(
            column,
            (*begin, *steps),
            prefix + ".".join(steps),
            seen.known,
            inferred([one for _, one in seen.values]),
            seen.inside,
            len(seen.values),
            seen.values[0][0],
        )
        for steps, seen in found.items()
    ]


@dataclass(slots=True)
class _Seen:
    known: tuple[str, ...]
    inside: bool
    values: list[tuple[int, Any]]


def _walk(
    values: Sequence[tuple[int, Any]],
    kind: pa.DataType,
    steps: tuple[str, ...],
    inside: bool,
    found: dict[tuple[str, ...], _Seen],
) -> None:
    if not has_struct(kind):
        return
    if pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        inner: dict[str, list[tuple[int, Any]]] = {name: [] for name in types}
        for row, value in values:
            for name, one in _pairs(value):
                if name in types:
                    inner[name].append((row, one))
                elif isinstance(name, str):
                    at = (*steps, name)
                    found.setdefault(at, _Seen(tuple(types), inside, [])).values.append((row, one))
        for name, of_field in inner.items():
            _walk(of_field, types[name], (*steps, name), inside, found)
    elif pa.types.is_map(kind):
        pairs = [(row, pair) for row, value in values for pair in _pairs(value)]
        for index, (name, part) in enumerate((("key", kind.key_type), ("value", kind.item_type))):
            _walk([(row, pair[index]) for row, pair in pairs], part, (*steps, name), True, found)
    else:
        elements = [(row, one) for row, value in values for one in _elements(value)]
        _walk(elements, kind.value_type, (*steps, "element"), True, found)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    """The pairs of a struct or map, in the forms that Arrow accepts. Any other value gives no pairs, and Arrow
    refuses it.
    """
    if isinstance(value, Mapping):
        return value.items()
    return [one for one in _elements(value) if isinstance(one, tuple | list) and len(one) == 2]  # type: ignore[misc]


def _elements(value: Any) -> Iterable[Any]:
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        return ()
    return value if isinstance(value, Iterable) else ()


def inferred(values: Sequence[Any]) -> pa.DataType | None:
    """The Arrow type of these Python values; None for only nulls, or mixed types."""
    try:
        kind = pa.infer_type(list(values))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return None if pa.types.is_null(kind) else kind


# ---------------------------------------------------------------------------------- the three policies


def refused(unknown: Sequence[UnknownField]) -> str:
    """The message for a refused append: the fields, and the remedy."""
    first = unknown[0]
    name = first.steps[-1]
    if first.twin is not None:
        hint = f"; {first.twin!r} differs only in case, and is another field: use that spelling"
    else:
        shown = ", ".join(first.known[:_SHOWN]) + (", ..." if len(first.known) > _SHOWN else "")
        hint = did_you_mean(name, first.known) or (f"; the fields are {shown}" if first.column else "")
    row = "" if first.row is None else f"row {first.row}: "
    others = [repr(one.path) for one in unknown[1:_SHOWN]]
    more = f" Also unknown: {', '.join(others)}{', ...' if len(unknown) > _SHOWN else ''}." if others else ""
    has = (
        f"the topic has no field {first.path!r}"
        if first.column
        else f"no part of the records uses column {first.path!r}"
    )
    top = first.column != "key" and len(first.steps) == 1
    use = "name the column as key, headers, timestamp or partition if it is one, " if top else ""
    add = (
        '"add", which adds the field to the topic\'s type, or to ' if first.column else ""
    )  # a type has no columns
    return (
        f"{row}{has}{hint if hint.endswith('?') else hint + '.'}{more} Correct the name, {use}or set "
        f'on_unknown_field (a job: --on-unknown-field) to {add}"drop", which drops and counts the field'
    )


def with_fields(
    schema: str | None, unknown: Sequence[UnknownField], to_json: Callable[[Any], Any], what: str
) -> str | None:
    """A declared type (Spark's JSON text) with the fields added at the ends of their structs, nullable.

    Raises: InvalidCallError, which names a field that no topic's type can have.
    """
    if not unknown:
        return schema
    tree: Any = None if schema is None else parse_json(schema)
    for one in unknown:
        cannot = f"{what}: the topic's type cannot grow by the field {one.path!r}"
        if one.twin is not None:
            raise InvalidCallError(f"{cannot}: it has {one.twin!r}, which differs only in case: use that spelling")
        if one.inside:
            raise InvalidCallError(
                f"{cannot}: a type grows in structs, not inside lists and maps: drop the field "
                '(on_unknown_field="drop"), or create another topic'
            )
        if tree is None or not one.column:
            raise InvalidCallError(f"{cannot}: records have no such column, and bytes have no fields")
        if one.kind is None:
            raise InvalidCallError(
                f"{cannot}: its values do not determine its type: add it with topics.alter, or drop the field "
                '(on_unknown_field="drop")'
            )
        node = tree
        for step in one.steps[:-1]:
            node = next(field["type"] for field in node["fields"] if field["name"] == step)
        try:
            kind = _nullable(to_json(one.kind))
        except InvalidCallError as error:
            raise InvalidCallError(f"{cannot}: {error}") from error
        node["fields"].append({"name": one.steps[-1], "type": kind, "nullable": True, "metadata": {}})
    return json.dumps(tree, separators=(",", ":"))


def _nullable(node: Any) -> Any:
    match node:
        case {"type": "struct", "fields": fields}:
            loose = [{**f, "type": _nullable(f["type"]), "nullable": True, "metadata": {}} for f in fields]
            return {**node, "fields": loose}
        case {"type": "array", "elementType": element}:
            return {**node, "elementType": _nullable(element), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            return {**node, "keyType": _nullable(key), "valueType": _nullable(value), "valueContainsNull": True}
    return node


def arrow_to_json(kind: pa.DataType) -> Any:
    """The Spark JSON tree of the declarable type that can hold values of an Arrow type.

    Raises: InvalidCallError for a type that no topic can have.
    """
    return parse_json(type_to_json(_topics_type(kind)))


_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.float16(): pa.float32()}


def _topics_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz is not None else pa.timestamp("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_topics_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_topics_type(kind.key_type), _topics_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_topics_type(kind.value_type)))
    return _WIDER.get(kind, kind)

"""Fields of what is appended that the topic's type lacks: refused, added to the type, or left out and counted.

    fail    the append is refused before anything is written; the error names the field by its whole path
    add     the topic's type grows by them, as by ``topics.alter`` (Delta's mergeSchema), and they are appended
    drop    they are left out; the report counts them by path

A path names a field as Delta does: ``a.y`` in a struct, ``l.element.y`` in a list, ``m.key.y`` and ``m.value.y``
in a map. Names that differ in case are two names. Types are compared as Spark's JSON has them, which those of
Arrow and of Spark both become.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

import pyarrow as pa

from stratalog.engine.driver.context import Context
from stratalog.engine.driver.report import Report
from stratalog.engine.metadata.image import ClusterImage, TopicImage
from stratalog.engine.metadata.topic_commands import AlterTopic
from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.printable import first_line
from stratalog.partitions.records import type_to_json
from stratalog.partitions.spelling import did_you_mean

OnUnknownField = Literal["fail", "add", "drop"]
Node = Any
"""A type as Spark's JSON has it."""
T = TypeVar("T")

_ATTEMPTS = 5
"""To add fields, while others change the same type."""
_ELEMENT, _KEY, _VALUE = "element", "key", "value"


def unknown_field_policy(given: str) -> OnUnknownField:
    """Raises: InvalidCallError for a text that is no such policy."""
    for one in get_args(OnUnknownField):
        if one == given:
            return one  # type: ignore[no-any-return]
    raise InvalidCallError(f"on_unknown_field is {given!r}: it takes 'fail', 'add' or 'drop'")


@dataclass(slots=True)
class Unknown:
    """Fields that a declared type lacks, by path."""

    types: dict[str, Node | None] = field(default_factory=dict)
    """None: there are only nulls."""
    counts: dict[str, int | None] = field(default_factory=dict)
    """How many records have it; None: all of them."""
    first: dict[str, int] = field(default_factory=dict)
    """The number of the first row that has it."""
    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the fields beside it."""

    def of_type(self, path: str, node: Node, beside: Sequence[str]) -> None:
        """All records have it."""
        self.types[path], self.counts[path], self.known[path] = node, None, tuple(beside)

    def of_value(self, path: str, value: object, row: int, beside: Sequence[str]) -> None:
        """A row has it."""
        self.first.setdefault(path, row)
        self.known[path] = tuple(beside)
        self.counts[path] = (self.counts.get(path) or 0) + 1
        self.types[path] = _wider(path, self.types.get(path), value)

    def __bool__(self) -> bool:
        return bool(self.types)

    def refuse(self, what: str) -> None:
        """Raises: InvalidRecordError naming the first of them, if there is any."""
        for path in self.types:
            where = f"row {self.first[path]}: " if path in self.first else ""
            prefix, dot, name = path.rpartition(".")
            near = did_you_mean(name, self.known[path]).replace("mean '", f"mean '{prefix}{dot}")
            raise InvalidRecordError(
                f"{what}: {where}no record has a field {path!r}"
                + (near or f"; there are {', '.join(self.known[path])}.")
                + " Say on_unknown_field='add' to add it to the topic, or 'drop' to leave it out"
            )

    def counted(self, report: Report) -> Report:
        """The report of an append that has left them out."""
        if not self:
            return report
        records = int(report.totals.get("records") or 0)
        said = ", ".join(f"{path} ({self.counts[path] or records:,} records)" for path in self.types)
        return replace(
            report,
            totals={**report.totals, "dropped_fields": len(self.types)},
            notes=[*report.notes, f"fields that the topic lacks were dropped: {said}"],
        )


def in_type(given: Node, declared: Node, path: str, found: Unknown) -> None:
    """Add the fields of a type that ``declared`` lacks."""
    for name, one, other in _both(given, declared):
        if other is None:
            found.of_type(_joined(path, name), one, [each["name"] for each in declared["fields"]])
        else:
            in_type(one, other, _joined(path, name), found)


def unknown_in_schemas(schemas: Iterable[pa.Schema], topic: TopicImage) -> Mapping[str, Unknown]:
    """The fields of record columns ``key`` and ``value`` that the topic's types lack."""
    found = {_KEY: Unknown(), _VALUE: Unknown()}
    for part, declared in ((_KEY, topic.key_schema), (_VALUE, topic.value_schema)):
        for kind in {schema.field(part).type for schema in schemas if part in schema.names}:
            if declared is not None:
                in_type(node_of(kind), parse_json(declared), "", found[part])
    return found


def without_unknown(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the fields of its key and its value that ``schema`` has."""
    columns = [
        without(column, schema.field(name).type) if name in (_KEY, _VALUE) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def in_value(value: object, declared: Node, path: str, row: int, found: Unknown) -> None:
    """Add the fields of a value of Python's that ``declared`` lacks."""
    match _kind(declared), value:
        case "struct", Mapping():
            types = {each["name"]: each["type"] for each in declared["fields"]}
            for name, one in value.items():
                if name not in types:
                    found.of_value(_joined(path, str(name)), one, row, list(types))
                elif one is not None and isinstance(types[name], dict):
                    in_value(one, types[name], _joined(path, str(name)), row, found)
        case "array", list() | tuple():
            if isinstance(declared["elementType"], dict):
                for one in value:
                    in_value(one, declared["elementType"], _joined(path, _ELEMENT), row, found)
        case "map", Mapping() | list() | tuple():
            pairs = value.items() if isinstance(value, Mapping) else value
            for pair in pairs:
                if isinstance(pair, tuple | list) and len(pair) == 2:
                    in_value(pair[0], declared["keyType"], _joined(path, _KEY), row, found)
                    in_value(pair[1], declared["valueType"], _joined(path, _VALUE), row, found)


def node_of(kind: pa.DataType) -> Node:
    """The type of Arrow's as Spark's JSON; a type that Spark does not know by Arrow's name."""
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(each.name, node_of(each.type)) for each in kind]}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": node_of(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        types = {"keyType": node_of(kind.key_type), "valueType": node_of(kind.item_type)}
        return {"type": "map", **types, "valueContainsNull": True}
    try:
        return parse_json(type_to_json(kind))
    except InvalidCallError:
        return None if pa.types.is_null(kind) else str(kind)


def without(column: pa.Array, declared: pa.DataType) -> pa.Array:
    """The column without the fields that ``declared`` lacks, at every depth; of another kind, as it is."""
    kinds, kind = pa.types, column.type
    if column.offset:  # a slice: its lists and maps begin somewhere in their values
        column = pa.concat_arrays([column])
    if kinds.is_struct(kind) and kinds.is_struct(declared):
        types = {each.name: each.type for each in declared}
        fields = [each for each in kind if each.name in types]
        children = [without(column.field(each.name), types[each.name]) for each in fields]
        named = [each.with_type(child.type) for each, child in zip(fields, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=named, mask=column.is_null()) if children else column
    if kinds.is_list(kind) and kinds.is_list(declared):
        values = without(column.values, declared.value_type)
        return pa.ListArray.from_arrays(
            column.offsets, values, type=pa.list_(kind.value_field.with_type(values.type)), mask=_mask(column)
        )
    if kinds.is_map(kind) and kinds.is_map(declared):
        keys, items = without(column.keys, declared.key_type), without(column.items, declared.item_type)
        return pa.MapArray.from_arrays(
            column.offsets, keys, items, pa.map_(keys.type, items.type), mask=_mask(column)
        )
    return column


def taken_in(
    context: Context,
    image: ClusterImage,
    topic: str,
    policy: OnUnknownField,
    look: Callable[[ClusterImage], Mapping[str, Unknown]],
    what: str,
) -> tuple[ClusterImage, Unknown]:
    """The metadata under which the records fit, and the fields to leave out. ``look`` finds the unknown fields of
    the key and of the value, under the names ``key`` and ``value``.

    Raises: InvalidRecordError where fields are refused, or cannot be added.
    """
    found = look(image)
    for _ in range(_ATTEMPTS):
        if policy == "fail":
            for one in found.values():
                one.refuse(what)
        every = _all(found)
        if policy == "drop" or not any(node is not None for node in every.types.values()):
            return image, every
        try:
            _add(context, image, topic, found)
        except InvalidCallError as error:
            if look(context.metadata.image()) == found:
                raise InvalidRecordError(f"{what}: the topic cannot take in the fields: {error}") from error
        image = context.metadata.image()
        found = look(image)
    raise InvalidRecordError(f"{what}: the type of topic {topic!r} changes again and again; try again")


def _all(found: Mapping[str, Unknown]) -> Unknown:
    every = Unknown()
    for one in found.values():
        every.types |= one.types
        every.counts |= one.counts
    return every


def _add(context: Context, image: ClusterImage, topic: str, found: Mapping[str, Unknown]) -> None:
    declared = image.topic(topic)
    present = {_KEY: declared.key_schema, _VALUE: declared.value_schema}
    grown: dict[str, str | None] = {_KEY: None, _VALUE: None}
    for part, unknown in found.items():
        if not unknown:
            continue
        schema = present[part]
        node = None if schema is None else parse_json(schema)
        if _kind(node) != "struct":
            raise InvalidCallError(f"its {part} has no fields")
        for path, added in unknown.types.items():
            if added is not None:
                _put(node, path.split("."), added)
        grown[part] = json.dumps(node, separators=(",", ":"))
    context.metadata.submit(AlterTopic(topic, grown[_KEY], grown[_VALUE]), dry_run=False)


def _put(node: Node, path: Sequence[str], added: Node) -> None:
    """Add a field to a type, in place. Names may have dots, so the longest name that is there leads on."""
    match _kind(node):
        case "array":
            _put(node["elementType"], path[1:], added)
        case "map":
            _put(node["keyType" if path[0] == _KEY else "valueType"], path[1:], added)
        case "struct":
            for length in range(len(path) - 1, 0, -1):
                for each in node["fields"]:
                    if each["name"] == ".".join(path[:length]):
                        _put(each["type"], path[length:], added)
                        return
            node["fields"].append(_field(".".join(path), added))


def _field(name: str, kind: Node) -> Node:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _both(given: Node, declared: Node) -> Iterator[tuple[str, Node, Node | None]]:
    """The parts of a type, by name, beside those of another one; None: that one lacks it."""
    match _kind(given), _kind(declared):
        case "struct", "struct":
            types = {each["name"]: each["type"] for each in declared["fields"]}
            yield from ((each["name"], each["type"], types.get(each["name"])) for each in given["fields"])
        case "array", "array":
            yield _ELEMENT, given["elementType"], declared["elementType"]
        case "map", "map":
            yield _KEY, given["keyType"], declared["keyType"]
            yield _VALUE, given["valueType"], declared["valueType"]


def _kind(node: Node) -> str:
    return str(node["type"]) if isinstance(node, dict) else str(node)


def _wider(path: str, node: Node | None, value: object) -> Node | None:
    """The type of a field, after one more value of it. Raises: InvalidRecordError for two types."""
    if value is None:
        return node
    try:
        seen = node_of(pa.array([value]).type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidRecordError(f"the topic lacks {path}, which has no type: {first_line(error)}") from error
    if node is None or node == seen:
        return seen
    if {str(node), str(seen)} == {"long", "double"}:
        return "double"
    raise InvalidRecordError(f"the topic lacks {path}, which is of two types: {node} and {seen}")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _mask(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None

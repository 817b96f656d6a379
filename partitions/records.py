"""The physical columns of a segment, and the schemas that a topic may declare.

A topic's ``key`` and ``value`` are binary, or typed when the topic declares a schema; then Spark prunes
columns and skips row groups inside the log. Declared schemas travel as Spark's JSON text (the same text
that Delta tables hold), so the metadata needs neither Spark nor Arrow to carry them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from partitions.errors import InvalidCallError, InvalidRecordError

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

RECORD_COLUMNS = ("timestamp", "key", "value", "headers")
"""What a producer supplies; the log adds ``partition``, ``offset``, ``producer_id`` and ``control``."""

ABORT, COMMIT = 0, 1
"""``control`` of a marker, which ends a transaction in its partition: Kafka's types of control records."""
ABORTED = 2
"""``control`` of a record whose transaction was aborted; only merged segments say so. All other records have null
there: whoever reads ``control IS NULL`` of settled segments (``partitions.transactions``) gets what is committed.
"""

_PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}


def physical_schema(key: pa.DataType | None = None, value: pa.DataType | None = None) -> pa.Schema:
    """All columns of a segment in file order; None stands for binary."""
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", TIMESTAMP),
            ("key", pa.binary() if key is None else key),
            ("value", pa.binary() if value is None else value),
            ("headers", HEADERS),
            ("producer_id", pa.string()),
            ("control", pa.int32()),
        ]
    )


def schema_of(key_schema: str | None, value_schema: str | None) -> pa.Schema:
    """All columns of the segments of a topic that declares these types of keys and values; None stands for binary.

    Raises: InvalidCallError, as ``type_from_json``.
    """
    key, value = (None if text is None else type_from_json(text) for text in (key_schema, value_schema))
    return physical_schema(key, value)


def type_from_json(text: str) -> pa.DataType:
    """The Arrow type of Spark's JSON text of a type.

    Raises: InvalidCallError for text that is no type, or a type that a segment cannot hold.
    """
    try:
        return _arrow(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidCallError(f"not the JSON text of a Spark type: {text!r}") from error


def _arrow(node: Any) -> pa.DataType:
    match node:
        case str() if node in _PRIMITIVES:
            return _PRIMITIVES[node]
        case str() if node.startswith("decimal(") and node.endswith(")"):
            precision, scale = node[len("decimal(") : -1].split(",")
            return pa.decimal128(int(precision), int(scale))
        case {"type": "struct", "fields": fields}:
            if not fields:
                raise InvalidCallError("a declared schema needs at least one field")
            names = [str(f["name"]).lower() for f in fields]
            if repeated := {name for name in names if names.count(name) > 1}:
                raise InvalidCallError(
                    f"a declared schema has the field {min(repeated)!r} twice; Spark ignores case in names"
                )
            return pa.struct([pa.field(f["name"], _arrow(f["type"]), f.get("nullable", True)) for f in fields])
        case {"type": "array", "elementType": element}:
            return pa.list_(pa.field("element", _arrow(element)))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_arrow(key), _arrow(value))
    raise InvalidCallError(f"a topic's schema cannot hold the type {node!r}")


def type_to_json(data_type: pa.DataType) -> str:
    """Spark's JSON text of an Arrow type; ``type_from_json`` of it is the type again.

    Raises: InvalidCallError for a type that Spark does not know.
    """
    return json.dumps(_spark(data_type), separators=(",", ":"))


def _spark(data_type: pa.DataType) -> Any:
    for name, arrow in _PRIMITIVES.items():
        if data_type == arrow:
            return name
    if pa.types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_struct(data_type):
        fields = [
            {"name": f.name, "type": _spark(f.type), "nullable": f.nullable, "metadata": {}}
            for f in (data_type.field(i) for i in range(data_type.num_fields))
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(data_type):
        return {"type": "array", "elementType": _spark(data_type.value_type), "containsNull": True}
    if pa.types.is_map(data_type):
        key, value = _spark(data_type.key_type), _spark(data_type.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    raise InvalidCallError(f"a topic's schema cannot hold the Arrow type {data_type}")


def check_columns(
    given: pa.Schema,
    wanted: pa.Schema,
    what: str,
    fits: Callable[[pa.DataType, pa.DataType], bool] | None = None,
) -> None:
    """Compare the record columns of a batch with those of the topic: the types are the same, or, where a test is
    given, ``fits(given, wanted)``.

    Raises: InvalidRecordError naming the first column that is missing or of another type.
    """
    for name in RECORD_COLUMNS:
        index = given.get_field_index(name)
        if index < 0:
            raise InvalidRecordError(f"{what}: column {name!r} is missing")
        if not (fits or same_type)(given.field(index).type, wanted.field(name).type):
            raise InvalidRecordError(
                f"{what}: column {name!r} is {given.field(index).type}, declared is {wanted.field(name).type}"
            )


def same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types are equal up to nullability and the names of list elements."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return one.num_fields == other.num_fields and all(
            one.field(i).name == other.field(i).name and same_type(one.field(i).type, other.field(i).type)
            for i in range(one.num_fields)
        )
    if pa.types.is_list(one) and pa.types.is_list(other):
        return same_type(one.value_type, other.value_type)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return same_type(one.key_type, other.key_type) and same_type(one.item_type, other.item_type)
    return bool(one == other)


def leaf_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The leaf columns by their dotted Parquet paths, in file order."""

    def leaves(prefix: str, data_type: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
        if pa.types.is_struct(data_type):
            for field in (data_type.field(i) for i in range(data_type.num_fields)):
                yield from leaves(f"{prefix}.{field.name}", field.type)
        elif pa.types.is_list(data_type):
            yield from leaves(f"{prefix}.list.element", data_type.value_type)
        elif pa.types.is_map(data_type):
            yield from leaves(f"{prefix}.key_value.key", data_type.key_type)
            yield from leaves(f"{prefix}.key_value.value", data_type.item_type)
        else:
            yield prefix, data_type

    return {path: leaf for field in schema for path, leaf in leaves(field.name, field.type)}

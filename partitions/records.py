"""The physical columns of a segment, and the schemas that a topic may declare.

A topic's ``key`` and ``value`` are binary, or typed when the topic declares a schema; then Spark prunes
columns and skips row groups inside the log. Declared schemas are stored as Spark's JSON text (the same text as in
Delta tables), so the metadata needs neither Spark nor Arrow.

Producers may choose any field names, except names that are empty, contain a NUL, differ from another name only in
case, or share a Parquet column with another field. Parquet and Delta's protocol do not restrict names. Without
column mapping, Delta's Spark connector does restrict names when *it* writes: it forbids ``,;{}()=``, blanks and
ends of lines. The connector reads all names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError, InvalidRecordError

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers", "producer_id", "control")
"""The columns of a segment, in the file's order."""
RECORD_COLUMNS = ("timestamp", "key", "value", "headers")
"""The columns that a producer supplies; the log adds ``partition``, ``offset``, ``producer_id`` and
``control``."""

_GIVEN_COLUMNS = frozenset((*RECORD_COLUMNS, "partition"))


def columns_of_records(names: Collection[str], declared: Collection[str], partition: object) -> dict[str, Any]:
    """A mapping of each column of a record among ``names`` to itself, as Kafka clients and Spark's Kafka sink
    expect, and of ``partition`` to what the caller gives for it, unless that is None. Without other columns if the
    rows have no ``value``. If the value is a struct with fields (``declared``), also without them if the rows have
    any column that no record has, or a field has the name of one of these columns.
    """
    own = {} if partition is None else {"partition": partition}
    given = {name for name in names if not (isinstance(partition, str) and name == partition)}
    if "value" not in given or (declared and not given <= _GIVEN_COLUMNS) or not given.isdisjoint(declared):
        return own
    return {name: name for name in names if name in given & _GIVEN_COLUMNS} | own


ABORT, COMMIT = 0, 1
"""``control`` of a marker, which ends a transaction in its partition: Kafka's types of control records."""
GAP = -1
"""``control`` of a row for an offset without a record, in a mirror: the source has a marker at this offset, a
record of an aborted transaction, or a record that compaction has removed. All columns except the partition and the
offset are null.
"""
ABORTED = 2
"""``control`` of a record whose transaction was aborted; only merged segments contain it. All other records have
null: in merged segments ``control IS NULL`` selects the committed records (``stratalog.partitions.transactions``).
"""

MOST_NESTED = 64
"""The maximum nesting depth of types in a declared schema."""

_SHOWN = 1000
"""The number of characters of an invalid type to show in a message."""

_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")

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
    """All columns of a segment in file order; None means binary."""
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
    """All columns of the segments of a topic with these declared types of keys and values; None means binary.

    Raises: InvalidCallError; see ``type_from_json``.
    """
    key, value = (None if text is None else type_from_json(text) for text in (key_schema, value_schema))
    return physical_schema(key, value)


def type_from_json(text: str) -> pa.DataType:
    """The Arrow type of Spark's JSON text of a type.

    Raises: InvalidCallError for text that is not a type, or a type that a segment cannot hold.
    """
    try:
        return _arrow(parse_json(text), MOST_NESTED)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidCallError(f"not the JSON text of a Spark type: {text[:_SHOWN]!r}") from error


def _arrow(node: Any, levels: int) -> pa.DataType:
    if levels == 0:
        raise InvalidCallError(f"a declared schema can nest types at most {MOST_NESTED} levels deep")
    match node:
        case str() if node in _PRIMITIVES:
            return _PRIMITIVES[node]
        case str() if found := _DECIMAL.fullmatch(node):
            return pa.decimal128(int(found[1]), int(found[2]))
        case {"type": "struct", "fields": fields}:
            if not fields:
                raise InvalidCallError("a declared schema needs at least one field")
            names = Counter(str(f["name"]).lower() for f in fields)
            if wrong := [name for name in names if not name or "\0" in name]:
                raise InvalidCallError(
                    f"a declared schema has a field {wrong[0][:_SHOWN]!r}: readers end a name at "
                    "a NUL, and treat an empty name as no name; choose another name"
                )
            if repeated := [name for name, times in names.items() if times > 1]:
                raise InvalidCallError(
                    f"a declared schema has the field {min(repeated)!r} twice; Spark ignores case in names"
                )
            return pa.struct(
                [pa.field(f["name"], _arrow(f["type"], levels - 1), f.get("nullable", True)) for f in fields]
            )
        case {"type": "array", "elementType": element}:
            return pa.list_(pa.field("element", _arrow(element, levels - 1)))
        case {"type": "map", "keyType": key, "valueType": value}:
            return pa.map_(_arrow(key, levels - 1), _arrow(value, levels - 1))
    raise InvalidCallError(f"a topic's schema cannot hold the type {str(node)[:_SHOWN]!r}")


def type_to_json(data_type: pa.DataType) -> str:
    """Spark's JSON text of an Arrow type; the inverse of ``type_from_json``.

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
    """Compare the record columns of a batch with those of the topic: the types must be the same or, if ``fits`` is
    given, satisfy ``fits(given, wanted)``.

    Raises: InvalidRecordError, which names the first column that is missing or has another type.
    """
    for name in RECORD_COLUMNS:
        index = given.get_field_index(name)
        if index < 0:
            raise InvalidRecordError(f"{what}: column {name!r} is missing")
        if not (fits or same_type)(given.field(index).type, wanted.field(name).type):
            raise InvalidRecordError(
                f"{what}: column {name!r} is {given.field(index).type}, but is declared as "
                f"{wanted.field(name).type}"
            )


def typed_nulls(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """The batch with the topic's types for record columns whose types Arrow cannot infer: columns with only nulls,
    or with only empty lists and nulls.
    """
    for index, field in enumerate(batch.schema):
        if field.name in RECORD_COLUMNS:
            given, declared = field.type, wanted.field(field.name).type
            empty = pa.types.is_list(given) and pa.types.is_null(given.value_type) and pa.types.is_list(declared)
            if pa.types.is_null(given) or empty:
                batch = batch.set_column(index, field.name, batch.column(index).cast(declared))
    return batch


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


def cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to another type. Fields may become required. A null struct then has values in these fields,
    which no file stores. Arrow's own casts refuse such structs, and Arrow 19 does not cast a nullable field to a
    required one.

    Raises: pyarrow.ArrowException, also for a null in a required field.
    """
    if not same_type(column.type, kind):
        column = column.cast(_optional(kind))
    if pa.types.is_nested(kind):
        column = pa.concat_arrays([column])  # without the rows outside a slice
        return _required(column, kind, np.ones(len(column), bool))
    return column


def _optional(kind: pa.DataType) -> pa.DataType:
    """The type with nullable fields."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _optional(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_optional(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_optional(kind.key_type), _optional(kind.item_type))
    return kind


def _required(
    column: pa.Array, kind: pa.DataType, live: npt.NDArray[np.bool_], what: str = "", *, nullable: bool = True
) -> pa.Array:
    """Convert a column without an offset to a type that differs only in nullability. ``live`` marks the rows that
    are not inside a null.
    """
    valid, *buffers = column.buffers()
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False)
        if not nullable:
            if not present[live].all():
                raise pa.ArrowInvalid(f"field {what!r} is required, but a record has a null there")
            valid = None
        live = live & present
    if not pa.types.is_nested(kind):
        return pa.Array.from_buffers(kind, len(column), [valid, *buffers])
    if pa.types.is_struct(kind):
        children = [
            _required(column.field(i), field.type, live, field.name, nullable=field.nullable)
            for i, field in enumerate(kind)
        ]
        return pa.Array.from_buffers(kind, len(column), [valid], children=children)
    live = np.repeat(live, np.diff(column.offsets.to_numpy()))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        entries = pa.StructArray.from_arrays(
            [
                _required(column.keys, key.type, live, f"{what}.key", nullable=False),
                _required(column.items, item.type, live, f"{what}.value", nullable=item.nullable),
            ],
            fields=[key, item],
        )
        return pa.Array.from_buffers(kind, len(column), [valid, buffers[0]], children=[entries])
    element = kind.value_field
    values = _required(column.values, element.type, live, f"{what}.element", nullable=element.nullable)
    return pa.Array.from_buffers(kind, len(column), [valid, buffers[0]], children=[values])


def leaf_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The leaf columns by their dotted Parquet paths, in file order.

    Raises: InvalidCallError if two leaves have the same path, such as ``a.b`` and a field ``b`` of ``a``: Parquet
        settings of one leaf would apply to the other leaf.
    """

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

    found: dict[str, pa.DataType] = {}
    for field in schema:
        for path, leaf in leaves(field.name, field.type):
            if path in found:
                raise InvalidCallError(
                    f"two fields of the declared schema map to the same Parquet column {path!r}"
                )
            found[path] = leaf
    return found

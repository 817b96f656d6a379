"""Declared schemas as Spark types: the metadata holds Spark's own JSON text of them.

The text comes from storage. Spark's readers of it import the classes of user-defined types, and take expressions
and more from what a field carries as metadata; so it is checked first, and the types are built here, of names and
of the types that a segment can hold. Of a field's metadata a comment stays, and that the field came later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stratalog.partitions.bounded import parse_json
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.growth import ADDED
from stratalog.partitions.records import MOST_NESTED, type_from_json

BINARY = BinaryType()
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

LONGEST_DDL = 1_000_000
"""Characters of a type that is declared as DDL."""

_ATOMIC: Mapping[str, DataType] = {
    str(kind.jsonValue()): kind
    for kind in (
        *(StringType(), BINARY, BooleanType(), DateType(), TimestampType(), TimestampNTZType()),
        *(ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType()),
    )
}
_COLLATIONS = "__COLLATIONS"
"""In the metadata of a field: Spark's, of texts in it."""


def spark_type(schema: str | None) -> DataType:
    """The Spark type of a declared schema; binary where none is declared.

    Raises: InvalidCallError for a text that is no type, or one that a segment cannot hold.
    """
    if schema is None:
        return BINARY
    type_from_json(schema)
    return _built(parse_json(schema))


def _built(node: Any) -> DataType:
    """The type of a JSON tree that is one."""
    match node:
        case {"type": "struct", "fields": fields}:
            return StructType(
                [
                    StructField(
                        field["name"], _built(field["type"]), field.get("nullable") is not False, _kept(field)
                    )
                    for field in fields
                ]
            )
        case {"type": "array", "elementType": element}:
            return ArrayType(_built(element), node.get("containsNull") is not False)
        case {"type": "map", "keyType": key, "valueType": value}:
            return MapType(_built(key), _built(value), node.get("valueContainsNull") is not False)
        case str() if node.startswith("decimal"):
            precision, scale = node[len("decimal(") : -1].split(",")
            return DecimalType(int(precision), int(scale))
    return _ATOMIC[node]


def _kept(field: Mapping[str, Any]) -> dict[str, Any]:
    match field.get("metadata"):
        case dict() as given:
            return {
                name: value
                for name, value in given.items()
                if (name == ADDED and value is True) or (name == "comment" and isinstance(value, str))
            }
    return {}


def declared(data_type: DataType | str | None) -> str | None:
    """The JSON text of a type given as a Spark type, as DDL (``"year INT, carrier STRING"``), or None.

    Raises: InvalidCallError for DDL that Spark cannot parse, or when there is no session to parse it; for a type
        that no topic can have.
    """
    if data_type is None:
        return None
    if isinstance(data_type, str):
        data_type = _parsed(data_type)
    try:
        text = data_type.json()
    except RecursionError as error:
        raise InvalidCallError("a declared type nests too deeply") from error
    if f'"{_COLLATIONS}":' in text:
        raise InvalidCallError(
            "a topic's schema cannot hold collations: declare a STRING, and collate it in queries"
        )
    return json.dumps(parse_json(spark_type(text).json()), separators=(",", ":"))


def _parsed(ddl: str) -> DataType:
    """Raises: InvalidCallError."""
    shown = repr(ddl) if len(ddl) < 1000 else f"{ddl[:1000]!r}..."
    unquoted = "".join(ddl.split("`")[::2])
    if len(ddl) > LONGEST_DDL or (unquoted.count("<") > MOST_NESTED and _depth(unquoted) > MOST_NESTED):
        raise InvalidCallError(
            f"{shown} declares no type that a topic can have: it is longer than {LONGEST_DDL:,} characters, or "
            f"nests more than {MOST_NESTED} deep"
        )
    try:
        return DataType.fromDDL(ddl)
    except Exception as error:  # of many kinds: an error of the JVM, too, whose stack may overflow
        message = next(iter(str(error).strip().splitlines()), "")
        raise InvalidCallError(f"{shown} declares no type that Spark knows: {message}") from error


def _depth(ddl: str) -> int:
    depth = deepest = 0
    for one in ddl:
        depth += (one == "<") - (one == ">" and depth > 0)
        deepest = max(deepest, depth)
    return deepest


def record_schema(key: DataType, value: DataType) -> StructType:
    """The columns of a segment that readers see, as Spark names their types."""
    return StructType(
        [
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("key", key),
            StructField("value", value),
            StructField("headers", HEADERS),
        ]
    )

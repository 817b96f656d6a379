"""Declared schemas as Spark types: the metadata stores them as Spark's own JSON text.

The text comes from storage. Spark's own readers of such text import the classes of user-defined types, and use
expressions and other entries of a field's metadata. So the text is checked first, and the types are built here,
from names and from the types that a segment can hold. A field's metadata keeps its comment, and whether the field
was added later.
"""

from __future__ import annotations

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
from stratalog.partitions.growth import ADDED
from stratalog.partitions.records import type_from_json

BINARY = BinaryType()
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_ATOMIC: Mapping[str, DataType] = {
    str(kind.jsonValue()): kind
    for kind in (
        *(StringType(), BINARY, BooleanType(), DateType(), TimestampType(), TimestampNTZType()),
        *(ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType()),
    )
}


def spark_type(schema: str | None) -> DataType:
    """The Spark type of a declared schema; binary if none is declared.

    Raises: InvalidCallError for a text that is not a type, or a type that a segment cannot hold.
    """
    if schema is None:
        return BINARY
    type_from_json(schema)
    return _built(parse_json(schema))


def _built(node: Any) -> DataType:
    """The type of a valid JSON tree."""
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


def record_schema(key: DataType, value: DataType) -> StructType:
    """The columns of a segment that readers see, as Spark types."""
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

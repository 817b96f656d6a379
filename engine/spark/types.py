"""Declared schemas as Spark types: the metadata holds Spark's own JSON text of them."""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.types import _parse_datatype_json_string as parse_json

from partitions.errors import InvalidCallError

BINARY = BinaryType()
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def spark_type(schema: str | None) -> DataType:
    """The Spark type of a declared schema; binary where none is declared."""
    return BINARY if schema is None else parse_json(schema)


def declared(data_type: DataType | str | None) -> str | None:
    """The JSON text of a type given as a Spark type, as DDL (``"year INT, carrier STRING"``), or None.

    Raises: InvalidCallError for DDL that Spark cannot parse, or when there is no session to parse it.
    """
    if data_type is None:
        return None
    if isinstance(data_type, str):
        try:
            return declared(DataType.fromDDL(data_type))
        except PySparkException as error:
            message = next(iter(str(error).strip().splitlines()), "")
            raise InvalidCallError(f"{data_type!r} declares no type that Spark knows: {message}") from error
    return json.dumps(json.loads(data_type.json()), separators=(",", ":"))


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

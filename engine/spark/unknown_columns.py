"""Finds the fields of a DataFrame that the topic's type lacks, only by types, and leaves these fields out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.records.bad_record_lane import LeaveOut
from stratalog.engine.spark.bad_rows import corrupt_column
from stratalog.engine.spark.sql import identifier
from stratalog.engine.spark.types import spark_type
from stratalog.partitions.unknown_fields import Parts, UnknownField, unknown_in_types

if TYPE_CHECKING:
    from stratalog.engine.spark.appending import RecordColumns

_PLACES = ("topic", "partition", "offset")
"""Columns with the origin of a row, which bad records keep."""


def spark_parts(kind: DataType) -> Parts | None:
    """The parts of a Spark type."""
    if isinstance(kind, StructType):
        return Parts(True, {field.name: field.dataType for field in kind})
    if isinstance(kind, MapType):
        return Parts(False, {"key": kind.keyType, "value": kind.valueType})
    if isinstance(kind, ArrayType):
        return Parts(False, {"element": kind.elementType})
    return None


def spark_to_json(kind: DataType) -> Any:
    """The JSON tree of a Spark type."""
    return kind.jsonValue()


def unknown_in_frame(
    frame: DataFrame, columns: RecordColumns, topic: TopicImage, bad_records: LeaveOut | None, *, whole: bool
) -> list[UnknownField]:
    """The fields that the topic's type lacks. If the caller names no value (``whole``), each column of the frame
    that no part of the record uses is also such a field.
    """
    value = spark_type(topic.value_schema)
    found: list[UnknownField] = []
    spread = value if columns.value is None and isinstance(value, StructType) else None
    if whole and (spread is not None or "value" in frame.columns):  # a missing value is an error of its own
        column, known = ("", ["value"]) if spread is None else ("value", spread.fieldNames())
        found += [
            UnknownField(column, (name,), name, tuple(known), frame.schema[name].dataType)
            for name in _others(frame, columns, known, bad_records)
        ]
    if spread is not None:
        for field in spread:
            if field.name in frame.columns:
                given = frame.schema[field.name].dataType
                place = (f"{field.name}.", (field.name,))
                found += unknown_in_types(given, field.dataType, "value", spark_parts, *place)
    else:
        found += _inside(frame, "value" if columns.value is None else columns.value, value, "value")
    if columns.key is not None:
        found += _inside(frame, columns.key, spark_type(topic.key_schema), "key")
    return found


def _inside(frame: DataFrame, column: Column | str, wanted: DataType, name: str) -> Iterator[UnknownField]:
    if spark_parts(wanted) is None:
        return
    if isinstance(column, str):
        column = F.col(identifier(column) if column in frame.columns else column)
    try:
        given = frame.select(column.alias("c")).schema[0].dataType
    except PySparkException:  # the append reports this error
        return
    yield from unknown_in_types(given, wanted, name, spark_parts, f"{name}.")


def _others(
    frame: DataFrame, columns: RecordColumns, known: Sequence[str], bad_records: LeaveOut | None
) -> list[str]:
    """The columns that no part of the record uses."""
    used = {name if name in frame.columns else name.split(".")[0] for name in columns.names} | {*known}
    if (corrupt := corrupt_column(frame)) is not None:
        used.add(corrupt)
    if bad_records is not None and bad_records.topic is not None:
        used |= {*_PLACES}
    given = (columns.key, columns.partition, columns.headers, columns.timestamp)
    made = [one.alias(str(index)) for index, one in enumerate(given) if isinstance(one, Column)]
    return [name for name in frame.columns if name not in used and not _is_needed(frame, name, made)]


def _is_needed(frame: DataFrame, name: str, expressions: Sequence[Column]) -> bool:
    """Whether an expression uses this column, so that Spark cannot analyze the expression without it."""
    if not expressions:
        return False
    others = [F.col(identifier(one)) for one in frame.columns if one != name]
    try:
        frame.select(*others).select(*expressions).schema  # noqa: B018 - analysis happens here
    except PySparkException:
        return True
    return False


def without_unknown(column: Column, given: DataType, wanted: DataType) -> tuple[Column, DataType]:
    """Return the column without the fields that the declared type lacks, and the type of the result."""
    kind = _pruned(given, wanted)
    return (column, given) if kind.simpleString() == given.simpleString() else (_left(column, given, kind), kind)


def _pruned(given: DataType, wanted: DataType) -> DataType:
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        struct = StructType()
        types = {field.name: field.dataType for field in wanted}
        for field in given:
            if field.name in types:
                struct = struct.add(field.name, _pruned(field.dataType, types[field.name]), field.nullable)
        return struct
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(_pruned(given.elementType, wanted.elementType), given.containsNull)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        key, value = _pruned(given.keyType, wanted.keyType), _pruned(given.valueType, wanted.valueType)
        return MapType(key, value, given.valueContainsNull)
    return given


def _left(column: Column, given: DataType, kept: DataType) -> Column:
    if given.simpleString() == kept.simpleString():
        return column
    if isinstance(given, StructType) and isinstance(kept, StructType):
        fields = [_left(column.getField(f.name), given[f.name].dataType, f.dataType).alias(f.name) for f in kept]
        return F.when(column.isNotNull(), F.struct(*fields) if fields else F.lit(None))
    if isinstance(given, ArrayType) and isinstance(kept, ArrayType):
        return F.transform(column, lambda one: _left(one, given.elementType, kept.elementType))
    assert isinstance(given, MapType)
    assert isinstance(kept, MapType)
    return F.map_from_entries(
        F.transform(
            F.map_entries(column),
            lambda one: F.struct(
                _left(one.getField("key"), given.keyType, kept.keyType).alias("key"),
                _left(one.getField("value"), given.valueType, kept.valueType).alias("value"),
            ),
        )
    )

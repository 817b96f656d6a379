"""Columns and fields of a DataFrame that a topic's type lacks (``stratalog.engine.records.unknown_fields``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from stratalog.engine.metadata.image import TopicImage
from stratalog.engine.records.unknown_fields import Unknown, in_type
from stratalog.engine.spark.bad_rows import corrupt_column
from stratalog.engine.spark.record_columns import RecordColumns, named
from stratalog.engine.spark.types import spark_type


def unknown_in_frame(
    frame: DataFrame, columns: RecordColumns, topic: TopicImage, what: str
) -> Mapping[str, Unknown]:
    """The fields that the topic's key and value lack. A column counts where the value is made of all columns that
    are declared, unless another part of the record is made of it.

    Raises: InvalidRecordError for a column that is not in the frame.
    """
    found = {"key": Unknown(), "value": Unknown()}
    key, value = spark_type(topic.key_schema), spark_type(topic.value_schema)
    if columns.key is not None and _is_nested(key):
        in_type(_node(frame, columns.key, f"{what}: key"), key.jsonValue(), "", found["key"])
    if columns.value is not None:
        if _is_nested(value):
            in_type(_node(frame, columns.value, f"{what}: value"), value.jsonValue(), "", found["value"])
        return found
    if not isinstance(value, StructType):
        return found
    fields = {field.name: field.dataType for field in value}
    for field in frame.schema:
        if field.name in fields:
            in_type(field.dataType.jsonValue(), fields[field.name].jsonValue(), field.name, found["value"])
        elif field.name != corrupt_column(frame) and not _is_used(frame, field.name, columns):
            found["value"].of_type(field.name, field.dataType.jsonValue(), [*fields])
    return found


def without_unknown(column: Column, given: DataType, declared: DataType) -> tuple[Column, DataType]:
    """The column without the fields that ``declared`` lacks, at every depth, and its type then."""
    match given, declared:
        case StructType(), StructType():
            types = {field.name: field.dataType for field in declared}
            kept = [field for field in given if field.name in types]
            parts = [without_unknown(column.getField(f.name), f.dataType, types[f.name]) for f in kept]
            left = StructType()
            for field, (_, kind) in zip(kept, parts, strict=True):
                left = left.add(field.name, kind, field.nullable)
            if left.simpleString() == given.simpleString() or not kept:
                return column, given
            made = F.struct(*(part.alias(field.name) for field, (part, _) in zip(kept, parts, strict=True)))
            return F.when(column.isNotNull(), made), left
        case ArrayType(), ArrayType():
            _, kind = without_unknown(column, given.elementType, declared.elementType)
            if kind.simpleString() == given.elementType.simpleString():
                return column, given
            narrowed = F.transform(
                column, lambda one: without_unknown(one, given.elementType, declared.elementType)[0]
            )
            return narrowed, ArrayType(kind, given.containsNull)
        case MapType(), MapType():
            _, kind = without_unknown(column, given.valueType, declared.valueType)
            if kind.simpleString() == given.valueType.simpleString():
                return column, given
            narrowed = F.transform_values(
                column, lambda _, one: without_unknown(one, given.valueType, declared.valueType)[0]
            )
            return narrowed, MapType(given.keyType, kind, given.valueContainsNull)
    return column, given


def _node(frame: DataFrame, column: Column | str, what: str) -> Any:
    return frame.select(named(frame, column, what).alias("c")).schema[0].dataType.jsonValue()


def _is_nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)


def _is_used(frame: DataFrame, name: str, columns: RecordColumns) -> bool:
    """Whether a part of the record other than the value is made of the column: of an expression, whether Spark
    cannot analyse it without the column."""
    for given in (columns.key, columns.partition, columns.headers, columns.timestamp):
        if isinstance(given, str) and (given == name or given.split(".")[0] == name):
            return True
        if isinstance(given, Column):
            try:
                frame.drop(name).select(given).schema  # noqa: B018 - analysis happens here
            except PySparkException:
                return True
    return False

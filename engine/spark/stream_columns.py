"""Selects the columns of a stream by the option ``columns``, and makes the records of files have exactly these
columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from stratalog.engine.spark.unknown_columns import spark_parts
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.spelling import did_you_mean
from stratalog.partitions.unknown_fields import unknown_in_types

TOPIC = "topic"
_BATCH_BYTES = 4 * 1024 * 1024
"""Bytes in memory of one batch for the JVM."""


def stream_schema(records: StructType, columns: Sequence[str] | None) -> StructType:
    """Return the column ``topic`` and the columns of ``records``, or only the named columns. The name
    ``value.carrier`` keeps one field of the struct ``value``; a query refers to that field as ``value.carrier``
    with or without the option.

    Raises: InvalidCallError for an unknown column, naming the nearest known one.
    """
    whole = StructType([StructField(TOPIC, StringType()), *records.fields])
    if columns is None:
        return whole
    names = list(_names(whole))
    by_lower = {name.lower(): name for name in names}
    chosen = set()
    for column in columns:
        if column.lower() not in by_lower:
            hint = did_you_mean(column, names) or f"; there are {', '.join(names)}"
            raise InvalidCallError(f"the option columns names {column!r}, which is not a column{hint}")
        chosen.add(by_lower[column.lower()])
    return _pruned(whole, chosen, "")


def check_new_fields(query: StructType, records: StructType, columns: Sequence[str] | None, topic: str) -> None:
    """Compare the columns of a query with the columns that the query would have if it started now; ``records`` are
    the topic's current columns.

    Raises: InvalidCallError naming the fields that the query lacks.
    """
    have = StructType([field for field in stream_schema(records, columns) if field.name in query.fieldNames()])
    fields = [one.path for one in unknown_in_types(have, query, "", spark_parts, "")]
    wider = [f"{name} to {kind}" for name, kind in _other_types(have, query)]
    if fields or wider:
        what = " and ".join(
            f"{how} {', '.join(names)}" for how, names in (("gained", fields), ("widened", wider)) if names
        )
        raise InvalidCallError(
            f"the type of topic {topic!r} has {what} since the query began: restart the "
            "query, which continues from its checkpoint with the new columns; failOnNewFields = false keeps the "
            "old columns" + (", and the query fails at the first value that does not fit" if wider else "")
        )


def _other_types(have: StructType, query: StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields whose type in the topic now differs from their type in the query, with the topic's type."""
    types = {field.name: field.dataType for field in query}
    for field in have:
        one, two = field.dataType, types.get(field.name)
        if isinstance(one, StructType) and isinstance(two, StructType):
            yield from _other_types(one, two, f"{prefix}{field.name}.")
        elif two is not None and spark_parts(one) is None and one.simpleString() != two.simpleString():
            yield f"{prefix}{field.name}", one.simpleString().upper()


def _names(struct: StructType, prefix: str = "") -> Iterator[str]:
    for field in struct:
        yield prefix + field.name
        if isinstance(field.dataType, StructType):
            yield from _names(field.dataType, f"{prefix}{field.name}.")


def _pruned(struct: StructType, chosen: set[str], prefix: str) -> StructType:
    fields = []
    for field in struct:
        name = prefix + field.name
        inside = any(other.startswith(f"{name}.") for other in chosen)
        if name in chosen:
            fields.append(field)
        elif inside and isinstance(field.dataType, StructType):
            pruned: DataType = _pruned(field.dataType, chosen, f"{name}.")
            fields.append(StructField(field.name, pruned, field.nullable, field.metadata))
    return StructType(fields)


def parquet_columns(schema: StructType) -> list[str]:
    """The columns of a file to read for ``schema``: leaves of structs, by their dotted names."""
    struct = StructType([field for field in schema if field.name != TOPIC])
    return list(_leaves(struct)) or ["offset"]  # even without columns, the number of records is needed


def _leaves(struct: StructType, prefix: str = "") -> Iterator[str]:
    for field in struct:
        if isinstance(field.dataType, StructType):
            yield from _leaves(field.dataType, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def conformed(records: pa.Table, schema: pa.Schema, topic: str) -> Iterator[pa.RecordBatch]:
    """Records of a file in batches of exactly ``schema``: with the topic's name, and nulls in fields newer than
    the file.
    """
    rows = records.num_rows
    if rows == 0:
        return
    at_most = max(1, rows * _BATCH_BYTES // max(records.nbytes, _BATCH_BYTES))
    for batch in records.to_batches(max_chunksize=at_most):
        arrays = []
        for field in schema:
            index = batch.schema.get_field_index(field.name)
            if field.name == TOPIC:
                arrays.append(pa.repeat(pa.scalar(topic, field.type), batch.num_rows))
            elif index < 0:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                arrays.append(_fitted(batch.column(index), field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fitted(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    if not (pa.types.is_struct(wanted) and pa.types.is_struct(array.type)):
        return array.cast(wanted)
    children = []
    for field in wanted:
        index = array.type.get_field_index(field.name)
        child = pa.nulls(len(array), field.type) if index < 0 else _fitted(array.field(index), field.type)
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())

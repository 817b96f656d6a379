"""Frames of others as Spark's: what pandas, polars and Arrow hold in this process becomes a DataFrame."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stratalog.partitions.errors import InvalidCallError, InvalidRecordError


class ArrowStream(Protocol):
    """A frame that gives itself as Arrow does (the PyCapsule interface): those of pandas, polars and Arrow do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Its record batches."""
        ...


Frame = DataFrame | ArrowStream

_TAKES = (
    "it takes a DataFrame of Spark, pandas or polars, an Arrow table, record batch or reader, and whatever else "
    "has __arrow_c_stream__"
)


def to_dataframe(frame: Any, spark: SparkSession | None, what: str) -> DataFrame:
    """The frame as a DataFrame of ``spark``, or of the session of this process: rows and columns as they are (an
    index of pandas is no column).

    Raises: InvalidRecordError for a value that is no frame, or has a type that Spark has not; InvalidCallError
        where there is no session.
    """
    if isinstance(frame, DataFrame):
        return frame
    table = _to_arrow(frame, what)
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise InvalidCallError(
            f"{what}: a {type(frame).__name__} is appended by Spark: Cluster.open(file, spark); without, "
            "append_batches takes batches by partition"
        )
    try:
        return session.createDataFrame(pa.table({name: _plain(table.column(name)) for name in table.column_names}))
    except Exception as error:  # of many kinds: whatever Spark stumbles upon in a type
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidRecordError(f"{what}: Spark cannot take this {type(frame).__name__}: {said}") from error


def _to_arrow(frame: Any, what: str) -> pa.Table:
    if isinstance(frame, type) or not (hasattr(frame, "__arrow_c_stream__") or isinstance(frame, pa.RecordBatch)):
        raise InvalidRecordError(f"{what}: a {type(frame).__name__} is no frame: {_TAKES}")
    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif isinstance(frame, pa.RecordBatch):
            table = pa.Table.from_batches([frame])
        else:
            table = pa.table(frame)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidRecordError(f"{what}: this {type(frame).__name__} is no table of Arrow's: {said}") from error
    names = table.column_names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRecordError(f"{what}: column {repeated[0]!r} is there twice")
    return table


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type that Spark knows, where it differs in layout alone."""
    kind = _plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type)))
    return kind

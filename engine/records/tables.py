"""Rows and frames of this process as Arrow tables: what pandas, polars and Arrow hold, and lists of Python's."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.printable import first_line


class ArrowStream(Protocol):
    """A frame that gives itself as Arrow does (the PyCapsule interface): those of pandas, polars and Arrow do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Its record batches."""
        ...


def is_frame(value: object) -> bool:
    """Whether it holds a table."""
    return not isinstance(value, type) and (
        hasattr(value, "__arrow_c_stream__") or isinstance(value, pa.RecordBatch)
    )


def to_arrow(frame: Any, what: str, takes: str) -> pa.Table:
    """Rows and columns of a frame as they are (an index of pandas is no column), in the layouts that a log has.
    ``takes`` says what would be a frame.

    Raises: InvalidRecordError for a value that is no frame, or has a column twice.
    """
    if not is_frame(frame):
        raise InvalidRecordError(f"{what}: a {type(frame).__name__} is no frame: {takes}")
    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif isinstance(frame, pa.RecordBatch):
            table = pa.Table.from_batches([frame])
        else:
            table = pa.table(frame)
    except (pa.ArrowException, AttributeError, TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"{what}: this {type(frame).__name__} is no table of Arrow's: {first_line(error)}"
        ) from error
    names = table.column_names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRecordError(f"{what}: column {repeated[0]!r} is there twice")
    return pa.table({name: _plain(table.column(name)) for name in names})


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = plain_type(column.type)
    return column if kind == column.type else column.cast(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark and a segment have for one that differs in layout alone."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind

"""Rows and frames of this process as Arrow tables: pandas, polars and Arrow objects, and Python lists."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.partitions.errors import InvalidRecordError
from stratalog.partitions.printable import first_line
from stratalog.partitions.unknown_fields import is_list

_MOST_DIGITS = 38
"""The maximum number of digits of a decimal, in Spark and in a segment."""


class ArrowStream(Protocol):
    """A frame with the PyCapsule interface of Arrow, such as the frames of pandas, polars and Arrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The frame's record batches."""
        ...


def is_frame(value: object) -> bool:
    """Whether the value is a frame or an Arrow batch."""
    return not isinstance(value, type) and (
        hasattr(value, "__arrow_c_stream__") or isinstance(value, pa.RecordBatch)
    )


def to_arrow(frame: Any, what: str, takes: str) -> pa.Table:
    """Return the rows and columns of a frame unchanged, in the layouts of a log. (A pandas index is not a column.)
    ``takes`` lists the accepted frames, for the error.

    Raises: InvalidRecordError for a value that is not a frame, or has a column twice.
    """
    if not is_frame(frame):
        raise InvalidRecordError(f"{what}: a {type(frame).__name__} is not a frame: {takes}")
    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif isinstance(frame, pa.Table):
            table = frame
        elif isinstance(frame, pa.RecordBatch):
            table = pa.Table.from_batches([frame])
        else:
            table = pa.table(frame)
    except Exception as error:  # the library of the frame may raise anything
        raise InvalidRecordError(
            f"{what}: this {type(frame).__name__} is not an Arrow table: {first_line(error)}"
        ) from error
    names = table.column_names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRecordError(f"{what}: column {repeated[0]!r} occurs twice")
    return pa.table({name: _plain_column(table.column(name), name, what) for name in names})


def plain_batch(batch: pa.RecordBatch, what: str) -> pa.RecordBatch:
    """Return a batch in the layouts of a log.

    Raises: InvalidRecordError for an object that is not a batch, or naming the column that Arrow cannot convert.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidRecordError(f"{what}: a {type(batch).__name__} is not an Arrow RecordBatch")
    for index, field in enumerate(batch.schema):
        if plain_type(field.type) != field.type:
            column = _plain_column(pa.chunked_array([batch.column(index)]), field.name, what).chunk(0)
            batch = batch.set_column(index, field.name, column)
    return batch


def _plain_column(column: pa.ChunkedArray, name: str, what: str) -> pa.ChunkedArray:
    kind = plain_type(column.type)
    if kind == column.type:
        return column
    try:
        plain = pa.chunked_array([_plain(chunk).cast(kind) for chunk in column.chunks], kind)
        plain.validate()  # Arrow makes some arrays of nulls too short
        return plain
    except (pa.ArrowException, AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"{what}: column {name!r} is {column.type}, which Arrow cannot make {kind}: {first_line(error)}"
        ) from error


def _plain(array: pa.Array) -> pa.Array:
    """The values in the plain layout, converted here if Arrow has no cast, or makes invalid arrays (list
    views).
    """
    kind = array.type
    if plain_type(kind) == kind:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(array.storage) if _has_plain_storage(kind) else array
    if pa.types.is_dictionary(kind):
        return _plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        places = np.arange(array.offset, array.offset + len(array))
        return _plain(array.values).take(pa.array(np.searchsorted(array.run_ends, places, side="right")))
    if pa.types.is_struct(kind):
        children = [_plain(array.field(index)) for index in range(kind.num_fields)]
        fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        offsets, inside = _extents(array)
        parts = (_plain(array.keys[inside]), _plain(array.items[inside]))
        return pa.MapArray.from_arrays(offsets, *parts, mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets, inside = _extents(array)
        return _lists(array, offsets, _plain(array.values[inside]))
    if is_list(kind):
        lengths = np.asarray(pc.list_value_length(array).fill_null(0))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        return _lists(array, offsets, _plain(array.flatten()))
    return array.cast(plain_type(kind))


def _extents(array: pa.Array) -> tuple[pa.Array, slice]:
    """The offsets of lists, starting at 0, and the elements that belong to the lists."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    return pa.array(offsets - first, pa.int32()), slice(first, last)


def _lists(array: pa.Array, offsets: pa.Array, elements: pa.Array) -> pa.Array:
    kind = pa.list_(array.type.value_field.with_type(elements.type))
    return pa.ListArray.from_arrays(offsets, elements, kind, mask=array.is_null())


def _has_plain_storage(kind: pa.BaseExtensionType) -> bool:
    """Whether an extension type means the same as its storage type; False for an unknown type."""
    return kind.extension_name in ("arrow.json", "arrow.uuid", "arrow.bool8")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark and segments use in place of a type that differs only in its layout."""
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "arrow.bool8":
            return pa.bool_()
        return plain_type(kind.storage_type) if _has_plain_storage(kind) else kind
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision <= _MOST_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind

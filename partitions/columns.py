"""Arrow columns from Python values and numpy arrays, made without importing pandas.

Some calls import pandas if it is installed, as it usually is with Spark: ``pyarrow.array`` and ``pyarrow.scalar``,
Arrow's functions with a Python number as argument, and ``to_numpy`` and ``numpy.asarray`` of Arrow columns. The
import costs 50 MB and half a second per process, and only ``engine.spark`` needs pandas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_MOST_BYTES = 2**31 - 1
"""The size limit of a column, whose offsets have 32 bits."""


def scalar(value: int | str, data_type: pa.DataType) -> pa.Scalar:
    """An Arrow scalar: an integer or a point in time from a number, or a text."""
    if isinstance(value, str):
        return _varied([value.encode()], data_type)[0]
    return _fixed(np.array([value], f"int{data_type.bit_width}"), data_type)[0]


def constant(value: int | str, data_type: pa.DataType, rows: int) -> pa.Array:
    """A column with the same value in each row; types as in ``scalar``."""
    return pa.repeat(scalar(value, data_type), rows)


def numbers(start: int, end: int) -> pa.Array:
    """The numbers ``[start, end)``, as int64."""
    return _fixed(np.arange(start, end, dtype=np.int64), pa.int64())


def integers(values: np.ndarray) -> pa.Array:
    """An int64 column of these values, not copied."""
    return _fixed(np.ascontiguousarray(values, np.int64), pa.int64())


def booleans(values: np.ndarray) -> pa.Array:
    """A boolean column of these values."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def binaries(values: Sequence[bytes | None]) -> pa.Array:
    """A binary column of these values.

    Raises: OverflowError for 2 GiB or more.
    """
    return _varied(values, pa.binary())


def validity(values: Sequence[object]) -> pa.Buffer | None:
    """The validity bitmap of a column of these values; None if no value is null."""
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


def integers_of(column: pa.Array) -> np.ndarray:
    """The integers (or points in time) of a column, not copied; arbitrary numbers for nulls."""
    bits = column.type.bit_width
    if not len(column):
        return np.zeros(0, f"int{bits}")
    return np.frombuffer(column.buffers()[1], f"int{bits}", len(column), column.offset * bits // 8)


def valid_of(column: pa.Array) -> np.ndarray:
    """A boolean per row of a column: whether the value is not null."""
    bitmap = column.buffers()[0]
    return np.ones(len(column), np.bool_) if bitmap is None else _bools(bitmap, column)


def bools_of(column: pa.Array) -> np.ndarray:
    """The values of a boolean column; arbitrary for nulls."""
    return _bools(column.buffers()[1], column) if len(column) else np.zeros(0, np.bool_)


def _bools(bits: pa.Buffer, column: pa.Array) -> np.ndarray:
    every = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return every[column.offset : column.offset + len(column)].astype(np.bool_)


def _fixed(values: np.ndarray, data_type: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(values)])


def _varied(values: Sequence[bytes | None], data_type: pa.DataType) -> pa.Array:
    held = [value or b"" for value in values]
    ends = np.zeros(len(held) + 1, np.int64)
    np.cumsum(list(map(len, held)), out=ends[1:])
    if ends[-1] > _MOST_BYTES:
        raise OverflowError(f"{ends[-1]:,} bytes are too many for a column, which can hold {_MOST_BYTES:,}")
    buffers = [validity(values), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(held))]
    return pa.Array.from_buffers(data_type, len(held), buffers)

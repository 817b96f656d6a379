"""Computes Spark's function ``hash`` for columns of keys: 32-bit Murmur3 with seed 42. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.partitions.errors import InvalidRecordError

_SEED = np.uint32(42)
_MOST_LONG_DIGITS = 18
"""The maximum number of digits of a decimal that Spark hashes as a 64-bit number."""

_Words = npt.NDArray[np.uint32]


def hashes_of(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Return Spark's ``hash`` of each key, signed; for a null, return the seed.

    Raises: InvalidRecordError for keys of a type whose hash only Spark knows.
    """
    state = np.full(len(keys), _SEED, np.uint32)
    with np.errstate(over="ignore"):
        return _hashed(keys, state).view(np.int32).astype(np.int64)


def _hashed(keys: pa.Array, state: _Words) -> _Words:
    """The hashes, each with its own seed. The hash of a null is its seed."""
    kind = keys.type
    if pa.types.is_struct(kind):
        found = state
        for field in keys.flatten():
            found = _hashed(field, found)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        found = _of_bytes(keys.cast(pa.binary()), state)
    elif pa.types.is_boolean(kind):
        found = _finished(_mixed(_numbers(keys.cast(pa.int8()), "i4"), state), 4)
    elif pa.types.is_date32(kind):
        found = _finished(_mixed(_numbers(keys.view(pa.int32()), "i4"), state), 4)
    elif pa.types.is_integer(kind) and kind.bit_width <= 32:
        found = _finished(_mixed(_numbers(keys, "i4"), state), 4)
    elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        found = _of_longs(_numbers(keys.view(pa.int64()), "i8"), state)
    elif pa.types.is_float32(kind):
        found = _finished(_mixed(_one_zero_and_nan(_numbers(keys, "f4")).view(np.int32), state), 4)
    elif pa.types.is_float64(kind):
        found = _of_longs(_one_zero_and_nan(_numbers(keys, "f8")).view(np.int64), state)
    elif pa.types.is_decimal128(kind) and kind.precision <= _MOST_LONG_DIGITS:
        found = _of_longs(_unscaled(keys), state)
    else:
        raise InvalidRecordError(
            f"a key of {kind} can be partitioned only by Spark: append it with Spark, or give partition="
        )
    return np.where(keys.is_valid().to_numpy(zero_copy_only=False), found, state)


def _numbers(keys: pa.Array, kind: str) -> npt.NDArray[Any]:
    return np.asarray(keys.fill_null(0).to_numpy(zero_copy_only=False).astype(kind))


def _one_zero_and_nan(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The floats, where 0.0 and -0.0 are one key, and so are all NaNs, whatever their bits."""
    found: npt.NDArray[Any] = np.where(np.isnan(keys), keys.dtype.type(np.nan), keys + keys.dtype.type(0))
    return found


def _unscaled(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The lower 64 of the 128 bits of each decimal. A short decimal fits in 64 bits."""
    return np.frombuffer(keys.buffers()[1], np.int64)[2 * keys.offset : 2 * (keys.offset + len(keys)) : 2]


def _of_longs(numbers: npt.NDArray[np.int64], state: _Words) -> _Words:
    words = numbers.view(np.uint64)
    return _finished(_mixed((words >> np.uint64(32)), _mixed(words & np.uint64(0xFFFFFFFF), state)), 8)


def _of_bytes(keys: pa.Array, state: _Words) -> _Words:
    """Hash words of four bytes, then each remaining byte as a separate signed word, as Spark does."""
    starts = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    sizes = np.diff(starts)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    found = state.copy()
    words = sizes // 4
    for number in range(int(words.max(initial=0))):
        here = np.flatnonzero(words > number)
        at = starts[here] + 4 * number
        word = np.zeros(len(here), np.uint32)
        for byte in range(4):
            word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        found[here] = _mixed(word, found[here])
    for number in range(3):
        here = np.flatnonzero(sizes % 4 > number)
        found[here] = _mixed(data[starts[here] + 4 * words[here] + number].view(np.int8), found[here])
    return _finished(found, sizes.astype(np.uint32))


def _mixed(numbers: npt.NDArray[Any], state: _Words) -> _Words:
    words = numbers.astype(np.int64 if numbers.dtype.kind == "i" else np.uint64).astype(np.uint32)
    words = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(state ^ words, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(state: _Words, size: _Words | int) -> _Words:
    state = state ^ np.uint32(size)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state


def _rotated(words: _Words, bits: int) -> _Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))

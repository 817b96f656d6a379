"""A digest of records that does not depend on their order: the sum of the rows' hashes modulo 2^64.

It shows whether two attempts of an append have the same records. Batches and slices, the process, the version and
the machine make no difference, and neither does a growth of the topic's types between the attempts. So the digest
is computed from values, not from the bytes of Arrow's buffers: nulls, including null fields, add nothing; all NaNs
are equal, and 0.0 equals -0.0; a map is a set of entries. The digest leaves out the columns that the log adds
(partition, offset), and timestamps that the append itself assigns.

The digest detects mistakes, not attacks: it is possible to construct two sets of records with the same digest. A
value that is replaced by another value of the same length goes unnoticed with a probability of 2^-32; a change of
at most four consecutive bytes is always noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from stratalog.partitions.records import RECORD_COLUMNS, same_type

_U64 = npt.NDArray[np.uint64]

_SLICE_ROWS = 8192
"""The number of rows of a batch to hash at a time, so that intermediate arrays stay in the processor's caches."""
_PRIME = np.uint64(2**61 - 1)
_MOST_PLACES, _PLACES = 38, 9
"""The largest scale of a DECIMAL, and the number of places by which one multiplication moves the decimal point."""
_DAY_US = np.int64(86_400_000_000)
_SHORT_BYTES = 32
"""Average length up to which a column's values are deduplicated before hashing."""

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, so that places get different multiples
_FIRST = np.uint64(0xBF58476D1CE4E5B9)  # this constant, the next ones, and the shifts are SplitMix64's
_SECOND = np.uint64(0x94D049BB133111EB)
_BYTES, _STRUCT, _LIST, _MAP, _NUMBER, _ROW = (np.uint64(kind) for kind in range(1, 7))


class RecordsDigest:
    """Computes the number and the digest of records."""

    def __init__(self, schema: pa.Schema, *, timestamps: bool) -> None:
        """``schema`` is the topic's; ``timestamps``: whether the digest includes the timestamps of the records."""
        columns = [name for name in RECORD_COLUMNS if timestamps or name != "timestamp"]
        self._fields = [(schema.field(name), RECORD_COLUMNS.index(name)) for name in columns]
        self.count = 0
        self._sum = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the records of a batch with record columns; missing columns are treated as null."""
        if batch.num_rows == 0:
            return
        self.count += batch.num_rows
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            self._sum += self._sum_of(batch.slice(start, _SLICE_ROWS))

    @property
    def value(self) -> bytes:
        """The digest: 8 bytes."""
        return (self._sum % (1 << 64)).to_bytes(8, "big")

    def _sum_of(self, batch: pa.RecordBatch) -> int:
        rows = np.full(batch.num_rows, _ROW)
        for field, place in self._fields:
            index = batch.schema.get_field_index(field.name)
            if index >= 0:
                column = batch.column(index)
                # Arrow 19 cannot cast a nullable field to a required one
                if not same_type(column.type, field.type):
                    column = column.cast(field.type)
                rows += _placed(_hashes(column), place)
        return int(_mixed(rows).sum())


def row_hashes(records: pa.Table) -> _U64:
    """A hash of each record, from all columns that a producer supplies. Two files that hold the same records have
    the same hashes, whatever their schemas, encodings and boundaries.
    """
    found = [np.zeros(0, np.uint64)]
    for batch in records.to_batches(max_chunksize=_SLICE_ROWS):
        rows = np.full(batch.num_rows, _ROW)
        for place, name in enumerate(RECORD_COLUMNS):
            rows += _placed(_hashes(batch.column(name)), place)
        found.append(_mixed(rows))
    return np.concatenate(found)


def key_hashes(columns: Sequence[pa.Array]) -> _U64:
    """A hash of each row of these columns, which have the same length. Different rows may have the same hash."""
    rows = np.full(len(columns[0]), _ROW)
    for place, column in enumerate(columns):
        rows += _placed(_hashes(column), place)
    return _mixed(rows)


def _mixed(numbers: _U64) -> _U64:
    """Mixes a number so that every bit of the input affects every bit of the result; 0 stays 0. Works in place."""
    numbers ^= numbers >> np.uint64(30)
    numbers *= _FIRST
    numbers ^= numbers >> np.uint64(27)
    numbers *= _SECOND
    numbers ^= numbers >> np.uint64(31)
    return numbers


def _placed(hashes: _U64, place: int) -> _U64:
    """Hashes that depend on the place of a value; 0 for null."""
    return _mixed(hashes * np.uint64(2 * place + 3))


def _hashes(array: pa.Array) -> _U64:
    """The hash of each value; 0 for null."""
    if array.null_count == len(array):
        return np.zeros(len(array), np.uint64)
    kind = array.type
    if pa.types.is_struct(kind):
        hashes = np.full(len(array), _STRUCT)
        for place, child in enumerate(array.flatten()):
            hashes += _placed(_hashes(child), place)
        hashes = _mixed(hashes)
    elif pa.types.is_list(kind):
        hashes = _of_lists(array, array.values)
    elif pa.types.is_map(kind):
        hashes = _of_maps(array)
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        hashes = _of_bytes(array)
    elif pa.types.is_decimal128(kind):
        hashes = _of_decimals(array)
    else:
        hashes = _of_numbers(array)
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _bounds(array: pa.Array) -> npt.NDArray[np.int64]:
    """The start of each value in the child array, and the end of the last value."""
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return offsets.astype(np.int64)


def _sums(parts: _U64, bounds: npt.NDArray[np.int64]) -> _U64:
    """The sum of each part between adjacent bounds."""
    upto = np.zeros(len(parts) + 1, np.uint64)
    np.cumsum(parts, out=upto[1:])
    return upto[bounds[1:]] - upto[bounds[:-1]]


def _of_lists(array: pa.Array, values: pa.Array) -> _U64:
    bounds = _bounds(array)
    begin, lengths = int(bounds[0]), np.diff(bounds)
    below = _hashes(values.slice(begin, int(bounds[-1]) - begin))
    bounds -= begin
    place = np.arange(len(below)) - np.repeat(bounds[:-1], lengths)
    parts = _mixed(below + (place.astype(np.uint64) + np.uint64(1)) * _STEP)
    return _mixed(_sums(parts, bounds) + lengths.astype(np.uint64) * _STEP + _LIST)


def _of_maps(array: pa.Array) -> _U64:
    bounds = _bounds(array)
    begin, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    entries = np.full(count, _STRUCT)
    for place, values in enumerate((array.keys, array.items)):
        entries += _placed(_hashes(values.slice(begin, count)), place)
    return _mixed(_sums(_mixed(entries), bounds - begin) + np.diff(bounds).astype(np.uint64) * _STEP + _MAP)


def _of_bytes(array: pa.Array) -> _U64:
    """The CRC-32 and length of each value. If values are short and repeat, they are computed once per distinct
    value.
    """
    bounds = _bounds(array)
    lengths = np.diff(bounds)
    if len(array) > 1 and int(bounds[-1] - bounds[0]) <= _SHORT_BYTES * len(array):
        encoded = array.dictionary_encode()
        if len(encoded.dictionary) < len(array):
            places: npt.NDArray[np.int32] = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
            return _of_bytes(encoded.dictionary).take(places)
    data, at = memoryview(array.buffers()[2] or b""), bounds.tolist()
    checksums = [isal_zlib.crc32(data[start:end]) for start, end in pairwise(at)]
    return _mixed(np.array(checksums, np.uint64) + lengths.astype(np.uint64) * _STEP + _BYTES)


def _of_decimals(array: pa.Array) -> _U64:
    """Hashes of the numbers at scale 38, modulo a prime, because the scale of a DECIMAL may grow."""
    words = np.frombuffer(array.buffers()[1], np.uint64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    high = (words[:, 1].astype(np.int64) % np.int64(_PRIME)).astype(np.uint64)
    numbers = (_shifted(high, 3) + words[:, 0] % _PRIME) % _PRIME  # 2^64 is 2^3 modulo the prime
    for places in range(array.type.scale, _MOST_PLACES, _PLACES):
        factor = np.uint64(10 ** min(_PLACES, _MOST_PLACES - places))  # less than 2^30: no product overflows
        upper, lower = numbers >> np.uint64(31), numbers & np.uint64(2**31 - 1)
        numbers = (_shifted(upper * factor, 31) + lower * factor) % _PRIME
    return _mixed(numbers * _STEP + _NUMBER)


def _shifted(numbers: _U64, bits: int) -> _U64:
    """Numbers below the prime 2^61 - 1, times 2^bits modulo the prime: a rotation of 61 bits."""
    return (numbers << np.uint64(bits)) & _PRIME | numbers >> np.uint64(61 - bits)


def _of_numbers(array: pa.Array) -> _U64:
    """Hashes of all types that Arrow stores as numbers: booleans, days, times."""
    if pa.types.is_floating(array.type):
        floats = pc.fill_null(array.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
        floats[np.isnan(floats)] = np.nan
        bits: _U64 = floats.view(np.uint64)
    else:
        is_date = pa.types.is_date32(array.type)
        whole = pc.fill_null((array.cast(pa.int32()) if is_date else array).cast(pa.int64()), 0)
        whole = whole.to_numpy(zero_copy_only=False)
        if is_date:
            whole = whole * _DAY_US  # a DATE may become a TIMESTAMP_NTZ
        bits = whole.view(np.uint64)
    return _mixed(bits * _STEP + _NUMBER)

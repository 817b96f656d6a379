"""Random arrays of every type and layout of Arrow; each is made from its children, so layouts nest."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

Leaf = tuple[pa.DataType, list[Any]]
TEXTS = ["", "a", "é", "\U0001f600", "x" * 40, "1", "true", "2020-01-01"]
BYTES = [b"", b"a", b"\xff\x00", b"x" * 40]
TIMES = [datetime(1970, 1, 1), datetime(2020, 2, 29, 1, 2, 3, 456789), datetime(1, 1, 1), datetime(9999, 12, 31)]
RECENT = [datetime(1970, 1, 1), datetime(2020, 2, 29, 1, 2, 3), datetime(1960, 5, 5)]
SPANS = [timedelta(0), timedelta(days=3), timedelta(seconds=-1)]


def _integers(bits: int, *, signed: bool) -> list[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [0, 1, low, high, high // 2 + 1]


LEAVES: list[Leaf] = [
    *((getattr(pa, f"int{bits}")(), _integers(bits, signed=True)) for bits in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{bits}")(), _integers(bits, signed=False)) for bits in (8, 16, 32, 64)),
    (pa.float16(), [np.float16(value) for value in (0.0, 1.5, -65504.0, float("nan"), float("inf"))]),
    (pa.float32(), [0.0, -0.0, 1.5, 3.4028234663852886e38, float("nan"), float("-inf")]),
    (pa.float64(), [0.0, 0.1, 1.7976931348623157e308, 5e-324, float("nan"), float("inf")]),
    (pa.bool_(), [True, False]),
    *((kind, TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((kind, BYTES) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(3), [b"abc", b"\x00\x00\x00"]),
    *(
        (kind, [Decimal("0"), Decimal("1.25"), Decimal("-999.99")])
        for kind in (pa.decimal32(5, 2), pa.decimal64(9, 2), pa.decimal128(38, 2), pa.decimal256(76, 2))
    ),
    (pa.decimal128(10, -2), [Decimal("100"), Decimal("-4200")]),
    (pa.date32(), [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)]),
    (pa.date64(), [date(1970, 1, 1), date(2020, 2, 29)]),
    (pa.time32("ms"), [time(0), time(23, 59, 59, 999000)]),
    (pa.time64("us"), [time(0), time(23, 59, 59, 999999)]),
    *((pa.timestamp(unit), RECENT) for unit in ("s", "ms", "ns")),
    (pa.timestamp("us"), TIMES),
    *((pa.timestamp(unit, "UTC"), [at.replace(tzinfo=UTC) for at in RECENT]) for unit in ("s", "us", "ns")),
    (pa.timestamp("us", "Asia/Tokyo"), [at.replace(tzinfo=UTC) for at in RECENT]),
    *((pa.duration(unit), SPANS) for unit in ("s", "us")),
    (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), pa.MonthDayNano([0, 0, 0])]),
    (pa.null(), [None]),
]


def array_of(chance: random.Random, rows: int, depth: int = 2) -> pa.Array:
    """A random array with this number of rows, nested up to ``depth`` levels deep; sometimes a slice of a longer
    one."""
    before, behind = chance.choice([(0, 0), (0, 0), (1, 2)])
    array = chance.choice(_NESTED if depth and chance.random() < 0.6 else [_leaf])(
        chance, before + rows + behind, depth
    )
    return array.slice(before, rows)


def _leaf(chance: random.Random, rows: int, depth: int) -> pa.Array:
    kind, values = chance.choice(LEAVES)
    return pa.array([chance.choice([*values, None]) for _ in range(rows)], kind)


def _offsets(chance: random.Random, rows: int, most: int = 3) -> list[int]:
    offsets = [0]
    for _ in range(rows):
        offsets.append(offsets[-1] + chance.randrange(most))
    return offsets


def _mask(chance: random.Random, rows: int) -> pa.Array:
    return pa.array([chance.random() < 0.2 for _ in range(rows)], pa.bool_())


def _struct(chance: random.Random, rows: int, depth: int) -> pa.Array:
    names = ["x", "y", "Z"][: chance.randrange(4)]
    children = [array_of(chance, rows, depth - 1) for _ in names]
    if not names:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(children, names, mask=_mask(chance, rows))


def _list(chance: random.Random, rows: int, depth: int) -> pa.Array:
    offsets = _offsets(chance, rows)
    values = array_of(chance, offsets[-1], depth - 1)
    sizes = [end - start for start, end in pairwise(offsets)]
    match chance.randrange(5):
        case 0:
            return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=_mask(chance, rows))
        case 1:
            return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=_mask(chance, rows))
        case 2:
            starts = pa.array(offsets[:-1], pa.int32())
            return pa.ListViewArray.from_arrays(starts, pa.array(sizes, pa.int32()), values)
        case 3:
            starts = pa.array(offsets[:-1], pa.int64())
            return pa.LargeListViewArray.from_arrays(starts, pa.array(sizes, pa.int64()), values)
        case _:
            return pa.FixedSizeListArray.from_arrays(array_of(chance, 2 * rows, depth - 1), 2)


def _map(chance: random.Random, rows: int, depth: int) -> pa.Array:
    offsets = _offsets(chance, rows)
    kind = chance.choice([pa.string(), pa.large_string(), pa.string_view(), pa.int32(), pa.binary()])
    keys: list[Any] = [f"k{number}" for number in range(offsets[-1])]
    if kind == pa.int32():
        keys = list(range(offsets[-1]))
    items = array_of(chance, offsets[-1], depth - 1)
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, kind), items)


def _dictionary(chance: random.Random, rows: int, depth: int) -> pa.Array:
    values = array_of(chance, 3, depth - 1)
    index = chance.choice([pa.int8(), pa.uint16(), pa.int32(), pa.int64()])
    return pa.DictionaryArray.from_arrays(
        pa.array([chance.choice([0, 1, 2, None]) for _ in range(rows)], index), values
    )


def _runs(chance: random.Random, rows: int, depth: int) -> pa.Array:
    if not rows:
        return pa.RunEndEncodedArray.from_arrays(pa.array([], pa.int32()), pa.array([], pa.string()))
    ends = sorted({*chance.choices(range(1, rows + 1), k=2), rows})
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), array_of(chance, len(ends), depth - 1))


def _extension(chance: random.Random, rows: int, depth: int) -> pa.Array:
    kind: pa.BaseExtensionType
    kind, values = chance.choice(
        [
            (pa.uuid(), [b"a" * 16, b"\x00" * 16]),
            (pa.json_(pa.string()), ["{}", "[1]"]),
            (pa.bool8(), [0, 1]),
            (pa.opaque(pa.string(), "t", "v"), ["a"]),
            (pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2]]),
        ]
    )
    storage = pa.array([chance.choice([*values, None]) for _ in range(rows)], kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


def _union(chance: random.Random, rows: int, depth: int) -> pa.Array:
    kinds = pa.array([chance.randrange(2) for _ in range(rows)], pa.int8())
    children = [array_of(chance, rows, depth - 1) for _ in range(2)]
    if chance.random() < 0.5:
        return pa.UnionArray.from_sparse(kinds, children)
    return pa.UnionArray.from_dense(kinds, pa.array(range(rows), pa.int32()), children)


_NESTED: list[Callable[[random.Random, int, int], pa.Array]] = [
    *(_struct, _list, _list, _map, _dictionary, _runs, _extension, _union)
]

"""The digest of records: equal for the same records, in any layout, and different for others."""

from __future__ import annotations

import decimal
import math
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.partitions.digest import RecordsDigest
from stratalog.partitions.records import HEADERS, TIMESTAMP, physical_schema, schema_of, type_to_json

VALUE = pa.struct(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("f", pa.float32()),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", TIMESTAMP),
        ("price", pa.decimal128(38, 2)),
        ("inner", pa.struct([("a", pa.string()), ("b", pa.int32())])),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("lists", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64()))))),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
SCHEMA = physical_schema(key=pa.string(), value=VALUE)
PLAIN = physical_schema()

_whole = st.none() | st.integers(-(2**63), 2**63 - 1)
_float = st.none() | st.floats(allow_nan=False).map(lambda x: x + 0.0)
_text = st.none() | st.text(max_size=20)
_values = st.none() | st.fixed_dictionaries(
    {
        "n": _whole,
        "small": st.none() | st.integers(-128, 127),
        "f": st.none() | st.floats(width=32, allow_nan=False).map(lambda x: x + 0.0),
        "x": _float,
        "ok": st.none() | st.booleans(),
        "text": _text,
        "day": st.none() | st.dates(),
        "at": _whole.map(lambda n: None if n is None else n % 2**50),
        "price": st.none() | st.decimals(-(10**30), 10**30, places=2),
        "inner": st.none() | st.fixed_dictionaries({"a": _text, "b": st.none() | st.integers(-5, 5)}),
        "tags": st.none() | st.lists(_text, max_size=3),
        "lists": st.none() | st.lists(st.none() | st.lists(_whole, max_size=2), max_size=3),
        "map": st.none()
        | st.dictionaries(st.text(max_size=3), _whole, max_size=3).map(lambda d: sorted(d.items())),
    }
)
_headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": _text, "value": st.none() | st.binary(max_size=9)}), max_size=2
)
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "timestamp": _whole.map(lambda n: None if n is None else n % 2**50),
            "key": _text,
            "value": _values,
            "headers": _headers,
        }
    ),
    max_size=8,
)


def batch(rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    names = ("timestamp", "key", "value", "headers")
    return pa.record_batch({name: pa.array([r[name] for r in rows], schema.field(name).type) for name in names})


def digest(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA, timestamps: bool = True) -> tuple[int, bytes]:
    made = RecordsDigest(schema, timestamps=timestamps)
    for one in batches:
        made.add(one)
    return made.count, made.value


def of_values(values: Iterable[bytes | None], schema: pa.Schema = PLAIN) -> bytes:
    rows = [{"timestamp": 0, "key": None, "value": value, "headers": None} for value in values]
    return digest(batch(rows, schema), schema=schema)[1]


def _known(row: dict[str, Any]) -> str:
    return repr(row)


@pytest.mark.slow
@given(_rows, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_order_batches_and_slices_make_no_difference(rows: list[dict[str, Any]], rng: random.Random) -> None:
    whole = digest(batch(rows))
    shuffled = rng.sample(rows, len(rows))
    cut = rng.randint(0, len(rows))
    assert digest(batch(shuffled[:cut]), batch(shuffled[cut:])) == whole
    # The rows are a slice between other rows, with offsets and garbage around it.
    padded = batch([*rows, *shuffled, *rows])
    assert digest(padded.slice(len(rows), len(rows))) == whole
    assert digest(padded.take(pa.array(range(len(rows)), pa.int64()))) == whole


@pytest.mark.slow
@given(_rows, _rows)
@settings(max_examples=150)
def test_other_rows_have_another_digest(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    same = sorted(map(_known, one)) == sorted(map(_known, other))
    assert (digest(batch(one)) == digest(batch(other))) == same


@pytest.mark.slow
@given(st.lists(st.none() | st.binary(max_size=40), max_size=6), st.data())
def test_one_byte_of_one_value_makes_another_digest(values: list[bytes | None], data: st.DataObject) -> None:
    value = data.draw(st.binary(min_size=1, max_size=300))
    at, bit = data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(0, 7))
    other = bytearray(value)
    other[at] ^= 1 << bit
    assert of_values([*values, value]) != of_values([*values, bytes(other)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([b"ab", b"cd"], [b"cd", b"ab", b""]),
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([None], [b""]),
        ([b""], [b"\0"]),
        ([b"\0" * 7], [b"\0" * 8]),
        ([b"12345678abcdefgh"], [b"abcdefgh12345678"]),
        ([b"a", b"a"], [b"b", b"b"]),
        ([b"a", b"a", b"b"], [b"a", b"b", b"b"]),
    ],
)
def test_values_that_look_the_same_differ(one: list[bytes | None], other: list[bytes | None]) -> None:
    assert of_values(one) != of_values(other)


def test_keys_that_are_swapped_differ() -> None:
    """The columns of a row belong together."""

    def rows(*keys: str) -> pa.RecordBatch:
        return batch([{"timestamp": 0, "key": k, "value": {"n": n}, "headers": None} for n, k in enumerate(keys)])

    assert digest(rows("a", "b")) != digest(rows("b", "a"))


def test_null_structs_lists_and_maps_hide_what_is_under_them() -> None:
    """Arrow allows any content below a null."""
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.field("element", pa.int64())))])
    lists = pa.array([[1], [2, 3], []], kind.field("b").type)
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3]), lists], ["a", "b"], mask=pa.array([False, True, True])
    )
    plain = pa.array([{"a": 1, "b": [1]}, None, None], kind)
    schema = physical_schema(value=kind)

    def of(values: pa.Array) -> tuple[int, bytes]:
        return digest(pa.record_batch({"value": values}), schema=schema)

    assert of(hidden) == of(plain)
    assert of(hidden.slice(1)) == of(plain.slice(1))
    under = pa.ListArray.from_arrays([0, 2, 3], [1, 2, 3], kind.field("b").type, mask=pa.array([True, False]))
    schema = physical_schema(value=kind.field("b").type)
    assert of(under) == of(pa.array([None, [3]], under.type))


def test_zeros_are_equal_and_so_are_nans() -> None:
    schema = physical_schema(value=pa.float64())

    def of(*values: float) -> tuple[int, bytes]:
        return digest(pa.record_batch({"value": pa.array(values, pa.float64())}), schema=schema)

    assert of(0.0) == of(-0.0)
    negative = math.copysign(math.nan, -1)
    assert of(math.nan) == of(negative) != of(math.inf)


def test_a_type_that_has_grown_leaves_old_records_as_they_are() -> None:
    """A producer without the new field retries after the topic has got it."""
    narrow, wide = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])
    values = [{"a": 1}, None, {"a": None}]
    before = digest(pa.record_batch({"value": pa.array(values, narrow)}), schema=physical_schema(value=narrow))
    old = digest(pa.record_batch({"value": pa.array(values, narrow)}), schema=physical_schema(value=wide))
    new = digest(pa.record_batch({"value": pa.array(values, wide)}), schema=physical_schema(value=wide))
    assert before == old == new


@pytest.mark.parametrize("places", [2, 3, 11, 20, 38])
def test_a_decimal_of_a_larger_scale_is_the_same_number(places: int) -> None:
    """The topic's type may grow to the producer's (``stratalog.partitions.growth``)."""
    rng = random.Random(places)
    digits = 38 - (places - 2)
    numbers = [0, 1, -1, *(sign * (10**n - 1) for n in range(1, digits + 1) for sign in (1, -1))]
    numbers += [rng.randrange(-(10**digits), 10**digits) for _ in range(50)]
    found = set()
    for number in numbers:
        value = decimal.Decimal(number).scaleb(-2, decimal.Context(prec=38))
        one, two = (
            digest(pa.record_batch({"value": pa.array([value, None], kind)}), schema=physical_schema(value=kind))
            for kind in (pa.decimal128(38 - (places - 2), 2), pa.decimal128(38, places))
        )
        assert one == two
        found.add(one)
    assert len(found) == len(set(numbers))


def test_instants_are_equal_in_all_time_zones_and_text_in_all_encodings() -> None:
    stamps = pa.array([1, None], pa.int64())
    here = pa.record_batch({"timestamp": stamps.cast(pa.timestamp("us", "UTC"))})
    there = pa.record_batch({"timestamp": stamps.cast(pa.timestamp("us", "Asia/Tokyo"))})
    assert digest(here, schema=PLAIN) == digest(there, schema=PLAIN)
    text = pa.record_batch({"value": pa.array([b"ab", b"ab", None]).dictionary_encode()})
    assert digest(text, schema=PLAIN) == digest(
        pa.record_batch({"value": pa.array([b"ab", b"ab", None])}), schema=PLAIN
    )


def test_timestamps_that_the_append_gives_do_not_count() -> None:
    one, other = ([{"timestamp": t, "key": None, "value": b"a", "headers": None}] for t in (1, 2))
    assert digest(batch(one, PLAIN), schema=PLAIN) != digest(batch(other, PLAIN), schema=PLAIN)
    assert digest(batch(one, PLAIN), schema=PLAIN, timestamps=False) == digest(
        batch(other, PLAIN), schema=PLAIN, timestamps=False
    )


def test_large_values_and_many_rows_are_digested_piece_by_piece() -> None:
    rng = random.Random(1)
    values = [rng.randbytes(size) for size in (3_000_000, 0, 17, 1_000_001)] + [rng.randbytes(99)] * 5_000
    assert of_values(values) == of_values(values[::-1])
    values[0] = values[0][:-1] + bytes([values[0][-1] ^ 1])
    assert of_values(values) != of_values(values[::-1][:-1])


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process_and_version() -> None:
    """The digest is in footers, so these bytes must not change."""
    rows = [
        {
            "timestamp": 1_356_998_400_000_000,
            "key": "N14228",
            "value": {
                "n": -1,
                "f": 0.5,
                "ok": True,
                "text": "eins zwei drei",
                "price": decimal.Decimal("-12.50"),
                "inner": {"a": "x", "b": None},
                "tags": ["a", None],
                "lists": [[1], None, []],
                "map": [("k", 1)],
            },
            "headers": [{"key": "h", "value": b"v"}],
        },
        {"timestamp": None, "key": None, "value": None, "headers": None},
    ]
    assert digest(batch(rows)) == (2, bytes.fromhex("882ec6f8ccf8b693"))
    code = "from tests.unit.test_digest import of_values; print(of_values([b'abc', None, b'0123456789']).hex())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == of_values([b"abc", None, b"0123456789"]).hex()


def test_a_column_that_may_be_null_fits_a_field_that_may_not() -> None:
    """Arrow 19, the oldest supported version, cannot cast one to the other."""
    strict = schema_of(None, type_to_json(pa.struct([pa.field("n", pa.int64(), nullable=False)])))
    loose = schema_of(None, type_to_json(pa.struct([pa.field("n", pa.int64())])))
    rows = pa.record_batch({"value": pa.array([{"n": 1}], loose.field("value").type)})
    assert digest(rows, schema=strict) == digest(rows, schema=loose)


def test_headers_count() -> None:
    def of(headers: Any) -> tuple[int, bytes]:
        return digest(pa.record_batch({"headers": pa.array([headers], HEADERS)}), schema=PLAIN)

    assert of([{"key": "a", "value": b"1"}]) != of([{"key": "a", "value": b"2"}])
    assert of([{"key": "a", "value": None}]) != of([{"key": None, "value": b"a"}])
    assert of(None) != of([])

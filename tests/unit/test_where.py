"""Conditions: the records that they select, and refused conditions. ``tests/spark/test_erase.py`` gives the table
to Spark.
"""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog.partitions.columns import bools_of
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import physical_schema
from stratalog.partitions.rewrites.predicate import ColumnTest, Comparison, selected
from stratalog.partitions.rewrites.wanted_keys import wanted_keys
from stratalog.partitions.rewrites.where import parse_where
from stratalog.partitions.segments.reader import Segment

VALUE_DDL = (
    "n INT, big BIGINT, small TINYINT, x DOUBLE, f FLOAT, price DECIMAL(10,2), name STRING, ok BOOLEAN, day DATE, "
    "at TIMESTAMP, wall TIMESTAMP_NTZ, raw BINARY, `a b` STRUCT<c: STRING>, list ARRAY<INT>"
)
VALUE = pa.struct(
    {
        "n": pa.int32(),
        "big": pa.int64(),
        "small": pa.int8(),
        "x": pa.float64(),
        "f": pa.float32(),
        "price": pa.decimal128(10, 2),
        "name": pa.string(),
        "ok": pa.bool_(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "wall": pa.timestamp("us"),
        "raw": pa.binary(),
        "a b": pa.struct({"c": pa.string()}),
        "list": pa.list_(pa.int32()),
    }
)
SCHEMA = physical_schema(None, VALUE)
NAN = float("nan")


def row(n: int | None, **fields: Any) -> dict[str, Any]:
    return {**dict.fromkeys(field.name for field in VALUE), "n": n, **fields}


NOON = datetime(2013, 1, 2, 12, tzinfo=UTC)
ROWS: list[tuple[bytes | None, dict[str, Any] | None]] = [
    (b"k0", row(1, big=10, small=-1, x=1.5, f=0.1, price=Decimal("9.99"), name="Ada", ok=True)),
    (b"k1", row(2, big=-5, small=2, x=NAN, f=NAN, price=Decimal("10.00"), name="ada\nlovelace", ok=False)),
    (b"k2", row(None, x=-0.0, f=-0.0, name="", day=date(2013, 1, 2), at=NOON, wall=NOON.replace(tzinfo=None))),
    (
        b"a3",
        row(4, x=0.0, name="it's 100%_\u00e9", day=date(2014, 1, 1), raw=b"\x00\xff", **{"a b": {"c": "deep"}}),
    ),
    (None, row(5, name="A%", list=[1], **{"a b": {"c": None}})),
    (b"k5", None),
]
CASES: dict[str, list[int]] = {
    "value.n = 1": [0],
    "VALUE.N == 1": [0],
    "value.n <> 1": [1, 3, 4],
    "value.n != 1": [1, 3, 4],
    "value.n < 2 OR value.n > 4": [0, 4],
    "value.n >= 2 AND value.n <= 4": [1, 3],
    "value.n BETWEEN 2 AND 4": [1, 3],
    "value.n NOT BETWEEN 2 AND 4": [0, 4],
    "NOT value.n BETWEEN 2 AND 4": [0, 4],
    "value.n IN (1, 4, 7)": [0, 3],
    "value.n NOT IN (1, 4, 7)": [1, 4],
    "value.n IS NULL": [2, 5],
    "value.n IS NOT NULL": [0, 1, 3, 4],
    "value IS NULL": [5],
    "NOT (value.n = 1 OR value.name = 'A%')": [1, 3],
    "NOT NOT value.n = 1": [0],
    "value.n = 1 OR value.n = 2 AND value.ok": [0],
    "(value.n = 1 OR value.n = 2) AND value.ok = FALSE": [1],
    "value.ok": [0],
    "NOT value.ok": [1],
    "value.big > -6 AND value.small < 0": [0],
    "value.x > 1.0": [0, 1],
    "value.x >= 1.5e0": [0, 1],
    "value.x <= 1.5": [0, 2, 3],
    "value.x < 1.5": [2, 3],
    "value.x = 0.0": [2, 3],
    "value.x IN (0.0, 7.5)": [2, 3],
    "value.x NOT IN (0.0, 7.5)": [0, 1],
    "value.x <> 0": [0, 1],
    "NOT value.x > 1.0": [2, 3],
    "value.f = 0.1": [],
    "value.f > 0.1": [0, 1],
    "value.f BETWEEN 0.09 AND 0.11": [0],
    "value.price = 9.99": [0],
    "value.price >= 10": [1],
    "value.price < 10.0": [0],
    "value.name = 'Ada'": [0],
    'value.name = "it\'s 100%_\u00e9"': [3],
    "value.name < 'B'": [0, 2, 4],
    "value.name LIKE 'A%'": [0, 4],
    "value.name LIKE 'ada%lace'": [1],
    "value.name LIKE 'A_a'": [0],
    "value.name LIKE '%_'": [0, 1, 3, 4],
    "value.name NOT LIKE '%a%'": [2, 3, 4],
    "value.name = ''": [2],
    "value.day = DATE '2013-01-02'": [2],
    "value.day > '2013-01-02'": [3],
    "value.at = TIMESTAMP '2013-01-02T12:00:00Z'": [2],
    "value.at < '2013-01-02T13:30:00+01:00'": [2],
    "value.at >= TIMESTAMP '2013-01-02T13:30:00+01:00'": [],
    "value.wall = TIMESTAMP_NTZ '2013-01-02T12:00:00'": [2],
    "value.raw = X'00FF'": [3],
    "value.raw < X'01'": [3],
    "value.`a b`.c = 'deep'": [3],
    "value.`a b`.c IS NULL": [0, 1, 2, 4, 5],
    "value.`a b` IS NOT NULL": [3, 4],
    "value.list IS NOT NULL": [4],
    "key = 'k1'": [1],
    "key IN ('k1', X'6B35')": [1, 5],
    "key LIKE 'k%'": [0, 1, 2, 5],
    "key < 'k1'": [0, 3],
    "key IS NULL": [4],
    "offset >= 4": [4, 5],
    "partition = 0 AND offset < 1": [0],
    "timestamp IS NOT NULL AND timestamp < TIMESTAMP '2000-01-01T00:00:00Z'": [0, 1, 2, 3, 4, 5],
    "timestamp > TIMESTAMP '2000-01-01T00:00:00Z'": [],
}


def batch() -> pa.RecordBatch:
    rows = len(ROWS)
    columns = {
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([1_000] * rows, pa.int64()).cast(SCHEMA.field("timestamp").type),
        "key": pa.array([key for key, _ in ROWS], pa.binary()),
        "value": pa.array([value for _, value in ROWS], VALUE),
    }
    for field in SCHEMA:
        columns.setdefault(field.name, pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


@pytest.mark.parametrize("text", CASES)
def test_a_condition_selects_the_records_for_which_it_is_true(text: str) -> None:
    found = selected(parse_where(text, SCHEMA, "t"), batch())
    assert [at for at, held in enumerate(bools_of(found.fill_null(False))) if held] == CASES[text]


SECRET = "secret"


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 1, "a column is missing here"),
        ("   ", 1, "a column is missing here"),
        ("value.name = 'secret", 14, "cannot be part of a condition"),
        ("value.name = 'sec\\'ret'", 14, "cannot be part of a condition"),
        ("value.name = 'sec''secret'", 14, "cannot be part of a condition"),
        ("value.name = secret", 14, "not a literal of the column's type string"),
        ("value.secret = 1", 7, "no such column; the columns are value.n, value.big"),
        ("secret = 1", 1, "no such column; the columns are key, value, timestamp"),
        ("headers IS NULL", 1, "no such column"),
        ("topic = 'secret'", 1, "no such column"),
        ("key.secret = 1", 5, "no such column; key has no fields"),
        ("value.n = 'secret'", 11, "column's type int32: give one such as 7"),
        ("value.n = 1.5", 11, "column's type int32"),
        ("value.n = 1e3", 11, "column's type int32"),
        ("value.n = 3000000000", 11, "column's type int32"),
        ("value.n = 1 secret", 13, "AND, OR or the end is missing"),
        ("value.n = NULL", 11, "write IS NULL"),
        ("value.n IN (1, NULL)", 16, "write IS NULL"),
        ("value.n IN ()", 13, "not a literal"),
        ("value.n IN (1", 14, "a closing parenthesis, or a comma, is missing"),
        ("value.n BETWEEN 1 OR 2", 19, "AND is missing"),
        ("value.n NOT = 1", 13, "IN, BETWEEN or LIKE is missing"),
        ("value.n", 8, "a comparison is missing here: the column has type int32"),
        ("value.n LIKE '1%'", 9, "LIKE needs a column of text"),
        ("value.name LIKE 7", 17, "a pattern in quotes is missing"),
        ("key LIKE 'k_'", 5, "only patterns of ASCII text"),
        ("value.price = 1.005", 15, "such as 0.01"),
        ("value.price = 1e1", 15, "such as 0.01"),
        ("value.x = 1e999", 11, "column's type double"),
        ("value.f = 16777217", 11, "column's type float"),
        ("value.day = '2013-13-01'", 13, "such as DATE '2013-01-02'"),
        ("value.day = TIMESTAMP '2013-01-02T00:00:00Z'", 23, "such as DATE"),
        ("value.at = '2013-01-02'", 12, "such as TIMESTAMP '2013-01-02T03:04:05Z'"),
        ("value.wall = '2013-01-02T00:00:00Z'", 14, "such as TIMESTAMP_NTZ"),
        ("value.day = '20130102'", 13, "such as DATE '2013-01-02'"),
        ("value.day = DATE '2013-W01-3'", 18, "such as DATE '2013-01-02'"),
        ("value.at = TIMESTAMP '20130102T030405Z'", 22, "such as TIMESTAMP"),
        ("value.at = TIMESTAMP '2013-01-02T03:04:05.1234567Z'", 22, "such as TIMESTAMP"),
        ("value.at = TIMESTAMP '2013-01-02T03:04:05,123Z'", 22, "such as TIMESTAMP"),
        ("value.wall = TIMESTAMP_NTZ '2013-01-02T03'", 28, "such as TIMESTAMP_NTZ"),
        ("value.name = DATE 'secret'", 19, "not a literal of the column's type string"),
        ("value.list = 1", 1, "has only IS NULL"),
        ("value = 'secret'", 1, "has only IS NULL"),
        ("lower(key) = 'secret'", 1, "no such column"),
        ("value.name = lower('secret')", 14, "not a literal"),
        ("(value.n = 1", 13, "a closing parenthesis is missing"),
        ("value.n = 1)", 12, "AND, OR or the end is missing"),
        ("NOT", 4, "a column is missing"),
        ("1 = value.n", 1, "a column is missing"),
        ("value.n = value.big", 11, "not a literal"),
        ("value.n = 1; DROP", 12, "cannot be part of a condition"),
        ("(" * 60 + "value.ok" + ")" * 60, 51, "nest at most 50"),
    ],
)
def test_any_other_text_is_refused_by_its_place_and_never_repeated(text: str, at: int, why: str) -> None:
    with pytest.raises(InvalidCallError) as error:
        parse_where(text, SCHEMA, "topic 't'")
    assert str(error.value).startswith(f"topic 't': the condition, character {at}: ")
    assert why in str(error.value)
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidCallError, match="more than 100,000 characters"):
        parse_where("value.n = 1 OR " * 10_000, SCHEMA, "t")


def test_each_comparison_has_its_opposite() -> None:
    assert all(one.negated.negated is one and one.negated is not one for one in Comparison)
    assert parse_where("NOT key = 'a'", SCHEMA, "t") == ColumnTest(("key",), Comparison.NOT_EQUAL, (b"a",))


def _statistics(records: pa.Table) -> pq.RowGroupMetaData:
    written = io.BytesIO()
    pq.write_table(records, written)
    return pq.read_metadata(io.BytesIO(written.getvalue())).row_group(0)


@pytest.mark.parametrize(
    ("kind", "key", "stored"),
    [
        (pa.timestamp("us", tz="UTC"), datetime(2013, 1, 2, tzinfo=UTC), 400_000_000_000_000_000),
        (pa.date32(), date(2013, 1, 2), 2**31 - 1),
    ],
)
def test_a_key_beyond_the_years_of_python_hides_no_other(kind: pa.DataType, key: object, stored: int) -> None:
    group = _statistics(
        pa.table({"key": pa.array([stored]).cast(pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)})
    )
    segment = SimpleNamespace(parquet=SimpleNamespace(row_group=lambda _: group))
    assert wanted_keys([key], kind, "erase").may_hold(cast(Segment, segment), 0)

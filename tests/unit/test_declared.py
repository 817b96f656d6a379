"""Declared types: DDL and Spark's JSON text, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given

from stratalog.partitions.declared import LONGEST, ddl, declared
from stratalog.partitions.errors import InvalidCallError
from stratalog.partitions.records import MOST_NESTED, TIMESTAMP, type_from_json, type_to_json
from tests.unit.test_records import types

KNOWN = {
    "STRING": pa.string(),
    " bigint ": pa.int64(),
    "Decimal": pa.decimal128(10, 0),
    "numeric(7)": pa.decimal128(7, 0),
    "dec(38, 18)": pa.decimal128(38, 18),
    "timestamp_ntz": pa.timestamp("us"),
    "TIMESTAMP_LTZ": TIMESTAMP,
    "year INT, carrier STRING": pa.struct([("year", pa.int32()), ("carrier", pa.string())]),
    "date DATE, timestamp TIMESTAMP": pa.struct([("date", pa.date32()), ("timestamp", TIMESTAMP)]),
    "struct<a: byte, b smallint>": pa.struct([("a", pa.int8()), ("b", pa.int16())]),
    "a: real, b DOUBLE": pa.struct([("a", pa.float32()), ("b", pa.float64())]),
    "`a b``c` BOOLEAN NOT NULL COMMENT 'it is, or not'": pa.struct(
        [pa.field("a b`c", pa.bool_(), nullable=False)]
    ),
    "legs ARRAY<STRUCT<gate: STRING>>, seen MAP<STRING, ARRAY<BINARY>>": pa.struct(
        [
            ("legs", pa.list_(pa.field("element", pa.struct([("gate", pa.string())])))),
            ("seen", pa.map_(pa.string(), pa.list_(pa.field("element", pa.binary())))),
        ]
    ),
}


@pytest.mark.parametrize("text", KNOWN)
def test_ddl_declares_the_type_that_it_names(text: str) -> None:
    made = type_from_json(declared(text))
    assert made == KNOWN[text]
    assert [made.field(i).nullable for i in range(made.num_fields)] == [
        KNOWN[text].field(i).nullable for i in range(made.num_fields)
    ]


def test_a_comment_stays() -> None:
    assert '"metadata":{"comment":"it is, or not"}' in declared("a INT COMMENT 'it is, or not'")


@given(types)
def test_ddl_for_people_declares_the_same_type_again(data_type: pa.DataType) -> None:
    text = declared(type_to_json(data_type))
    assert declared(ddl(text)) == text
    assert declared(text) == text
    assert ddl(None) == "BINARY"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'the end' is unknown"),
        ("n NUMBER", "'NUMBER' is unknown; did you mean 'numeric'"),
        ("a INT,", "'the end' is not the name of a field"),
        ("a INT b INT", "the type should end before 'b'"),
        ("a INT NOT", "NOT must be followed by NULL"),
        ("a INT DEFAULT 5", "the type should end before 'DEFAULT'"),
        ("a STRING COLLATE UNICODE", "the type should end before 'COLLATE'"),
        ("a INTERVAL", "'INTERVAL' is unknown"),
        ("c VARCHAR(5)", "'VARCHAR' is unknown"),
        ("ARRAY<INT", "ARRAY lacks '>' before 'the end'"),
        ("MAP<INT>", "MAP lacks ',' before '>'"),
        ("DECIMAL(39)", "needs a precision of 1 to 38"),
        ("DECIMAL(2, 5)", "needs a precision of 1 to 38"),
        ("DECIMAL(x)", "'x' is not a number"),
        ("a INT -- really", "'-- really' is not part of a type"),
        ("a INT COMMENT 'a\\'b'", "is not part of a type"),
        ("a INT COMMENT b", "a comment must be in single quotes"),
        ("b-c INT", "'-c INT' is not part of a type"),
        ("a INT, A INT", "twice"),
        ("STRUCT<>", "'>' is not the name of a field"),
        ('{"type":"udt"}', "cannot hold the type"),
        ('"varchar(5)"', "cannot hold the type"),
    ],
)
def test_ddl_that_declares_no_type_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidCallError) as error:
        declared(text)
    assert why in str(error.value)


def test_ddl_nests_so_deep_and_no_deeper_and_is_so_long_and_no_longer() -> None:
    assert declared("array<" * (MOST_NESTED - 1) + "int" + ">" * (MOST_NESTED - 1))
    for text in ("array<" * 65 + "int" + ">" * 65, "array<" * 100_000, "a int, " * LONGEST):
        with pytest.raises(InvalidCallError, match=r"nest types at most 64|at most 1,000,000 characters") as error:
            declared(text)
        assert len(str(error.value)) < 2000

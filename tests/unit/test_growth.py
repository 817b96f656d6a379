"""A declared schema grows only by nullable fields at the end of structs."""

from __future__ import annotations

import itertools
import json
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from stratalog.partitions.errors import CorruptionError, InvalidCallError, StaleMetadataError
from stratalog.partitions.growth import ADDED, fitted, grew, grown_schema, widest
from stratalog.partitions.records import type_from_json, type_to_json

NARROW = pa.struct([("x", pa.int32()), ("d", pa.struct([("a", pa.string())]))])
WIDE = pa.struct([("x", pa.int32()), ("d", pa.struct([("a", pa.string())])), ("y", pa.string())])
DEEP = pa.struct(
    [("x", pa.int32()), ("d", pa.struct([("a", pa.string()), ("b", pa.date32())])), ("y", pa.string())]
)
GROWTH = (NARROW, WIDE, DEEP)


def in_table(value: pa.DataType) -> pa.Schema:
    return pa.schema([("offset", pa.int64()), ("value", value)])


def grow(present: pa.DataType, wanted: pa.DataType) -> tuple[str, list[str]]:
    return grown_schema(type_to_json(present), type_to_json(wanted), "value")


# ------------------------------------------------------------------------------ what may grow


@pytest.mark.parametrize(
    ("present", "wanted", "added"),
    [
        (NARROW, WIDE, ["value.y"]),
        (WIDE, DEEP, ["value.d.b"]),
        (NARROW, DEEP, ["value.d.b", "value.y"]),
        (NARROW, pa.struct([*NARROW, ("s", NARROW)]), ["value.s"]),
    ],
)
def test_nullable_fields_at_the_end_of_structs_are_added(
    present: pa.DataType, wanted: pa.DataType, added: list[str]
) -> None:
    schema, fields = grow(present, wanted)
    assert (type_from_json(schema), fields) == (wanted, added)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        *itertools.combinations((pa.int8(), pa.int16(), pa.int32(), pa.int64()), 2),
        (pa.float32(), pa.float64()),
        (pa.date32(), pa.timestamp("us")),
        *itertools.combinations((pa.decimal128(5, 2), pa.decimal128(6, 3), pa.decimal128(38, 20)), 2),
    ],
    ids=str,
)
def test_a_value_takes_wider_types_and_no_narrower_ones(narrow: pa.DataType, wide: pa.DataType) -> None:
    for one, two in ((narrow, wide), (pa.struct([("x", narrow)]), pa.struct([("x", wide)]))):
        schema, fields = grow(one, two)
        assert (type_from_json(schema), fields) == (two, ["value.x" if pa.types.is_struct(one) else "value"])
        assert grew(one, two)
        assert not grew(two, one)
        with pytest.raises(InvalidCallError, match="cannot become"):
            grow(two, one)
        with pytest.raises(InvalidCallError, match="a key can only get nullable fields"):
            grown_schema(type_to_json(one), type_to_json(two), "key")


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (pa.int32(), pa.float64()),
        (pa.int64(), pa.decimal128(20, 0)),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.decimal128(5, 2), pa.decimal128(7, 2)),
        (pa.decimal128(5, 2), pa.decimal128(6, 4)),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.decimal128(5, 2), pa.decimal128(5, 1)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_other_types_are_no_wider_ones(present: pa.DataType, wanted: pa.DataType) -> None:
    assert not grew(present, wanted)
    with pytest.raises(InvalidCallError, match="cannot become"):
        grow(present, wanted)


@pytest.mark.parametrize("value", [*GROWTH, pa.string(), pa.list_(pa.field("element", NARROW))], ids=str)
def test_the_same_type_is_no_growth_and_leaves_the_text_as_it_is(value: pa.DataType) -> None:
    text = json.dumps(json.loads(type_to_json(value)), indent=1)
    assert grown_schema(text, type_to_json(value), "value") == (text, [])


def test_fields_say_that_they_came_later_and_what_else_was_declared_stays() -> None:
    def field(name: str, **metadata: Any) -> dict[str, Any]:
        return {"name": name, "type": "long", "nullable": True, "metadata": metadata}

    def struct(*fields: dict[str, Any]) -> str:
        return json.dumps({"type": "struct", "fields": fields})

    once, _ = grown_schema(
        struct(field("x", comment="old")), struct(field("x"), field("y", comment="new")), "value"
    )
    twice, added = grown_schema(once, struct(field("x"), field("y"), field("z")), "value")
    assert json.loads(twice)["fields"] == [
        field("x", comment="old"),
        field("y", comment="new", **{ADDED: True}),
        field("z", **{ADDED: True}),
    ]
    assert added == ["value.z"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (pa.struct([("x", pa.int32())]), "value.d would be removed"),
        (pa.struct([("x", pa.float64()), *list(WIDE)[1:]]), "value.x is int32, and cannot become double"),
        (pa.struct([("d", pa.int32())]), "value.d would replace value.x;"),
        (pa.struct(list(reversed(list(NARROW)))), "value.d would replace value.x;"),
        (pa.struct([("y", pa.string()), *NARROW]), "value.y would replace value.x;"),
        (pa.struct([*NARROW, pa.field("y", pa.string(), False)]), "value.y must be nullable"),
        (
            pa.struct([pa.field("x", pa.int32(), False), *list(NARROW)[1:]]),
            "value.x would change whether it is nullable",
        ),
        (pa.struct([("x", pa.int32()), ("d", pa.struct([("b", pa.string())]))]), "value.d.b would replace"),
        (pa.struct([*NARROW, ("X", pa.string())]), "has the field 'x' twice"),
        (pa.string(), "and cannot become string"),
    ],
)
def test_any_other_change_is_refused(wanted: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidCallError, match=message):
        grow(NARROW, wanted)


@pytest.mark.parametrize("of", [lambda t: pa.list_(pa.field("element", t)), lambda t: pa.map_(pa.string(), t)])
def test_structs_inside_arrays_and_maps_do_not_grow(of: Any) -> None:
    """The schema of a remote table does not grow there, either (``stratalog.tiering.delta_schema``)."""
    with pytest.raises(InvalidCallError, match="cannot become"):
        grow(of(NARROW), of(WIDE))
    assert not grew(of(NARROW), of(WIDE))


# --------------------------------------------------------------------- records of both schemas


def test_the_widest_schema_does_not_depend_on_the_order_of_files() -> None:
    for some in permutations(map(in_table, GROWTH)):
        assert widest(some, "t-0") == in_table(DEEP)


def test_schemas_that_did_not_grow_from_one_another_are_no_topics() -> None:
    other = pa.struct([*NARROW, ("other", pa.string())])
    with pytest.raises(CorruptionError, match="t-0 has records of two schemas"):
        widest(map(in_table, (WIDE, other)), "t-0")


ROWS = [{"x": 1, "d": {"a": "u"}}, None, {"x": None, "d": None}, {"x": 4, "d": {"a": None}}]


@pytest.mark.parametrize("cut", range(4))
def test_older_records_have_nulls_in_what_they_lack_and_nulls_stay_nulls(cut: int) -> None:
    """A null struct differs from a struct of nulls, at every depth."""
    batch = pa.RecordBatch.from_arrays([pa.array(range(4)), pa.array(ROWS, NARROW)], schema=in_table(NARROW))
    found = fitted(batch.slice(cut), in_table(DEEP), "t-0")
    found.validate(full=True)
    assert found.schema == in_table(DEEP)
    assert (
        found.column("value").to_pylist()
        == [
            {"x": 1, "d": {"a": "u", "b": None}, "y": None},
            None,
            {"x": None, "d": None, "y": None},
            {"x": 4, "d": {"a": None, "b": None}, "y": None},
        ][cut:]
    )


def test_no_field_of_a_newer_record_is_dropped() -> None:
    newer = pa.table({"offset": [0], "value": pa.array([None], WIDE)})
    with pytest.raises(StaleMetadataError, match="t-0 has the schema"):
        fitted(newer, in_table(NARROW), "t-0")

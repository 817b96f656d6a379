"""The columns of a segment and the schemas that a topic may declare (design section 4)."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.partitions.errors import InvalidCallError, InvalidRecordError
from stratalog.partitions.records import (
    HEADERS,
    RECORD_COLUMNS,
    TIMESTAMP,
    cast,
    check_columns,
    leaf_types,
    physical_schema,
    same_type,
    schema_of,
    type_from_json,
    type_to_json,
    typed_nulls,
)

SPARK_PRIMITIVES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

field_names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
decimals = st.integers(1, 38).flatmap(lambda p: st.builds(pa.decimal128, st.just(p), st.integers(0, p)))


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(
        st.tuples(field_names, inner, st.booleans()), min_size=1, max_size=4, unique_by=lambda f: f[0].lower()
    )
    return st.one_of(
        fields.map(lambda fs: pa.struct([pa.field(name, t, nullable) for name, t, nullable in fs])),
        inner.map(lambda t: pa.list_(pa.field("element", t))),
        st.builds(pa.map_, inner, inner),
    )


types = st.recursive(st.one_of(st.sampled_from(list(SPARK_PRIMITIVES.values())), decimals), nested, max_leaves=8)


@given(types)
def test_a_type_is_read_back_from_its_json_text(data_type: pa.DataType) -> None:
    text = type_to_json(data_type)
    again = type_from_json(text)
    assert again == data_type
    assert type_to_json(again) == text
    assert same_type(again, data_type)


@pytest.mark.parametrize(("name", "arrow"), SPARK_PRIMITIVES.items())
def test_primitive_types_have_sparks_names(name: str, arrow: pa.DataType) -> None:
    assert type_from_json(json.dumps(name)) == arrow
    assert json.loads(type_to_json(arrow)) == name


def test_sparks_own_text_of_a_struct_is_understood() -> None:
    """The text that ``StructType.json()`` gives and a Delta table holds."""
    text = """{"type":"struct","fields":[
        {"name":"id","type":"long","nullable":false,"metadata":{"comment":"key"}},
        {"name":"tags","type":{"type":"array","elementType":"string","containsNull":true},"nullable":true,"metadata":{}},
        {"name":"prices","type":{"type":"map","keyType":"string","valueType":"decimal(10,2)","valueContainsNull":true},
         "nullable":true,"metadata":{}}]}"""
    assert type_from_json(text) == pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.list_(pa.field("element", pa.string()))),
            pa.field("prices", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ]
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "5", "null", "[]", '"interval"', '"decimal(39,0)"', '"decimal(x)"', '"decimal(5)"', '"void"',
     '{"type":"struct","fields":[]}', '{"type":"struct"}', '{"type":"struct","fields":[{"type":"long"}]}',
     '{"type":"struct","fields":[{"name":5,"type":"long"}]}', '{"type":"array"}', '{"type":"udt"}',
     '{"type":"struct","fields":5}'],
)  # fmt: skip
def test_text_that_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(InvalidCallError, match=r"type|schema"):
        type_from_json(text)


def test_two_fields_of_one_name_are_refused() -> None:
    """Spark compares names case-insensitively, and would find the reference ambiguous."""
    text = type_to_json(pa.struct([("Id", pa.int64()), ("id", pa.int64())]))
    with pytest.raises(InvalidCallError, match="'id'"):
        type_from_json(text)


@pytest.mark.parametrize("name", ["", "a\0", "\0"])
def test_a_name_that_a_file_would_not_keep_is_refused(name: str) -> None:
    for data_type in (
        pa.struct([(name, pa.int64())]),
        pa.list_(pa.struct([("a", pa.struct([(name, pa.int8())]))])),
    ):
        with pytest.raises(InvalidCallError, match="a declared schema has a field"):
            type_from_json(type_to_json(data_type))


def test_two_fields_of_one_column_of_parquet_are_refused() -> None:
    """Their statistics would be ambiguous: floating-point columns have none, and so the other field would have
    none, too.
    """
    value = pa.struct([("a.b", pa.float64()), ("a", pa.struct([("b", pa.string())]))])
    with pytest.raises(InvalidCallError, match=r"the same Parquet column 'value.a.b'"):
        leaf_types(schema_of(None, type_to_json(value)))


@pytest.mark.parametrize(
    "data_type",
    [pa.large_string(), pa.uint32(), pa.timestamp("ns"), pa.duration("s"), pa.dictionary(pa.int8(), pa.string()),
     pa.list_(pa.time64("us")), pa.null()],
)  # fmt: skip
def test_arrow_types_that_spark_does_not_know_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(InvalidCallError, match="Arrow type"):
        type_to_json(data_type)


def test_keys_and_values_are_binary_unless_the_topic_declares_them() -> None:
    assert physical_schema().names == [
        "partition", "offset", "timestamp", "key", "value", "headers", "producer_id", "control"
    ]  # fmt: skip
    assert physical_schema().field("value").type == pa.binary()
    typed = physical_schema(key=pa.string(), value=pa.struct([("a", pa.int64())]))
    assert typed.field("key").type == pa.string()
    assert typed.field("value").type == pa.struct([("a", pa.int64())])
    assert schema_of('"string"', type_to_json(pa.struct([("a", pa.int64())]))) == typed
    assert schema_of(None, None) == physical_schema()


# ------------------------------------------------------------------------------ check_columns

WANTED = physical_schema(value=pa.struct([("a", pa.int64())]))


def given_schema(**changes: pa.DataType | None) -> pa.Schema:
    """The record columns as required, except the changes; None leaves a column out."""
    columns = {name: changes.get(name, WANTED.field(name).type) for name in RECORD_COLUMNS}
    return pa.schema([(name, data_type) for name, data_type in columns.items() if data_type is not None])


def test_columns_that_fit_pass_in_any_order_and_with_others() -> None:
    check_columns(given_schema(), WANTED, "events")
    check_columns(pa.schema([("other", pa.int8()), *reversed(list(given_schema()))]), WANTED, "events")


@pytest.mark.parametrize("name", RECORD_COLUMNS)
def test_a_missing_column_is_named(name: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"events: column '{name}' is missing"):
        check_columns(given_schema(**{name: None}), WANTED, "events")


@pytest.mark.parametrize("name", RECORD_COLUMNS)
def test_a_column_of_another_type_is_named_with_both_types(name: str) -> None:
    with pytest.raises(InvalidRecordError, match=f"events: column '{name}' is bool, but is declared as"):
        check_columns(given_schema(**{name: pa.bool_()}), WANTED, "events")


@pytest.mark.parametrize(
    "value",
    [
        pa.struct([("a", pa.int32())]),
        pa.struct([("b", pa.int64())]),
        pa.struct([("a", pa.int64()), ("b", pa.int64())]),
    ],
)
def test_a_struct_must_agree_field_by_field(value: pa.DataType) -> None:
    with pytest.raises(InvalidRecordError, match="'value'"):
        check_columns(given_schema(value=value), WANTED, "events")


def test_nulls_and_empty_lists_without_a_type_get_the_topics() -> None:
    """The result of ``pa.record_batch`` for empty Python lists."""
    given = pa.record_batch(
        {"timestamp": [None], "key": [None], "value": [None], "headers": [[]], "other": [None]}
    )
    typed = typed_nulls(given, WANTED)
    check_columns(typed.schema, WANTED, "events")
    assert typed.schema.field("other").type == pa.null()
    assert typed.to_pylist() == given.to_pylist()


def test_a_list_of_nothing_is_no_value_of_another_type() -> None:
    given = typed_nulls(pa.record_batch({"value": [[]]}), physical_schema(value=pa.int64()))
    assert given.schema.field("value").type == pa.list_(pa.null())


def test_nullability_and_the_names_of_list_elements_do_not_matter() -> None:
    """Arrow producers differ in both; Parquet stores the topic's."""
    headers = pa.list_(pa.field("item", pa.struct([("key", pa.string()), ("value", pa.binary())]), False))
    assert same_type(headers, HEADERS)
    value = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    check_columns(given_schema(headers=headers, value=value), WANTED, "events")


def test_map_types_agree_in_key_and_value() -> None:
    assert same_type(pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64()))
    assert not same_type(pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int32()))


def test_the_leaves_have_parquets_paths() -> None:
    value = pa.struct(
        [
            ("a", pa.int64()),
            ("tags", pa.list_(pa.field("element", pa.string()))),
            ("m", pa.map_(pa.string(), TIMESTAMP)),
        ]
    )
    assert list(leaf_types(pa.schema([("key", pa.binary()), ("value", value), ("headers", HEADERS)]))) == [
        "key",
        "value.a",
        "value.tags.list.element",
        "value.m.key_value.key",
        "value.m.key_value.value",
        "headers.list.element.key",
        "headers.list.element.value",
    ]


REQUIRED = pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.list_(pa.string()))])


def test_a_nullable_field_is_cast_to_a_required_one_if_it_has_no_null() -> None:
    """Arrow 19 cannot do it by a cast."""
    nullable = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    rows = [{"a": 1, "b": ["x"]}, None, {"a": 2, "b": None}]
    column = cast(pa.array(rows, nullable)[:], REQUIRED)
    assert column.type == REQUIRED
    assert column.to_pylist() == rows
    with pytest.raises(pa.ArrowInvalid):
        cast(pa.array([{"a": None, "b": []}], nullable), REQUIRED)
    assert cast(
        pa.array([{"a": 1}], pa.struct([("a", pa.int16())])), pa.struct([("a", pa.int32())])
    ).to_pylist() == [{"a": 1}]


TEXT = pa.string()
NESTED = pa.struct(
    [
        pa.field("x", TEXT, nullable=False),
        pa.field("flag", pa.bool_(), nullable=False),
        pa.field(
            "inner",
            pa.struct(
                [
                    pa.field("y", pa.int64(), nullable=False),
                    pa.field("l", pa.list_(pa.struct([pa.field("q", TEXT, nullable=False)])), nullable=False),
                ]
            ),
            nullable=False,
        ),
        pa.field("m", pa.map_(TEXT, pa.struct([pa.field("z", pa.int64(), nullable=False)])), nullable=False),
    ]
)


def nested(at: int) -> dict[str, object]:
    inner = {"y": at, "l": [{"q": "v"}, None] * (at % 3)}
    return {"x": f"a{at}", "flag": at % 2 == 0, "inner": inner, "m": [(f"k{i}", {"z": i}) for i in range(at % 4)]}


OPTIONAL = pa.struct(
    [
        ("x", TEXT),
        ("flag", pa.bool_()),
        ("inner", pa.struct([("y", pa.int32()), ("l", pa.list_(pa.struct([("q", TEXT)])))])),
        ("m", pa.map_(TEXT, pa.struct([("z", pa.int32())]))),
    ]
)
ROWS = [nested(at) if at % 3 else None for at in range(20)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(ROWS, OPTIONAL),
        pa.array(ROWS, OPTIONAL).slice(3, 9),
        pa.array([{"x": None}, *ROWS], OPTIONAL).slice(1),
        pa.array([*ROWS, {"x": None}], OPTIONAL)[:-1],
        pa.nulls(3, OPTIONAL),
        pa.array([], OPTIONAL),
    ],
    ids=["null records", "slice", "a null before a slice", "a null after it", "nulls", "empty"],
)
def test_null_records_and_slices_are_cast_to_required_fields(column: pa.Array) -> None:
    """A tombstone has nulls in its required fields."""
    made = cast(column, NESTED)
    made.validate(full=True)
    assert made.type == NESTED
    assert made.to_pylist() == column.to_pylist()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([made], schema=pa.schema([("value", NESTED)])), sink)
    assert pq.read_table(pa.BufferReader(sink.getvalue())).column(0).to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ({"x": None}, "x"),
        ({"inner": None}, "inner"),
        ({"inner": {"y": None, "l": []}}, "y"),
        ({"inner": {"y": 1, "l": [{"q": None}]}}, "q"),
        ({"m": [("k", {"z": None})]}, "z"),
        ({"m": None}, "m"),
    ],
)
def test_a_null_in_a_required_field_of_a_record_is_refused(broken: dict[str, object], field: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match=f"'{field}' is required"):
        cast(pa.array([*ROWS, nested(1) | broken], OPTIONAL), NESTED)


def test_a_list_whose_elements_begin_later_is_cast() -> None:
    """Neither the elements before the first list, nor those of a null list, count."""
    elements = pa.array([{"x": None}, {"x": "a"}, {"x": "b"}], pa.struct([("x", TEXT)]))
    column = pa.ListArray.from_arrays(pa.array([1, 2, 3], pa.int32()), elements)
    made = cast(column, pa.list_(pa.struct([pa.field("x", TEXT, nullable=False)])))
    assert made.to_pylist() == [[{"x": "a"}], [{"x": "b"}]]
    made.validate(full=True)
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), elements, mask=pa.array([True, False]))
    made = cast(hidden, pa.list_(pa.struct([pa.field("x", TEXT, nullable=False)])))
    assert made.to_pylist() == [None, [{"x": "a"}, {"x": "b"}]]
